#!/usr/bin/env python3
"""Sorting against NumPy's stable order: sorting.py [--quern build/quern] [--seed N|random] [--count N] [--seconds S] [--longest N]
  [--edges] [--threads N] [--device D] [--jit MODE] [--set NAME=VALUE]...

Arrays of every dtype, with lengths around every length at which the way of sorting changes, few and many different values, presorted,
reversed, with zeros of both signs and NaNs of several bits, contiguous, strided, reversed and permuted, along every axis, up and down.
`argsort` must be the order that NumPy's stable argsort gives of equal keys, and `sort` those elements, bit for bit. Script i sorts 20 arrays of the seed N + i. With `--edges` the first one sorts lines of every length around those at which a
GPU's way changes, in every dtype, few and many beside each other.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

KINDS = {"bool": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
         "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
NAMES = {"bool": "BOOL", "u8": "U8", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64", "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64"}
EDGES = sorted({1, *(n + k for n in (2, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) for k in (-1, 0, 1))})
LENGTHS = [1, 2, 3, 15, 16, 17, 18, 31, 95, 96, 97, 127, 128, 129, 200, 500, 1000, 2047, 2048, 4095, 4096, 4097, 10000, 16384, 32768, 32769,
           50000, 65536, 70000, 131073, 262143, 262145, 300000]


def numbers(kind, x):
    """What is compared: bf16 is kept as its bits."""
    return (x.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else x


def draw(kind, rng, n):
    """n elements: how they are spread is drawn, too."""
    how = rng.integers(0, 8)
    if kind == "bool":
        return rng.integers(0, 2, n).astype(np.bool_) if how else np.ones(n, np.bool_)
    word = KINDS[kind]
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(word).itemsize]
    floats = kind[0] in "fb"
    if how == 0:  # any bits: NaNs of all kinds, too
        return rng.integers(0, np.iinfo(bits).max, n, dtype=bits, endpoint=True).view(word)
    if how == 1:
        x = rng.integers(0, 3, n) - 1
    elif how == 2:
        x = np.arange(n)
    elif how == 3:
        x = np.arange(n)[::-1]
    elif how == 4:  # one outlier beside what is close together
        x = rng.integers(0, 50, n)
        x[rng.integers(0, n)] = 100
    elif how == 5:
        x = np.sort(rng.integers(-120, 120, n))
    else:
        x = rng.standard_normal(n) * (1 if how == 6 else 30)
    with np.errstate(all="ignore"):
        f = np.asarray(x, np.float64)
        if not floats:
            return np.asarray(x).astype(np.int64).astype(word)
        if kind == "bf16":
            out = (f.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            out = f.astype(word)
    if rng.integers(0, 2):  # zeros of both signs, infinities, NaNs
        top = 8 * out.itemsize - 1
        mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[kind]
        infinity = (1 << top) - (1 << mantissa)
        special = [0, 1 << top, infinity, infinity | 1 << top, infinity | 1, infinity | 1 << top | 3, infinity | 1 << mantissa - 1]
        where = rng.integers(0, n, max(1, n // rng.integers(2, 20)))
        out = out.copy()
        out.view(bits)[where] = np.array(special, bits)[rng.integers(0, len(special), len(where))]
    return out


def order_of(kind, x, axis, descending):
    """The stable order: NaN last in both directions."""
    v = numbers(kind, x)
    if v.dtype.kind == "f":
        nan = np.isnan(v)
        v = np.where(nan, 0, v).astype(np.float64)
        v = -v if descending else v
        first = np.argsort(v, axis=axis, kind="stable")
        second = np.argsort(np.take_along_axis(nan, first, axis), axis=axis, kind="stable")
        return np.take_along_axis(first, second, axis)
    v = v.astype(np.int64)
    return np.argsort(~v if descending else v, axis=axis, kind="stable")


def save(path, arrays):
    head, data = {}, b""
    for name, (kind, x) in arrays.items():
        raw = np.ascontiguousarray(x).tobytes()
        head[name] = {"dtype": NAMES[kind], "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        data = f.read()
    types = {v: KINDS[k] for k, v in NAMES.items()}
    return {k: np.frombuffer(data[h["data_offsets"][0]:h["data_offsets"][1]], types[h["dtype"]]).reshape(h["shape"])
            for k, h in head.items() if k != "__metadata__"}


def shape_of(rng, longest, n=None):
    if n is None:
        n = int(rng.choice([m for m in LENGTHS if m <= longest]))
    else:  # a block of the GPU sorts 4096 elements, ranks 256: fewer lines than it has room for, as many, more
        return (int(rng.choice([1, 2, 3, max(1, 4096 // n), max(1, 256 // n) + 1])), n)
    if rng.integers(0, 2) or n > 70000:
        return (n,)
    rest = [int(rng.integers(1, 1 + max(1, min(40, 100000 // n)))) for _ in range(rng.integers(1, 3))]
    shape = rest + [n]
    rng.shuffle(shape)
    return tuple(shape)


def views(rng, shape):
    """What is made of an array of more elements, for both sides: (the array's shape, text for Quern, function for NumPy)."""
    how = rng.integers(0, 4)
    if how == 1:
        return tuple(2 * s for s in shape), "x[" + ", ".join("::2" for _ in shape) + "]", lambda x: x[tuple(slice(None, None, 2) for _ in shape)]
    if how == 2:
        return shape, "flip(x)", lambda x: x[tuple(slice(None, None, -1) for _ in shape)]
    if how == 3:
        order = list(range(len(shape)))
        rng.shuffle(order)
        source = [0] * len(shape)
        for i, o in enumerate(order):
            source[o] = shape[i]
        return tuple(source), f"permute(x, {', '.join(map(str, order))})", lambda x: x.transpose(order)
    return shape, "x", lambda x: x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--quern", default="build/quern")
    p.add_argument("--seed", default="1", help="of the first script, or random")
    p.add_argument("--count", type=int, default=12)
    p.add_argument("--seconds", type=float, default=60, help="time at most")
    p.add_argument("--longest", type=int, default=300000)
    p.add_argument("--edges", action="store_true")
    for name in ("--threads", "--device", "--set", "--jit"):
        p.add_argument(name, action="append", default=[], help="given to Quern")
    o = p.parse_args()
    options = [text for name in ("threads", "device", "set", "jit") for value in getattr(o, name) for text in (f"--{name}", value)]
    start = random.randrange(1 << 32) if o.seed == "random" else int(o.seed)
    end, done = time.monotonic() + o.seconds, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + o.count):
            if done and time.monotonic() > end:
                break
            rng = np.random.default_rng(seed)
            arrays, script, cases = {}, ['let all = load("in.safetensors")'], []
            edges = EDGES if o.edges and seed == start else (None, None)
            for kind in KINDS:
                for length in edges:
                    k = len(cases)
                    shape = shape_of(rng, o.longest, length)
                    source, text, view = views(rng, shape)
                    x = draw(kind, rng, int(np.prod(source))).reshape(source)
                    axis, down = -1 if length else int(rng.integers(-len(shape), len(shape))), bool(rng.integers(0, 2))
                    arrays[f"x{k}"] = (kind, x)
                    cases.append((kind, view(x), axis, down, text))
                    script.append(f'fn view{k}(x) = {text}\nlet x{k} = view{k}(all.x{k})')
            how = "axis: {}, descending: {}"
            parts = [f"s{k}: sort(x{k}, {how.format(a, str(d).lower())}), o{k}: argsort(x{k}, {how.format(a, str(d).lower())})"
                     for k, (_, _, a, d, _) in enumerate(cases)]
            script.append('save("out.safetensors", {' + ", ".join(parts) + "})")
            save(os.path.join(folder, "in.safetensors"), arrays)
            with open(os.path.join(folder, "s.qn"), "w") as f:
                f.write("\n".join(script))
            done += 1
            ran = subprocess.run([os.path.abspath(o.quern), *options, "s.qn"], cwd=folder, capture_output=True, text=True, timeout=600)
            if ran.returncode or "NVRTC failed" in ran.stderr:
                sys.exit(f"FAILED --seed {seed}: status {ran.returncode}\n{ran.stderr[-2000:]}")
            out = read(os.path.join(folder, "out.safetensors"))
            for k, (kind, x, axis, down, text) in enumerate(cases):
                want = order_of(kind, x, axis, down)
                what = f"{kind} {x.shape} as {text}, axis {axis}, descending {down}"
                if not np.array_equal(out[f"o{k}"], want):
                    sys.exit(f"FAILED --seed {seed}: argsort of {what}")
                if np.ascontiguousarray(np.take_along_axis(x, want, axis)).tobytes() != out[f"s{k}"].tobytes():
                    sys.exit(f"FAILED --seed {seed}: sort of {what}")
    print(f"{done} scripts, seeds from {start}")


main()
