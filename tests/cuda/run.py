"""The CUDA C of kernels, compiled for sm_90 with NVRTC; no GPU is needed.

    run.py FOLDER fetch                           bring the NVRTC library into FOLDER
    run.py FOLDER compile PROGRAM ARGS...         run PROGRAM (made of compile.c) with the library and ARGS
    run.py FOLDER script PROGRAM QUERN FILE ARGS  compile the kernels of the plans that a script needs

The library comes from the wheel nvidia-cuda-nvrtc, which pip downloads once. Where it cannot be had the tests are skipped
(status 77), unless CI=true is in the environment: then they fail.
"""

import os
import subprocess
import sys
import tempfile
import zipfile

WHEEL = "nvidia-cuda-nvrtc==13.0.88"
NAMES = ("libnvrtc-builtins.so.13.0", "libnvrtc.so.13")
SKIPPED = 77


def present(folder):
    return all(os.path.exists(os.path.join(folder, name)) for name in NAMES)


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as z:
        for member in sorted(z.namelist()):
            name = os.path.basename(member)
            if name not in NAMES:
                continue
            part = os.path.join(folder, name + ".part")
            with z.open(member) as source, open(part, "wb") as to:
                while piece := source.read(1 << 20):
                    to.write(piece)
            os.rename(part, os.path.join(folder, name))


def fetch(folder):
    """Downloads the wheel and unpacks its two libraries; what went wrong goes to stderr."""
    os.makedirs(folder, exist_ok=True)
    download = ["download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    for pip in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip3"]):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                done = subprocess.run(pip + download + ["-d", place, WHEEL], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=240)
            except (OSError, subprocess.TimeoutExpired) as e:
                print(e, file=sys.stderr)
                continue
            if done.returncode != 0:
                print(f"{' '.join(pip)}: {done.stdout[-500:]}", file=sys.stderr)
                continue
            for name in os.listdir(place):
                unpack(os.path.join(place, name), folder)
        if present(folder):
            return


def compile_kernels(folder, command):
    taken = os.path.join(folder, "taken-" + WHEEL.partition("==")[2])
    os.makedirs(taken, exist_ok=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=folder, NVRTC_TAKEN=taken)  # the library opens its builtins by name
    # What NVRTC itself leaves allocated is not ours to report.
    environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return subprocess.run([command[0], os.path.join(folder, NAMES[1])] + command[1:], env=environment).returncode


def compile_script(folder, program, quern, script):
    """No C compiler is needed to see the plans, so the script runs without one."""
    with tempfile.TemporaryDirectory() as place:
        environment = dict(os.environ, PATH=place, QUERN_CACHE=place)
        done = subprocess.run([quern, "--jit", "sync", "--set", "jit.hot=1", "--log", "kernels"] + script,
                              env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(done.stderr[-2000:], file=sys.stderr)
            return 1
        if "[kernels] " not in done.stderr:
            print("nothing is compiled here")
            return 0
        log = os.path.join(place, "kernels")
        with open(log, "w") as f:
            f.write(done.stderr)
        return compile_kernels(folder, [program, "files", log])


def main():
    folder, job, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if job == "fetch" and not present(folder):
        fetch(folder)
    if not present(folder):
        print(f"the NVRTC library ({WHEEL}) cannot be had")
        return 1 if os.environ.get("CI") == "true" else SKIPPED
    if job == "compile":
        return compile_kernels(folder, rest)
    if job == "script":
        return compile_script(folder, rest[0], rest[1], rest[2:])
    return 0


sys.exit(main())
