#!/usr/bin/env python3
"""The examples as tests: examples.py [--quern build/quern] [--seeds N] [--device gpu [--set X=Y]] examples/NAME.qn [ARGS]

The script runs in every JIT mode, with one and with two threads, and must print the same each time, and end with the same
arrays, bit for bit: all trees of arrays and numbers in its top-level variables are saved and compared. With `--seeds N` it
gets the seeds 1 to N as its argument instead, and its line `test accuracy A %` must reach 96 for each. With `--device` the
first run is the CPU's, and the others are that device's, in every JIT mode: what is told of kernels may differ, since graphs are
cut otherwise there. Where settings are given, a last run without them must end well. What is emitted must compile in all of them.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

MODES = (["--jit", "off", "--threads", "1"], ["--jit", "off", "--threads", "2"],
         ["--jit", "sync", "--set", "jit.hot=1", "--threads", "1"], ["--jit", "sync", "--set", "jit.hot=2", "--threads", "2"],
         ["--jit", "on", "--threads", "1"], ["--jit", "on", "--threads", "2"],
         ["--jit", "verify", "--set", "jit.hot=2", "--threads", "1"], ["--jit", "verify", "--threads", "2"])
DEVICE_MODES = (["--jit", "off"], ["--jit", "sync", "--set", "jit.hot=1"], ["--jit", "on"], ["--jit", "verify", "--set", "jit.hot=2"])
HERE = re.compile(r"\b(?:cpu|gpu\(0\))")  # where a printed array is
KERNELS = re.compile(r"^.*\bkernels?\b.*\n|^  .*\boperations?\n|^  \.\.\.\n", re.M)  # what is told of kernels
REFUSED = re.compile(rb"C compiler failed|NVRTC failed")
CLOCK = re.compile(r"time\(\)")  # variables that hold times differ, of course
LEAST_ACCURACY = 96.0


def run(quern, flags, script, *args):
    done = subprocess.run([quern, *flags, script, *args], capture_output=True, timeout=500, stdin=subprocess.DEVNULL)
    refused = REFUSED.search(done.stderr)
    if done.returncode != 0 or refused:
        sys.exit(f"FAILED {' '.join([*flags, script, *args])}: {'emitted code does not compile' if refused else f'status {done.returncode}'}\n"
                 f"{done.stdout.decode(errors='replace')}{done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script")
    parser.add_argument("args", nargs="*")
    parser.add_argument("--device")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    if options.seeds:
        for seed in range(1, options.seeds + 1):
            found = re.search(r"test accuracy ([0-9.]+) %", run(quern, [], options.script, str(seed)))
            accuracy = float(found.group(1)) if found else 0.0
            print(f"seed {seed}: {accuracy} %")
            if accuracy < LEAST_ACCURACY:
                sys.exit(f"FAILED: at least {LEAST_ACCURACY} % expected")
        return
    with open(options.script, encoding="utf-8") as f:
        text = f.read()
    names = set()
    for found in re.finditer(r"^let (?:\(([^)]*)\)|(\w+)) = (.*)$", text, re.M):
        if not CLOCK.search(found.group(3)) and "seconds" not in found.group(3):
            names.update(n.strip() for n in (found.group(1) or found.group(2)).split(","))
    folder = tempfile.mkdtemp(prefix="quern-examples-")
    try:
        copy = os.path.join(folder, os.path.basename(options.script))
        with open(copy, "w", encoding="utf-8") as f:
            f.write(text)
            for n in sorted(names):
                f.write(f'\ntry {{ save("{folder}/{n}.npz", {{value: {n}}}) }} catch _ {{ }}')
            f.write("\n")
        modes = MODES
        if options.device:
            more = ["--device", options.device] + [text for setting in options.set for text in ("--set", setting)]
            modes = MODES[:1] + tuple(flags + more for flags in DEVICE_MODES)
        compare(quern, modes, [copy, *options.args], folder)
        if options.device and options.set:
            run(quern, ["--device", options.device, *DEVICE_MODES[1]], copy, *options.args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def saved(folder):
    """The saved files by name, which are taken away."""
    files = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".npz"):
            with open(os.path.join(folder, name), "rb") as f:
                files[name] = f.read()
            os.remove(os.path.join(folder, name))
    return files


def said(text, there):
    """What runs must agree in."""
    return HERE.sub("#", KERNELS.sub("", text) if there else text)


def compare(quern, modes, command, folder):
    there = "--device" in modes[-1]
    first = run(quern, modes[0], *command)
    arrays = saved(folder)
    for flags in modes[1:]:
        out, now = run(quern, flags, *command), saved(folder)
        if said(out, there) != said(first, there):
            sys.exit(f"FAILED: {' '.join(flags)} prints\n{out}\nand {' '.join(modes[0])} prints\n{first}")
        if now != arrays:
            differ = [n for n in sorted({*now, *arrays}) if now.get(n) != arrays.get(n)]
            sys.exit(f"FAILED: {' '.join(flags)} ends with other values than {' '.join(modes[0])} in {', '.join(differ)}")
    print(f"the same output in {len(modes)} runs, and the same values of {', '.join(arrays)}:\n{first}")


if __name__ == "__main__":
    main()
