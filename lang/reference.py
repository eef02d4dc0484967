#!/usr/bin/env python3
"""Writes the generated parts of lang/REFERENCE.md: reference.py [--quern build/quern] [--check]

They stand between `<!-- generated: NAME -->` and `<!-- end -->`: tables from the rows of dtypes.def, promote.def, errors.def and
tunables.def, and every function with its signature, sentence and example, as `quern help` has them, in the order and under
the headings of `quern help functions`. What the examples print is what they printed here. `--check` changes nothing, shows
what would change, and fails if anything would.
"""
import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PAGE = os.path.join(HERE, "REFERENCE.md")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def dtypes(_):
    rows = re.findall(r'^DTYPE\((\w+), (\d+), .*, "([^"]*)"\)', read("lang", "dtypes.def"), re.M)
    public = [(f"`{name}`", size, doc) for name, size, doc in rows if not doc.startswith("reserved")]
    kept = [f"`{name}`" for name, _, doc in rows if doc.startswith("reserved")]
    return (table(("dtype", "bytes", ""), public)
            + f"\nThe names {', '.join(kept)} are reserved. New arrays of floats are `f32`, of ints `i64`. `x.to(f64)` and `f64(x)` convert.\n")


def promotion(_):
    rows = re.findall(r"^PROMOTE\(T_(\w+),\s*(.*)\)$", read("lang", "promote.def"), re.M)
    names = [name for name, _ in rows]
    results = {}
    for name, cells in rows:
        for other, cell in zip([*names[names.index(name):], "", "int", "float"], re.findall(r"T_(\w+)", cells)):
            results[name, other] = results[other, name] = cell
    columns = [*names, "int", "float"]
    return table(("", *(f"`{n}`" for n in names), "int", "float"), [(f"**`{a}`**", *(results[a, b] for b in columns)) for a in names])


def errors(quern):
    rows = re.findall(r"^(E\d+)  (.*)$", quern.help("errors"), re.M)
    return table(("id", ""), rows)


def tunables(quern):
    rows = re.findall(r"^(\S+) +(.*)\n +default (-?\d+), from (-?\d+) to (-?\d+)$", quern.help("tunables"), re.M)
    return ("Tunables, which `--set NAME=VALUE` sets:\n\n"
            + table(("name", "default", "range", "meaning"), [(f"`{n}`", d, f"{lo} .. {hi}", m) for n, m, d, lo, hi in rows]))


class Quern:
    def __init__(self, path):
        self.path = os.path.abspath(path)

    def help(self, name):
        return subprocess.run([self.path, "help", name], capture_output=True, text=True, check=True).stdout

    def run(self, script):
        with tempfile.TemporaryDirectory(prefix="quern-reference-") as folder:
            with open(os.path.join(folder, "example.qn"), "w", encoding="utf-8") as f:
                f.write(script)
            done = subprocess.run([self.path, "example.qn"], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"an example fails:\n{script}\n{done.stderr}")
        return done.stdout


def groups(quern):
    """(title, names): the functions by topic, as `quern help functions` has them."""
    for title, lines in re.findall(r"^(\S.*)\n((?:  .*\n)+)", quern.help("functions"), re.M):
        yield title, lines.split()


def functions(quern):
    out = []
    for title, listed in groups(quern):
        out.append(f"### {title[0].upper() + title[1:]}\n")
        for name in listed:
            page = quern.help(name)
            found = re.match(r"(.*)\n\n((?:.+\n)*)\nExample:\n\n((?:    .*\n|\n)+)", page)
            if not found:
                sys.exit(f"{name}: help has no sentence or no example (stdlib/examples.def)")
            signature, doc, example = found.groups()
            script = re.sub(r"^    ", "", example, flags=re.M).strip() + "\n"
            printed = quern.run(script).splitlines()
            if len(printed) == 1 and script.count("\n") == 1 and len(script) + len(printed[0]) < 110:
                script = f"{script[:-1]}  # => {printed[0]}\n"
            else:
                script += "".join(f"# => {line}".rstrip() + "\n" for line in printed)
            text = doc.strip()
            out.append(f"**`{signature}`** · {' '.join(text.split())}\n\n```quern\n{script}```\n")
    return "\n".join(out)


def modules(quern):
    out = []
    for path in sorted(os.listdir(os.path.join(ROOT, "stdlib"))):
        name, ending = os.path.splitext(path)
        if ending != ".qn" or name == "prelude":
            continue
        text = read("stdlib", path)
        about = " ".join(line[1:].strip() for line in re.match(r"(#.*\n)+", text).group(0).splitlines())
        about = re.sub(r"^\w+\.qn: ", "", about)
        out.append(f"### import {name}\n\n{about[0].upper() + about[1:]}\n")
        for member in re.findall(r"^  (\w+)\(", quern.help(name), re.M):
            signature, _, doc = quern.help(f"{name}.{member}").partition("\n\n")
            out.append(f"**`{name}.{signature.strip()}`** · {' '.join(doc.split())}".rstrip(" ·") + "\n")
    return "\n".join(out)


PARTS = {f.__name__: f for f in (dtypes, promotion, errors, tunables, functions, modules)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default=os.path.join(ROOT, "build", "quern"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    quern = Quern(options.quern)
    old = read("lang", "REFERENCE.md")
    new, count = re.subn(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
                         lambda m: f"{m.group(1)}\n{PARTS[m.group(2)](quern)}\n{m.group(3)}", old, flags=re.S)
    if count != len(PARTS):
        sys.exit(f"{count} generated parts in REFERENCE.md, {len(PARTS)} expected")
    if not options.check:
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(new)
    elif new != old:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "REFERENCE.md", "generated"))
        sys.exit("lang/REFERENCE.md is not what lang/reference.py writes: run ./dev reference")


if __name__ == "__main__":
    main()
