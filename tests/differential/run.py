#!/usr/bin/env python3
"""Runs random programs (programs.py) eagerly and compiled, and compares the saved arrays.

  run.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--products none] [--keep FOLDER]

Program i has the seed N + i, so `--seed N+i --count 1 --kind KIND --products ...` makes it again. Each runs with `--jit off` and with
`--jit sync --set jit.hot=2`, every third one with a C compiler and two threads, the others on the block VM. Required:

  eager and compiled     the same files, bit for bit, all NaNs counting as one; the first and the last call, too
  plain against NumPy    within the program's own bounds (programs.py)
  grad against NumPy     the derivative along random directions against a central difference, in f64

With --device what is compiled runs on that device, and the first calls of it eagerly there; eager execution is the CPU's, unless
--eager-there. Programs share processes then (--batch), since starting a device takes long; what fails there runs once more alone.

A program that fails is kept, with its inputs, where the message says. Needs NumPy.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

import numpy as np

from programs import Program

warnings.simplefilter("ignore")  # NumPy's, of empty slices and such: results are compared anyway

KINDS = ("plain", "plain", "wild", "grad")
EAGER = ["--jit", "off"]


class Failure(Exception):
    pass


SURROUNDINGS = dict(os.environ, QUERN_LOG="breaks")
GAVE_UP = b"the compiler gave up"


def run(quern, flags, folder, out):
    target = os.path.join(folder, out)
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(folder):
        if name.startswith("in"):
            shutil.copy(os.path.join(folder, name), target)
    command = [quern, *flags, os.path.join(folder, "program.qn"), target]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, env=SURROUNDINGS)
    except subprocess.TimeoutExpired:
        raise Failure(f"no end in time: {' '.join(command)}") from None
    if done.returncode != 0:
        raise Failure(f"status {done.returncode}: {' '.join(command)}\n{done.stderr.decode(errors='replace')}")
    if b"C compiler failed" in done.stderr or b"NVRTC failed" in done.stderr:
        raise Failure(f"emitted code does not compile: {' '.join(command)}\n{done.stderr.decode(errors='replace')}")
    if GAVE_UP in done.stderr:
        raise Failure(f"a graph that is not taken: {' '.join(command)}\n{done.stderr.decode(errors='replace')}")
    return target


def same_bits(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a) & np.isnan(b)
    bits = f"u{a.dtype.itemsize}"
    return bool(np.all((np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | nan))


def difference(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    with np.errstate(all="ignore"):
        other = (a != b) & ~((a != a) & (b != b)) if a.dtype.kind != "f" else a.view(f"u{a.dtype.itemsize}") != b.view(f"u{a.dtype.itemsize}")
    places = np.argwhere(other)
    first = tuple(places[0]) if len(places) else ()
    return f"{len(places)} of {a.size} elements differ, first at {[int(i) for i in first]}: {a[first]!r} and {b[first]!r}"


def compare_runs(program, eager, compiled):
    firsts = {}
    for name, s in program.saved():
        one, two = np.load(os.path.join(eager, name)), np.load(os.path.join(compiled, name))
        if sorted(one.files) != sorted(two.files):
            raise Failure(f"{name}: other fields")
        for field in one.files:
            if not same_bits(one[field], two[field]):
                raise Failure(f"{name} {field}: eager and compiled differ: {difference(one[field], two[field])}")
            first = firsts.setdefault((s, field), one[field])
            if not same_bits(first, one[field]):
                raise Failure(f"{name} {field}: an earlier call gave another result: {difference(first, one[field])}")


def compare_plain(program, folder):
    for name, s in program.saved()[::2]:
        got = np.load(os.path.join(folder, name))
        for n, value in enumerate(program.outputs):
            a, want, tol = got[f"o{n}"], value.arrays[s], value.tol[s]
            if a.dtype != want.dtype or a.shape != want.shape:
                raise Failure(f"{name} o{n} ({value.name}, {value.dtype}): {a.dtype}{list(a.shape)}, NumPy has {want.dtype}{list(want.shape)}")
            if a.size == 0:
                continue
            off = np.abs(a.astype(np.float64) - want.astype(np.float64))
            worst = float(np.max(np.where(np.isnan(off), np.inf, off)))
            if worst > tol:
                at = np.unravel_index(int(np.argmax(off)), off.shape)
                raise Failure(f"{name} o{n} ({value.name}, {value.dtype}): off by {worst:.3g} at {[int(i) for i in at]}, "
                              f"bound {tol:.3g}: {a[at]!r}, NumPy has {want[at]!r}")


def compare_grad(program, folder):
    rng = np.random.default_rng(1)
    for name, s in program.saved()[::2]:
        got = np.load(os.path.join(folder, name))
        inputs = [v.arrays[s] for v in program.inputs]
        gradients = [got[f"o{n}"] for n in range(len(inputs))]
        for n, (g, x) in enumerate(zip(gradients, inputs)):
            if g.shape != x.shape or g.dtype != x.dtype:
                raise Failure(f"{name}: gradient {n} is {g.dtype}{list(g.shape)} for {x.dtype}{list(x.shape)}")
        for _ in range(3):
            direction = [rng.standard_normal(x.shape) for x in inputs]
            slope = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction))
            # Two step widths: where they disagree the function has a kink nearby, or is too steep for differences.
            estimates = []
            for h in (1e-5, 2.5e-6):
                up = program.value([x + h * d for x, d in zip(inputs, direction)])
                down = program.value([x - h * d for x, d in zip(inputs, direction)])
                estimates.append((up - down) / (2 * h))
            scale = max(1.0, abs(estimates[0]), abs(slope))
            if abs(estimates[0] - estimates[1]) > 1e-5 * scale:
                continue
            if not abs(slope - estimates[1]) <= 1e-4 * scale:
                raise Failure(f"{name}: slope by gradient {slope!r}, by differences {estimates[1]!r}")


def make(o, seed, kind, folder):
    """A program and its inputs in a folder of their own; `path` in it is the folder's place below the first argument."""
    program = Program(seed, kind, o.products)
    os.makedirs(folder)
    with open(os.path.join(folder, "program.qn"), "w", encoding="utf-8") as f:
        f.write(f"# {kind} program, seed {seed}, products {o.products}\n" + program.text())
    program.write_inputs(folder)
    return program


def compare(program, kind, eager, compiled):
    if kind == "plain":
        compare_plain(program, eager)
    elif kind == "grad":
        compare_grad(program, eager)
    compare_runs(program, eager, compiled)


def flags_of(o, seed, hot=2):
    """Flags of the eager and of the compiled run, which is eager until a function is hot."""
    compiler = seed % 3 == 0 and not o.device
    extra = ["--threads", "2"] if compiler else ["--set", "jit.cc=0", "--threads", "1"]
    there = ["--device", o.device] if o.device else []
    more = [text for setting in o.set for text in ("--set", setting)]
    return EAGER + (there + more if o.eager_there else []), ["--jit", "sync", "--set", f"jit.hot={hot}"] + extra + there + more


def run_single(o, hot, program, kind, seed, folder):
    """Runs and compares one program; the text of its failure, or None."""
    eager, compiled = flags_of(o, seed, hot)
    try:
        compare(program, kind, run(o.quern, eager, folder, "eager"), run(o.quern, compiled, folder, "compiled"))
    except Failure as e:
        if o.failures and len(os.listdir(o.failures)) < 40:
            folder = shutil.copytree(folder, os.path.join(o.failures, os.path.basename(folder)), dirs_exist_ok=True)
        return f"{kind} seed {seed} ({folder}): {e}"
    if not o.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def run_together(o, hot, programs, folder):
    """Runs programs in two processes, eagerly and compiled. The names of those to run once more alone: all that follow the first failure,
    and those whose results are not as they should be."""
    texts = {name: program.text(f'"{{args[0]}}/{name}"') for name, (program, _, _) in programs.items()}
    for out, flags in zip(("eager", "compiled"), flags_of(o, 1, hot)):
        target = os.path.join(folder, out)
        for name in programs:
            place = os.path.join(target, name)
            os.makedirs(place)
            for file in os.listdir(os.path.join(folder, name)):
                if file.startswith("in"):
                    shutil.copy(os.path.join(folder, name, file), place)
            with open(os.path.join(place, "program.qn"), "w", encoding="utf-8") as f:
                f.write(texts[name])
        with open(os.path.join(target, "all.qn"), "w", encoding="utf-8") as f:
            f.writelines(f'import "{name}/program.qn" as {name}\n' for name in programs)
        try:
            done = subprocess.run([o.quern, *flags, os.path.join(target, "all.qn"), target], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=SURROUNDINGS, timeout=60 + 15 * len(programs), check=False)
            if GAVE_UP in done.stderr:
                return list(programs)
        except subprocess.TimeoutExpired:
            pass
    again = []
    for name, (program, kind, _) in programs.items():
        try:
            compare(program, kind, os.path.join(folder, "eager", name), os.path.join(folder, "compiled", name))
        except (Failure, OSError):
            again.append(name)
    return again


def check(o, jobs):
    """Makes and runs the programs of (seed, kind) pairs; the texts of their failures."""
    folder = tempfile.mkdtemp(prefix="quern-differential-", dir=o.keep)
    programs, failures = {}, []
    for seed, kind in jobs:
        name = f"{kind}_{seed}"
        programs[name] = (make(o, seed, kind, os.path.join(folder, name)), kind, seed)
    # On a device each eager op is compiled, too, which takes long: most batches do without.
    hot = 1 if len(jobs) > 1 and jobs[0][0] % 3 else 2
    again = run_together(o, hot, programs, folder) if len(jobs) > 1 else list(programs)
    for name in again:
        failures.append(run_single(o, hot, *programs[name], os.path.join(folder, name)))
    if len(jobs) > 1 and len(again) == 1 and failures == [None]:
        failures.append(f"{again[0]} fails only after others: {' '.join(programs)}")
    failures = [text for text in failures if text]
    if not failures and not o.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--count", type=int, default=1000000, help="programs at most")
    parser.add_argument("--seconds", type=float, default=60, help="time at most")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="only programs of this kind")
    parser.add_argument("--device", help="gpu: compare with the CPU's bits")
    parser.add_argument("--keep", help="keep all programs below this folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--products", choices=("none", "some", "many"), default="some", help="of matrices (a seed's program depends on it)")
    parser.add_argument("--eager-there", action="store_true", help="eager execution on the device, too")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a tunable of what runs on the device")
    parser.add_argument("--batch", type=int, help="programs in one process (1; with --device 8)")
    parser.add_argument("--failures", metavar="FOLDER", help="keep programs that fail there")
    o = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if o.seed == "random" else int(o.seed)
    o.quern = os.path.abspath(o.quern)
    batch = o.batch or (8 if o.device else 1)
    for folder in (o.keep, o.failures):
        if folder:
            os.makedirs(folder, exist_ok=True)
    print(f"seed {seed}", flush=True)
    end = time.monotonic() + o.seconds
    started, done, failed, running = 0, 0, 0, {}
    with ProcessPoolExecutor(o.jobs) as pool:  # NumPy's part of the work is Python's
        while True:
            while len(running) < 2 * o.jobs and started < o.count and time.monotonic() < end and failed < 10:
                jobs = [(seed + i, o.kind or KINDS[(seed + i) % len(KINDS)]) for i in range(started, min(started + batch, o.count))]
                running[pool.submit(check, o, jobs)] = len(jobs)
                started += len(jobs)
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done += running.pop(future)
                for failure in future.result():
                    failed += 1
                    print("FAILED " + failure, flush=True)
                if batch > 1:
                    print(f"{done - failed} passed, {failed} failed so far", flush=True)
            if time.monotonic() > end:
                for future in [f for f in running if f.cancel()]:
                    del running[future]
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
