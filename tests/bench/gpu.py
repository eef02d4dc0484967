#!/usr/bin/env python3
"""Compares Quern eager and compiled with PyTorch and JAX on a GPU, interleaved in one run: `./dev bench gpu`.

  gpu.py [--quern build/quern] [--row NAME] [--python PYTHON] [--limit SECONDS] [--rounds N] [--seconds S] [--small] [--out FOLDER]

For each row everybody makes the first call, whose result is compared by two means with the others'; who is wrong or fails is told so
and not timed, and the table goes on. Then all take turns, each sampling for S seconds while the others wait. A sample is many calls after
each other and a wait for the last, divided by their number. Nobody may use TF32.

  first    seconds of the first call: Quern in a new process with an empty kernel cache, peers with what they compile
  ready    Quern compiled only: seconds until compiled code has taken over
  steady   median of all samples (in brackets: the middle half of them, as parts of the median)
  ratio    steady, compared with Quern compiled: above 1 is slower than that
  rate     bytes that must move, or operations of the products, by steady; behind it as a part of what a copy or a product of f32 or
           bf16 reached in this run through PyTorch

Peers come from PYTHON, else from the first of this interpreter and python3 that has PyTorch. --small takes sizes that a CPU can do, to try the program. Results are in FOLDER while the
run goes on: bench-gpu.txt and bench-gpu.json. Quern's side of the rows is gpu.qn, the peers' gpu_peers.py, which a new row needs, too.
"""
import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
F4 = 4
SKIPPED = 77  # the exit status without a GPU


class Row:
    """What must be moved or multiplied, at the full size."""

    def __init__(self, title, size=0, flops=0, half=False):
        self.title, self.size, self.flops, self.half = title, size, flops, half


def attention_flops(b, t, d):
    return 3 * 2 * b * t * d * d + 2 * 2 * b * t * t * d


def layer_flops(b, t, d):
    return 2 * b * t * d * d * 12 + 2 * 2 * b * t * t * d


def conv_flops(b, c, size):
    return 2 * b * size * size * c * c * 9


ROWS = {
    "chain64": Row("6 pointwise ops, 64 x 64"),
    "chain8192": Row("6 pointwise ops, 8192 x 8192", 2 * F4 * 8192 * 8192),
    "softmax": Row("softmax, 16384 x 4096", 2 * F4 * 16384 * 4096),
    "norm": Row("layer norm, gelu, residual, 65536 x 1024", 2 * F4 * 65536 * 1024),
    "columns": Row("column sums and sums of squares, 16384 x 4096", F4 * 16384 * 4096),
    "attention4": Row("attention, 1 x 4 x 64"),
    "attention": Row("attention, 4 x 1024 x 1024, f32", flops=attention_flops(4, 1024, 1024)),
    "attention_bf16": Row("attention, 4 x 1024 x 1024, bf16", flops=attention_flops(4, 1024, 1024), half=True),
    "mlp": Row("MLP, 32 x 512, 1024, 512"),
    "norm_linear": Row("layer norm, linear, gelu, residual, bf16 16384 x 512", 2 * 2 * 16384 * 512, half=True),
    "layer": Row("transformer layer, 16 x 64 x 512, f32: forward", flops=layer_flops(16, 64, 512)),
    "train": Row("    the same: training step", flops=3 * layer_flops(16, 64, 512)),
    "layer_bf16": Row("transformer layer, 8 x 1024 x 1024, bf16: forward", flops=layer_flops(8, 1024, 1024), half=True),
    "train_bf16": Row("    the same: training step", flops=3 * layer_flops(8, 1024, 1024), half=True),
    "resnet": Row("ResNet block, 32 x 64 x 56 x 56, f32: forward", flops=2 * conv_flops(32, 64, 56)),
    "train_resnet": Row("    the same: training step", flops=5 * conv_flops(32, 64, 56)),
    "rnn": Row("tanh RNN, 128 steps, 32 x 256"),
    "sort": Row("sort, 1048576", 2 * F4 * 1048576),
    "sort_rows": Row("sort, 4096 x 1024 along rows", 2 * F4 * 4096 * 1024),
    "tiny": Row("a tiny call, 8 floats"),
}
TORCH = {"eager": "PyTorch eager", "compile": "torch.compile", "graphs": "torch.compile, graphs"}


class Trouble(Exception):
    pass


class Lines:
    """Lines of a process's output, with a time limit for each."""

    def __init__(self, command, stream, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env, errors="replace",
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if stream == "both" else subprocess.DEVNULL)
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


class Peer:
    """A process of gpu_peers.py, started again if it had to be ended."""

    def __init__(self, o, kind):
        self.o, self.kind, self.lines = o, kind, None
        self.begin()

    def begin(self):
        env = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false", TORCHINDUCTOR_CACHE_DIR=os.path.join(self.o.folder, "torch"),
                   TF_CPP_MIN_LOG_LEVEL="3")
        command = [self.o.python, os.path.join(HERE, "gpu_peers.py"), self.kind, "small" if self.o.small else "full"]
        self.lines, self.opened = Lines(command, "out", env), False

    def ask(self, limit, **what):
        end = time.monotonic() + limit
        if self.lines.process.poll() is not None and self.opened:
            self.begin()
        if not self.opened:
            self.answer(time.monotonic() + 90)
            self.opened = True
        try:
            self.lines.process.stdin.write(json.dumps(what) + "\n")
            self.lines.process.stdin.flush()
        except OSError:
            raise Trouble("its process has ended") from None
        return self.answer(end)

    def answer(self, end):
        line = self.lines.next(end)
        if line is None:
            raise Trouble("its process ended")
        found = json.loads(line)
        if "error" in found:
            raise Trouble(found["error"])
        return found


class PeerEntry:
    def __init__(self, peer, variant, name):
        self.peer, self.variant, self.name = peer, variant, name

    def first(self, row, limit):
        found = self.peer.ask(limit, do="first", row=row, variant=self.variant)
        self.process = self.peer.lines.process
        return found["first"], None, found["check"]

    def sample(self, seconds):
        if self.process.poll() is not None:
            raise Trouble("its process had to be ended")
        return self.peer.ask(20 + 4 * seconds, do="sample", variant=self.variant, seconds=seconds)["samples"]

    def end(self):
        if self.peer.lines.process.poll() is None and self.peer.opened:
            self.peer.ask(20, do="drop")


class QuernEntry:
    def __init__(self, o, compiled):
        self.o, self.compiled, self.name = o, compiled, "Quern compiled" if compiled else "Quern eager"

    def first(self, row, limit):
        here = tempfile.mkdtemp(dir=self.o.folder)
        self.control = os.path.join(here, "control")
        os.mkfifo(self.control)
        command = [self.o.quern, "--device", "gpu", *([] if self.compiled else ["--jit", "off"]), *self.o.flags, os.path.join(HERE, "gpu.qn"), row,
                   "small" if self.o.small else "full", self.control] + ["compiled"] * self.compiled
        self.lines = Lines(command, "both", dict(os.environ, QUERN_CACHE=os.path.join(here, "cache"), QUERN_LOG=""))
        self.seconds = self.ready = self.check = None
        self.listen(time.monotonic() + limit)
        return self.seconds, self.ready, self.check

    def listen(self, end):
        """Reads up to `done`; the samples among what it says."""
        samples, words = [], []
        while True:
            line = self.lines.next(end)
            if line is None:
                raise Trouble(next((w for w in words if w.startswith("error[")), words[-1] if words else "its process ended"))
            kind, _, rest = line.partition(" ")
            if kind == "done":
                return samples
            if kind == "first":
                self.seconds = float(rest)
            elif kind in ("ready", "unready"):
                self.ready = float(rest) if kind == "ready" else None
                self.notready = kind == "unready"
            elif kind == "check":
                self.check = [float(x) for x in rest.split()]
            elif kind == "sample":
                samples.append(float(rest))
            elif line.strip():
                words.append(line)

    def tell(self, number):
        end = time.monotonic() + 5
        while True:
            try:
                fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                if self.lines.process.poll() is not None or time.monotonic() > end:
                    raise Trouble("its process does not listen") from None
                time.sleep(0.001)
        os.write(fd, str(number).encode())
        os.close(fd)

    def sample(self, seconds):
        self.tell(seconds)
        return self.listen(time.monotonic() + 20 + 4 * seconds)

    def end(self):
        if getattr(self, "lines", None) and self.lines.process.poll() is None:
            try:
                self.tell(-1)
                self.lines.process.wait(10)
            except (Trouble, subprocess.TimeoutExpired):
                pass
            self.lines.kill()


# ---- the run ------------------------------------------------------------------------------------------------------------------

def interpreter():
    """The Python that has the peers."""
    for python in (sys.executable, shutil.which("python3") or sys.executable):
        seen = subprocess.run([python, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"], check=False)
        if seen.returncode == 0:
            return python
    return sys.executable


def shown(seconds):
    if seconds is None:
        return ""
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            break
    return f"{seconds / scale:.3g} {unit}"


def differ(row, marks, other):
    """Do two results differ by more than rounding? Each leaf has a mean magnitude, and a weighted mean of about that size."""
    if len(marks) != len(other):
        return f"{len(marks) // 2} results, not {len(other) // 2}"
    tolerance = 0.05 if row.half else 0.004
    for i in range(0, len(marks), 2):
        size = max(abs(other[i]), 1e-6)
        for a, b in zip(marks[i : i + 2], other[i : i + 2]):
            if not abs(a - b) <= tolerance * max(size, abs(b)):
                return f"result {i // 2} has means {marks[i]:.6g}, {marks[i + 1]:.6g}, others {other[i]:.6g}, {other[i + 1]:.6g}"
    return None


class Table:
    def __init__(self, o):
        self.o, self.lines, self.rows = o, [], {}
        os.makedirs(o.out, exist_ok=True)

    def say(self, text=""):
        print(text, flush=True)
        self.lines.append(text)
        with open(os.path.join(self.o.out, "bench-gpu.txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(self.lines) + "\n")
        with open(os.path.join(self.o.out, "bench-gpu.json"), "w", encoding="utf-8") as f:
            json.dump(self.rows, f, indent=1)


def run_row(key, o, table, field, rates):
    row, end = ROWS[key], time.monotonic() + o.row_limit
    table.say(f"\n{row.title:54}{'first':>9}{'ready':>9}{'steady':>10}{'middle half':>14}{'ratio':>7}{'rate':>14}")
    state = {}  # by name: entry, first, ready, samples, trouble
    marks = {}
    for entry in field:
        here = state[entry.name] = [entry, None, None, [], None]
        try:
            if time.monotonic() > end:
                raise Trouble("left out: the row's time was up")
            here[1], here[2], marks[entry.name] = entry.first(key, max(5.0, end - time.monotonic()))
        except Trouble as e:
            here[4] = str(e)
    reference = next((marks[name] for name in ("PyTorch eager", "JAX jit", "Quern eager") if name in marks), None)
    for name, found in marks.items():
        state[name][4] = differ(row, found, reference)
    turns = [here for here in state.values() if here[4] is None]
    for _ in range(o.rounds):
        for here in turns:
            if here[4] is None:
                try:
                    here[3] += here[0].sample(o.seconds)
                except Trouble as e:
                    here[4] = str(e)
    for here in state.values():
        try:
            here[0].end()
        except Trouble:
            pass
    medians = {name: statistics.median(here[3]) for name, here in state.items() if here[3] and not here[4]}
    base = medians.get("Quern compiled", medians.get("Quern eager"))
    kept = table.rows[key] = {"title": row.title.strip()}
    for name in sorted(state, key=lambda n: not n.startswith("Quern")):
        _, first, ready, samples, trouble = state[name]
        kept[name] = {"first": first, "ready": ready, "steady": medians.get(name), "trouble": trouble}
        if name not in medians:
            table.say(f"  {name:24}{trouble or 'no result'}")
            continue
        steady = medians[name]
        q = sorted(x / steady for x in samples)
        rate = ""
        if row.flops and not o.small:
            peak = rates.get("bf16" if row.half else "f32")
            rate = f"{row.flops / steady / 1e12:.1f} TFLOP/s" + (f" {row.flops / steady / peak:4.0%}" if peak else "")
        elif row.size and not o.small:
            rate = f"{row.size / steady / 1e9:.0f} GB/s" + (f" {row.size / steady / rates['copy']:4.0%}" if rates.get("copy") else "")
        late = "never" if name == "Quern compiled" and ready is None else shown(ready)
        table.say(f"  {name:52}{shown(first):>9}{late:>9}{shown(steady):>10}{f'{q[len(q) // 4]:.2f}-{q[-1 - len(q) // 4]:.2f}':>14}"
                  f"{f'{steady / base:.2f}' if base else '-':>7}  {rate}")


def summary(table):
    """One line a row, in ms, with the first call's seconds in brackets."""
    names = ["Quern eager", "Quern compiled", "PyTorch eager", "torch.compile", "JAX jit"]
    table.say("\nms a call [seconds until it runs so]; torch.compile: the better of its modes\n")
    table.say(f"{'':54}" + "".join(f"{n:>20}" for n in names))
    for kept in table.rows.values():
        if "title" not in kept:
            continue
        cells = []
        for name in names:
            modes = [kept[n] for n in kept if n == name or name == "torch.compile" and n == TORCH["graphs"]]
            modes = [m for m in modes if m["steady"]]
            best = min(modes, key=lambda m: m["steady"]) if modes else None
            cells.append(f"{best['steady'] * 1e3:.4g} [{best['ready'] or best['first']:.2g}]" if best else "-")
        table.say(f"{kept['title']:54}" + "".join(f"{c:>20}" for c in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--flag", dest="flags", action="append", default=[], help="a flag of Quern's (repeatable)")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this row (repeatable)")
    parser.add_argument("--python", default=os.environ.get("QUERN_BENCH_PYTHON"))
    parser.add_argument("--limit", type=float, default=460, help="seconds for everything; rows that it does not reach are named")
    parser.add_argument("--row-limit", type=float, default=60, help="seconds for all first calls of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.12)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--without", action="append", default=[], choices=("torch", "jax"))
    parser.add_argument("--out", default=os.environ.get("OUT") or "build/bench-gpu")
    o = parser.parse_args()
    o.python = o.python or interpreter()
    o.quern, end = os.path.abspath(o.quern), time.monotonic() + o.limit
    there = subprocess.run([o.quern, "--device", "gpu", "-e", "[1]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if there.returncode != 0:
        print(f"there is no GPU:\n{there.stdout}")
        return SKIPPED
    o.folder = tempfile.mkdtemp(prefix="quern-bench-")
    table, peers = Table(o), {}
    try:
        for name, kind in (("torch", "torch"), ("compile", "torch"), ("jax", "jax")):
            if kind not in o.without:
                peers[name] = Peer(o, kind)
        rates = {}
        if "torch" in peers:
            try:
                rates = table.rows["rates"] = peers["torch"].ask(120, do="rates")
                table.say(f"a copy reaches {rates['copy'] / 1e9:.0f} GB/s, products {rates['f32'] / 1e12:.3g} TFLOP/s in f32 and "
                          f"{rates['bf16'] / 1e12:.3g} in bf16")
            except Trouble as e:
                table.say(f"PyTorch: {e}")
        field = [QuernEntry(o, False), QuernEntry(o, True)]  # those that take long to begin come last, where time may lack
        field += [PeerEntry(peers["torch"], "eager", TORCH["eager"])] if "torch" in peers else []
        field += [PeerEntry(peers["jax"], "jit", "JAX jit")] if "jax" in peers else []
        field += [PeerEntry(peers["compile"], v, TORCH[v]) for v in ("compile", "graphs") if "compile" in peers]
        for key in o.row or ROWS:
            if time.monotonic() > end - 10:
                table.say(f"{ROWS[key].title.strip()}: left out, time was up")
                continue
            o.row_limit = min(o.row_limit, end - time.monotonic())
            try:
                run_row(key, o, table, field, rates)
            except Exception as e:  # any: the table goes on
                table.say(f"  {type(e).__name__}: {e}")
        summary(table)
    finally:
        for peer in peers.values():
            peer.lines.kill()
        shutil.rmtree(o.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
