#!/usr/bin/env python3
"""Every loop of a kernel that may be vector code is: the C compiler's report is read.

  run.py [--quern build/quern] [--print build/tests/vectors_print] [--compiler gcc] [--keep FOLDER]

The kernels are those of the goldens and of kernels.qn (the benchmark's rows and more), as plans make them. The C printer
marks with `#pragma omp simd` each loop whose iterations are independent: all straight VECs, and the segments of the others. A compiler that
refuses one says nothing to users, whose kernel is then several times slower. None is refused, and none is vector code of less than the widest
vectors, unless it has too few elements for those.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def kernels_of(quern, script, folder, *arguments):
    """The L programs of what a script compiles, in a file."""
    path = os.path.join(folder, os.path.basename(script) + ".log")
    env = dict(os.environ, QUERN_LOG="kernels", QUERN_CACHE=os.path.join(folder, "cache"))
    done = subprocess.run([quern, "--jit", "sync", "--set", "jit.hot=1", script, *arguments], env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-2000:]}")
    with open(path, "w") as f:
        f.write(done.stderr)
    return path


def refused(compiler, flags, source, folder):
    """The marked loops that the compiler did not make vector code of, or narrow: (line, text of it, what it says)."""
    done = subprocess.run([compiler, *flags, "-fno-ipa-icf", "-fopt-info-vec-all", source, "-o", os.path.join(folder, "kernels.so")],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{compiler} failed:\n{done.stderr[:2000]}")
    good, words = {}, {}  # by line: the bytes of its vectors; what is said of it
    for line in done.stderr.splitlines():
        found = re.match(r"[^:]*:(\d+):\d+: (\w+): *(.*)", line)
        if not found:
            continue
        number, kind, text = int(found[1]), found[2], found[3]
        width = re.match(r"loop vectorized using (\d+) byte", text)
        if kind == "optimized" and width:
            good[number] = max(good.get(number, 0), int(width[1]))
        elif kind == "missed":
            words.setdefault(number, []).append(text)
    lines = open(source).read().split("\n")
    all_loops, bad = 0, []
    name = ""
    for i, line in enumerate(lines):
        found = re.match(r"/\* (.*) \*/$", line)
        name = found[1] if found else name
        if not re.match(r" *#pragma omp simd", line):
            continue
        all_loops += 1
        end, depth = i + 1, 0
        while end < len(lines):
            depth += lines[end].count("{") - lines[end].count("}")
            end += 1
            if depth == 0:
                break
        width = max(good.get(n, 0) for n in range(i + 1, end + 1))
        said = [w for n in range(i + 1, end + 1) for w in words.get(n, [])]
        if width == 0:
            bad.append((i + 2, name, "\n".join(lines[i + 1 : end]), said))
        elif width < widest(flags) and not few_elements(lines, i):
            bad.append((i + 2, name, "\n".join(lines[i + 1 : end]), [f"vectors of {width} bytes"]))
    return all_loops, bad


def widest(flags):
    return 64 if "-mprefer-vector-width=512" in flags else 32


def few_elements(lines, i):
    """Is the number of elements of the loop behind line i a small constant?"""
    for k in range(i, 0, -1):
        count = re.match(r" *const i64 n = (v\d+) >", lines[k])
        if count:
            value = next(re.match(rf" *const i64 {count[1]} = (?:\(i64\)(\d+)ull|.*);", line) for line in lines[k::-1]
                         if re.match(rf" *const i64 {count[1]} =", line))
            return value[1] is not None and int(value[1]) < 16
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--print", default="build/tests/vectors_print")
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--keep", help="leave the source there")
    options = parser.parse_args()
    if not shutil.which(options.compiler) or "avx512vl" not in open("/proc/cpuinfo").read():
        print(f"no {options.compiler}, or no masks in this processor: skipped")
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="quern-vectors-")
    try:
        files = sorted(glob.glob(os.path.join(HERE, "..", "golden", "*.l")))
        files.append(kernels_of(options.quern, os.path.join(HERE, "kernels.qn"), folder))
        source = os.path.join(options.keep or folder, "kernels.c")
        with open(source, "w") as f:
            subprocess.run([options.print, *files], stdout=f, check=True)
        flags = subprocess.run([options.print, "flags"], capture_output=True, text=True, check=True).stdout.split()
        loops, bad = refused(options.compiler, flags, source, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    refusals = 0
    for number, name, text, said in bad:
        if any("__builtin_mem" in w for w in said):
            continue  # it fills or copies
        refusals += 1
        print(f"{source}:{number}: {name}: not vectorised\n{text}\n  " + "\n  ".join(dict.fromkeys(said)) + "\n")
    print(f"{loops} loops, {refusals} refused")
    sys.exit(1 if refusals or loops < 120 else 0)


if __name__ == "__main__":
    main()
