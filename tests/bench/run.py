#!/usr/bin/env python3
"""Compares Quern eager, Quern compiled and the installed peers, interleaved in one run.

  run.py [--quern build/quern] [--row NAME] [--rounds N] [--seconds S] [--threads N] [--python PYTHON]

Each round runs every participant once for every row, so that a busy minute of the machine hits all of them alike. Columns:

  first    seconds of the first call of the first round: Quern with an empty kernel cache, peers with what they compile
  steady   median of all samples after the warm-up, of all rounds
  ratio    steady, compared with Quern compiled: above 1 is slower than that
  GB/s     bytes that must move (inputs read once, results written once), divided by steady

The last line is what copying 256 MiB reaches in the same run. Peers are looked for in PYTHON, else in QUERN_BENCH_PYTHON
(several, separated by colons), else in this interpreter. All participants get the same processors.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Row: title and compulsory bytes.
ROWS = {
    "chain64": ("six-op chain, 64 x 64", 2 * 4 * 64 * 64),
    "chain4096": ("six-op chain, 4096 x 4096", 2 * 4 * 4096 * 4096),
    "softmax": ("softmax, 4096 x 2048", 2 * 4 * 4096 * 2048),
    "norm": ("layer_norm + gelu + residual, 8192 x 1024", 2 * 4 * 8192 * 1024),
    "columns": ("column sums, 8192 x 1024", 4 * 8192 * 1024),
    "forward": ("MLP forward, 256 x 784, 512, 10", 4 * (256 * 784 + 784 * 512 + 512 + 512 * 10 + 10 + 256 * 10)),
    "train": ("MLP training step, the same", 4 * (256 * 784 + 2 * (784 * 512 + 512 + 512 * 10 + 10))),
    "attention": ("attention, 8 x 256 x 64", 4 * (2 * 8 * 256 * 64 + 3 * 64 * 64)),
}


class Participant:
    def __init__(self, name, command, env):
        self.name, self.command, self.env = name, command, env

    def run(self, row, warm, seconds):
        """(first, samples), or the reason why there are none."""
        try:
            done = subprocess.run(self.command(row, str(warm), str(seconds)), capture_output=True, text=True, timeout=600,
                                  stdin=subprocess.DEVNULL, env=dict(os.environ, **self.env))
        except subprocess.TimeoutExpired:
            return None, "no end in time"
        if done.returncode != 0:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            return None, (lines[0] if done.stderr.startswith("error[") else lines[-1]) if lines else f"status {done.returncode}"
        values = {"first": [], "sample": []}
        for line in done.stdout.splitlines():
            kind, _, value = line.partition(" ")
            if kind in values:
                values[kind].append(float(value))
        return values["first"][0], values["sample"]


def copy_bandwidth():
    """The best of several copies of 256 MiB by all processors, bytes read and written per second; 0 without NumPy."""
    program = ("import numpy as np, time, os\n"
               "from concurrent.futures import ThreadPoolExecutor as T\n"
               "a = np.ones(64 << 20, np.uint32); b = np.zeros_like(a); n = len(os.sched_getaffinity(0)); best = 9e9\n"
               "parts = [slice(i * len(a) // n, (i + 1) * len(a) // n) for i in range(n)]\n"
               "with T(n) as pool:\n"
               "  for _ in range(12):\n"
               "    t = time.perf_counter(); list(pool.map(lambda s: np.copyto(b[s], a[s]), parts)); best = min(best, time.perf_counter() - t)\n"
               "print(2 * a.nbytes / best)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else 0.0


def shown(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            break
    return f"{seconds / scale:.3g} {unit}"


def participants(options, cache):
    threads = len(os.sched_getaffinity(0))
    quern, script = os.path.abspath(options.quern), os.path.join(HERE, "rows.qn")
    env = {"QUERN_CACHE": cache}
    found = [
        Participant("Quern eager", lambda *a: [quern, "--threads", str(threads), script, a[0], "eager", *a[1:]], env),
        Participant("Quern compiled", lambda *a: [quern, "--threads", str(threads), script, a[0], "compiled", *a[1:]], env),
    ]
    seen = set()
    pythons = options.python or [p for p in os.environ.get("QUERN_BENCH_PYTHON", "").split(":") if p] or [sys.executable]
    for python in pythons:
        peers = os.path.join(HERE, "peers.py")
        listed = subprocess.run([python, peers, "list"], capture_output=True, text=True)
        for peer in listed.stdout.split():
            if peer not in seen:
                seen.add(peer)
                env = {v: str(threads) for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
                env["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache, "torch")
                found.append(Participant(peer, lambda *a, python=python, peer=peer: [python, peers, peer, *a], env))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this row (repeatable)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of samples, each participant, row and round")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds of calls before the samples")
    parser.add_argument("--threads", type=int, help="processors that everybody gets; all without it")
    parser.add_argument("--python", action="append", help="an interpreter with peers (repeatable)")
    options = parser.parse_args()
    if options.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    cache = tempfile.mkdtemp(prefix="quern-bench-")
    try:
        everybody = participants(options, cache)
        rows = options.row or list(ROWS)
        results = {(row, p.name): ([], []) for row in rows for p in everybody}
        failures, bandwidth = {}, 0.0
        for turn in range(options.rounds):
            bandwidth = max(bandwidth, copy_bandwidth())
            for row in rows:
                for p in everybody:
                    if (row, p.name) in failures:
                        continue
                    if sys.stderr.isatty():
                        print(f"round {turn + 1} of {options.rounds}: {row}, {p.name}".ljust(78), end="\r", file=sys.stderr, flush=True)
                    first, samples = p.run(row, options.warm, options.seconds)
                    if first is None:
                        failures[row, p.name] = samples
                        continue
                    results[row, p.name][0].append(first)
                    results[row, p.name][1].extend(samples)
        if sys.stderr.isatty():
            print(" " * 78, end="\r", file=sys.stderr)
        print(f"{len(os.sched_getaffinity(0))} processors, {options.rounds} rounds")
        for row in rows:
            title, size = ROWS[row]
            print(f"\n{title:44}{'first':>10}{'steady':>10}{'ratio':>8}{'GB/s':>8}")
            base = results[row, "Quern compiled"][1]
            base = statistics.median(base) if base else None
            for p in everybody:
                firsts, samples = results[row, p.name]
                if not samples:
                    print(f"  {p.name:42}{failures.get((row, p.name), 'no result')}")
                    continue
                steady = statistics.median(samples)
                ratio = f"{steady / base:.2f}" if base else "-"
                print(f"  {p.name:42}{shown(firsts[0]):>10}{shown(steady):>10}{ratio:>8}{size / steady / 1e9:>8.1f}")
        print(f"\ncopying reaches {bandwidth / 1e9:.1f} GB/s (read and written) in the same run")
    finally:
        shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main()
