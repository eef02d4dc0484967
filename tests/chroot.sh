#!/usr/bin/env bash
# Jobs of ./dev as the first thing that happens on a fresh Debian machine: tests/chroot.sh FOLDER ["JOB ARGUMENTS"...]
#
# Each job runs as root in a copy of a bare Debian 12, in a clean clone of HEAD, with nothing that another job installed or built. Without jobs
# all of them run, in their quickest forms. FOLDER keeps the bare system (made by debootstrap once, from where this machine's apt
# gets its packages), the packages that were fetched, and what each job printed (logs). A line says how each ended; 77: there is no GPU.
# Exit status 1 if one failed.
#
# Needs root, debootstrap, overlay mounts, 2 GB, and some minutes a job: each builds everything.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -gt 0 ] && [ "$(id -u)" -eq 0 ] || { echo "usage, as root: tests/chroot.sh FOLDER [\"JOB ARGUMENTS\"...]" >&2 && exit 2; }
mkdir -p "$1/debs" "$1/logs"
folder=$(cd "$1" && pwd)
shift
base=$folder/base
[ $# -gt 0 ] || set -- help needs "demo 1" "run examples/heat.qn" repl build "build checked" "build fuzz" "test -R ^unit.lang_value" \
  "check -R ^unit.lang_value" "soak 0.1 strings" gpu-pack gpu-test "fuzz 5" "bench --row add --rounds 1 --seconds 0.05 --warm 0.1" \
  "bench interp --row start --rounds 1" "bench gpu" format reference

if [ ! -e "$base/.complete" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed 1q)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$base" "$mirror" >"$folder/logs/debootstrap" 2>&1
  # The same sources, settings and keys as here.
  rm -f "$base/etc/apt/sources.list" "$base"/var/cache/apt/archives/*.deb
  cp -a /etc/apt/. "$base/etc/apt/"
  cp -aL /etc/resolv.conf /etc/hosts "$base/etc/"
  cp -a /usr/share/keyrings/. "$base/usr/share/keyrings/"
  rm -rf "$base"/var/lib/apt/lists/*
  touch "$base/.complete"
fi

export root folder base here=$folder/here machine=$folder/here/merged
# Runs ./dev there. In a namespace of its own, with which all mounts go: nothing of this machine is ever below what is removed.
inside() {
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$here/upper,workdir=$here/work" "$machine"
  mount -t proc proc "$machine/proc"
  mount --rbind /dev "$machine/dev"
  mount --bind "$folder/debs" "$machine/var/cache/apt/archives"
  git clone -q --no-hardlinks "$root" "$machine/quern"
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TERM=dumb ${http_proxy:+"http_proxy=$http_proxy"} \
    ${https_proxy:+"https_proxy=$https_proxy"} chroot "$machine" /bin/sh -c 'cd /quern && exec ./dev "$@"' sh "$@"
}
export -f inside

bad=0
for job in "$@"; do
  rm -rf --one-file-system "$here"
  mkdir -p "$here/upper" "$here/work" "$machine"
  read -r -a words <<<"$job"
  began=$SECONDS status=0
  unshare --mount --propagation private bash -euo pipefail -c 'inside "$@"' bash "${words[@]}" </dev/null \
    >"$folder/logs/${job//[^a-z0-9]/_}" 2>&1 || status=$?
  printf '%4d %5d s  ./dev %s\n' "$status" "$((SECONDS - began))" "$job"
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || bad=1
done
rm -rf --one-file-system "$here"
exit $bad
