#!/usr/bin/env python3
"""What a call costs, in instructions: cost.py [--quern build/quern]

Counts with callgrind, which gives the same number on every machine and at any load. Each cost is the difference between
two runs of a loop, long and short, less the same difference of the loop without the operation:

  eager op        y = x + 1 on a tiny array, interpreter included
  compiled call   a call of a compiled function of eight tiny arrays, less the instructions inside its kernels

And what 1,000 calls cost the calling thread while a compiler runs that does not end, as a multiple of the same calls with
`--jit off`: recording, looking up and running plans on the block VM included.

The bounds are limits that must hold, not goals.
"""
import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile

BOUNDS = {"eager op": 1200, "compiled call": 6000}
SHORT, LONG = 300, 1300
HEAD = """
fn f(a, b, c, d, e, g, h, i) = (a + b) * (c + d) + (e + g) * (h + i)
let x = [1.0, 2.0, 3.0, 4.0]
let y = x
for _ in 0..100 { y = f(x, x, x, x, x, x, x, x) }
"""
LOOPS = {
    "empty": "for _ in 0..{n} {{ y = x }}\n",
    "eager op": "for _ in 0..{n} {{ y = x + 1 }}\n",
    "compiled call": "for _ in 0..{n} {{ y = f(x, x, x, x, x, x, x, x) }}\n",
}


WHILE_COMPILING = 1.25


def main_thread(quern, flags, text, folder):
    """Instructions of the thread that runs the script, with a compiler that takes longer than the script."""
    script, out, bin_folder = (os.path.join(folder, name) for name in ("w.qn", "threads.out", "bin"))
    os.makedirs(bin_folder, exist_ok=True)
    with open(os.path.join(bin_folder, "cc"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexec sleep 300\n")
    os.chmod(f.name, 0o755)
    with open(script, "w", encoding="utf-8") as f:
        f.write(text)
    command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}", quern, *flags, "--threads", "1", script]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, QUERN_CACHE=os.path.join(folder, "nothing"), PATH=f"{bin_folder}:{os.environ['PATH']}"))
    if done.returncode != 0:
        sys.exit(f"FAILED {' '.join(command)}\n{done.stdout}{done.stderr}")
    with open(out + "-01", encoding="utf-8", errors="replace") as f:
        return int(re.search(r"^totals: (\d+)", f.read(), re.M).group(1))


def instructions(quern, flags, text, folder):
    """All instructions of a run, and those in emitted kernels (objects loaded from the kernel cache)."""
    script, out = os.path.join(folder, "s.qn"), os.path.join(folder, "callgrind.out")
    with open(script, "w", encoding="utf-8") as f:
        f.write(text)
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", quern, *flags, script]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, QUERN_CACHE=os.path.join(folder, "cache")))
    found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"FAILED {' '.join(command)}\n{done.stdout}{done.stderr}")
    return int(found.group(1)), kernel_share(out)


def kernel_share(path):
    """Self cost of functions that lie in no named part of the binary or a system library: emitted code."""
    names, inside, cost, skip = {}, False, 0, False
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            found = re.match(r"ob=\((\d+)\)(?: (.*))?", line)
            if found:
                if found.group(2):
                    names[found.group(1)] = found.group(2).strip()
                name = names.get(found.group(1), "")
                inside = "/cache/" in name or "memfd" in name or name == "???" or name.endswith(".o")
            elif line.startswith("cob="):
                found = re.match(r"cob=\((\d+)\)(?: (.*))?", line)
                if found and found.group(2):
                    names[found.group(1)] = found.group(2).strip()
            elif line.startswith("calls="):
                skip = True
            elif line[:1] in "+-*0123456789":
                if not skip and inside:
                    cost += int(line.split()[1])
                skip = False
    return cost


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    quern = os.path.abspath(parser.parse_args().quern)
    modes = {"empty": ["--jit", "off"], "eager op": ["--jit", "off"],
             "compiled call": ["--jit", "sync", "--set", "jit.hot=2"]}
    costs = {}
    with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
        for name, loop in LOOPS.items():
            flags = [*modes[name], "--threads", "1"]
            if name == "compiled call":  # fills the kernel cache, so that no compiler runs below
                instructions(quern, flags, HEAD, folder)
            short, long = (instructions(quern, flags, HEAD + loop.format(n=n), folder) for n in (SHORT, LONG))
            total, kernels = ((b - a) / (LONG - SHORT) for a, b in zip(short, long))
            costs[name] = total - kernels
            print(f"{name}: {total:.0f} instructions, {kernels:.0f} of them in kernels")
    good = True
    for name, bound in BOUNDS.items():
        cost = costs[name] - costs["empty"]
        print(f"{name}: {cost:.0f}, at most {bound}")
        good = good and cost <= bound
    programs = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cli", "run.py"))["WHILE_COMPILING"]
    with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
        for name, program in programs.items():
            text = "seed(1)\n" + program
            calls = text + "for _ in 0..1000 { f(x) }\n"
            start = main_thread(quern, ["--jit", "off"], text, folder)
            off, on = (main_thread(quern, ["--jit", mode], calls, folder) - start for mode in ("off", "on"))
            print(f"{name}: 1,000 calls while a compiler runs {on / off:.3f} times those of --jit off, at most {WHILE_COMPILING}")
            good = good and on <= WHILE_COMPILING * off
    sys.exit(0 if good else "FAILED: a bound is exceeded")


if __name__ == "__main__":
    main()
