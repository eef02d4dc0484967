#!/usr/bin/env python3
"""What a call costs, in instructions: cost.py [--quern build/quern]

Counts with callgrind, which gives the same number on every machine and at any load. Each cost is the difference between
two runs of a loop, long and short, divided by the difference in turns: what one turn costs, the loop itself included.

  compiled call   y = f(...), a compiled function of eight tiny arrays, less the instructions inside its kernels
  eager op        y = x + 1 on a tiny array, at the top level and in a function
  named op        y = maximum(x, 1) on a tiny array; also tanh(x), where, reductions of all axes and of one, and these as methods
  the others      programs of the interpreter alone: per call (fib), per turn of a loop, per update of a value with one owner

And what 300 calls cost the calling thread while a compiler runs that does not end, as a multiple of the same calls with
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

SHORT, LONG = 300, 1300
TINY = "let x = [1.0, 2.0, 3.0, 4.0]\nlet y = x\n"
SQUARE = "let m = [[1.0, 2.0], [3.0, 4.0]]\nlet y = m\n"
HEAD = TINY + """
fn f(a, b, c, d, e, g, h, i) = (a + b) * (c + d) + (e + g) * (h + i)
for _ in 0..100 { y = f(x, x, x, x, x, x, x, x) }
"""


def local(setup, turn):
    """A loop in a function."""
    return f"fn run(n) {{\n{setup}\nfor i in 0..n {{ {turn} }}\n}}\nrun(COUNT)\n"


# What runs (COUNT is how many turns), and at most how many instructions a turn may take.
COMPILED = "compiled call"
COSTS = {
    COMPILED: (HEAD + "for _ in 0..COUNT { y = f(x, x, x, x, x, x, x, x) }\n", 6000),
    "eager op": (TINY + "for _ in 0..COUNT { y = x + 1 }\n", 700),
    "eager op in a function": (local(TINY, "y = x + 1"), 700),
    "named op": (TINY + "for _ in 0..COUNT { y = maximum(x, 1) }\n", 700),
    "named op of one operand": (TINY + "for _ in 0..COUNT { y = tanh(x) }\n", 700),
    "sum": (TINY + "for _ in 0..COUNT { y = sum(x) }\n", 700),
    "max": (TINY + "for _ in 0..COUNT { y = max(x) }\n", 700),
    "mean": (TINY + "for _ in 0..COUNT { y = mean(x) }\n", 700),
    "method": (TINY + "for _ in 0..COUNT { y = x.sum() }\n", 700),
    "method with an operand": (TINY + "for _ in 0..COUNT { y = x.maximum(1) }\n", 700),
    "where": (TINY + "let c = x > 2\nfor _ in 0..COUNT { y = where(c, x, y) }\n", 700),
    "where with a number": (TINY + "let c = x > 2\nfor _ in 0..COUNT { y = where(c, x, 0) }\n", 700),
    "sum of columns": (SQUARE + "for _ in 0..COUNT { y = sum(m, axis: 0) }\n", 700),
    "sum of rows": (SQUARE + "for _ in 0..COUNT { y = sum(m, axis: -1) }\n", 700),
    "mean of rows": (SQUARE + "for _ in 0..COUNT { y = mean(m, axis: 1) }\n", 700),
    "max of columns": (SQUARE + "for _ in 0..COUNT { y = max(m, axis: 0) }\n", 700),
    "max of rows": (SQUARE + "for _ in 0..COUNT { y = max(m, 1) }\n", 700),
    "method along an axis": (SQUARE + "for _ in 0..COUNT { y = m.sum(axis: 1) }\n", 700),
    "method along an axis that stays": (SQUARE + "for _ in 0..COUNT { y = m.sum(axis: 1, keepdims: true) }\n", 700),
    "float loop": (local("let s = 0.0\nlet x = 0.5", "s = (s + x) * 0.25 - i * 0.125"), 200),
    "int loop with a branch": (local("let k = 0", "if i % 3 == 0 { k += i } else { k = k - 1 }"), 180),
    "top-level loop": ("let s = 0.0\nlet x = 0.5\nfor i in 0..COUNT { s = (s + x) * 0.25 - i * 0.125 }\n", 300),
    "list append": (local("let l = ()", "l = append(l, i)"), 480),
    "list item": (local("let l = list(0..2000)", "l[i] = l[i] + 1"), 220),
    "text append": (local('let s = ""', 's = s + "ab"'), 240),
    "record field": (local("let r = {a: 0, b: 1}", "r.a = r.a + i"), 180),
    "record field four deep": (local("let r = {b: {c: {d: {e: 0}}}}", "r.b.c.d.e = i"), 240),
    "array element": (local("let x = zeros(2000)", "x[i] = i * 0.5"), 220),
}
FIB = "fn fib(n) = if n < 2 { n } else { fib(n - 1) + fib(n - 2) }\nfib(COUNT)\n"
FIB_BOUND = 270  # a call
START_BOUND = 5_000_000  # a process that runs an empty program, the system's loader included


WHILE_COMPILING, CALLS = 1.25, 300


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
    good = True

    def check(name, cost, bound):
        print(f"{name}: {cost:.0f}, at most {bound}")
        return cost <= bound

    with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
        def counts(text, sizes, flags):
            return [instructions(quern, [*flags, "--threads", "1"], text.replace("COUNT", str(n)), folder) for n in sizes]

        for name, (text, bound) in COSTS.items():
            flags = ["--jit", "sync", "--set", "jit.hot=2"] if name == COMPILED else ["--jit", "off"]
            if name == COMPILED:  # fills the kernel cache, so that no compiler runs below
                counts(HEAD, [0], flags)
            short, long = counts(text, (SHORT, LONG), flags)
            total, kernels = ((b - a) / (LONG - SHORT) for a, b in zip(short, long))
            good = check(name, total - kernels, bound) and good
        few, many = counts(FIB, (10, 16), ["--jit", "off"])
        good = check("start of the process", counts("1\n", [0], [])[0][0], START_BOUND) and good
        good = check("call of fib", (many[0] - few[0]) / (3193 - 177), FIB_BOUND) and good
    programs = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cli", "run.py"))["WHILE_COMPILING"]
    with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
        for name, program in programs.items():
            text = "seed(1)\n" + program
            calls = text + f"for _ in 0..{CALLS} {{ f(x) }}\n"
            start = main_thread(quern, ["--jit", "off"], text, folder)
            off, on = (main_thread(quern, ["--jit", mode], calls, folder) - start for mode in ("off", "on"))
            print(f"{name}: {CALLS} calls while a compiler runs {on / off:.3f} times those of --jit off, at most {WHILE_COMPILING}")
            good = good and on <= WHILE_COMPILING * off
    sys.exit(0 if good else "FAILED: a bound is exceeded")


if __name__ == "__main__":
    main()
