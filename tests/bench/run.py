#!/usr/bin/env python3
"""Compares Quern eager and compiled, loops in C, NumPy, PyTorch and JAX, interleaved in one run: `./dev bench cpu`, `./dev bench gpu`.

  run.py cpu|gpu [--quern build/quern] [--row NAME] [--rounds N] [--seconds S] [--warm S] [--threads N] [--only NAME] [--small] [--json FILE]

For each row everybody makes the first call, and leaves a part of the result, which is compared with NumPy's in f64, or with PyTorch's where
that takes too long (on a GPU) or NumPy has no such function. Who is wrong or fails is told so and not timed, and the table goes on. Then all
are warmed up, and take turns: one runs while the others wait, for a fraction of a second, round after round, so that a busy minute of the
machine hits all of them alike. Nobody may use TF32. Columns:

  first    seconds of the first call: Quern in a new process with an empty kernel cache, peers with what they compile
  ready    Quern compiled only: seconds from the first call until compiled code has taken over
  steady   median of all samples of all rounds (behind it: the middle half of them, as parts of the median); with --fastest, for machines that
           others use, too, the fastest sample; with --processor, the fastest turn's processor time, divided by its calls
  ratio    steady, compared with Quern compiled: above 1 is slower than that
  rate     bytes that must move (inputs read once, results written once), or operations, by steady; behind it as a part of what a copy, or a
           product of f32 or bf16, reached in the same row

On a CPU the copy is 256 MiB by memcpy on all processors, taking turns with the others, and the product one of 1024 x 1024 by PyTorch or
NumPy, before and after them; on a GPU both are PyTorch's, before and after. "C loop" is loops.c: what one would write by hand with the same
streams. The table's end compares with the best peer: peers are NumPy, PyTorch and JAX.

Peers are looked for in the interpreters of --python, else QUERN_BENCH_PYTHON (several, separated by colons), else in this one and python3.
All get the same processors. --small takes sizes that take no time, to try everything; its status is 1 if anybody was wrong.

Protocol. A process is called with ROW INPUTS CONTROL RESULT (INPUTS: rows.py) and prints, to stdout or stderr, `first S`, perhaps `ready S` or
`unready S`, and `done` when the result is there. It then reads two numbers from the named pipe CONTROL until its end: it samples for so many seconds,
prints `sample S N` for each (a sample is N calls, as many as take the other number of seconds, divided by N) and `done`, and reads
again; a negative number ends it. Peers, which take long to begin, are asked over pipes instead, and stay: peers.py.
"""
import argparse
import json
import math
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import peers as rows_in_numpy
from rows import ROWS

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77  # the exit status without a GPU
EQUAL = 1.03  # within this ratio two are equally fast
PROCESSOR = "processor time"
SLOW = 0.5    # who takes so many seconds a call is not asked in every round
NAMES = {("numpy", "eager"): "NumPy", ("torch", "eager"): "PyTorch eager", ("torch", "compile"): "torch.compile",
         ("torch", "graphs"): "torch.compile, graphs", ("jax", "eager"): "JAX jit"}


class Trouble(Exception):
    pass


class Lines:
    """A process and the lines that it prints, with a time limit for each."""

    def __init__(self, command, env=None, errors=True):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env, errors="replace", stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def next(self, end):
        """The next line, or None at the output's end."""
        try:
            return self.lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            self.kill()
            raise Trouble("no answer in time") from None

    def kill(self):
        self.process.kill()
        self.process.wait()


# ---- participants: first(key, spec, folder, limit) -> (first, ready or None, pieces of the result), sample(seconds, each), end() ---------------

class Told:
    """A process for each row that is told by a named pipe: Quern, the loops."""

    def __init__(self, name, command, env, rows=None, read=None):
        self.name, self.command, self.env, self.rows, self.read, self.lines = name, command, env, rows, read, None
        self.process, self.calls = None, 0

    def first(self, key, spec, folder, limit):
        here = tempfile.mkdtemp(dir=folder)
        self.control, result = os.path.join(here, "control"), os.path.join(here, "result.npz")
        os.mkfifo(self.control)
        env = dict(os.environ, **self.env)
        if not env.get("QUERN_CACHE"):
            env["QUERN_CACHE"] = os.path.join(here, "cache")
        self.lines = Lines(self.command(key, spec, self.control, result), env)
        self.process = self.lines.process
        self.seconds = self.ready = None
        self.listen(time.monotonic() + limit)
        return self.seconds, self.ready, self.read(result)

    def listen(self, end):
        """Reads up to `done`; the samples among what it says."""
        samples, words, self.calls = [], [], 0
        while True:
            line = self.lines.next(end)
            if line is None:
                status = f"status {self.lines.process.wait()}"
                raise Trouble(next((w for w in words if w.startswith("error[")), words[-1] if words else status))
            kind, _, rest = line.partition(" ")
            if kind == "done":
                return samples
            if kind == "first":
                self.seconds = float(rest)
            elif kind == "ready":
                self.ready = float(rest)
            elif kind == "sample":
                seconds, calls = rest.split()
                samples.append(float(seconds))
                self.calls += int(calls)
            elif kind != "unready" and line.strip():
                words.append(line)

    def tell(self, *numbers):
        end = time.monotonic() + 5
        while True:
            try:
                fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                if self.lines.process.poll() is not None or time.monotonic() > end:
                    raise Trouble("its process does not listen") from None
                time.sleep(0.001)
        os.write(fd, " ".join(map(str, numbers)).encode())
        os.close(fd)

    def sample(self, seconds, each):
        self.tell(seconds, each)
        return self.listen(time.monotonic() + 20 + 4 * seconds)

    def end(self):
        if self.lines and self.lines.process.poll() is None:
            try:
                self.tell(-1, 0)
                self.lines.process.wait(10)
            except (Trouble, subprocess.TimeoutExpired):
                pass
            self.lines.kill()

    def close(self):
        pass


class Peer:
    """A process of peers.py, started when it is first asked, and again if it had to be ended."""

    def __init__(self, python, kind, machine, env):
        self.command, self.env, self.lines = [python, os.path.join(HERE, "peers.py"), kind, machine], env, None

    def ask(self, limit, **what):
        if self.lines is None or self.lines.process.poll() is not None:
            self.lines = Lines(self.command, dict(os.environ, **self.env), errors=False)
            self.answer(time.monotonic() + 90)
        end = time.monotonic() + limit
        try:
            self.lines.process.stdin.write(json.dumps(what) + "\n")
            self.lines.process.stdin.flush()
        except OSError:
            raise Trouble("its process has ended") from None
        return self.answer(end)

    def answer(self, end):
        line = self.lines.next(end)
        if line is None:
            self.lines.kill()
            raise Trouble("its process ended")
        found = json.loads(line)
        if "error" in found:
            raise Trouble(found["error"])
        return found

    def close(self):
        if self.lines:
            self.lines.kill()


class Asked:
    """A way of running rows in a Peer."""

    def __init__(self, peer, kind, variant):
        self.peer, self.variant, self.name = peer, variant, NAMES[kind, variant]
        self.without = rows_in_numpy.PEERS[kind].without
        self.process, self.calls = None, 0

    def first(self, key, spec, folder, limit):
        to = os.path.join(tempfile.mkdtemp(dir=folder), "result.npz")
        found = self.peer.ask(limit, do="first", row=key, inputs=spec, variant=self.variant, to=to)
        self.process = self.peer.lines.process
        return found["first"], None, pieces(to)

    def sample(self, seconds, each):
        if self.process.poll() is not None:
            raise Trouble("its process had to be ended")
        found = self.peer.ask(20 + 4 * seconds, do="sample", variant=self.variant, seconds=seconds, each=each)
        self.calls = found["calls"]
        return found["samples"]

    def end(self):
        if self.process and self.process.poll() is None:
            self.peer.ask(20, do="drop")
        self.process = None

    def close(self):
        self.peer.close()


def pieces(path):
    with np.load(path) as arrays:
        return [arrays[f"r{k}"].astype(np.float64) for k in range(len(arrays.files))]


def raw_pieces(path):
    """What loops.c writes."""
    data, found, at = open(path, "rb").read() if os.path.exists(path) else b"", [], 0
    while at < len(data):
        n = int(np.frombuffer(data, np.int64, 1, at)[0])
        found.append(np.frombuffer(data, np.float32, n, at + 8).astype(np.float64))
        at += 8 + 4 * n
    return found


def build_loops(folder):
    """The program of loops.c and the names of its rows, or None without a compiler."""
    out = os.path.join(folder, "loops")
    for compiler in ("cc", "gcc", "clang"):
        for flags in (["-mprefer-vector-width=512"], []):
            if shutil.which(compiler):
                command = [compiler, "-O3", "-march=native", "-ffast-math", "-fopenmp", *flags, os.path.join(HERE, "loops.c"), "-o", out, "-lm"]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return out, subprocess.run([out, "list"], capture_output=True, text=True, check=True).stdout.split()
    return None, []


def participants(o):
    """Everybody, in the order of their turns (who takes long to begin comes last, where time may lack), and who copies."""
    gpu, threads = o.machine == "gpu", str(len(os.sched_getaffinity(0)))
    script = os.path.join(HERE, "rows.qn")
    env = {"QUERN_SET": "", "QUERN_LOG": ""}
    if not o.small:  # of small rows it is not measured how long they take to compile
        env["QUERN_CACHE"] = ""
    flags = ["--device", "gpu"] if gpu else ["--threads", threads]
    flags += ["--set", "jit.turns=0", "--set", "jit.segments=0", *o.flags]  # rows.qn's timer says why
    pools = {v: threads for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    ready = str(15 if gpu else 40)
    found = [Told("Quern eager", lambda *a: [o.quern, *flags, "--jit", "off", script, *a], env, read=pieces),
             Told("Quern compiled", lambda *a: [o.quern, *flags, script, *a, ready], env, set(ROWS) - {"add"}, read=pieces)]
    copier = None
    if not gpu:
        loops, names = build_loops(o.folder)
        if loops:
            found.append(Told("C loop", lambda *a: [loops, *a], pools, set(names), read=raw_pieces))
            copier = Told("copy", lambda *a: [loops, *a], pools, {"copy"}, read=raw_pieces)
    env = dict({} if gpu else pools, XLA_PYTHON_CLIENT_PREALLOCATE="false", TF_CPP_MIN_LOG_LEVEL="3",
               TORCHINDUCTOR_CACHE_DIR=os.path.join(o.folder, "torch"))
    asked = {}
    for python in o.python or [p for p in os.environ.get("QUERN_BENCH_PYTHON", "").split(":") if p] or [sys.executable, "python3"]:
        listed = subprocess.run([python, os.path.join(HERE, "peers.py"), "list"], capture_output=True, text=True, check=False)
        for kind in listed.stdout.split():
            if kind in asked or gpu and kind == "numpy":
                continue
            variants = ["eager"] + ["compile"] * (kind == "torch") + ["graphs"] * (kind == "torch" and gpu)
            # One process for who compiles and one for who does not: compiling leaves settings behind.
            peer = Peer(python, kind, o.machine, env)
            other = Peer(python, kind, o.machine, env) if len(variants) > 1 else None
            asked[kind] = [Asked(peer if v == "eager" else other, kind, v) for v in variants]
    found += [entry for kind in ("numpy", "torch", "jax") for entry in asked.get(kind, [])[:1]]
    found += asked.get("torch", [])[1:]
    if o.only:
        found = [p for p in found if any(p.name.startswith(only) for only in o.only)]
    return found, copier


# ---- results --------------------------------------------------------------------------------------------------------------------

def wrong(row, found, expected):
    """What is wrong with the pieces of a result, or None."""
    if len(found) != len(expected):
        return f"{len(found)} results, not {len(expected)}"
    for k, (got, e) in enumerate(zip(found, expected)):
        if got.shape != e.shape:
            return f"result {k} has {got.size} numbers, not {e.size}"
        off = np.abs(got - e) / max(1e-6, np.abs(e).max())
        strays = np.mean(~(off < row.tolerance))
        if strays > row.strays:
            return f"result {k} is off by {off.max():.2g} of its largest, in {strays:.2%} of the elements"
    return None


def reference(row, name, spec):
    """The pieces of the result as NumPy computes it in f64, or None."""
    if name in rows_in_numpy.Numpy.without or row.half:
        return None
    args, _ = rows_in_numpy.arguments(spec)
    args = rows_in_numpy.mapped(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, args)
    call, read = rows_in_numpy.Numpy("cpu").prepare(name, args, False, "eager")
    return rows_in_numpy.picked(read(call()))


def asked_rates(everybody, processor):
    """What a copy and products reach now, through PyTorch or NumPy."""
    by_name = {p.name: p for p in everybody}
    for name in ("PyTorch eager", "NumPy"):
        if name in by_name:
            try:
                return by_name[name].peer.ask(60, do="rates", processor=processor)
            except Trouble:
                pass
    return {}


# ---- the run ------------------------------------------------------------------------------------------------------------------

def shown(seconds):
    if seconds is None:
        return ""
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            break
    return f"{seconds / scale:.3g} {unit}"


class Turn:
    """A participant in a row: its times, and what was wrong."""

    def __init__(self, entry, middle=statistics.median):
        self.entry, self.name, self.typical = entry, entry.name, middle
        self.first = self.ready = self.trouble = self.pieces = None
        self.samples = []

    def attempt(self, f, *args):
        if self.trouble is None:
            try:
                return f(*args)
            except Trouble as e:
                self.trouble = str(e)
        return None

    def begin(self, key, spec, folder, limit):
        done = self.attempt(self.entry.first, key, spec, folder, limit)
        if done:
            self.first, self.ready, self.pieces = done

    def sample(self, seconds, each):
        if self.typical is not PROCESSOR:
            self.samples += self.attempt(self.entry.sample, seconds, each) or []
        elif self.trouble is None:
            clock = ~self.entry.process.pid << 3 | 2  # the processor time of a process (CPUCLOCK_SCHED)
            before = time.clock_gettime(clock)
            if self.attempt(self.entry.sample, seconds, each):
                self.samples.append((time.clock_gettime(clock) - before) / self.entry.calls)

    @property
    def steady(self):
        return (min if self.typical is PROCESSOR else self.typical)(self.samples) if self.samples and self.trouble is None else None

    def middle(self):
        q = sorted(self.samples)
        return q[len(q) // 4], q[-1 - len(q) // 4]


def say(text):
    if sys.stderr.isatty():
        print(text.ljust(100)[:100], end="\r", file=sys.stderr, flush=True)


class Row:
    """A row while it runs."""

    def __init__(self, key, o, everybody, copier):
        self.key, self.o, self.row, self.everybody = key, o, ROWS[key], everybody
        self.size = "small" if o.small else o.machine
        self.name = self.row.f or key
        typical = PROCESSOR if o.processor else min if o.fastest else statistics.median
        self.turns = [Turn(p, typical) for p in everybody if self.name in (getattr(p, "rows", None) or [self.name]) and self.name not in getattr(p, "without", ())]
        self.copier = Turn(copier, typical) if copier and not self.row.calls and not o.small else None
        self.rates = []

    def run(self):
        o, row, spec = self.o, self.row, self.row.spec(self.size)
        folder, end = tempfile.mkdtemp(dir=o.folder), time.monotonic() + o.row_limit
        expected = reference(row, self.name, spec) if o.small or o.machine == "cpu" else None
        for t in self.turns:
            say(f"{self.key}: first call of {t.name}")
            if time.monotonic() > end:
                t.trouble = "left out: the row's time was up"
            t.begin(self.name, spec, folder, max(5.0, end - time.monotonic()))
        if expected is None:
            by_name = {t.name: t.pieces for t in self.turns if t.pieces}
            expected = next((by_name[n] for n in ("PyTorch eager", "JAX jit", "Quern eager", *by_name) if n in by_name), None)
        for t in self.turns:
            if t.pieces is not None:
                t.trouble = wrong(row, t.pieces, expected)
                t.pieces = None
        if self.copier:
            self.copier.begin("copy", "-", folder, 20)
        field = self.turns + ([self.copier] if self.copier else [])
        self.rate()
        each = 0.003 if o.machine == "cpu" else o.seconds / 4
        for t in field:
            say(f"{self.key}: warming {t.name}")
            t.sample(o.warm, each)
            t.slow = min(t.samples, default=0) > SLOW
            if not t.slow:
                t.samples.clear()
        for turn in range(o.rounds):
            for t in field:
                if not t.slow:
                    say(f"{self.key}: round {turn + 1} of {o.rounds}, {t.name}")
                    time.sleep(0.005)  # the other's threads go to sleep
                    t.sample(o.seconds, each)
        self.rate()
        for t in field:
            t.attempt(t.entry.end)
        say("")
        shutil.rmtree(folder, ignore_errors=True)

    def rate(self):
        if not self.row.calls and not self.o.small:
            self.rates.append(asked_rates(self.everybody, self.o.processor))

    def peak(self, name):
        """What a copy or a product reached beside this row, or None."""
        if name == "copy" and self.copier:
            return 2 * 4 * (64 << 20) / self.copier.steady if self.copier.steady else None
        found = [r[name] for r in self.rates if name in r]
        return (max if self.o.fastest or self.o.processor else statistics.mean)(found) if found else None

    def roofline(self):
        """(work, unit, seconds that it takes at the rate of copies and products or None)"""
        row, size = self.row, self.size
        if row.calls:
            return 0, "", None
        if row.flops(size):
            peak = None if row.work else self.peak("bf16" if row.half else "f32")
            return row.flops(size), "FLOP/s", row.flops(size) / peak if peak else None
        work = row.bytes(size)
        # What stays in caches is not held against copies of memory.
        peak = self.peak("copy") if work >= 1 << 24 else None
        return work, "B/s", work / peak if peak else None

    def result(self):
        """All that is known, for tables and for --json."""
        work, unit, floor = self.roofline()
        steady = {t.name: t.steady for t in self.turns if t.steady}
        ours = steady.get("Quern compiled", steady.get("Quern eager"))
        peers = {n: s for n, s in steady.items() if n in NAMES.values()}
        best = min(peers, key=peers.get) if peers else None
        loop = steady.get("C loop")
        return {"title": self.row.name(self.size).strip(), "counted": not self.row.beside, "work": work, "unit": unit,
                "quern": ours, "best": best, "best_seconds": peers.get(best), "times": peers[best] / ours if best and ours else None,
                "rate": work / ours if work and ours else None, "roofline_seconds": floor, "of_roofline": floor / ours if floor and ours else None,
                "of_loop": loop / ours if loop and ours else None, "copy": self.peak("copy"), "product_f32": self.peak("f32"),
                "product_bf16": self.peak("bf16"),
                "participants": {t.name: {"first": t.first, "ready": t.ready, "steady": t.steady, "quarters": t.middle() if t.samples else None,
                                          "samples": len(t.samples), "trouble": t.trouble} for t in self.turns}}


def rate_text(work, unit, seconds):
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if work / seconds >= scale:
            break
    return f"{work / seconds / scale:.3g} {prefix}{unit}"


def print_row(row, found, out):
    title = ("the same as above" if not found["title"] else found["title"])
    out(f"\n{row.key + ': ' + title:60}{'first':>9}{'ready':>9}{'steady':>10}{'middle half':>14}{'ratio':>7}  rate")
    base, work = found["quern"], found["work"]
    for t in row.turns:
        if t.steady is None:
            out(f"  {t.name:24}{t.trouble or 'no result'}")
            continue
        low, high = t.middle()
        rate = rate_text(work, found["unit"], t.steady) if work else ""
        if found["roofline_seconds"]:
            rate = f"{rate:14}{found['roofline_seconds'] / t.steady:4.0%}"
        late = "never" if t.name == "Quern compiled" and t.ready is None else shown(t.ready)
        out(f"  {t.name:58}{shown(t.first):>9}{late:>9}{shown(t.steady):>10}{f'{low / t.steady:.2f}-{high / t.steady:.2f}':>14}"
            f"{f'{t.steady / base:.2f}' if base else '-':>7}  {rate}")
    peaks = [f"a copy reaches {found['copy'] / 1e9:.3g} GB/s"] if found["copy"] else []
    peaks += [f"a product of {kind} {found['product_' + kind] / 1e12:.3g} TFLOP/s" for kind in ("f32", "bf16") if found["product_" + kind]]
    if peaks:
        out("  beside: " + ", ".join(peaks))


def print_summary(results, out):
    """A line a row; then what the rows of the issue say together."""
    out(f"\n{'ms a call':60}{'Quern':>9}{'best':>9}  {'best peer':22}{'times':>6}  {'rate':13}{'of roof':>8}{'of C loop':>10}{'first':>9}{'ready':>9}")
    for key, r in results.items():
        if not r["quern"]:
            out(f"{key + ': ' + r['title']:60}{'-':>9}")
            continue
        mine = r["participants"].get("Quern compiled") or r["participants"]["Quern eager"]
        if mine["steady"] is None:
            mine = r["participants"]["Quern eager"]
        out(f"{key + ': ' + r['title']:60}{r['quern'] * 1e3:9.4g}" + (f"{r['best_seconds'] * 1e3:9.4g}  {r['best']:22}{r['times']:6.2f}" if r["best"] else " " * 39)
            + f"  {rate_text(r['work'], r['unit'], r['quern']) if r['work'] else '':13}" + (f"{r['of_roofline']:8.0%}" if r["of_roofline"] else " " * 8)
            + (f"{r['of_loop']:10.0%}" if r["of_loop"] else " " * 10) + f"{shown(mine['first']):>9}{shown(mine['ready']):>9}")
    counted = {k: r for k, r in results.items() if r["counted"] and r["times"]}
    if counted:
        mean = math.exp(statistics.mean(math.log(r["times"]) for r in counted.values()))
        out(f"\ngeometric mean of best peer / Quern over {len(counted)} rows: {mean:.2f}")
        slower = [f"{k} ({1 / r['times']:.2f})" for k, r in counted.items() if r["times"] * EQUAL < 1]
        out(f"slower than the best peer by more than {EQUAL - 1:.0%}: {', '.join(slower) or 'none'}")
    behind = [f"{k} ({r['of_loop']:.0%})" for k, r in results.items() if r["of_loop"] and r["work"] and r["unit"] == "B/s" and r["of_loop"] < 0.85]
    if behind:
        out(f"below 85 % of the C loop: {', '.join(behind)}")
    missing = [k for k, r in results.items() if r["counted"] and not r["times"]]
    if missing:
        out(f"without a comparison: {', '.join(missing)}")


def print_cost(quern, out):
    done = subprocess.run([sys.executable, os.path.join(HERE, "..", "cost.py"), "--quern", quern], capture_output=True, text=True, check=False)
    out("\ninstructions a call, interpreter included, kernels not (callgrind)")
    for line in done.stdout.splitlines():
        if re.match(r".*at most", line):
            out("  " + line)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", choices=("cpu", "gpu"))
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", choices=list(ROWS), metavar="NAME", help="only this row (repeatable); matmul64 .. matmul2048 run "
                        "only when named: " + ", ".join(k for k, r in ROWS.items() if not r.named))
    parser.add_argument("--rounds", type=int, help="turns of everybody in each row")
    parser.add_argument("--seconds", type=float, help="of samples, each participant, row and round")
    parser.add_argument("--warm", type=float, help="seconds of calls before the samples")
    parser.add_argument("--threads", type=int, help="processors that everybody gets; all without it")
    parser.add_argument("--python", action="append", help="an interpreter with peers (repeatable)")
    parser.add_argument("--only", action="append", help="only participants whose name begins so (repeatable)")
    parser.add_argument("--flag", dest="flags", action="append", default=[], help="a flag of Quern's (repeatable)")
    parser.add_argument("--limit", type=float, help="seconds for everything; rows that it does not reach are named")
    parser.add_argument("--row-limit", type=float, help="seconds for all first calls of a row")
    parser.add_argument("--part", help="K/N: only the K-th of N parts of the rows, where time is short")
    parser.add_argument("--fastest", action="store_true", help="compare the fastest samples, not the medians")
    parser.add_argument("--processor", action="store_true", help="compare processor times of the fastest turns (Linux; with --threads 1, since waiting "
                        "threads use it up)")
    parser.add_argument("--small", action="store_true", help="sizes that take no time, to try everything")
    parser.add_argument("--json", help="a file that gets everything, also while rows are still to come")
    o = parser.parse_args()
    given = {k: v for k, v in vars(o).items() if v is not None}
    defaults = dict(rounds=3, seconds=0.12, warm=0.05, limit=560, row_limit=60) if o.machine == "gpu" else \
        dict(rounds=6, seconds=0.1, warm=0.3, limit=3600, row_limit=120)
    if o.small:
        defaults.update(rounds=1, seconds=0.002, warm=0.001, limit=3600)
    for k, v in defaults.items():
        setattr(o, k, given.get(k, v))
    o.quern = os.path.abspath(o.quern)
    return o


def main():
    o = options()
    end = time.monotonic() + o.limit
    if o.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: o.threads])
    if o.machine == "gpu":
        there = subprocess.run([o.quern, "--device", "gpu", "-e", "[1]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if there.returncode != 0:
            print(f"there is no GPU:\n{there.stdout}")
            return SKIPPED
    o.folder = tempfile.mkdtemp(prefix="quern-bench-")
    results, everybody, copier = {}, [], None

    def out(text=""):
        print(text, flush=True)
    try:
        everybody, copier = participants(o)
        there = "small" if o.small else o.machine
        keys = o.row or [k for k, r in ROWS.items() if o.machine in r.sizes and not r.named]
        if o.part:
            part, parts = map(int, o.part.split("/"))
            keys = keys[part - 1 :: parts]
        out(f"{o.machine}: {len(os.sched_getaffinity(0))} processors, {o.rounds} rounds; " + ", ".join(p.name for p in everybody))
        for key in keys:
            if there not in ROWS[key].sizes:
                out(f"{key} is no row of this machine")
                continue
            if time.monotonic() > end - 10:
                out(f"{key}: left out, time was up")
                continue
            o.row_limit = min(o.row_limit, end - time.monotonic())
            row = Row(key, o, everybody, copier)
            row.run()
            results[key] = row.result()
            print_row(row, results[key], out)
            if o.json:
                with open(o.json, "w", encoding="utf-8") as f:
                    json.dump({"machine": o.machine, "processors": len(os.sched_getaffinity(0)), "rows": results}, f, indent=1)
        print_summary(results, out)
        if any(ROWS[k].calls for k in results) and o.machine == "cpu" and not o.small and shutil.which("valgrind"):
            print_cost(o.quern, out)
    finally:
        for p in everybody:
            p.close()
        shutil.rmtree(o.folder, ignore_errors=True)
    return int(o.small and any(p["trouble"] for r in results.values() for n, p in r["participants"].items()))


if __name__ == "__main__":
    sys.exit(main())
