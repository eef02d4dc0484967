"""Compiles the CUDA C of every golden kernel, and of random ones, with NVRTC for sm_90; no GPU is needed.

    run.py COMPILE CACHE FILE.l...

COMPILE is the program made of compile.c. The NVRTC library comes from the wheel nvidia-cuda-nvrtc, which pip downloads into
the folder CACHE once. Where that cannot be had the test is skipped (status 77), unless CI=true is in the environment.
"""

import os
import subprocess
import sys
import zipfile

WHEEL = "nvidia-cuda-nvrtc==13.0.88"
NAMES = ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0")


def unpacked(folder):
    return all(os.path.exists(os.path.join(folder, name)) for name in NAMES)


def fetch(folder):
    """Downloads the wheel and unpacks its two libraries. False, with the reason on stderr, if that fails."""
    os.makedirs(folder, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, WHEEL]
    for command in (pip, ["pip"] + pip[3:]):
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
        except (OSError, subprocess.TimeoutExpired) as e:
            print(e, file=sys.stderr)
            continue
        if done.returncode == 0:
            break
        print(done.stdout[-500:], file=sys.stderr)
    else:
        return False
    for wheel in os.listdir(folder):
        if not wheel.endswith(".whl"):
            continue
        with zipfile.ZipFile(os.path.join(folder, wheel)) as z:
            for member in z.namelist():
                name = os.path.basename(member)
                if name not in NAMES:
                    continue
                with z.open(member) as source, open(os.path.join(folder, name + ".part"), "wb") as to:
                    while piece := source.read(1 << 20):
                        to.write(piece)
                os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))
        os.remove(os.path.join(folder, wheel))
    return unpacked(folder)


def main():
    compile_program, cache = sys.argv[1:3]
    if not unpacked(cache) and not fetch(cache):
        print(f"{WHEEL} cannot be had")
        return 1 if os.environ.get("CI") == "true" else 77
    environment = dict(os.environ, LD_LIBRARY_PATH=cache)  # the library opens its builtins by name
    command = [compile_program, os.path.join(cache, NAMES[0]), "--random", "1", "48"] + sys.argv[3:]
    return subprocess.run(command, env=environment).returncode


sys.exit(main())
