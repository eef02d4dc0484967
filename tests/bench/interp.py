#!/usr/bin/env python3
"""Compares the interpreter with CPython and Lua on programs without arrays (or with tiny ones), interleaved in one run.

  interp.py [--quern build/quern] [--row NAME] [--rounds N] [--size PART] [--instructions] [--python PYTHON]

Each row is one program in three languages, written as one would write it in each: a function `run(n)` that returns what it computed.
A participant is a process of its own for each sample; it calls run(n) once, and prints the seconds that this took and the result,
which must be the same text everywhere. Participants take turns, round after round, so that a busy minute of the machine hits all of
them alike; the table shows medians, and the ratio to CPython (above 1 is slower than that).

  quern        the interpreter alone (--jit off)
  quern jit    with the compiler beside it, as it comes
  CPython      the interpreter that runs this script, or PYTHON
  Lua          lua5.4 or lua, where it is installed

`start` is the time of the whole process that runs an empty program. With --instructions callgrind counts what a row costs per unit of
its work (the difference between two sizes), which does not depend on the machine's mood; this takes a minute a row.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HEADS = {
    "quern": "{body}\nlet t = time()\nlet result = run({n})\nprint(time() - t)\nprint(result)\n",
    "python": "import time\n{body}\nt = time.perf_counter()\nresult = run({n})\nprint(time.perf_counter() - t)\nprint(result)\n",
    "lua": "{body}\nlocal t = os.clock()\nlocal result = run({n})\nprint(os.clock() - t)\nprint(result)\n",
}


class Row:
    """`n` is the size that is timed, `small` the pair of sizes between which instructions are counted, `work` the units in run(n)."""

    def __init__(self, title, n, small, quern, python, lua=None, work=lambda n: n, unit="iteration"):
        self.title, self.n, self.small, self.work, self.unit = title, n, small, work, unit
        self.programs = {"quern": quern, "python": python, "lua": lua}


def calls_of_fib(n):
    a, b = 1, 1
    for _ in range(n - 1):
        a, b = b, a + b + 1
    return b


ROWS = {
    "fib": Row("fib(30): calls", 30, (10, 15), """
fn fib(n) = if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
fn run(n) = fib(n)
""", """
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def run(n):
    return fib(n)
""", """
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
function run(n) return fib(n) end
""", work=calls_of_fib, unit="call"),
    "loops": Row("nested loops, 10M float operations", 2_500_000, (3_000, 13_000), """
fn run(n) {
  let s = 0.0
  for i in 0..n // 1000 {
    let x = i * 0.5
    for j in 0..1000 { s = (s + x) * 0.25 - j * 0.125 }
  }
  s
}
""", """
def run(n):
    s = 0.0
    for i in range(n // 1000):
        x = i * 0.5
        for j in range(1000):
            s = (s + x) * 0.25 - j * 0.125
    return s
""", """
function run(n)
  local s = 0.0
  for i = 0, n // 1000 - 1 do
    local x = i * 0.5
    for j = 0, 999 do s = (s + x) * 0.25 - j * 0.125 end
  end
  return string.format("%.15f", s):gsub("0+$", "")
end
"""),
    "top": Row("the same loop at the top level (globals)", 1_000_000, (1_000, 11_000), """
let s = 0.0
let x = 0.5
let m = {n}
let t = time()
for j in 0..m {{ s = (s + x) * 0.25 - j * 0.125 }}
print(time() - t)
print(s)
""", """
import time
s = 0.0
x = 0.5
m = {n}
t = time.perf_counter()
for j in range(m): s = (s + x) * 0.25 - j * 0.125
print(time.perf_counter() - t)
print(s)
"""),
    "while": Row("Collatz: while, if, int arithmetic", 30_000, (100, 400), """
fn run(n) {
  let total = 0
  for i in 1..n {
    let k = i
    while k != 1 {
      if k % 2 == 0 { k = k // 2 } else { k = 3 * k + 1 }
      total += 1
    }
  }
  total
}
""", """
def run(n):
    total = 0
    for i in range(1, n):
        k = i
        while k != 1:
            if k % 2 == 0:
                k = k // 2
            else:
                k = 3 * k + 1
            total += 1
    return total
""", """
function run(n)
  local total = 0
  for i = 1, n - 1 do
    local k = i
    while k ~= 1 do
      if k % 2 == 0 then k = k // 2 else k = 3 * k + 1 end
      total = total + 1
    end
  end
  return total
end
"""),
    "strings": Row("string building, s = s + piece, 1M times", 1_000_000, (1_000, 11_000), """
fn run(n) {
  let s = ""
  for i in 0..n { s = s + "ab" }
  len(s)
}
""", """
def run(n):
    s = ""
    for i in range(n):
        s = s + "ab"
    return len(s)
"""),
    "format": Row("text of numbers, joined, 300k", 300_000, (1_000, 4_000), """
fn run(n) {
  let parts = ()
  for i in 0..n { parts = append(parts, "{i}: {i * 0.5}") }
  len(join(parts, ", "))
}
""", """
def run(n):
    parts = []
    for i in range(n):
        parts.append(f"{i}: {i * 0.5}")
    return len(", ".join(parts))
"""),
    "append": Row("list append, 1M", 1_000_000, (1_000, 11_000), """
fn run(n) {
  let xs = ()
  for i in 0..n { xs = append(xs, i) }
  len(xs)
}
""", """
def run(n):
    xs = []
    for i in range(n):
        xs.append(i)
    return len(xs)
""", """
function run(n)
  local xs = {}
  for i = 0, n - 1 do xs[#xs + 1] = i end
  return #xs
end
"""),
    "list": Row("list items: a sieve", 500_000, (1_000, 4_000), """
fn run(n) {
  let sieve = repeat((true,), n)
  let count = 0
  for i in 2..n {
    if sieve[i] {
      count += 1
      let k = i * i
      while k < n {
        sieve[k] = false
        k += i
      }
    }
  }
  count
}
""", """
def run(n):
    sieve = [True] * n
    count = 0
    for i in range(2, n):
        if sieve[i]:
            count += 1
            k = i * i
            while k < n:
                sieve[k] = False
                k += i
    return count
""", """
function run(n)
  local sieve = {}
  for i = 0, n - 1 do sieve[i] = true end
  local count = 0
  for i = 2, n - 1 do
    if sieve[i] then
      count = count + 1
      local k = i * i
      while k < n do
        sieve[k] = false
        k = k + i
      end
    end
  end
  return count
end
"""),
    "records": Row("record update four levels deep, 500k", 500_000, (1_000, 11_000), """
fn run(n) {
  let a = {b: {c: {d: 0, e: 1}, f: 2}, g: 3}
  for i in 0..n { a.b.c.d = a.b.c.d + i }
  a.b.c.d
}
""", """
class Node:
    def __init__(self, **fields):
        for name, value in fields.items():
            setattr(self, name, value)
def run(n):
    a = Node(b=Node(c=Node(d=0, e=1), f=2), g=3)
    for i in range(n):
        a.b.c.d = a.b.c.d + i
    return a.b.c.d
""", """
function run(n)
  local a = {b = {c = {d = 0, e = 1}, f = 2}, g = 3}
  for i = 0, n - 1 do a.b.c.d = a.b.c.d + i end
  return a.b.c.d
end
"""),
    "path": Row("a.b[i].c = v, 500k", 500_000, (1_000, 11_000), """
fn run(n) {
  let a = {b: ({c: 0, d: 1}, {c: 5, d: 2}), n: 0}
  for i in 0..n { a.b[i % 2].c = i }
  a.b[0].c + a.b[1].c
}
""", """
class Node:
    def __init__(self, **fields):
        for name, value in fields.items():
            setattr(self, name, value)
def run(n):
    a = Node(b=[Node(c=0, d=1), Node(c=5, d=2)], n=0)
    for i in range(n):
        a.b[i % 2].c = i
    return a.b[0].c + a.b[1].c
""", """
function run(n)
  local a = {b = {[0] = {c = 0, d = 1}, {c = 5, d = 2}}, n = 0}
  for i = 0, n - 1 do a.b[i % 2].c = i end
  return a.b[0].c + a.b[1].c
end
"""),
    "bodies": Row("records in functions: 40k steps of two bodies", 40_000, (100, 600), """
fn step(p, q, dt) {
  let dx = p.x - q.x
  let dy = p.y - q.y
  let f = dt / (dx * dx + dy * dy + 0.01)
  p.vx -= dx * f
  p.vy -= dy * f
  p.x += dt * p.vx
  p.y += dt * p.vy
  p
}
fn run(n) {
  let a = {x: 0.0, y: 0.0, vx: 0.0, vy: 1.0}
  let b = {x: 1.0, y: 0.5, vx: 0.0, vy: -1.0}
  for _ in 0..n {
    a = step(a, b, 0.001)
    b = step(b, a, 0.001)
  }
  a.x + b.y
}
""", """
class Body:
    def __init__(self, x, y, vx, vy):
        self.x, self.y, self.vx, self.vy = x, y, vx, vy
def step(p, q, dt):
    dx = p.x - q.x
    dy = p.y - q.y
    f = dt / (dx * dx + dy * dy + 0.01)
    p.vx -= dx * f
    p.vy -= dy * f
    p.x += dt * p.vx
    p.y += dt * p.vy
    return p
def run(n):
    a = Body(0.0, 0.0, 0.0, 1.0)
    b = Body(1.0, 0.5, 0.0, -1.0)
    for _ in range(n):
        a = step(a, b, 0.001)
        b = step(b, a, 0.001)
    return a.x + b.y
"""),
    "closures": Row("functions as values: map and fold, 300k items", 300_000, (1_000, 4_000), """
fn run(n) {
  let k = 3
  let xs = map(list(0..n), fn(x) x * k + 1)
  fold(xs, fn(s, x) s + x, 0)
}
""", """
from functools import reduce
def run(n):
    k = 3
    xs = list(map(lambda x: x * k + 1, range(n)))
    return reduce(lambda s, x: s + x, xs, 0)
"""),
    "store": Row("x[i] = v over an array of 1M floats (CPython: a list)", 1_000_000, (1_000, 11_000), """
fn run(n) {
  let x = zeros(n)
  for i in 0..n { x[i] = i * 0.5 }
  float(x[n - 1])
}
""", """
def run(n):
    x = [0.0] * n
    for i in range(n):
        x[i] = i * 0.5
    return x[n - 1]
""", """
function run(n)
  local x = {}
  for i = 0, n - 1 do x[i] = 0.0 end
  for i = 0, n - 1 do x[i] = i * 0.5 end
  return x[n - 1]
end
"""),
    "load": Row("s += x[i] over an array of 300k floats (NumPy)", 300_000, (1_000, 4_000), """
fn run(n) {
  let x = ones(n, dtype: f64)
  let s = 0.0
  for i in 0..n { s += float(x[i]) }
  s
}
""", """
import numpy
def run(n):
    x = numpy.ones(n)
    s = 0.0
    for i in range(n):
        s += float(x[i])
    return s
"""),
    "tiny": Row("y = x + 1 on f32[4], 300k (NumPy)", 300_000, (300, 1_300), """
fn run(n) {
  let x = [1.0, 2.0, 3.0, 4.0]
  let y = x
  for _ in 0..n { y = x + 1 }
  float(y[3])
}
""", """
import numpy
def run(n):
    x = numpy.array([1.0, 2.0, 3.0, 4.0], dtype=numpy.float32)
    y = x
    for _ in range(n):
        y = x + 1
    return float(y[3])
"""),
}
START = {"quern": "1\n", "python": "1\n", "lua": "local x = 1\n"}


class Participant:
    def __init__(self, name, language, command):
        self.name, self.language, self.command = name, language, command


def participants(options):
    quern, off = os.path.abspath(options.quern), ["--jit", "off"]
    found = [Participant("quern", "quern", [quern, *off]), Participant("quern jit", "quern", [quern]),
             Participant("CPython", "python", [options.python])]
    lua = shutil.which("lua5.4") or shutil.which("lua")
    return found + ([Participant("Lua", "lua", [lua])] if lua else [])


def program(row, language, n):
    body = row.programs[language]
    if body is None:
        return None
    return body.format(n=n) if "{n}" in body else HEADS[language].replace("{body}", body).replace("{n}", str(n))


def write(folder, language, text):
    path = os.path.join(folder, "program." + {"quern": "qn", "python": "py", "lua": "lua"}[language])
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def sample(p, path):
    """(seconds, result) or (None, what went wrong)."""
    done = subprocess.run([*p.command, path], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    lines = done.stdout.split()
    if done.returncode != 0 or len(lines) != 2:
        return None, (done.stderr.strip().splitlines() or ["no result"])[-1]
    return float(lines[0]), lines[1]


def run_row(key, options, folder, everybody):
    row, times, results, trouble = ROWS[key], {}, {}, {}
    n = max(int(row.n * options.size), 1) if key != "fib" else row.n
    for _ in range(options.rounds):
        for p in everybody:
            text = program(row, p.language, n)
            if text is None or p.name in trouble:
                continue
            seconds, result = sample(p, write(folder, p.language, text))
            if seconds is None:
                trouble[p.name] = result
                continue
            times.setdefault(p.name, []).append(seconds)
            results[p.name] = result
    return {k: statistics.median(v) for k, v in times.items()}, results, trouble


def run_start(options, folder, everybody):
    times = {}
    for _ in range(max(options.rounds * 4, 10)):
        for p in everybody:
            path = write(folder, p.language, START[p.language])
            begun = time.perf_counter()
            subprocess.run([*p.command, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            times.setdefault(p.name, []).append(time.perf_counter() - begun)
    return {k: statistics.median(v) for k, v in times.items()}


def counted(command, path):
    """Instructions of a run. The hash seed makes CPython repeat itself."""
    with tempfile.NamedTemporaryFile(prefix="quern-callgrind-") as out:
        done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", *command, path], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, env=dict(os.environ, PYTHONHASHSEED="0"))
    found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"FAILED {' '.join(command)} {path}\n{done.stdout}{done.stderr}")
    return int(found.group(1))


def instructions(row, folder, p):
    """Instructions per unit of a row's work, or None."""
    costs = []
    for n in row.small:
        text = program(row, p.language, n)
        if text is None:
            return None
        costs.append(counted(p.command, write(folder, p.language, text)))
    small, large = row.small
    return (costs[1] - costs[0]) / (row.work(large) - row.work(small))


def shown(seconds):
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def same(a, b):
    try:
        return abs(float(a) - float(b)) <= 1e-12 * abs(float(b))
    except ValueError:
        return a == b


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", choices=[*ROWS, "start"], help="only this row (repeatable)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=float, default=1, help="times the rows' sizes")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind instead of timing")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    everybody = participants(options)
    names = [p.name for p in everybody]
    slower = []
    with tempfile.TemporaryDirectory(prefix="quern-bench-") as folder:
        if options.instructions:
            counting = [p for p in everybody if p.name != "quern jit"]
            print(f"{'instructions':56}" + "".join(f"{p.name:>11}" for p in counting))
            for key in options.row or ROWS:
                costs = [instructions(ROWS[key], folder, p) for p in counting] if key in ROWS else []
                if costs:
                    print(f"{ROWS[key].title:50}{ROWS[key].unit:>6}"[:56].ljust(56) + "".join(f"{'' if c is None else f'{c:.1f}':>11}" for c in costs), flush=True)
            return
        print(f"{'':56}" + "".join(f"{n:>11}" for n in names) + f"{'ratio':>8}{'jit':>6}")
        for key in options.row or [*ROWS, "start"]:
            if key == "start":
                times, results, trouble, title = run_start(options, folder, everybody), {}, {}, "start: the process of an empty program"
            else:
                times, results, trouble = run_row(key, options, folder, everybody)
                title = ROWS[key].title
            base = times.get("CPython")
            ratios = [times[n] / base if base and n in times else None for n in names[:2]]
            print(f"{title:56}" + "".join(f"{shown(times.get(n)):>11}" for n in names)
                  + "".join(f"{'' if r is None else f'{r:.2f}':>{w}}" for r, w in zip(ratios, (8, 6))), flush=True)
            for n, why in trouble.items():
                print(f"    {n}: {why}")
            for n, result in results.items():
                if n != "Lua" and not same(result, results["quern"]):
                    print(f"    {n} gives {result}, quern {results['quern']}")
            slower += [title for r in ratios if r is not None and r > 1]
    print("no row is slower than CPython" if not slower else "slower than CPython: " + "; ".join(dict.fromkeys(slower)))


if __name__ == "__main__":
    main()
