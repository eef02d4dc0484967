#!/usr/bin/env python3
"""Every parameter of the functions of the library that are written in Quern has a kind: signatures.py [--quern build/quern]

Reads the headers of the functions in stdlib/*.qn. A parameter without a kind fails; `any` says that anything is meant, and then
stands in the comment above the function, too. Each other parameter is given a value of a wrong kind, beside right ones: that must
be error E208 at the caller's line, and name the parameter. Functions whose names begin with _ are the library's own.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HEADER = re.compile(r"((?:^#[^\n]*\n)*)^fn ([a-z]\w*)\(((?:[^()]|\([^()]*\))*)\)", re.M)
# A value of each kind, and one that is none. What is not named is an array or a record of arrays.
RIGHT = {"number": "1.5", "numbers": "(1, 2)", "ints": "(0, 1)", "tree": "{w: zeros(2)}", "any": "nil", "int": "2", "float": "0.5", "bool": "true",
         "str": '"none"', "fn": "relu", "list": "(2, 3)", "record": "{}", "dtype": "f32", "i64[2]": "key(0)"}
WRONG = {"number": '"a"', "numbers": '"a"', "ints": "1.5", "tree": '"a"', "int": "1.5", "float": '"a"', "bool": "1", "str": "1", "fn": "1",
         "list": "[1, 2]", "record": "1", "dtype": '"f32"', "i64[2]": "1"}


def parts(text):
    """The parameters of a header, split at commas outside of brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text + ","):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            if text[start:i].strip():
                out.append(" ".join(text[start:i].split()))
            start = i + 1
    return out


def right(kind):
    if kind.startswith("{"):
        return "{" + ", ".join(f"{m.split(':')[0].strip()}: {right(m.split(':', 1)[1].strip())}" for m in parts(kind[1:-1])) + "}"
    return RIGHT.get(kind, "ones(2, 2)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    options = parser.parse_args()
    bad, cases, lines = [], [], ["import nn", "import optim", "import data", "fn t(f) { print(try { f(); \"no error\" } catch e { \"{e.id} {e.line} {e.message}\" }) }"]
    for path in sorted(glob.glob(os.path.join(ROOT, "stdlib", "*.qn"))):
        module = os.path.basename(path)[:-3]
        with open(path, encoding="utf-8") as f:
            found = HEADER.findall(f.read())
        if not found:
            bad.append(f"{path}: no functions found")
        for comment, name, params in found:
            kinds = []
            for p in parts(params):
                m = re.match(r"(\w+)\s*(?::\s*(.*?))?\s*(?:=\s*(.*))?$", p)
                kinds.append((m.group(1), m.group(2)))
                if not m.group(2):
                    bad.append(f"{module}.{name}: parameter {p} has no kind")
                elif m.group(2) == "any" and not re.search(r"\bany\b", comment):
                    bad.append(f"{module}.{name}: what {m.group(1)}: any takes is not told")
            if any(kind is None for _, kind in kinds):
                continue
            for i, (parameter, kind) in enumerate(kinds):
                if kind == "any":
                    continue
                given = [WRONG.get(kind, '"a"') if k == i else right(other) for k, (_, other) in enumerate(kinds)]
                call = f"{name if module == 'prelude' else module + '.' + name}({', '.join(given)})"
                lines.append(f"t(fn() {call})")
                cases.append((call, f"E208 {len(lines)} argument '{parameter}' of {name} is "))
    with tempfile.TemporaryDirectory(prefix="quern-signatures-") as folder:
        script = os.path.join(folder, "calls.qn")
        with open(script, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        done = subprocess.run([os.path.abspath(options.quern), script], capture_output=True, text=True, timeout=100)
    out = done.stdout.splitlines()
    if done.returncode != 0 or len(out) != len(cases):
        bad.append(f"status {done.returncode}, {len(out)} lines for {len(cases)} calls\n{done.stderr}")
    bad += [f"{call}: {got}\n  expected {want}..." for (call, want), got in zip(cases, out) if not got.startswith(want)]
    print("\n".join(bad))
    print(f"{len(cases)} calls, {len(bad)} failures")
    return 1 if bad or len(cases) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
