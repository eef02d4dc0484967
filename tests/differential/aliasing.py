#!/usr/bin/env python3
"""Values are never seen to change through another name: random programs of updates beside a model that copies everything.

  aliasing.py [--quern build/quern] [--seed N|random] [--count N] [--seconds S]

A program has a few variables that hold nested lists, records, texts, arrays and numbers, at the top level and in functions. Its
statements bind names to parts of others, update along paths, append, join, move values through calls, capture them in functions, fail
half-way in `try`, and print. In the model (`Model`) every binding and every argument is a deep copy, so that sharing, ownership, moves
and growth in place, which the interpreter decides by reference counts, cannot show there. Each program runs with `--jit off`, `sync` and
`on`, and must print what the model prints.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

MODES = {"off": ["--jit", "off"], "sync": ["--jit", "sync", "--set", "jit.hot=1"], "on": ["--jit", "on"]}
NAMES = ["a", "b", "c", "d"]
FIELDS = ["p", "q", "r"]


class Array(list):
    """A vector of i64."""


def clone(v):
    """A copy that shares nothing, not even with itself."""
    if isinstance(v, dict):
        return {k: clone(x) for k, x in v.items()}
    return type(v)(map(clone, v)) if isinstance(v, list) else v


def show(v):
    if isinstance(v, Array):
        return "[" + ", ".join(map(str, v)) + "]"
    if isinstance(v, list):
        return "(" + ", ".join(map(show, v)) + ("," if len(v) == 1 else "") + ")"
    if isinstance(v, dict):
        return "{" + ", ".join(f"{k}: {show(x)}" for k, x in v.items()) + "}"
    return f'"{v}"' if isinstance(v, str) else str(v)


class Program:
    def __init__(self, rng):
        self.rng, self.lines, self.expected, self.indent = rng, [], [], 0
        self.vars = {}
        self.closures = {}  # name: the value it captured

    def emit(self, line):
        self.lines.append("  " * self.indent + line)

    # ---- values -----------------------------------------------------------------------------------------------------------

    def value(self, depth=3):
        r = self.rng.random()
        if depth == 0 or r < 0.2:
            return self.rng.randint(0, 99)
        if r < 0.3:
            return "".join(self.rng.choice("xyzé") for _ in range(self.rng.randint(0, 5)))
        if r < 0.45:
            return Array(self.rng.randint(0, 9) for _ in range(self.rng.choice((1, 3, 200))))
        if r < 0.7:
            return [self.value(depth - 1) for _ in range(self.rng.randint(0, 3))]
        return {k: self.value(depth - 1) for k in self.rng.sample(FIELDS, self.rng.randint(1, 3))}

    def literal(self, v):
        if isinstance(v, Array):
            return "i64([" + ", ".join(map(str, v)) + "])"
        if isinstance(v, list):
            return "(" + ", ".join(map(self.literal, v)) + ("," if len(v) == 1 else "") + ")"
        if isinstance(v, dict):
            return "{" + ", ".join(f"{k}: {self.literal(x)}" for k, x in v.items()) + "}"
        return show(v)

    def path(self, root, stop=0.3, want=None):
        """A random path from a variable: its text, the steps, and the value it leads to."""
        text, steps, v = root, [], self.vars[root]
        while self.rng.random() > stop:
            if isinstance(v, dict):
                k = self.rng.choice(list(v))
                text += f".{k}" if self.rng.random() < 0.8 else f'["{k}"]'
            elif isinstance(v, list) and not isinstance(v, Array) and v:
                k = self.rng.randrange(-len(v), len(v))
                text += f"[{k}]"
            else:
                break
            steps.append(k)
            v = v[k]
        return text, steps, v

    def store(self, root, steps, v):
        """In the model: a copy of the whole variable with one place changed."""
        whole = clone(self.vars[root])
        if not steps:
            whole = clone(v)
        else:
            at = whole
            for k in steps[:-1]:
                at = at[k]
            at[steps[-1]] = clone(v)
        self.vars[root] = whole

    # ---- statements ---------------------------------------------------------------------------------------------------------

    def source(self):
        """An expression: text and value."""
        if self.rng.random() < 0.4:
            v = self.value(2)
            return self.literal(v), v
        text, _, v = self.path(self.rng.choice(list(self.vars)))
        return text, v

    def statement(self):
        root = self.rng.choice(list(self.vars))
        text, steps, v = self.path(root)
        kind = self.rng.choice(("store", "store", "grow", "grow", "element", "bind", "call", "loop", "failure", "capture", "swap", "print"))
        if kind == "store":
            e, new = self.source()
            self.emit(f"{text} = {e}")
            self.store(root, steps, new)
        elif kind == "bind":
            e, new = self.source()
            name = self.rng.choice(NAMES)
            self.emit(f"{name} = {e}")
            self.vars[name] = clone(new)
        elif kind == "grow":
            self.grow(root, text, steps, v)
        elif kind == "element" and isinstance(v, Array):
            i, j = self.rng.randrange(len(v)), self.rng.randrange(len(v))
            new = clone(v)
            form = self.rng.randrange(5)
            if form == 0:
                self.emit(f"{text}[{i}] = {j}")
                new[i] = j
            elif form == 1:
                self.emit(f"{text}[{i}] = {text}[{j}]")
                new[i] = new[j]
            elif form == 2:
                self.emit(f"{text}[{i}] += {j}")
                new[i] += j
            elif form == 3:
                self.emit(f"({text}[{i}], {text}[{j}]) = ({text}[{j}], {text}[{i}])")
                x, y = new[j], new[i]
                new[i] = x
                new[j] = y
            else:
                k = min(i, j)
                self.emit(f"{text}[{k}:] = {text}[{k}:] * 2")
                new[k:] = [x * 2 for x in new[k:]]
            self.store(root, steps, Array(new))
        elif kind == "call":
            self.call(root, text, steps, v)
        elif kind == "loop":
            if isinstance(v, list) and not isinstance(v, Array) and len(v) < 20:
                n = self.rng.randint(1, 6)
                self.emit(f"for i in 0..{n} {{ {text} = append({text}, i) }}")
                self.store(root, steps, v + list(range(n)))
            elif isinstance(v, int):
                n = self.rng.randint(1, 6)
                self.emit(f"for i in 0..{n} {{ {text} += i }}")
                self.store(root, steps, v + n * (n - 1) // 2)
        elif kind == "failure":
            if isinstance(v, list) and not isinstance(v, Array):
                self.emit(self.rng.choice((f"try {{ {text} = insert({text}, 99, 1) }} catch _ {{}}", f"try {{ {text} = append({text}, error(\"no\")) }} catch _ {{}}",
                                           f"try {{ {text}[99] = 1 }} catch _ {{}}")))
            elif isinstance(v, dict):
                self.emit(f"try {{ {text}.nothing = 1 }} catch _ {{}}")
            elif isinstance(v, str):
                self.emit(f"try {{ {text} += 1 }} catch _ {{}}")
        elif kind == "capture":
            name = f"f{len(self.closures)}"
            keep = self.rng.choice(list(self.vars))
            if self.rng.random() < 0.5:
                self.emit(f"let {name} = keeper({keep})")
            else:
                self.emit(f"let {name} = keeper({{v: {keep}}}.v)")
            self.closures[name] = clone(self.vars[keep])
        elif kind == "swap":
            other = self.rng.choice(list(self.vars))
            if other != root:
                self.emit(f"({root}, {other}) = ({other}, {root})")
                self.vars[root], self.vars[other] = self.vars[other], self.vars[root]
        elif kind == "print":
            self.show_all()

    def grow(self, root, text, steps, v):
        e, new = self.source()
        if isinstance(v, str):
            tail = self.rng.choice(("ab", "é", ""))
            form = self.rng.choice((f'{text} += "{tail}"', f'{text} = {text} + "{tail}"'))
            if self.rng.random() < 0.2:
                form, tail = f"{text} = {text} + {text}", v
            if len(v) < 500:
                self.emit(form)
                self.store(root, steps, v + tail)
        elif isinstance(v, dict):
            key = self.rng.choice(FIELDS + ["s", "t"])
            self.emit(f'{text}["{key}"] = {e}')
            self.store(root, steps, {**v, key: new})
        elif isinstance(v, list) and not isinstance(v, Array) and len(v) < 20:
            form = self.rng.randrange(6)
            if form == 0:
                self.emit(f"{text} = append({text}, {e})")
                after = v + [new]
            elif form == 1:
                self.emit(f"{text} = {text}.append({e})")
                after = v + [new]
            elif form == 2:
                i = self.rng.randint(0, len(v))
                self.emit(f"{text} = insert({text}, {i}, {e})")
                after = v[:i] + [new] + v[i:]
            elif form == 3 and v:
                i = self.rng.randrange(len(v))
                self.emit(f"{text} = remove({text}, {i})")
                after = v[:i] + v[i + 1:]
            elif form == 4:
                self.emit(f"{text} = {text} + {text}")
                after = v + v
            else:
                self.emit(f"{text} += ({e}, 7)")
                after = v + [new, 7]
            self.store(root, steps, after)

    def call(self, root, text, steps, v):
        if isinstance(v, dict) and "p" in v:
            e, new = self.source()
            target = self.rng.choice((text, self.rng.choice(NAMES)))
            self.emit(f"{target} = set_p({text}, {e})")
            if target == text:
                self.store(root, steps, {**v, "p": new})
            else:
                self.vars[target] = clone({**v, "p": new})
        elif isinstance(v, list) and not isinstance(v, Array) and v and len(v) < 20:
            target = self.rng.choice((text, self.rng.choice(NAMES)))
            self.emit(f"{target} = grow_first({text})")
            after = [(v[0] + [0] if isinstance(v[0], list) and not isinstance(v[0], Array) else 0)] + v[1:] + [1]
            if target == text:
                self.store(root, steps, after)
            else:
                self.vars[target] = clone(after)
        elif isinstance(v, Array):
            self.emit(f"{text} = set_element({text}, 0, 5)")
            self.store(root, steps, Array([5] + v[1:]))

    def show_all(self):
        for name, v in self.vars.items():
            self.emit(f"show(\"{name}\", {name})")
            self.expected.append(f"{name} {show(v)}")
        for name, v in self.closures.items():
            self.emit(f"show(\"{name}\", {name}())")
            self.expected.append(f"{name} {show(v)}")


HEAD = """fn text_of(v) {
  let kind = type(v)
  if kind == "array" { return "[" + join(map(list(v), fn(x) str(int(x))), ", ") + "]" }
  if kind == "list" { return "(" + join(map(v, text_of), ", ") + (if len(v) == 1 { "," } else { "" }) + ")" }
  if kind == "record" { return "\\{" + join(map(items(v), fn(kv) kv[0] + ": " + text_of(kv[1])), ", ") + "\\}" }
  if kind == "str" { return "\\"" + v + "\\"" }
  str(v)
}
fn show(name, v) { print(name, text_of(v)) }
fn keeper(v) = fn() v
fn set_p(r, v) {
  r.p = v
  r
}
fn grow_first(l) {
  l[0] = if type(l[0]) == "list" { append(l[0], 0) } else { 0 }
  append(l, 1)
}
fn set_element(x, i, v) {
  x[i] = v
  x
}
"""


def make(seed):
    p = Program(random.Random(seed))
    inside = p.rng.random() < 0.5
    if inside:
        p.emit("fn run() {")
        p.indent += 1
    for name in NAMES:
        v = p.value()
        p.emit(f"let {name} = {p.literal(v)}")
        p.vars[name] = v
    for _ in range(p.rng.randint(5, 40)):
        p.statement()
    p.show_all()
    if inside:
        p.indent -= 1
        p.emit("}\nfor _ in 0..3 { run() }")
        p.expected *= 3
    return HEAD + "\n".join(p.lines) + "\n", "".join(line + "\n" for line in p.expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="of the first program, or random")
    parser.add_argument("--count", type=int, default=100000, help="programs at most")
    parser.add_argument("--seconds", type=float, default=20, help="time at most")
    options = parser.parse_args()
    first = random.randrange(10**9) if options.seed == "random" else int(options.seed)
    end, done = time.monotonic() + options.seconds, 0
    with tempfile.TemporaryDirectory(prefix="quern-aliasing-") as folder:
        path = os.path.join(folder, "p.qn")
        for seed in range(first, first + options.count):
            if time.monotonic() > end:
                break
            text, expected = make(seed)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            for mode, flags in MODES.items():
                if mode != "off" and seed % 5:
                    continue
                result = subprocess.run([os.path.abspath(options.quern), *flags, path], capture_output=True, text=True, stdin=subprocess.DEVNULL)
                if result.returncode == 0 and result.stdout == expected:
                    continue
                print(text)
                got, want = result.stdout.splitlines(), expected.splitlines()
                for i, line in enumerate(want):
                    if i >= len(got) or got[i] != line:
                        print(f"line {i + 1} of the output should be\n  {line}\nand is\n  {got[i] if i < len(got) else 'missing'}")
                        break
                sys.exit(f"FAILED --seed {seed} --jit {mode}: exit status {result.returncode}\n{result.stderr}")
            done += 1
    print(f"{done} programs, seeds from {first}")


if __name__ == "__main__":
    main()
