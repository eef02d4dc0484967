#!/usr/bin/env python3
"""Random programs in all lanes of vmap at once, and lane by lane in a loop.

  lanes.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--products none] [--device gpu]
           [--set NAME=VALUE] [--keep FOLDER]

A program is a function of arrays (programs.py). Some of its inputs get lanes: the first lane has the program's data, the others the
same elements in another order. The function runs lane by lane, eagerly; and under vmap, with the lanes along random axes, eagerly and
compiled. Every third program has lanes within lanes. Required:

  plain, wild    the results of the loop, stacked, bit for bit, all NaNs counting as one; in the first call and in the last
  grad           the same of gradients, vmap(grad(f)); and the gradient of sum(vmap(f)): by what has lanes each lane's own, by what the
                 lanes share the sum of theirs, to a few units of rounding
  draws          two of five programs draw by a key, which may have lanes, too
  errors         every fourth program has a check on a number of each lane, which holds in the first calls and perhaps not in the
                 last: an error of the loop is vmap's, with its message, at its line, and the lane

With --device what runs under vmap runs there; the loop stays on the CPU, so matrix products need --set gpu.portable=1.
What vmap refuses (E406) must depend on a mask or a number of one lane: the programs that do so are counted apart. Needs NumPy.
"""
import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np

from programs import Program
from run import difference, same_bits

warnings.simplefilter("ignore")  # NumPy's, of empty slices and such: results are compared anyway

KINDS = ("plain", "wild", "plain", "grad")


class Failure(Exception):
    pass


class Refused(Exception):
    pass


def list_of(items):
    items = list(items)
    return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"


class Lanes:
    """A program, which inputs have lanes on which level, and the texts that run it."""

    def __init__(self, seed, kind, products):
        r = random.Random(seed * 7 + 5)
        self.program, self.kind = Program(seed, kind, products, sets=1), kind
        inputs = self.program.inputs
        self.levels = 2 if seed % 3 == 0 else 1
        self.sizes = [r.choice([1, 2, 3, 3, 5]) for _ in range(self.levels)]
        self.mapped = [[r.random() < 0.6 for _ in inputs] for _ in range(self.levels)]
        for level in self.mapped:
            if not any(level):
                level[r.randrange(len(inputs))] = True
        # Where the axis of the lanes is when vmap gets the array.
        self.axes = [[0] * len(inputs) for _ in range(self.levels)]
        rng = np.random.default_rng(seed)
        self.arrays = []
        for i, v in enumerate(inputs):
            lanes = [self.sizes[k] for k in range(self.levels) if self.mapped[k][i]]
            x, rank = v.arrays[0], v.rank
            whole = np.stack([x] + [rng.permutation(x.ravel()).reshape(x.shape) for _ in range(int(np.prod(lanes)) - 1)])
            self.arrays.append(whole.reshape((*lanes, *x.shape)))
            for k in reversed(range(self.levels)):
                if self.mapped[k][i]:
                    rank += 1
                    self.axes[k][i] = r.choice([0, 0, rank - 1, r.randrange(rank)])
        self.names = [v.name for v in inputs]
        self.wrt = list(range(len(inputs)))
        self.checked, self.first = seed % 4 == 1, np.zeros(1)
        if self.checked:  # the number of the lane, and another one for the first calls
            check, first = r.choice([("arange(6)[p]", 0), ("7 // p", 1), ("shl(p, p)", 2), ("arange(12).reshape(3, 4)[p]", 0),
                                     ("gather(arange(5), [p, 1, p], 0)", 1), ("arange(3) % [p, 1, 3]", 4)])
            self.program.lines.insert(r.randrange(len(self.program.lines) + 1), f"let _e = {check}")
            some = [0, 1, 2, 2, 3, 4, -1, 6] if r.random() < 0.5 else [1, 2]
            self.add("p", None, lambda lanes: rng.choice(some, lanes).astype(np.int64))
            self.first = np.full(self.sizes, first, dtype=np.int64)
        self.fields = [f"o{i}" for i in range(len(inputs if kind == "grad" else self.program.outputs))]
        if kind != "grad" and seed % 5 < 2:  # a draw by keys of the lanes, or by one for them all
            draw = r.choice(["randn(3, 2, key: kk)", "rand(5, dtype: f64, key: kk)", "permutation(7, key: kk)", "bernoulli(0.5, 4, key: kk)",
                             "rand(key: kk)", "randint(0, 9, 2, 2, key: split(kk, 3)[1])", "randn(70, key: kk)[::-2]"])
            self.program.lines.append(f"let drawn = {draw}")
            self.fields.append("drawn")
            self.add("kk", r, lambda lanes: rng.integers(0, 2**32, (*lanes, 2)))

    def add(self, name, r, make):
        """One more input, with lanes on each level, or if there is a generator on those that it takes."""
        taken = [r is None or r.random() < 0.6 for _ in self.sizes]
        self.names.append(name)
        self.arrays.append(make([n for n, has in zip(self.sizes, taken) if has]))
        for level, axes, has in zip(self.mapped, self.axes, taken):
            level.append(has)
            axes.append(0)

    def function(self):
        text = self.program.function()
        text = text.replace(f"fn f({', '.join(v.name for v in self.program.inputs)})", f"fn f({', '.join(self.names)})")
        if "drawn" in self.fields:
            text = text.replace("  {o0: ", "  {drawn: drawn, o0: ")
        if self.kind == "grad":
            text += f"let g = grad(f, wrt: {list_of(map(str, self.wrt))})\n"
            text += f"fn h({', '.join(self.names)}) {{\n  let r = g({', '.join(self.names)})\n"
            text += "  {" + ", ".join(f"o{i}: r[{i}]" for i in self.wrt) + "}\n}\n"
            return text
        return text + "let h = f\n"

    def call(self, indices):
        """The arguments of one lane."""
        out = []
        for i, name in enumerate(self.names):
            at = [indices[k] for k in range(self.levels) if self.mapped[k][i]]
            out.append(f"given.{name}[{', '.join(at)}]" if at else f"given.{name}")
        return ", ".join(out)

    def loop(self):
        fields = ", ".join(f"{name}: stack(map($, fn(r) r.{name}))" for name in self.fields)
        lines = [self.function(), 'let given = load("{args[0]}/lanes.npz")', "let rows = ()"]
        if self.levels == 1:
            lines += [f"for l in 0..{self.sizes[0]} {{ rows = append(rows, h({self.call(['l'])})) }}"]
        else:
            lines += [f"for l in 0..{self.sizes[0]} {{", "  let row = ()",
                      f"  for m in 0..{self.sizes[1]} {{ row = append(row, h({self.call(['l', 'm'])})) }}",
                      "  rows = append(rows, {" + fields.replace("$", "row") + "})", "}"]
        lines.append('save("{args[1]}", {' + fields.replace("$", "rows") + "})")
        return "\n".join(lines) + "\n"

    def moved(self):
        """The inputs as vmap gets them: the axes of the lanes from the front to their places, of the inner level first."""
        out = []
        for i, name in enumerate(self.names):
            text, rank = f"given.{name}", self.arrays[i].ndim
            order = list(range(rank))
            levels = [k for k in range(self.levels) if self.mapped[k][i]]
            for place, k in reversed(list(enumerate(levels))):
                tail = order[place:]
                tail.insert(self.axes[k][i], tail.pop(0))
                order[place:] = tail
            # `order` is built inside out: the inner level's move first, then the outer one's over the result.
            out.append(f"permute({text}, {', '.join(map(str, order))})" if order != list(range(rank)) else text)
        return out

    def vmap(self, f, levels=None):
        text = f
        for k in reversed(range(self.levels)):
            axes = list_of(str(self.axes[k][i]) if self.mapped[k][i] else "nil" for i in range(len(self.names)))
            text = f"vmap({text}, in_axes: {axes})"
        return text

    def together(self):
        arguments = ", ".join(self.names)
        lines = [self.function(), 'let given = load("{args[0]}/lanes.npz")']
        lines += [f"let {name} = {text}" for name, text in zip(self.names, self.moved())]
        first = ", ".join("given.first" if name == "p" else name for name in self.names)
        lines += [f"let v = {self.vmap('h')}", f'save("{{args[1]}}", v({first}))', f"for _ in 0..3 {{ v({first}) }}"]
        if self.kind == "grad":
            lines += [f"let t = {self.vmap('f')}", f"fn total({arguments}) = sum(t({arguments}))",
                      f"let gs = grad(total, wrt: {list_of(map(str, self.wrt))})({first})",
                      'save("{args[1]}-total.npz", {' + ", ".join(f"o{i}: gs[{i}]" for i in self.wrt) + "})"]
        lines += [f'save("{{args[1]}}", v({arguments}))']
        return "\n".join(lines) + "\n"

    def front(self, i, gradient):
        """A gradient by input i as vmap got it, with its axes in the order of the file."""
        order = list(range(gradient.ndim))
        levels = [k for k in range(self.levels) if self.mapped[k][i]]
        for place, k in reversed(list(enumerate(levels))):
            tail = order[place:]
            tail.insert(self.axes[k][i], tail.pop(0))
            order[place:] = tail
        return np.transpose(gradient, np.argsort(order))


def run(command, folder):
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, cwd=folder)
    except subprocess.TimeoutExpired:
        raise Failure(f"no end in time: {' '.join(command)}") from None
    text = done.stderr.decode(errors="replace")
    error = re.search(r"^error\[(E\d+)\]: (.*)\n  --> .*?:(\d+)", text, re.M)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not error):
        raise Failure(f"status {done.returncode}: {' '.join(command)}\n{text}")
    return error.groups() if done.returncode else None


def compare_results(lanes, want, got, what):
    if sorted(want.files) != sorted(got.files):
        raise Failure(f"{what}: other fields")
    for field in want.files:
        if not same_bits(want[field], got[field]):
            raise Failure(f"{what} {field}: the loop and vmap differ: {difference(want[field], got[field])}")


def compare_total(lanes, want, got):
    for i in lanes.wrt:
        have, lanewise = lanes.front(i, got[f"o{i}"]), want[f"o{i}"]
        shared = tuple(k for k in range(lanes.levels) if not lanes.mapped[k][i])
        sums, size = np.sum(lanewise, axis=shared), np.sum(np.abs(lanewise), axis=shared)
        if have.shape != sums.shape:
            raise Failure(f"gradient of the sum by input {i} has the shape {have.shape}, not {sums.shape}")
        off = np.abs(have - sums)
        # Terms of a gradient may cancel in each lane; what they were is not known here, so the bound is generous.
        if not np.all((off <= 1e-9 * (size + np.max(np.abs(lanewise), initial=0) + 1)) | ~np.isfinite(sums)):
            raise Failure(f"gradient of the sum by input {i}: off by {np.max(off):.3g}")


def check_in(o, lanes, seed, folder):
    for name, text in (("loop.qn", lanes.loop()), ("vmap.qn", lanes.together())):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    np.savez(os.path.join(folder, "lanes.npz"), first=lanes.first, **dict(zip(lanes.names, lanes.arrays)))
    loop, together = os.path.join(folder, "loop.qn"), os.path.join(folder, "vmap.qn")
    error = run([o.quern, "--jit", "off", loop, folder, os.path.join(folder, "loop.npz")], folder)
    sync = ["--jit", "sync", "--set", "jit.hot=2"] + (["--threads", "2"] if seed % 3 == 0 else ["--set", "jit.cc=0", "--threads", "1"])
    there = (["--device", o.device] if o.device else []) + [text for setting in o.set for text in ("--set", setting)]
    for what, flags in (("eager", ["--jit", "off", *there]), ("compiled", sync + there)):
        target = os.path.join(folder, what + ".npz")
        own = run([o.quern, *flags, together, folder, target], folder)
        if own and (own[0] == "E406" or own[1].startswith("vmap: with the axis of the lanes")):  # which makes one axis too many
            raise Refused(own[1])
        same = own and error and own[0] == error[0] and own[2] == error[2] and own[1].startswith(error[1] + ", in lane ")
        if (own or error) and not same:
            raise Failure(f"{what}: the loop ends with {error}, vmap with {own}")
        if own:
            continue
        want, got = np.load(os.path.join(folder, "loop.npz")), np.load(target)
        compare_results(lanes, want, got, what)
        if lanes.kind == "grad":
            compare_total(lanes, want, np.load(target + "-total.npz"))
    return error is not None


def check(o, seed, kind):
    """"passed", "raised", "refused: why" or "FAILED ..."."""
    folder = tempfile.mkdtemp(prefix=f"quern-lanes-{kind}-{seed}-", dir=o.keep)
    keep = bool(o.keep)
    try:
        lanes = Lanes(seed, kind, o.products)
        return "raised" if check_in(o, lanes, seed, folder) else "passed"
    except Refused as e:
        return f"refused: {e}"
    except Failure as e:
        keep = True
        return f"FAILED {kind} seed {seed} ({folder}): {e}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--count", type=int, default=1000000, help="programs at most")
    parser.add_argument("--seconds", type=float, default=60, help="time at most")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="only programs of this kind")
    parser.add_argument("--products", choices=("none", "some", "many"), default="some", help="of matrices (a seed's program depends on it)")
    parser.add_argument("--device", help="gpu: compare with the CPU's bits")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a tunable of what runs under vmap")
    parser.add_argument("--keep", help="keep all programs below this folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    o = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if o.seed == "random" else int(o.seed)
    o.quern = os.path.abspath(o.quern)
    if o.keep:
        os.makedirs(o.keep, exist_ok=True)
    print(f"seed {seed}", flush=True)
    end, started, running = time.monotonic() + o.seconds, 0, set()
    counts, why = {"passed": 0, "raised": 0, "refused": 0, "FAILED": 0}, {}
    with ThreadPoolExecutor(o.jobs) as pool:
        while True:
            while len(running) < 2 * o.jobs and started < o.count and time.monotonic() < end and counts["FAILED"] < 10:
                kind = o.kind or KINDS[(seed + started) % len(KINDS)]
                running.add(pool.submit(check, o, seed + started, kind))
                started += 1
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                text = future.result()
                counts[re.match(r"\w+", text).group(0)] += 1
                if text.startswith("FAILED"):
                    print(text, flush=True)
                if text.startswith("refused"):
                    why[text] = why.get(text, 0) + 1
    for text, n in sorted(why.items(), key=lambda x: -x[1]):
        print(f"  {n} {text}")
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    # Refusals must not become the rule.
    return 1 if counts["FAILED"] or counts["refused"] * 2 > max(8, started) else 0


if __name__ == "__main__":
    sys.exit(main())
