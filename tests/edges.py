#!/usr/bin/env python3
"""The library at the edges of numbers and shapes, against NumPy: edges.py [--quern build/quern]

  values   every elementwise function, reduction and scan over nan, infinities, zeros of both signs, numbers that overflow or vanish, and
           ordinary ones, in every dtype that it takes. The reference is computed in f64 from the same values and rounded once: what
           computes in one step may be 2 units of the last place away, composites 4, sums 16.
  shapes   reductions, scans and orders of arrays without elements: values, shapes and dtypes, or an error where NumPy has one

Differences that have a reason stand in the tables below, with it.
"""
import argparse
import math
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np

INTS = {"u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}
FLOATS = ("f16", "bf16", "f32", "f64")
# digits, smallest normal exponent, greatest
KINDS = {"f16": (11, -14, 65504.0), "bf16": (8, -126, (2 - 2.0**-7) * 2.0**127), "f32": (24, -126, (2 - 2.0**-23) * 2.0**127),
         "f64": (53, -1022, sys.float_info.max)}
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, -3.828125, 5.0, -5.0, 7.5, -7.5, 12.0, -12.0, 20.0, -20.0, 100.0,
           -100.0, 2.0**-10, -2.0**-10, 2.0**15, -2.0**15, math.inf, -math.inf, math.nan]
WHOLE = {"bool": [0, 1], "u8": [0, 1, 2, 3, 200, 255], **{d: [0, 1, -1, 2, -3, 5, 100, -128, 127] for d in ("i8", "i16", "i32", "i64")}}

erf, erfc = np.vectorize(math.erf, otypes=[float]), np.vectorize(math.erfc, otypes=[float])


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def gate(x, s):
    """x * s, whose limit at -inf is -0."""
    return np.where(np.isneginf(x), -0.0, x * s)


def softmax(x):
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)


def logsumexp(x):
    m = np.max(x, -1, keepdims=True)
    shift = np.where(np.isfinite(m), m, 0)
    return np.squeeze(np.log(np.sum(np.exp(x - shift), -1, keepdims=True)) + shift, -1)



# name in Quern, NumPy's, how many units of the last place, the result of ints and bools: "f32", "f64", "i64", "same", "bool"
POINTWISE = [
    ("sqrt(x)", np.sqrt, 1, "f32"), ("rsqrt(x)", lambda x: 1 / np.sqrt(x), 2, "f32"), ("exp(x)", np.exp, 2, "f32"), ("exp2(x)", np.exp2, 2, "f32"),
    ("expm1(x)", np.expm1, 2, "f32"), ("log(x)", np.log, 2, "f32"), ("log2(x)", np.log2, 2, "f32"), ("log10(x)", np.log10, 2, "f32"),
    ("log1p(x)", np.log1p, 2, "f32"), ("sin(x)", np.sin, 2, "f32"), ("cos(x)", np.cos, 2, "f32"), ("tan(x)", np.tan, 2, "f32"),
    ("arcsin(x)", np.arcsin, 2, "f32"), ("arccos(x)", np.arccos, 2, "f32"), ("arctan(x)", np.arctan, 2, "f32"), ("sinh(x)", np.sinh, 2, "f32"),
    ("cosh(x)", np.cosh, 2, "f32"), ("tanh(x)", np.tanh, 4, "f32"), ("sigmoid(x)", sigmoid, 4, "f32"), ("erf(x)", erf, 2, "f32"),
    ("silu(x)", lambda x: gate(x, sigmoid(x)), 4, "f32"), ("gelu(x)", lambda x: gate(x, 0.5 * erfc(-x * math.sqrt(0.5))), 4, "f32"),
    ('gelu(x, approximate: "tanh")', lambda x: gate(x, sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 4, "f32"),
    ("softplus(x)", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 4, "f32"),
    ("elu(x)", lambda x: np.where(x <= 0, np.expm1(np.where(x <= 0, x, 0)), x), 4, "f32"), ("relu(x)", lambda x: np.where(x <= 0, 0.0, x), 0, "same"),
    ("leaky_relu(x)", lambda x: np.where(x <= 0, x * 0.01, x), 4, "f32"), ("square(x)", lambda x: x * x, 1, None),
    ("abs(x)", np.abs, 0, None), ("sign(x)", lambda x: np.where(x == 0, 0.0, np.sign(x)), 0, None), ("-x", np.negative, 0, None),
    ("floor(x)", np.floor, 0, "same"), ("ceil(x)", np.ceil, 0, "same"), ("round(x)", np.rint, 0, "same"), ("trunc(x)", np.trunc, 0, "same"),
    ("x // 3", lambda x: np.floor_divide(x, 3), 0, None), ("x % 3", lambda x: np.mod(x, 3), 1, None),
    ("isnan(x)", np.isnan, 0, "bool"), ("isinf(x)", np.isinf, 0, "bool"), ("isfinite(x)", np.isfinite, 0, "bool"),
    ("clip(x, 0, 3)", lambda x: np.minimum(np.maximum(x, 0), 3), 0, None), ("maximum(x, 1)", lambda x: np.maximum(x, 1), 0, None),
]
# Reductions along the last axis: rows with and without specials.
REDUCE = [
    ("sum(x, axis: -1)", lambda x: np.sum(x, -1), 16, "i64"), ("prod(x, axis: -1)", lambda x: np.prod(x, -1), 16, "i64"),
    ("mean(x, axis: -1)", lambda x: np.mean(x, -1), 16, "f64"), ("var(x, axis: -1)", lambda x: np.var(x, -1), 16, "f64"),
    ("std(x, axis: -1)", lambda x: np.std(x, -1), 16, "f64"), ("max(x, axis: -1)", lambda x: np.max(x, -1), 0, "same"),
    ("min(x, axis: -1)", lambda x: np.min(x, -1), 0, "same"), ("argmax(x, axis: -1)", lambda x: np.argmax(x, -1), 0, "i64"),
    ("argmin(x, axis: -1)", lambda x: np.argmin(x, -1), 0, "i64"), ("cumsum(x, axis: -1)", lambda x: np.cumsum(x, -1), 16, "i64"),
    ("cumprod(x, axis: -1)", lambda x: np.cumprod(x, -1), 16, "i64"), ("cummax(x, axis: -1)", lambda x: np.maximum.accumulate(x, -1), 0, "same"),
    ("cummin(x, axis: -1)", lambda x: np.minimum.accumulate(x, -1), 0, "same"), ("sort(x)", lambda x: np.sort(x, -1), 0, "same"),
    ("argsort(x)", lambda x: np.argsort(x, -1, kind="stable"), 0, "i64"),
    ("topk(x, 2)[0]", lambda x: -np.sort(-x, -1)[..., :2], 0, "same"),
    ("softmax(x)", softmax, 8, "f32"), ("log_softmax(x)", lambda x: x - np.max(x, -1, keepdims=True) - np.log(np.sum(np.exp(x - np.max(x, -1, keepdims=True)), -1, keepdims=True)), 16, "f32"),
    ("logsumexp(x)", logsumexp, 16, "f32"), ("norm(x, axis: -1)", lambda x: np.sqrt(np.sum(x * x, -1)), 16, "f32"),
    ("layer_norm(x)", lambda x: (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.var(x, -1, keepdims=True) + 1e-5), 64, "f32"),
    ("rms_norm(x)", lambda x: x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6), 16, "f32"),
]
ROWS = [[1.0, 2.0, 3.0, -1.0], [0.0, -0.0, 0.5, 0.25], [math.nan, 1.0, 2.0, 3.0], [1.0, math.inf, 2.0, 3.0], [-math.inf, 1.0, 0.0, 2.0],
        [2.0, 2.0, 2.0, 2.0], [100.0, -100.0, 3.0, 5.0], [1.0, math.nan, -math.inf, math.nan]]
WHOLE_ROWS = {"bool": [[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], "u8": [[1, 255, 255, 3], [0, 0, 7, 7]],
              **{d: [[1, -2, 3, 127], [0, 0, -5, -5], [100, 127, 127, 120]] for d in ("i8", "i16", "i32", "i64")}}
# What an op does to zeros of two signs: NumPy's maximum gives the one that stands first or last, Quern's +0; and sums start from the first element.
NO_SIGN = ("clip", "maximum", "max(", "min(", "cummax", "cummin", "sort(", "topk", "relu", "sign", "x % 3", "x // 3", "leaky", "sum", "prod", "mean")

# Expression over e (no elements), NumPy's, for these shapes.
EMPTY_SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 3)]
EMPTY = [
    ("sum(x, axis: -1)", lambda x: np.sum(x, -1)), ("prod(x, axis: -1)", lambda x: np.prod(x, -1)), ("mean(x, axis: -1)", lambda x: np.mean(x, -1)),
    ("var(x, axis: -1)", lambda x: np.var(x, -1)), ("std(x, axis: -1)", lambda x: np.std(x, -1)), ("var(x, axis: -1, ddof: 1)", lambda x: np.var(x, -1, ddof=1)),
    ("max(x, axis: -1)", lambda x: np.max(x, -1)), ("min(x, axis: -1)", lambda x: np.min(x, -1)), ("argmax(x, axis: -1)", lambda x: np.argmax(x, -1)),
    ("argmin(x, axis: -1)", lambda x: np.argmin(x, -1)), ("sum(x)", np.sum), ("prod(x)", np.prod), ("mean(x)", np.mean), ("var(x)", np.var), ("max(x)", np.max),
    ("min(x)", np.min), ("any(x != 0)", lambda x: np.any(x != 0)), ("all(x != 0)", lambda x: np.all(x != 0)),
    ("any(x != 0, axis: 0)", lambda x: np.any(x != 0, 0)), ("all(x != 0, axis: 0)", lambda x: np.all(x != 0, 0)),
    ("sum(x, axis: 0)", lambda x: np.sum(x, 0)), ("mean(x, axis: 0)", lambda x: np.mean(x, 0)), ("max(x, axis: 0)", lambda x: np.max(x, 0)),
    ("argmax(x, axis: 0)", lambda x: np.argmax(x, 0)), ("sum(x, axis: 0, keepdims: true)", lambda x: np.sum(x, 0, keepdims=True)),
    ("cumsum(x, axis: -1)", lambda x: np.cumsum(x, -1)), ("cumprod(x, axis: 0)", lambda x: np.cumprod(x, 0)), ("sort(x)", lambda x: np.sort(x, -1)),
    ("argsort(x, axis: 0)", lambda x: np.argsort(x, 0)), ("norm(x, axis: -1)", lambda x: np.sqrt(np.sum(x * x, -1))),
    ("unique(x)", np.unique), ("nonzero(x)", lambda x: np.argwhere(x)), ("flip(x)", np.flip), ("roll(x, 1, axis: 0)", lambda x: np.roll(x, 1, 0)),
    ("concat((x, x), axis: 0)", lambda x: np.concatenate((x, x), 0)), ("exp(x)", np.exp), ("relu(x)", lambda x: np.maximum(x, 0)), ("-x", np.negative),
    ("x @ ones(x.shape[-1], 2)", lambda x: x @ np.ones((x.shape[-1], 2))),
]


def rounded(d, x):
    """x, an f64, as the nearest number of a float dtype."""
    digits, least, most = KINDS[d]
    if d == "f64" or x == 0 or not math.isfinite(x):
        return x
    e = max(math.frexp(x)[1] - 1, least)
    unit = math.ldexp(1.0, e - digits + 1)
    r = round(x / unit) * unit
    return math.copysign(math.inf, x) if abs(r) > most else math.copysign(r, x)


def near(d, got, want, ulps, signs):
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if d not in KINDS:
        return got == want
    digits, least, most = KINDS[d]
    if math.isinf(want) or math.isinf(got):
        return got == want or abs(want) > most * (1 - ulps * 2.0**-digits) and abs(got) > most * (1 - ulps * 2.0**-digits)
    if want == 0 and got == 0:
        return not signs or math.copysign(1, want) == math.copysign(1, got)
    e = max(math.frexp(want)[1] - 1 if want else least, least)
    return abs(got - want) <= max(ulps, 0.5 if d != "f64" else 1) * math.ldexp(1.0, e - digits + 1)


def written(x):
    return "nan" if math.isnan(x) else "inf" if x == math.inf else "-inf" if x == -math.inf else repr(x)



def nested(d, values):
    if isinstance(values, list):
        return "[" + ", ".join(nested(d, v) for v in values) + "]"
    return ("true" if values else "false") if d == "bool" else str(values) if d in INTS else written(float(values))


def cases():
    """(expression, dtype and shape, values or None for an error, ulps, whether signs of zeros count)"""
    out = []
    for table, floats, wholes in ((POINTWISE, SPECIAL, WHOLE), (REDUCE, ROWS, WHOLE_ROWS)):
        for d in ("bool", *INTS, *FLOATS):
            values = floats if d in FLOATS else wholes[d]
            if d == "f16" or d == "bf16":
                values = [v for v in values if not isinstance(v, float) or abs(v) != 2.0**15] if table is POINTWISE else values
            x = np.array(values, np.float64)
            for text, f, ulps, of_ints in table:
                if d == "bool" and (of_ints is None or text[:3] in ("max", "min", "sor", "arg", "top", "cum") or text.startswith("relu")):
                    continue  # bools in arithmetic are i64: the grid of promotion has them
                if d not in FLOATS and of_ints is None and d != "i64":
                    continue  # narrow integers wrap: the grid of integers has them
                if d == "f64" and text.startswith("gelu"):
                    ulps = 4096  # of the reference, whose argument is rounded: unit/test_math.c measures in long double
                kind = d if d in FLOATS else {"same": d, None: d, "f64": "f32" if d == "bool" else "f64"}.get(of_ints, of_ints)
                if of_ints == "bool":
                    kind = "bool"
                if text.startswith("arg"):
                    kind = "i64"
                out.append((f"{{ let x = {d}({nested(d, values)}); {text} }}", kind, f(x), ulps, not text.startswith(NO_SIGN) and d in FLOATS))
    for shape in EMPTY_SHAPES:
        for d in ("f32", "i64", "f16"):
            x = np.zeros(shape, {"f32": np.float32, "i64": np.int64, "f16": np.float16}[d])
            for text, f in EMPTY:
                try:
                    want = np.asarray(f(x))
                except ValueError:
                    out.append((f"{{ let x = zeros({', '.join(map(str, shape))}, dtype: {d}); {text} }}", None, None, 0, False))
                    continue
                kind = str(want.dtype).replace("float", "f").replace("int", "i")
                if text.startswith(("exp", "norm", "x @")):
                    kind = {"f32": "f32", "f16": "f16", "i64": "f32"}[d]
                    if text.startswith("x @"):
                        kind = "f32"  # ones are f32
                out.append((f"{{ let x = zeros({', '.join(map(str, shape))}, dtype: {d}); {text} }}", kind, want.astype(np.float64), 0, False))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    all_cases, bad = cases(), 0
    script = ["fn t(f) { print(try { let y = array(f()); \"{y.dtype} {y.shape} \" + join(map(list(f64(y).reshape(-1)), fn(v) str(float(v))), \" \") } catch e { \"error {e.id} {e.message}\" }) }"]
    script += [f"t(fn() {c[0]})" for c in all_cases]
    with tempfile.TemporaryDirectory(prefix="quern-edges-") as folder:
        path = os.path.join(folder, "edges.qn")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(script) + "\n")
        for mode in (["--jit", "off"], ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.cc=0"]):
            done = subprocess.run([os.path.abspath(options.quern), *mode, path], capture_output=True, text=True, timeout=500)
            lines = done.stdout.splitlines()
            if done.returncode != 0 or len(lines) != len(all_cases):
                sys.exit(f"FAILED {mode}: status {done.returncode}, {len(lines)} lines for {len(all_cases)} cases\n{done.stderr[-3000:]}")
            for (text, kind, want, ulps, signs), got in zip(all_cases, lines):
                if kind is None or got.startswith("error"):
                    good = kind is None and got.startswith("error")
                else:
                    dtype, rest = got.split(" ", 1)
                    shape, values = eval(rest[:rest.index(")") + 1]), [float(v) for v in rest[rest.index(")") + 1:].split()]
                    good = dtype == kind and shape == want.shape and len(values) == want.size and all(
                        near(kind, g, rounded(kind, float(w)) if kind in KINDS else float(w), ulps, signs) for g, w in zip(values, want.reshape(-1)))
                if not good:
                    bad += 1
                    if bad <= 60:
                        print(f"FAILED {' '.join(mode)}: {text}\n  is {got[:600]}\n  expected {kind} {None if want is None else (want.shape, want.reshape(-1).tolist())}"[:1500])
    print(f"{len(all_cases)} cases, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
