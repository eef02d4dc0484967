#!/usr/bin/env python3
"""What the jobs of ./dev need, and their first steps: dev.py ROOT

Every job that `./dev help` names has a row in `./dev needs`. On a machine where no package is found each job asks apt-get for just the
packages of its row, as its first step. (The machine is a copy of the script that finds nothing, and an apt-get that writes down what
it is asked for.)
"""
import os
import re
import subprocess
import sys
import tempfile

NEED_NOTHING = {"help", "needs"}
ARGUMENTS = {"run": ["x.qn"], "soak": ["0.01"], "fuzz": ["1"]}


def run(script, *args, **env):
    return subprocess.run(["bash", script, *args], env=dict(os.environ, **env), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=60)


def seeds(folder, text):
    """`./dev fuzz` in a fresh clone: scripts of the same name in several folders are all seeds. (Nothing is built, so there are no targets.)"""
    names = [f"{place}/{name}.qn" for place in ("tests/a", "tests/b", "examples", "stdlib") for name in ("same", place[-1])]
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        open(os.path.join(folder, name), "w").close()
    script = os.path.join(folder, "seeds")
    with open(script, "w", encoding="utf-8") as f:
        f.write(re.sub(r"^(need|build)\(\) \{", r"\1() { return 0; }\n\1_really() {", text, flags=re.M))
    done = run(script, "fuzz", "1", CI="")
    kept = [name for _, _, files in os.walk(os.path.join(folder, "build", "fuzz", "seeds")) for name in files]
    return [] if done.returncode == 0 and len(kept) == len(names) else [f"fuzz: status {done.returncode}, {len(kept)} seeds of {len(names)}\n{done.stderr}"]


def unknown(script):
    """A job that there is not is an error, which names those that there are."""
    bad = []
    for args in (["needs", "foo"], ["needs", "build test"], ["foo"]):
        done = run(script, *args)
        good = done.returncode == 2 and not done.stdout and f"there is no job '{args[-1]}'" in done.stderr and "gpu-test" in done.stderr
        bad += [] if good else [f"{args}: status {done.returncode}\n{done.stdout}{done.stderr}"]
    one = run(script, "needs", "build").stdout
    return bad + ([] if one.startswith("build: ") and one.count("\n") == 1 else [f"./dev needs build: {one}"])


def main():
    root = os.path.abspath(sys.argv[1])
    script = os.path.join(root, "dev")
    jobs = set(re.findall(r"^  ([a-z-]+)\b", run(script, "help").stdout, re.M)) - NEED_NOTHING
    rows = dict(line.split(": ") for line in run(script, "needs").stdout.splitlines())
    bad = [f"{job} has no row in ./dev needs" for job in sorted(jobs - set(rows))]
    bad += [f"./dev help does not name {job}" for job in sorted(set(rows) - jobs)]
    with open(os.path.join(root, "tests", "chroot.sh"), encoding="utf-8") as f:
        tried = set(re.findall(r"[a-z-]+", f.read().partition("set -- ")[2].partition("\n\n")[0]))
    bad += [f"tests/chroot.sh does not try {job}" for job in sorted(jobs - tried)]
    with tempfile.TemporaryDirectory(prefix="quern-dev-") as folder:
        with open(script, encoding="utf-8") as f:
            text, n = re.subn(r"^present\(\) \{", "present() { return 1; }\nfound() {", f.read(), flags=re.M)
        bad += [] if n == 1 else ["there is no function `present` in ./dev"]
        bare, tools, log = (os.path.join(folder, name) for name in ("dev", "bin", "log"))
        with open(bare, "w", encoding="utf-8") as f:
            f.write(text)
        os.mkdir(tools)
        for name, does in (("apt-get", f'echo "$*" >>{log}; exit 1'), ("sudo", 'exec "$@"')):
            with open(os.path.join(tools, name), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n{does}\n")
            os.chmod(os.path.join(tools, name), 0o755)
        os.makedirs(os.path.join(folder, "tests", "fuzz"))
        open(os.path.join(folder, "tests", "fuzz", "fuzz_x.c"), "w").close()
        for job in sorted(jobs & set(rows)):
            open(log, "w").close()
            done = run(bare, job, *ARGUMENTS.get(job, []), PATH=tools + ":" + os.environ["PATH"], CI="")
            with open(log, encoding="utf-8") as f:
                asked = re.findall(r" install -y --no-install-recommends (.*)", f.read())
            first = set(asked[0].split()) if asked else set()
            if done.returncode == 0 or first != set(rows[job].split()):
                bad.append(f"{job} asks for {sorted(first)}, its row has {rows[job].split()}; status {done.returncode}\n{done.stderr[-500:]}")
        bad += seeds(folder, text)
    bad += unknown(script)
    for line in bad:
        print("FAILED", line)
    print(f"{len(jobs)} jobs, {len(bad)} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
