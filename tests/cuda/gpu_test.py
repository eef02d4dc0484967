#!/usr/bin/env python3
"""Everything that is to be seen on a machine with a GPU, in one go; `./dev gpu-test` builds and calls it.

  gpu_test.py [--quern build/quern] [--device-test build/tests/cuda_device] [--seconds S] [PART...]

Parts, in this order (all, if none is named):
  doctor        what is there
  language      the language scripts, in every mode
  examples      the examples print what they print on the CPU, times aside
  differential  random programs for S seconds (100): the CPU's bits, eager and compiled
  kernels       random L programs against their definition
  sanitizer     compute-sanitizer over a few scripts, where it is installed

Kernels are cached in a folder of the run's own. Ends with status 1 if a part fails, 77 if there is no GPU.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
ROOT = os.path.dirname(TESTS)
MODES = ("off", "sync", "on", "verify")
PARTS = ("doctor", "language", "examples", "differential", "kernels", "sanitizer")
SKIPPED = 77
# What a script prints of times, and where its arrays are.
VARYING = re.compile(r"[0-9.]+ (?:ns|us|ms|s|seconds)\b|\b(?:cpu|gpu\(0\))")


def output(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    return done.returncode, done.stdout


def scripts():
    found = glob.glob(os.path.join(TESTS, "language", "**", "*.qn"), recursive=True)
    return sorted(p for p in found if not os.path.basename(p).startswith("_") and "/lib/" not in p)


def doctor(o):
    status, text = output([o.quern, "doctor"])
    print(text)
    return status == 0


def language(o):
    run = [sys.executable, os.path.join(TESTS, "language", "run.py"), "--quern", o.quern, "--device", "gpu"]
    jobs = [(mode, path) for mode in MODES for path in scripts()]
    with ThreadPoolExecutor(o.jobs) as pool:
        results = list(pool.map(lambda job: output(run + ["--mode", job[0], job[1]]), jobs))
    bad = [text for status, text in results if status]
    print("".join(bad) + f"{len(jobs) - len(bad)} of {len(jobs)} passed")
    return not bad


def examples(o):
    good = True
    for path in sorted(glob.glob(os.path.join(ROOT, "examples", "*.qn"))):
        name = os.path.basename(path)
        arguments = ["1", "2"] if name == "digits.qn" else []
        texts = []
        for flags in ([], ["--device", "gpu"], ["--device", "gpu", "--jit", "sync"]):
            start = time.monotonic()
            status, text = output([o.quern, *flags, path, *arguments])
            texts.append(VARYING.sub("#", text))
            print(f"{name:16} {' '.join(flags) or 'cpu':28} {time.monotonic() - start:6.2f} s")
            good = good and status == 0
        if texts[0] != texts[1] or texts[0] != texts[2]:
            print(f"{name}: what it prints differs:\n{texts[0]}\n{texts[1]}\n{texts[2]}")
            good = False
    return good


def differential(o):
    command = [sys.executable, os.path.join(TESTS, "differential", "run.py"), "--quern", o.quern, "--seed", "random",
               "--device", "gpu", "--seconds", str(o.seconds), "--jobs", str(o.jobs)]
    status, text = output(command)
    print(text)
    return status == 0


def kernels(o):
    found = [p for place in ("/usr/local/cuda/lib64", os.path.join(os.environ.get("CUDA_HOME", "/none"), "lib64"))
             for p in glob.glob(os.path.join(place, "libnvrtc.so.1[23]"))]
    if not found or not os.path.exists(o.device_test):
        print("NVRTC or the test's program is not there")
        return True
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = os.path.dirname(found[0]) + ":" + environment.get("LD_LIBRARY_PATH", "")
    status, text = output([o.device_test, found[0], "1", "160"], env=environment)
    print(text)
    return status in (0, SKIPPED)


def sanitizer(o):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        print("compute-sanitizer is not there")
        return True
    chosen = [p for p in scripts() if re.search(r"/(reductions|indexing_combined|stdlib_random|broadcast_scans|same_bits)\.qn$", p)][:4]
    good = True
    for path in chosen:
        command = [tool, "--error-exitcode", "9", o.quern, "--device", "gpu", "--jit", "sync", "--set", "jit.hot=1", path]
        status, text = output(command)
        print(f"{os.path.basename(path)}: status {status}, {text.strip().splitlines()[-1] if text.strip() else ''}")
        good = good and status != 9
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--quern", default=os.path.join(ROOT, "build", "quern"))
    parser.add_argument("--device-test", default=os.path.join(ROOT, "build", "tests", "cuda_device"))
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    o = parser.parse_args()
    o.quern = os.path.abspath(o.quern)
    if output([o.quern, "--device", "gpu", "-e", "[1]"])[0] != 0:
        print("there is no GPU")
        return SKIPPED
    failed = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["QUERN_CACHE"] = cache
        for part in o.parts or PARTS:
            start = time.monotonic()
            print(f"==== {part}", flush=True)
            if not globals()[part](o):
                failed.append(part)
            print(f"---- {part}: {time.monotonic() - start:.1f} s", flush=True)
    print("failed: " + ", ".join(failed) if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
