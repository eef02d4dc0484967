#!/usr/bin/env python3
"""Compares Quern eager, Quern compiled, loops in C and the installed peers, interleaved in one run.

  run.py [--quern build/quern] [--row NAME] [--rounds N] [--seconds S] [--warm S] [--threads N] [--python PYTHON]

For each row every participant is a process of its own: it reads the row's inputs, makes its first call, and saves the result, which
is compared with a reference in f64. Who is wrong is not timed. Then all are warmed up, and take turns: one runs while the others
wait, for a fraction of a second, round after round, so that a busy minute of the machine hits all of them alike. Columns:

  first    seconds of the first call in a new process: Quern with an empty kernel cache, peers with what they compile
  ready    Quern compiled only: seconds from the first call until compiled code has taken over
  steady   median of all samples of all rounds (in brackets: the middle half of them, as parts of the median)
  ratio    steady, compared with Quern compiled: above 1 is slower than that
  GB/s     bytes that must move (inputs read once, results written once), divided by steady

The line of each row named "copy" is what copying 256 MiB reached in between, with all processors. Peers are looked for in PYTHON,
else in QUERN_BENCH_PYTHON (several, separated by colons), else in this interpreter. All get the same processors.

Protocol. A participant is called with ROW INPUTS CONTROL RESULT and prints (to stdout or stderr) `first S`, perhaps `ready S`, and `done` when the result
is saved. It then reads a number from the named pipe CONTROL until its end: it samples for so many seconds, prints `sample S` for
each (a sample is as many calls as take a millisecond or so, divided by their number) and `done`, and reads again; a negative
number ends it.
"""
import argparse
import errno
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
F32, F64 = np.float32, np.float64


# ---- rows: title, compulsory bytes, inputs, the reference in f64 ---------------------------------------------------------

def erf(x):
    """Abramowitz and Stegun 7.1.26: off by at most 1.5e-7, far below the tolerance."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.copysign(1 - p * np.exp(-x * x), x)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def chain(x):
    return (np.tanh(x * 2 + 1) ** 2 + x) * 0.5


def norm(x, g, b):
    n = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * g + b
    return 0.5 * n * (1 + erf(n * np.sqrt(0.5))) + x


def forward(x, w1, b1, w2, b2):
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def train(x, y, w1, b1, w2, b2):
    h = np.maximum(x @ w1 + b1, 0)
    p = softmax(h @ w2 + b2)
    n, y = np.arange(len(y)), y.astype(int)
    value = -np.log(p[n, y]).mean()
    p[n, y] -= 1
    p /= len(y)
    dh = (p @ w2.T) * (h > 0)
    return {"w1": w1 - 0.1 * x.T @ dh, "b1": b1 - 0.1 * dh.sum(0), "w2": w2 - 0.1 * h.T @ p, "b2": b2 - 0.1 * p.sum(0), "loss": value}


def attention(x, wq, wk, wv):
    return softmax((x @ wq) @ (x @ wk).transpose(0, 2, 1) / 8) @ (x @ wv)


def eight(a, b, c, d, e, f, g, h):
    return (a + b) * (c + d) + (e + f) * (g + h)


class Row:
    def __init__(self, title, size, inputs, reference, flops=0, calls=False, every=1):
        self.title, self.size, self.inputs, self.reference, self.flops, self.calls = title, size, inputs, reference, flops, calls
        self.every = every  # which rows of the result the reference gives


def randn(*shapes, scale=(1,) * 8, names="x"):
    def make():
        rng = np.random.default_rng(1)
        return {n: (rng.standard_normal(s, dtype=F32) * F32(k)) for n, s, k in zip(names, shapes, scale)}
    return make


def network(labels):
    def make():
        i = randn((256, 784), (784, 512), (512,), (512, 10), (10,), names=("x", "w1", "b1", "w2", "b2"),
                  scale=(1, 1 / 28, 1, 1 / 22, 1))()
        if not labels:
            return i
        y = np.random.default_rng(2).integers(0, 10, 256)
        return {"x": i.pop("x"), "y": y, **i}
    return make


ROWS = {
    "chain64": Row("six-op chain, 64 x 64", 2 * 4 * 64 * 64, randn((64, 64)), chain),
    "chain4096": Row("six-op chain, 4096 x 4096", 2 * 4 * 4096 * 4096, randn((4096, 4096)), chain),
    "softmax": Row("softmax, 4096 x 2048", 2 * 4 * 4096 * 2048, randn((4096, 2048)), softmax),
    "norm": Row("layer_norm + gelu + residual, 8192 x 1024", 2 * 4 * 8192 * 1024, randn((8192, 1024), (1024,), (1024,), names="xgb"), norm),
    "columns": Row("column sums, 8192 x 1024", 4 * 8192 * 1024, randn((8192, 1024)), lambda x: x.sum(axis=0)),
    "forward": Row("MLP forward, 256 x 784, 512, 10", 4 * (256 * 784 + 784 * 512 + 512 + 512 * 10 + 10 + 256 * 10), network(False),
                   forward, 2 * 256 * (784 * 512 + 512 * 10)),
    "train": Row("MLP training step, the same", 4 * (256 * 784 + 2 * (784 * 512 + 512 + 512 * 10 + 10)), network(True), train,
                 2 * 256 * (2 * 784 * 512 + 3 * 512 * 10)),
    "attention": Row("attention, 8 x 256 x 64", 4 * (2 * 8 * 256 * 64 + 3 * 64 * 64),
                     randn((8, 256, 64), (64, 64), (64, 64), (64, 64), names=("x", "wq", "wk", "wv"), scale=(1, 1 / 8, 1 / 8, 1 / 8)),
                     attention, 8 * (3 * 2 * 256 * 64 * 64 + 2 * 2 * 256 * 256 * 64)),
    "sort": Row("sort, 1,000,000", 2 * 4 * 1000000, randn((1000000,)), lambda x: np.sort(x)),
    "sort_rows": Row("sort, 1000 x 1000 along rows", 2 * 4 * 1000000, randn((1000, 1000)), lambda x: np.sort(x)),
    "eight": Row("a call with eight f32[4]", 0, randn(*[(4,)] * 8, names="abcdefgh"), eight, calls=True),
    "add": Row("a + b on f32[8]", 0, randn((8,), (8,), names="ab"), lambda a, b: a + b, calls=True),
    **{f"matmul{n}": Row(f"matmul, {n} x {n} x {n}", 3 * 4 * n * n, randn((n, n), (n, n), names="ab"),
                         lambda a, b, n=n: a[:: n // 32] @ b, 2 * n**3, every=n // 32)
       for n in (64, 128, 256, 512, 1024, 2048)},
}


def wrong(row, inputs, path):
    """What is wrong with a result, or None. Sums of n terms of size 1 may be off by some parts in a million of their size."""
    expected = row.reference(**{k: v.astype(F64) for k, v in inputs.items()})
    expected = expected if isinstance(expected, dict) else {"out": expected}
    if path.endswith(".bin"):
        got = {"out": np.fromfile(path, F32).reshape(next(iter(inputs.values())).shape)}
    else:
        with np.load(path) as arrays:
            got = dict(arrays)
    for name, e in expected.items():
        g = got[name][:: row.every] if name in got and row.every > 1 else got.get(name)
        if g is None or g.shape != np.shape(e):
            return f"{name} has shape {None if g is None else g.shape}, not {np.shape(e)}"
        off = np.abs(g - e).max() / max(1.0, np.abs(e).max())
        if not off < 2e-5:
            return f"{name} is off by {off:.2g}"
    return None


# ---- participants -----------------------------------------------------------------------------------------------------------

class Participant:
    """A command that speaks the protocol; `rows` (None: all) says which rows it has."""

    def __init__(self, name, command, env, rows=None, raw=False):
        self.name, self.command, self.env, self.rows, self.raw = name, command, env, rows, raw

    def start(self, folder, key, inputs):
        self.control, self.result = os.path.join(folder, "control"), os.path.join(folder, "result" + (".bin" if self.raw else ".npz"))
        os.makedirs(folder)
        os.mkfifo(self.control)
        self.first = self.ready = None
        self.samples, self.trouble, self.words = [], None, []
        self.process = subprocess.Popen(self.command(key, inputs + (".bin" if self.raw else ".npz"), self.control, self.result),
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                        env=dict(os.environ, **self.env))
        self.listen()

    def listen(self):
        """Reads what it prints up to `done`."""
        for line in self.process.stdout:
            kind, _, value = line.strip().partition(" ")
            if kind == "done":
                return
            if kind == "first":
                self.first = float(value)
            elif kind == "ready":
                self.ready = float(value)
            elif kind == "sample":
                self.samples.append(float(value))
            elif line.strip():
                self.words.append(line.strip())
        self.process.wait()
        last = self.words[-1] if self.words else f"status {self.process.returncode}"
        error = next((word for word in self.words if word.startswith("error[")), last)
        self.trouble = self.trouble or error

    def tell(self, number):
        while self.process.poll() is None:
            try:
                fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                time.sleep(0.001)  # it has not opened its end yet
                continue
            os.write(fd, str(number).encode())
            os.close(fd)
            return

    def run(self, seconds):
        if self.trouble is None:
            self.tell(seconds)
            self.listen()

    def end(self):
        if self.process.poll() is None and self.trouble is None:
            self.tell(-1)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def build_loops(folder):
    """The program of loops.c, or None without a compiler."""
    out = os.path.join(folder, "loops")
    flags = ["-O3", "-march=native", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    for compiler in ("cc", "gcc", "clang"):
        if shutil.which(compiler):
            done = subprocess.run([compiler, *flags, os.path.join(HERE, "loops.c"), "-o", out, "-lm"], capture_output=True, text=True)
            if done.returncode == 0:
                return out
    return None


def participants(options, folder):
    threads = str(len(os.sched_getaffinity(0)))
    quern, script = os.path.abspath(options.quern), os.path.join(HERE, "rows.qn")
    env = {"QUERN_CACHE": os.path.join(folder, "cache"), "QUERN_SET": "", "QUERN_LOG": ""}
    pools = {v: threads for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    found = [Participant("Quern eager", lambda *a: [quern, "--jit", "off", "--threads", threads, script, *a], env),
             Participant("Quern compiled", lambda *a: [quern, "--threads", threads, script, *a, "compiled"], env,
                         set(ROWS) - {"add"})]
    loops = build_loops(folder)
    if loops:
        found.append(Participant("C loop", lambda *a: [loops, *a], pools, {"chain64", "chain4096"}, raw=True))
    seen = set()
    pythons = options.python or [p for p in os.environ.get("QUERN_BENCH_PYTHON", "").split(":") if p] or [sys.executable]
    for python in pythons:
        peers = os.path.join(HERE, "peers.py")
        listed = subprocess.run([python, peers, "list"], capture_output=True, text=True)
        for peer in listed.stdout.split():
            if peer not in seen:
                seen.add(peer)
                env = dict(pools, TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "torch"), JAX_PLATFORMS="cpu")
                found.append(Participant(peer, lambda *a, python=python, peer=peer: [python, peers, peer, *a], env))
    copier = Participant("copy", lambda *a: [loops, "copy", "-", a[2], "-"], pools) if loops else None
    return found, copier


# ---- the run ------------------------------------------------------------------------------------------------------------------

def shown(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            break
    return f"{seconds / scale:.3g} {unit}"


def say(text):
    if sys.stderr.isatty():
        print(text.ljust(100)[:100], end="\r", file=sys.stderr, flush=True)


def run_row(key, options, folder, everybody, copier):
    """Runs one row and prints its part of the table. Returns medians by name."""
    row, here = ROWS[key], os.path.join(folder, key)
    os.makedirs(here)
    arrays, inputs = row.inputs(), os.path.join(here, "inputs")
    np.savez(inputs + ".npz", **arrays)
    next(iter(arrays.values())).tofile(inputs + ".bin")
    field = [p for p in everybody if p.rows is None or key in p.rows]
    for p in field:
        say(f"{key}: first call of {p.name}")
        p.start(os.path.join(here, p.name.replace(" ", "-")), key, inputs)
        if p.trouble is None:
            p.trouble = wrong(row, arrays, p.result)
    if copier:
        copier.start(os.path.join(here, "copy"), key, inputs)
    for p in field:
        say(f"{key}: warming {p.name}")
        p.run(options.warm)
        p.samples.clear()
    turns = field + ([copier] if copier else [])
    for turn in range(options.rounds):
        for p in turns:
            say(f"{key}: round {turn + 1} of {options.rounds}, {p.name}")
            time.sleep(0.005)  # the other's threads go to sleep
            p.run(options.seconds)
    for p in turns:
        p.end()
    say("")
    shutil.rmtree(here, ignore_errors=True)
    last = "" if row.calls else "GFLOP/s" if row.flops else "GB/s"
    print(f"\n{row.title:44}{'first':>9}{'ready':>9}{'steady':>10}{'middle half':>14}{'ratio':>8}{last:>9}")
    medians = {p.name: statistics.median(p.samples) for p in turns if p.samples and p.trouble is None}
    base = medians.get("Quern compiled", medians.get("Quern eager"))
    for p in field:
        if p.name not in medians:
            print(f"  {p.name:42}{p.trouble or 'no result'}")
            continue
        steady = medians[p.name]
        q = sorted(x / steady for x in p.samples)
        middle = f"{q[len(q) // 4]:.2f}-{q[-1 - len(q) // 4]:.2f}"
        rate = "" if row.calls else f"{(row.flops or row.size) / steady / 1e9:.1f}"
        print(f"  {p.name:42}{shown(p.first):>9}{shown(p.ready) if p.ready else '':>9}{shown(steady):>10}{middle:>14}"
              f"{f'{steady / base:.2f}' if base else '-':>8}{rate:>9}")
    if "copy" in medians and not row.calls:
        print(f"  {'copy of 256 MiB, beside':42}{'':>9}{'':>9}{shown(medians['copy']):>10}{'':>14}{'':>8}{2 * 4 * (64 << 20) / medians['copy'] / 1e9:>9.1f}"
              + (" GB/s" if row.flops else ""))
    sys.stdout.flush()
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this row (repeatable); products run only when named")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.15, help="of samples, each participant, row and round")
    parser.add_argument("--warm", type=float, default=0.7, help="seconds of calls before the samples")
    parser.add_argument("--threads", type=int, help="processors that everybody gets; all without it")
    parser.add_argument("--python", action="append", help="an interpreter with peers (repeatable)")
    parser.add_argument("--only", action="append", help="only participants whose name begins so (repeatable)")
    options = parser.parse_args()
    if options.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    folder = tempfile.mkdtemp(prefix="quern-bench-")
    try:
        everybody, copier = participants(options, folder)
        if options.only:
            everybody = [p for p in everybody if any(p.name.startswith(o) for o in options.only)]
        rows = options.row or [r for r in ROWS if not r.startswith("matmul")]
        print(f"{len(os.sched_getaffinity(0))} processors, {options.rounds} rounds; peers: "
              f"{', '.join(p.name for p in everybody if p.name not in ('Quern eager', 'Quern compiled')) or 'none'}")
        for key in rows:
            medians = run_row(key, options, folder, everybody, copier)
            if key == "chain4096" and "C loop" in medians and "Quern compiled" in medians:
                ratio = medians["Quern compiled"] / medians["C loop"]
                print(f"  compiled takes {ratio:.2f} times the C loop (bound: 1.5): {'holds' if ratio <= 1.5 else 'EXCEEDED'}")
        if any(ROWS[r].calls for r in rows) and shutil.which("valgrind"):
            done = subprocess.run([sys.executable, os.path.join(HERE, "..", "cost.py"), "--quern", options.quern], capture_output=True, text=True)
            print("\ninstructions a call, interpreter included, kernels not (callgrind)")
            for line in done.stdout.splitlines():
                if re.match(r".*at most", line):
                    print("  " + line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
