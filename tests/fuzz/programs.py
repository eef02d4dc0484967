#!/usr/bin/env python3
"""Damaged programs: programs.py [--quern build/quern] [--seed N|random] [--count N] [--seconds 8]

The language scripts, with tokens deleted, swapped, doubled or replaced by others, run interpreted and recorded at the first
call. Whatever they say, the process ends by itself with status 0 or 1, and no defect (E802, E803) is reported. What fails is
printed whole, with its seed: program i has the seed N + i.
"""
import argparse
import glob
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\w+|\.\.\.|\.\.|\*\*|//|[<>=!]=|\S|\n')
ODD = ["0", "-1", "nil", "1e300", "9223372036854775807", '""', "()", "[]", "{}", "zeros(0)", "nan", "f16", "(1,)", "arange(3)"]
MODES = (["--jit", "off"], ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.cc=0"])
# Loops and arrays that are large on purpose, and what writes files.
AVOIDED = re.compile(r"\d_000_000|\d0{6}|_200_000|write_text|save|while true")


def sources():
    for path in sorted(glob.glob(os.path.join(ROOT, "language", "**", "*.qn"), recursive=True)):
        with open(path, encoding="utf-8") as f:
            tokens = TOKEN.findall(re.sub(r"#.*", "", f.read()))
        if len(tokens) > 3:
            yield tokens


def damaged(r, tokens, others):
    tokens = list(tokens)
    for _ in range(r.randrange(1, 6)):
        i = r.randrange(len(tokens))
        kind = r.randrange(5)
        if kind == 0 and len(tokens) > 3:
            del tokens[i]
        elif kind == 1:
            tokens.insert(i, r.choice(others))
        elif kind == 2:
            tokens[i] = r.choice(others)
        elif kind == 3:
            k = r.randrange(len(tokens))
            tokens[i], tokens[k] = tokens[k], tokens[i]
        else:
            tokens[i] = r.choice(ODD)
    return " ".join(tokens)


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--seed", default="1", help="of the first program, or random")
    parser.add_argument("--count", type=int, default=1000000, help="programs at most")
    options = parser.parse_args()
    first = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(10**9)
    programs = list(sources())
    others = [t for tokens in programs for t in tokens]
    quern, end, count = os.path.abspath(options.quern), time.monotonic() + options.seconds, 0
    with tempfile.TemporaryDirectory(prefix="quern-programs-") as folder:
        for seed in range(first, first + options.count):
            if time.monotonic() > end:
                break
            r = random.Random(seed)
            code = damaged(r, r.choice(programs), others)
            if AVOIDED.search(code):
                continue
            with open(os.path.join(folder, "damaged.qn"), "w", encoding="utf-8") as f:
                f.write(code)
            mode = r.choice(MODES)
            try:
                done = subprocess.run([quern, *mode, "damaged.qn"], cwd=folder, capture_output=True, timeout=20, stdin=subprocess.DEVNULL,
                                      preexec_fn=limits)
            except subprocess.TimeoutExpired:
                continue  # a loop without end is a program, too
            count += 1
            err = done.stderr.decode(errors="replace")
            if done.returncode in (0, 1) and not re.search(r"error\[E80[23]\]|AddressSanitizer|LeakSanitizer|runtime error:", err):
                continue
            if done.returncode in (-9, -24):  # the limit of time
                continue
            sys.exit(f"FAILED, seed {seed}, {' '.join(mode)}, status {done.returncode}\n{code}\n{err[-3000:]}")
    print(f"{count} programs, seeds from {first}")


if __name__ == "__main__":
    main()
