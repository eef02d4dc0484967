#!/usr/bin/env python3
"""The examples as tests: examples.py [--quern build/quern] [--seeds N] examples/NAME.qn

The script runs in every JIT mode, with one and with two threads, and must print the same each time. With `--seeds N` it
gets the seeds 1 to N as its argument instead, and its line `test accuracy A %` must reach 96 for each.
"""
import argparse
import os
import re
import subprocess
import sys

MODES = (["--jit", "off", "--threads", "1"], ["--jit", "off", "--threads", "2"],
         ["--jit", "sync", "--set", "jit.hot=1", "--threads", "1"], ["--jit", "sync", "--set", "jit.hot=2", "--threads", "2"],
         ["--jit", "on", "--threads", "1"], ["--jit", "on", "--threads", "2"])
LEAST_ACCURACY = 96.0


def run(quern, flags, script, *args):
    done = subprocess.run([quern, *flags, script, *args], capture_output=True, timeout=500, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"FAILED {' '.join([*flags, script, *args])}: status {done.returncode}\n"
                 f"{done.stdout.decode(errors='replace')}{done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script")
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
    first = run(quern, MODES[0], options.script)
    for flags in MODES[1:]:
        out = run(quern, flags, options.script)
        if out != first:
            sys.exit(f"FAILED: {' '.join(flags)} prints\n{out}\nand {' '.join(MODES[0])} prints\n{first}")
    print(f"the same output in {len(MODES)} runs:\n{first}")


if __name__ == "__main__":
    main()
