#!/usr/bin/env python3
"""Strings against Python's: strings.py [--quern build/quern] [--seed N|random] [--count N] [--seconds S]

Random texts of one to four bytes a character go through every string function, index and slice; what Quern prints with repr
must be what Python's own string functions give.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

ALPHABET = "aabAB é€ñ😀,\n\t\"\\{}x"
SEPARATORS = [",", "a", "ab", "é", "😀", " ", "\n"]


def text(r, most=12):
    return "".join(r.choice(ALPHABET) for _ in range(r.randrange(most)))


def quoted(s):
    named = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", "{": "\\{", "}": "\\}"}
    return '"' + "".join(named.get(c, c) for c in s) + '"'


def shown(v):
    """A value as Quern's repr writes it."""
    if v is None:
        return "nil"
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, int):
        return str(v)
    if isinstance(v, str):
        return quoted(v)
    return "(" + ", ".join(shown(x) for x in v) + ("," if len(v) == 1 else "") + ")"


def index(s, part, start):
    """find of a text, from a character on."""
    at = s.find(part, start)
    return None if at < 0 else at


def cases(r):
    s, t, sep = text(r), text(r, 3), r.choice(SEPARATORS)
    q = quoted(s)
    yield f"len({q})", len(s)
    yield f"chars({q})", list(s)
    yield f"list({q})", list(s)
    yield f"reverse({q})", s[::-1]
    yield f"{q} + {quoted(t)}", s + t
    yield f"split({q}, {quoted(sep)})", s.split(sep) if s else [""]
    yield f"split({q})", s.split()
    yield f"join(split({q}, {quoted(sep)}), {quoted(sep)})", s
    yield f"trim({q})", s.strip(" \n\t")
    yield f"trim({q}, \"ab\")", s.strip("ab")
    yield f"upper({q})", s.upper()
    yield f"lower({q})", s.lower()
    yield f"replace({q}, {quoted(sep)}, {quoted(t)})", s.replace(sep, t)
    yield f"find({q}, {quoted(sep)})", index(s, sep, 0)
    start = r.randrange(len(s) + 1)
    yield f"find({q}, {quoted(sep)}, {start})", index(s, sep, start)
    yield f"contains({q}, {quoted(t)})", t in s
    yield f"starts_with({q}, {quoted(s[:3])})", True
    yield f"starts_with({q}, {quoted(t)})", s.startswith(t)
    yield f"ends_with({q}, {quoted(t)})", s.endswith(t)
    n = r.randrange(4)
    yield f"repeat({q}, {n})", s * n
    lines = s.split("\n")
    yield f"lines({q})", lines[:-1] if lines[-1] == "" else lines
    width = r.randrange(20)
    yield f"pad_left({q}, {width}, \"é\")", s.rjust(width, "é")
    yield f"pad_right({q}, {width})", s.ljust(width)
    yield f"{q} == {quoted(t)}", s == t
    yield f"{q} < {quoted(t)}", s < t
    a, b, step = r.randrange(-15, 15), r.randrange(-15, 15), r.choice([1, 1, 2, -1, -2])
    yield f"{q}[{a}:{b}:{step}]", s[a:b:step]
    yield f"{q}[{a}:]", s[a:]
    yield f"{q}[:{b}]", s[:b]
    if s:
        i = r.randrange(-len(s), len(s))
        yield f"{q}[{i}]", s[i]
        yield f"ord({q}[{i}])", ord(s[i])
        yield f"chr(ord({q}[{i}]))", s[i]
    yield f"try {{ {q}[{len(s)}] }} catch e {{ e.id }}", "E303"
    yield f"\"<{{{q}}}>\"", "<" + s + ">"
    yield f"repr({q})", quoted(s)


def round_of(quern, seed):
    """How many cases there were, and how many of them failed."""
    r = random.Random(seed)
    all_cases = [case for _ in range(150) for case in cases(r)]
    with tempfile.TemporaryDirectory(prefix="quern-strings-") as folder:
        path = os.path.join(folder, "strings.qn")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(f"print(repr({expression}))\n" for expression, _ in all_cases)
        done = subprocess.run([os.path.abspath(quern), path], capture_output=True, text=True, timeout=120)
    lines = done.stdout.split("\n")[:-1]
    bad = 0
    if done.returncode != 0 or len(lines) != len(all_cases):
        sys.exit(f"FAILED seed {seed} after {len(lines)} of {len(all_cases)}\n{done.stderr}")
    for (expression, want), got in zip(all_cases, lines):
        if got == shown(want):
            continue
        bad += 1
        if bad < 30:
            print(f"FAILED {expression} is {got}, expected {shown(want)}")
    return len(all_cases), bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--count", type=int, default=1, help="rounds at most")
    parser.add_argument("--seconds", type=float, default=200, help="time at most")
    options = parser.parse_args()
    first = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(1 << 32)
    end, done, tried, bad = time.monotonic() + options.seconds, 0, 0, 0
    while done < options.count and not bad and (not done or time.monotonic() < end):
        n, bad = round_of(options.quern, first + done)
        tried += n
        done += 1
    print(f"{tried} cases, {bad} failed, seeds {first} to {first + done - 1}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
