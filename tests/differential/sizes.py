#!/usr/bin/env python3
"""Random functions that are called with arrays of changing sizes: eager, compiled and verified calls must give the same bits and errors.

  sizes.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--regions] [--named] [--ints | --turns | --arms | --lists | --records]
           [--made] [--long] [--whiles] [--grads]

Program i has the seed N + i. A program is one function of two arrays, made of statements that ask for sizes in many ways: shapes as numbers,
branches on them, reshapes, slices, joins, broadcasting, reductions, updates, loops, derivatives, vmap. It is called with sizes that change,
0 and 1 and sizes that are equal at times among them; also other ranks and dtypes. Whatever it gives, arrays or an error, is printed so
that it reads back exactly, by `--jit off`, `--jit sync --set jit.hot=1` and `--jit verify --set jit.hot=1`, and the texts are compared.
A program that fails is printed.

With --ints the function has two host ints beside the arrays, which are sizes, bounds, indices, counts and mere numbers, and change with them.
With --turns a program is one function of loops that take parts of arrays, bounded by their numbers in many ways, and store to such parts.
With --whiles these loops count by `while`, with --grads the program differentiates and batches them.
With --arms statements stand in the arms of branches on data and in loops, which are captured with all sizes.
With --named the function has a signature that names sizes, which are symbolic from the first recording on.
With --lists, and with --records where the list is in a record, a program is a function that goes over a list of arrays, records or numbers, or its gradient, called with lists of many lengths.
With --made the loops go over what is made of the lists: slices, in reverse, joined, numbered, side by side, some of them held by variables. With --long lists of more than two items are
stacked at the first recording.
"""
import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

# {v} and {w} are variables; each statement gives one array (or number).
STATEMENTS = [
    "{v} + {w}", "{v} * 2 - {w}.sum()", "{v} @ {w}.T", "{v} / len({v})", "{v} * {v}.shape[0] + {v}.size", "{v}.reshape(-1)",
    "{v}.reshape({v}.shape[0], -1)", "{v}.reshape({v}.size)", "{v}.reshape({v}.size // 2, 2)", "{v}.reshape(-1, 2, 4)", "{v}.T",
    "{v}[1:]", "{v}[:-1]", "{v}[1:-1] * 2", "{v}[::-1]", "{v}[::2]", "{v}[-3:]", "{v}[:3]", "{v}[2:5]", "{v}[0]", "{v}[-1]", "{v}[1]",
    "{v}[:{v}.shape[0] // 2]", "{v}[{v}.shape[0] - 1]", "{v}[{v}.shape[0] // 2]", "{v}[1:] - {v}[:-1]", "{v}[5::-2]", "{v}[-2::-1]",
    "concat(({v}, {w}))", "concat(({v}, {v}, {w}), axis: -1)", "stack(({v}, {v} * 2))", "stack(({v}, {w}), axis: 1)", "[{v}, {v} + 1]",
    "expand_dims({v}, 0) + expand_dims({v}, 1)", "{v}[new] * {v}[:, new]", "broadcast_to({v}, 2, {v}.shape[0], {v}.shape[1])",
    "zeros({v}.shape) + {w}", "ones({v}.shape[0], 1) * {v}", "full({v}.shape, 0.5) - {v}", "zeros_like({v}) + {w}",
    "arange({v}.shape[0])[:, new] * {v}", "arange(len({v})) + 1", "arange({v}.shape[0], {v}.shape[0] + 3)", "eye(len({v})) * 2",
    "softmax({v})", "softmax({v}, axis: 0)", "layer_norm({v})", "mean({v}, axis: 0)", "mean({v}, axis: -1, keepdims: true) + {v}",
    "mean({v})", "var({v}, axis: 0)", "std({v}, axis: 0, ddof: 1)", "max({v}, axis: 0)", "max({v})", "argmax({v}, axis: 0)",
    "cumsum({v}, axis: 0)", "sort({v}, axis: 0)", "argsort({v})", "topk({v}.reshape(-1), 3)[0]", "sum({v}, axis: 0)", "prod({v} * 0.5)",
    "any({v} > 0, axis: 0)", "count({v})", "count({v}, axis: 0) + {v}", "norm({v}, axis: 0)", "tril({v} @ {v}.T)", "outer({v}[0], {v}[0])",
    "pad({v}, 1)", "pad({v}, ((0, 2), (1, 0)))", "roll({v}, 1)", "flip({v}, axis: 0)", "repeat({v}, 2, axis: 0)", "chunk({v}, 2)[0]",
    "take({v}, arange(len({v})) // 2)", "take({v}, 1)", "{v}[arange(len({v})) // 2]", "gather({v}, argsort({v}), -1)",
    "squeeze({v}[:1])", "squeeze({v})", "where({v} > 0, {v}, {w})", "where({v} > {v}.mean(axis: 0), {v}, 0)", "{v}[{v} > 0]",
    "einsum(\"ij,kj->ik\", {v}, {v})", "windows({v}, 2, axis: 0)", "{v} ** 2", "tanh({v})", "f64({v})", "i64({v} * 4)", "f16({v})",
    "cross_entropy({v}, arange(len({v})) % {v}.shape[-1])", "linspace(0.0, 1.0, len({v}))", "unique({v})", "fold({v}.shape, fn(a, b) a * b, 1) + {v}",
    "map({v}, fn(r) sum(r * r))[0]", "tree_map(fn(a) a * 2, ({v}, {w}))[1]", "one_hot(argmax({v}, axis: -1), 5)", "diag({v} @ {v}.T)",
    "if {v}.shape == {w}.shape {{ {v} * {w} }} else {{ {v} }}", "if {v}.shape[0] > 4 {{ {v} * 2 }} else {{ {v} * 3 }}",
    "if len({v}) % 2 == 0 {{ {v}[::2] }} else {{ {v}[1::2] }}", "if {v}.rank == 2 {{ {v} }} else {{ {v}[new] }}",
    "if {v}.shape[0] == {w}.shape[0] {{ {v}[:, :1] + {w}[:, :1] }} else {{ {v} - 1 }}", "[1.0, 2.0][{v}.shape[0] % 2] * {v}",
    "grad(fn(a) sum(tanh(a) * mean(a)))({v})", "grad(fn(a) sum(a[1:] * a[:-1]))({v})", "value_and_grad(fn(a) mean(a ** 2) / len(a))({v})[1]",
    "grad(fn(a) sum(softmax(a @ {w}.T) ** 2))({v})", "vmap(fn(r) r * sum(r))({v})", "vmap(fn(r) r / len(r), in_axes: 1)({v})",
    "jacobian(fn(a) sum(a * a, axis: 0))({v}[:3])", "vjp(fn(a) a * a, {v})[1]({v})", "jvp(fn(a) a * len(a), {v}, {v})[1]",
    "checkpoint(fn(a) tanh(a) * a.shape[0])({v})", "grad(fn(a) sum(checkpoint(fn(b) tanh(b) * len(b))(a)))({v})",
    "stop_gradient({v}) + {v}", "named({v})", "typed({v}, {w})", "scores({v})", "update({v})", "looped({v})", "counted({v})", "{v} * GLOBAL",
    "{v} + GLOBAL[:len({v})]", "accumulate({v})", "texts({v})", "{v}[len({v}) // 3:]", "{v}[:len({v}) - 1] * {v}[1:]", "{v}[len({w}) - 2:]",
    "{v}[{v}.shape[0] // 3:2 * {v}.shape[0] // 3]", "{v}[1 - len({w}):]", "{v}[:len({v}) // 2:2]", "{v}[len({v}) - 2::-1]", "halves({v})", "lags({v})",
    "grad(fn(a) sum(a[:len(a) // 2] * a[len(a) - len(a) // 2:]))({v})", "grad(fn(a) sum(lags(a)))({v})", "grad(fn(a) sum(halves(a) * a))({v})",
    "{v} + randn({v}.shape)", "where(bernoulli(0.5, {v}.shape), {v}, 0)", "where(bernoulli({v}), {v}, 1)", "{v} * rand(len({v}), 1)", "randint(0, 9, len({v}))",
    "eye(len({v}), {v}.shape[-1]) + {v}", "vmap(fn(r) r + randn(len(r)))({v})", "rand({v}.shape, key: key(3)) * {v}", "eye({v}.shape[0] - 1)",
    "grad(fn(a) sum(where(bernoulli(0.7, a.shape), a, 0) ** 2))({v})",
    "einsum(\"ij,jk->ki\", {v}, {w}.T)", "einsum(\"ij,ij->\", {v}, {w})", "einsum(\"ij,ik->jk\", {v}, {w})", "einsum(\"ii->i\", {v} @ {v}.T)",
    "einsum(\"...i,...i->...\", {v}, {w})", "einsum(\"ij->\", {v})", "grad(fn(a) sum(einsum(\"ii->i\", a @ a.T) ** 2))({v})", "diag({v}) * 2",
    "windows({v}, 2, axis: 1, step: 2)", "conv1d({v}[new], ones(2, len({v}), 1))", "conv1d({v}[:, new], ones(3, 1, 2), padding: 1)", "roll({v}, -1)",
    "conv1d({v}[:, new], ones(2, 1, 3), padding: \"same\")", "conv1d({v}[:, new], ones(2, 1, 3), stride: 2, padding: \"same\")", "roll({v}, 2, axis: 1)",
    "conv2d({v}[new, new], ones(2, 1, 2, 2), padding: 1)", "conv2d({v}[new, new], ones(40, 1, 2, 2))", "grad(fn(a) sum(conv2d(a[new, new], ones(2, 1, 2, 2)) ** 2))({v})",
    "grad(fn(k) sum(conv1d({v}[:, new], k, padding: 1) ** 2))(ones(3, 1, 2))", "max_pool2d({v}, 2)", "avg_pool2d({v}, 2, stride: 1, padding: 1)", "roll({v}, len({v}) // 2)",
    "chunk({v}, 3)[2]", "chunk({v}, 2, axis: -1)[1]", "repeat({v}[0], len({v}))", "repeat({v}, 3)", "repeat({v}, len({w}), axis: 1)", "take({v}, -1)", "take({v}, 2, axis: 1)",
    "pad({v}, ((len({w}), 0), (0, 1)))", "{v}.reshape(-1, 2)", "arange(1, len({v})) * 2", "arange(len({v}) - 1, -1, -1)", "arange(0, len({v}), 3)", "topk({v}, 2, axis: 0)[1]",
    "if same_shapes({v}, {w}) {{ {v} * {w} }} else {{ {v} }}", "jacobian(fn(a) tanh(a) * sum(a))({v}[:, 0])", "jacobian(fn(a) {v} @ a)({v}[0])", "hessian(fn(a) sum(tanh(a)) * a[0])({v}[:, 0])",
    "hessian(fn(a) sum(tanh({v} @ a)))({v}[0])", "jacobian(fn(a) a.s * a.w)({{s: {v}[0], w: {v}}})", "backs({v}, {w})", "jvp(fn(a) a[1:] * len(a), {v}, {v} * 2)[1]",
    "vmap(jacobian(fn(r) tanh(r) * r[0]))({v})", "grad(fn(a) sum(vjp(fn(b) tanh(b) * len(b), a)[1](a)))({v})",
]
FUNCTIONS = """fn named(x: [n, m]) = x.reshape(m, n) * n + m
fn typed(x: [n, m], y: [k, m]) -> [n, k] = x @ y.T + n - k
fn scores(x) { let (n, m) = x.shape
  softmax((x @ x.T) / sqrt(1.0 * m)) @ x + n }
fn update(x) { let y = x
  y[1:, 0] = 7
  y[0] = y[-1] * 2
  y[:, -1] += 1
  y }
fn looped(x) { let s = x[0] * 0
  for row in x { s = s * 0.5 + row }
  s }
fn counted(x) { let s = 0.0
  for i in 0..x.shape[0] { s = s + sum(x[i]) * i }
  s }
fn accumulate(x) { let out = ()
  for i in range(len(x)) { out = append(out, x[i] * 2) }
  if len(out) > 0 { stack(out) } else { x } }
fn halves(x) { let y = x
  let k = len(x) // 2
  y[:k] = y[len(y) - k:] * 2
  y[k:] += 1
  y }
fn lags(x) { let s = 0.0
  for k in 1..3 { s = s + sum(x[k:] * x[:len(x) - k]) }
  s * x }
fn texts(x) = x + len("{x.shape}")
fn backs(x, y) { let (z, back) = vjp(fn(a, b) (a * sum(b), b[1:]), x, y)
  let (g, h) = back((z[0] * 2, nil))
  if len(x) > 3 { back((g, y[1:]))[1] } else { h } }
"""


def program(seed):
    rng = random.Random(seed)
    body, names = [], ["x", "y"]
    for i in range(rng.randint(1, 6)):
        v = names[-1] if rng.random() < 0.6 else rng.choice(names)
        text = rng.choice(STATEMENTS).format(v=v, w=rng.choice(names))
        if rng.random() < 0.3:
            text = f"try {{ {text} }} catch _e {{ {v} }}"
        body.append(f"  let v{i} = {text}")
        names.append(f"v{i}")
    shown = ", ".join(n for n in names[2:])
    wrap = rng.choice(["f", "f", "f", "jit(f)", "jit(f, dynamic: true)", "jit(f, dynamic: true)", "jit(f, dynamic: false)", "value_and_grad(fn(x, y) sum(tree_leaves(f(x, y))[-1] * 1.0))"])
    calls, sizes = [], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 40, 63, 64, 65, 100]
    n = m = rng.choice(sizes)
    k = rng.choice([1, 4, 8])
    for _ in range(rng.randint(8, 14)):
        change = rng.random()
        if change < 0.7:
            n = rng.choice(sizes)
        if change < 0.3 or rng.random() < 0.2:
            m = rng.choice(sizes)
        if rng.random() < 0.3:
            m = n
        if rng.random() < 0.06:
            k = rng.choice([1, 2, 4, 8])
        dtype = "f64" if rng.random() < 0.05 else "f32"
        last = f"{k}" if rng.random() < 0.96 else f"{k}, 2"
        calls.append(f"({n}, {m}, ({last},), {dtype})")
    return f"""{FUNCTIONS}seed({seed})
let GLOBAL = randn(8)
fn f(x, y) {{
{chr(10).join(body)}
  ({shown},)
}}
let g = {wrap}
for (n, m, more, dtype) in ({', '.join(calls)},) {{
  let x = randn((n,) + more, dtype: dtype)
  let y = if n % 3 == 2 {{ randn((m,) + more) }} else {{ randn((n,) + more) }}
  for _ in 0..2 {{ print(n, m, try {{ repr(g(x, y)) }} catch e {{ e.message }}) }}
  if n == 9 {{ GLOBAL = randn(4) }}
}}
"""


INTS = [
    "zeros({n})", "ones({n}, 2) * {n}", "full(({n}, {m}), 0.5) + {m}", "arange({n}) * 2", "arange({m}, {n})", "arange(0, {n}, 2)", "arange({n} - 1, -1, -1)", "eye({n})",
    "linspace(0, 1, {n})", "linspace(0.5 * {m}, 1, {n})", "rand({n}, 2)", "randn({n}) * {m}", "randint(0, {n}, 5)", "randint({m}, {n} + {m}, 3)", "bernoulli(0.5, {n})",
    "{v}[:{n}]", "{v}[{n}:]", "{v}[-{n}:]", "{v}[:-{n}]", "{v}[{m}:{n}]", "{v}[{n}:{n} + 3]", "{v}[{n} * 2:({n} + 1) * 2]", "{v}[{n}:{n} + {m}]", "{v}[:{n}:2]", "{v}[{n}::-1]",
    "{v}[{n}]", "{v}[-{n}]", "{v}[{n} // 2]", "{v}[{n} % len({v})]", "{v}[clip_index({n}, len({v}))]", "{v}[wrap_index({n}, len({v}))]", "take({v}, {n})", "{v}[arange({n})]",
    "{v}.reshape({n}, -1)", "{v}.reshape({n}, {m})", "{v}.reshape({n}, {v}.size // maximum({n}, 1))", "broadcast_to({v}[0], {n}, {v}.shape[1])", "repeat({v}, {n}, axis: 0)",
    "roll({v}, {n})", "roll({v}, -{n}, axis: 1)", "pad({v}, {n})", "pad({v}, (({n}, 0), (0, {m})))", "concat(({v}[:, 0], zeros({n})))", "concat(({v}, zeros({n}, {v}.shape[1])))",
    "topk({v}[:, 0], {n})[0]", "topk({v}, {m}, axis: 0)[1]", "windows({v}, {n}, axis: 0)", "windows({v}[:, 0], {n}, step: {m})", "one_hot(arange(3), {n})", "one_hot({n}, 9)",
    "tril(ones({n}, {n}), k: {m})", "tril({v}, k: {n})", "where(arange(len({v})) < {n}, {v}[:, 0], 0)", "conv1d({v}[:, new], ones(2, 1, 2), padding: {n})",
    "conv1d({v}[:, new], ones(2, 1, {n}))", "max_pool2d({v}[new, new], {n})", "permutation({n})", "{v}[permutation({n})]", "chunk({v}, {n})[0]", "cumsum({v}[:{n}])", "sum({v}, axis: {n})",
    "{v} * {n}", "{v} / {n}", "{v} ** {n}", "{v} + {n} // {m}", "{v} * (0.5 ** {n})", "{v} * sqrt(1.0 * {n})", "{v} - minimum({n}, {m})", "{v} * float({n}) / (1 + {n})",
    "ones({n} + {m})", "ones({n} - {m})", "ones({n} * {m})", "ones({n} // 2) * ones({n} // 2)", "ones({n}) + ones({m})", "ones(len({v})) + ones({n})", "{v} @ ones({n}, 2)",
    "ones({n}, len({v})) @ {v}", "stores({v}, {n})", "stores({v}, {n} + 1)", "cached({v}, {n})", "loops({v}, {n})", "grows({v}, {n})", "powers({v}, {n})", "raised({v}, {n})",
    "if {n} > 4 {{ {v} * 2 }} else {{ {v}[:{n}] }}", "if {n} == {m} {{ ones({n}) * ones({m}) }} else {{ {v} }}", "if {n} % 2 == 0 {{ {v} }} else {{ {v} + 1 }}",
    "grad(fn(a) sum(a[:{n}] ** 2))({v})", "grad(fn(a) sum((zeros({n}, 1) + a[0]) ** 2))({v})", "grad(fn(a) sum(loops(a, {n})))({v})", "vmap(fn(i) {v} * i)(arange({n}))", "vmap(fn(r) r[:{n}])({v})",
    "jacobian(fn(a) a[:{n}] * 2)({v}[0])", "checkpoint(fn(a) a[:{n}] * {m})({v})", "inner({v}, {n})", "sized({v}, {n})", "if sum({v}) > 0 {{ {v}[:{n}].sum() }} else {{ {v}.sum() + {n} }}",
    "fold(0..{n}, fn(a, i) a * 0.5 + i, {v})", "stack(map(0..{n}, fn(i) {v} * i))", "map({v}, fn(r) sum(r * {n}))", "fold({v}, fn(a, r) a * 0.5 + r, {v}[0] * {n})",
    "{v} * \"{{{n}}}\".len()", "{v}[:int(sum(abs({v})))]", "ones(int({v}.shape[0] * 0.5)) * {n}", "arange(0.0, 1.0, 1.0 / {n})", "arange(0.0, 0.5 * {n})", "({v}, {v})[{n}]",
]
INT_FUNCTIONS = """fn stores(x, n) { x[n] = 7; x[:n, 0] = 3; x[n:] *= 2; x }
fn cached(x, n) { x[n:n + 1] = x[:1] * 2; sum(x[:n + 1], axis: 0) }
fn loops(x, n) { for i in 0..n { x = x * 0.5 + i }; x }
fn grows(x, n) { let out = (); for i in 0..n { out = append(out, x * i) }; if n > 0 { stack(out) } else { x } }
fn powers(x, n) = if n <= 0 { x } else { x * powers(x, n - 1) }
fn raised(x, n) { if n <= 1 { return x }; let h = raised(x, n // 2); h * h + n % 2 }
fn inner(x, n) { let f = fn(a) a[:n] * n; f(x) }
fn sized(x: [k, m], n: int) = x[:n] * k
"""


def ints_program(seed):
    rng = random.Random(seed)
    body, names = [], ["x", "y"]
    ints = lambda: rng.choice(["n"] * 6 + ["m", "m", "n + 1", "n - 1", "m * 2", "len(x)"])
    for i in range(rng.randint(1, 4)):
        v = names[-1] if rng.random() < 0.4 else rng.choice(names)
        text = rng.choice(INTS).format(v=v, n=ints(), m=ints()) if rng.random() < 0.8 else rng.choice(STATEMENTS).format(v=v, w=rng.choice(names))
        if rng.random() < 0.4:
            text = f"try {{ {text} }} catch _e {{ {v} }}"
        body.append(f"  let v{i} = {text}")
        names.append(f"v{i}")
    wrap = rng.choice(["f"] * 5 + ["jit(f)", "jit(f, dynamic: true)", "jit(f, dynamic: false)", "fn(x, y, n, m) value_and_grad(fn(x, y) sum(tree_leaves(f(x, y, n, m))[-1] * 1.0))(x, y)",
                                   "fn(x, y, n, m) f(x, y, n, m)", "fn(x, y, n, m) f(y, x, n * 2, len(x))"])
    sizes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 40, 63, 64, 65]
    few = [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 40, 64, -1, -2, -5]
    calls, n, m, k = [], rng.choice(few), rng.choice(few), rng.choice(sizes)
    for _ in range(rng.randint(8, 14)):
        if rng.random() < 0.8:
            n = rng.choice(few)
        if rng.random() < 0.3:
            m = rng.choice(few)
        if rng.random() < 0.3:
            k = rng.choice(sizes)
        last = rng.random()
        calls.append(f"({k}, {abs(n) if last < 0.2 else k}, {k if last > 0.85 else n}, {m})")
    return f"""{FUNCTIONS}{INT_FUNCTIONS}seed({seed})
let GLOBAL = randn(8)
fn f(x, y, n, m) {{
{chr(10).join(body)}
  ({", ".join(n for n in names[2:])},)
}}
let g = {wrap}
for (k, l, n, m) in ({', '.join(calls)},) {{
  let x = randn(k, 4)
  let y = randn(l, 4)
  for _ in 0..2 {{ print(k, l, n, m, try {{ repr(g(x, y, n, m)) }} catch e {{ e.message }}) }}
}}
"""


def bound(rng, names, depth=0):
    """A number of a turn, or near it."""
    i = rng.choice(names)
    if rng.random() < 0.08:
        return rng.choice([f"{i} - 1", f"{i} * 2", f"{i} % 3", f"-{i}", "n", "2", "-1", "0", f"{i} // 2 + 1"])
    few = [i, i, i, f"{i} + 1", f"{i} + 1", f"n - {i}", f"n - 1 - {i}", f"{i} // 2"]
    return rng.choice(few) if depth or rng.random() < 0.97 else f"{bound(rng, names, 1)} + {bound(rng, names, 1)}"


def part(rng, names):
    """A slice by numbers of turns."""
    a, b = bound(rng, names), bound(rng, names)
    step = rng.choice([""] * 30 + [":2", ":3", ":-1"])
    return rng.choice([f":{b}", f":{b}", f"{a}:", f"{a}:", f"{a}:{b}", f"{a}:{a} + 3", "1:", ":"]) + (":" if step and step[0] != ":" else "") + step


def of_turn(rng, names, rank):
    """An array that a turn makes, with its size along the last axis by a part."""
    p = part(rng, names)
    i = rng.choice(names)
    at = rng.choice([i, i, "0", "-1"])
    one = rng.choice([f"b[{p}]", f"s[{p}]", f"A[{at}, {p}]", f"A[{p}, {at}]", f"(A[{at}, {p}] * b[{p}])", f"(s[{p}] - 2 * b[{p}])", f"b[{p}][::-1]",
                      f"concat((b[{p}], b[1:3]))", f"cumsum(b[{p}])", f"where(b[{p}] > 0, b[{p}], s[{p}] * 0.5)", f"sort(b[{p}])", f"(A[{p}, 1:3] @ b[:2])",
                      f"(A[:, {p}] @ b[{p}])", f"sum(A[{p}, :4], axis: 1)", f"arange({bound(rng, names)}) * 0.5", f"ones({bound(rng, names)}) * 2",
                      f"b[{p}][{part(rng, names)}]", f"tanh(b[{p}]) / (1 + len(b[{p}]))", f"(A[{p}, {p}] @ b[{p}])"])
    two = rng.choice([f"A[{p}, {part(rng, names)}]", f"(b[{p}][:, new] * b[{p}])", f"(b[{p}][:, new] * A[{at}, {part(rng, names)}])", f"A[{p}]"])
    return one if rank == 1 else two


def turn(rng, names, depth, indent):
    """A statement of a loop's body."""
    pad, i = "  " * indent, rng.choice(names)
    kind = rng.random()
    reduce = rng.choice(["sum"] * 8 + ["max", "min", "mean", "prod", "len", "argmax"])
    number = f"{reduce}({of_turn(rng, names, 1)})" if rng.random() < 0.85 else f"sum({of_turn(rng, names, 2)})"
    if kind < 0.45:
        return f"{pad}s[{i}] {rng.choice(['=', '=', '+=', '-='])} {number}{rng.choice(['', f' / ({i} + 2)', f' + b[{i}]'])}\n"
    if kind < 0.55:
        p = part(rng, names)
        return f"{pad}s[{p}] {rng.choice(['=', '+=', '*='])} {rng.choice([f'b[{p}]', f'A[{i}, {p}] * 0.5', '0.5', of_turn(rng, names, 1)])}\n"
    if kind < 0.65:
        p, q = part(rng, names), part(rng, names)
        return f"{pad}A[{p}, {q}] {rng.choice(['=', '+=', '-='])} {rng.choice([f'b[{p}][:, new] * b[{q}]', f'A[{p}, {q}] * 0.5', '0.25', of_turn(rng, names, 2)])}\n"
    if kind < 0.7:
        return f"{pad}A[{i}, {part(rng, names)}] = {of_turn(rng, names, 1)}\n"
    if kind < 0.75:
        return f"{pad}s = concat((s[:{i}], b[{i}:]))\n"
    if kind < 0.85:
        test = rng.choice([f"b[{i}] > 0", f"sum(s[:{i}]) > 1", f"{i} % 2 == 0", f"len(b[{part(rng, names)}]) > 2"])
        held = f"{pad}let t = {of_turn(rng, names, 1)}\n{pad}s[{i}] = sum(t)\n" if rng.random() < 0.5 else ""
        use = f"{pad}  s[{i}] = sum(t * 2)\n" if held else turn(rng, names, 2, indent + 1)
        leave = rng.choice(["", "", f"{pad}  break\n", f"{pad}  continue\n"])
        return f"{held}{pad}if {test} {{\n{use}{leave}{pad}}} else {{\n{turn(rng, names, 2, indent + 1)}{pad}}}\n"
    if kind < 0.95 and depth < 2 and len(names) < 3:
        j = "jk"[len(names) - 1]
        over = rng.choice([f"0..{i}", f"{i}..n", f"{i}+1..n", "0..4", "1..n-1"])
        return f"{pad}for {j} in {over} {{\n{turn(rng, names + [j], depth + 1, indent + 1)}{pad}}}\n"
    return f"{pad}try {{ s[{i}] = {number} }} catch _e {{ s[{i}] = 0.5 }}\n" if rng.random() < 0.2 else f"{pad}s[{i}] = s[{i}] + {number}\n"


def turns_program(seed):
    rng = random.Random(seed)
    body = ""
    for _ in range(rng.choice([1, 1, 2])):
        over = rng.choice(["0..n", "0..n", "1..n", "0..n-1", "1..n-1", "2..n"])
        inner = "".join(turn(rng, ["i"], 0, 2) for _ in range(rng.randint(1, 3)))
        body += (f"  for i in {over} {{\n{inner}  }}\n" if rng.random() < 0.85 else
                 f"  let i = 0\n  while i < n {{\n{inner}    i += 1\n  }}\n" if "continue" not in inner else "")
    sizes = [rng.choice([2, 5, 9, 12, 17, 30, 66, 70]) for _ in range(rng.choice([2, 3]))]
    dtype = rng.choice(["f64", "f32", "f32"])
    return f"""fn f(A, b) {{
  let n = len(b)
  let s = b * 0.5
{body}  (s, A)
}}
seed({seed})
for n in ({', '.join(map(str, sizes))},) {{
  let A = randn(n, n, dtype: {dtype})
  let b = randn(n, dtype: {dtype})
  for _ in 0..2 {{ print(n, try {{ repr(f(A, b)) }} catch e {{ "{{e.message}} {{e.line}}" }}) }}
}}
"""


ARMS = [
    "{v} * 2 - {w}.sum()", "{v} + {w}", "tanh({v})", "{v} / len({v})", "{v} * {v}.shape[0] + {v}.size", "{v}.reshape({v}.shape[0], -1)", "{v}.T.T",
    "concat(({v}[1:], {v}[:1]))", "concat(({v}[:-1], {w}[-1:]))", "{v}[::-1]", "softmax({v})", "softmax({v}, axis: 0)", "{v} - mean({v}, axis: 0)",
    "{v} + sum({v}, axis: -1, keepdims: true)", "({v} @ {v}.T) @ {v} * 0.01", "cumsum({v}, axis: 0) * 0.5", "sort({v}, axis: 0)", "where({v} > 0, {v}, {w})",
    "zeros({v}.shape) + {w}", "ones({v}.shape[0], 1) * {v}", "zeros_like({v}) + {w}", "arange({v}.shape[0])[:, new] * {v}", "{v} * arange(len({v}))[:, new]",
    "layer_norm({v})", "max({v}, axis: 0) - {v}", "{v} * rows(x)", "{v}.reshape(-1).reshape({v}.shape)", "roll({v}, 1, axis: 0)", "repeat({v}[:1], len({v}), axis: 0)",
    "pad({v}, ((1, 0), (0, 0)))[1:]", "take({v}, arange(len({v})) // 2)", "{v} + n", "{v} * (n // 2)", "broadcast_to({v}[0], n, {v}.shape[1])", "zeros(n, 4) + {v}",
    "{v}[: n - 1].sum() + {v}", "if n > 4 {{ {v} * 2 }} else {{ {v} * 3 }}", "if {v}.shape == {w}.shape {{ {v} * {w} }} else {{ {v} }}", "{v} * len({w})",
    "{v}[0] + {v}", "{v}[-1] - {v}", "update({v})", "looped({v}) * {v}", "counted({v}) * 0.1 + {v}", "{v}[{v}.shape[0] // 2] * {w}", "{v} + x[:, :1]", "x", "{v} + y.sum()",
    "{v} * std({v}, axis: 0)", "vmap(fn(r) r * sum(r))({v})", "grad(fn(a) sum(tanh(a) * mean(a)))({v})", "{v} * argmax({v}, axis: 0)", "{v} + eye(n)[:, :1]", "x[1:].sum() * {v}",
    "concat(({v}[n // 2:], {v}[:n // 2]))", "{v} + sum({v}[:n - 1] * {w}[1:])", "halves({v})", "lags({v})", "concat(({v}[:len({w}) // 3], {v}[len({w}) // 3:]))",
    "{v} + randn({v}.shape) * 0.1", "where(bernoulli(0.5, {v}.shape), {v}, 0)", "{v} * rand(n, 1)", "eye(n) @ {v}",
]


def block(rng, names, depth, indent):
    """Statements that bind `names` anew."""
    pad, out = "  " * indent, ""
    for _ in range(rng.randint(1, 3 if depth == 0 else 2)):
        v, w = rng.choice(names), rng.choice(names)
        kind = rng.random() if depth < 3 else 1
        test = rng.choice([f"sum({v}) > 0", f"mean({v}) > 0.1", f"max({v}) > 1 and n > 3", f"any({v} > 2)", f"sum({v}[0]) < 1 or sum({w}) > 0"])
        inner = lambda: block(rng, names, depth + 1, indent + 1)
        leave = lambda: rng.choice([""] * 5 + [f"{pad}  if sum({v}) > 3 {{ return {v} }}\n"]) if depth < 2 else ""
        if kind < 0.25:
            other = f" else {{\n{inner()}{pad}}}" if rng.random() < 0.7 else ""
            out += f"{pad}if {test} {{\n{inner()}{leave()}{pad}}}{other}\n"
        elif kind < 0.35:
            i = "ijkl"[depth]
            stop = rng.choice(["", "", f"{pad}  if sum({v}) > 5 {{ break }}\n", f"{pad}  if sum({v}) < -5 {{ continue }}\n"])
            over = rng.choice(["0..5", "0..n", "0..len(x)", "1..n - 1", f"0..{v}.shape[0]", "0..9"])
            use = rng.choice(["", f"{pad}  {v} = {v} + {i} * 0.1\n", f"{pad}  {v} = {v} + x[{i} % n]\n", f"{pad}  {v}[{i} % n] = {v}[0] * 0.5\n"])
            out += f"{pad}for {i} in {over} {{\n{stop}{inner()}{use}{leave()}{pad}}}\n"
        elif kind < 0.42:
            k = "kmpq"[depth]
            out += f"{pad}let {k}c = 0\n{pad}while {rng.choice([f'sum(abs({v})) > 1', f'mean({v}) < 4'])} and {k}c < {rng.choice([3, 6])} {{\n{inner()}{pad}  {v} = {v} * 0.5\n{pad}  {k}c += 1\n{pad}}}\n"
        elif kind < 0.47:
            out += f"{pad}for row in {rng.choice([v, 'x'])} {{\n{pad}  {v} = {v} * 0.5 + row\n{inner() if rng.random() < 0.3 else ''}{pad}}}\n"
        else:
            out += f"{pad}{v} = {rng.choice(ARMS).format(v=v, w=w)}\n"
    return out


def arms_program(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([2, 3, 5, 7, 9, 12, 17, 30, 65, 70]) for _ in range(rng.choice([3, 4, 5]))] + rng.sample([0, 1, 2], rng.choice([0, 0, 1]))
    wrap = rng.choice(["f"] * 5 + ["jit(f)", "jit(f, dynamic: true)", "grad(fn(x, y) sum(f(x, y) * 1.0))"])
    return f"""{FUNCTIONS}fn rows(x) {{ let s = 0.0; for r in x {{ s = s * 0.5 + sum(r) }}; s }}
fn f(x, y) {{
  let n = x.shape[0]
  let a = x
  let b = x * 0.5 + 1
  let c = tanh(y)
{block(rng, ["a", "b", "c"], 0, 1)}  {rng.choice(["a + b * c", "a", "concat((a, b, c))", "a * 0.5 - sum(b)"])}
}}
seed({seed})
let g = {wrap}
for n in ({", ".join(map(str, sizes))},) {{
  let x = randn(n, 4)
  let y = randn({rng.choice(["n", "n", "n", "n + 1"])}, 4)
  for _ in 0..2 {{ print(n, try {{ repr(g(x, y)) }} catch e {{ "{{e.message}} {{e.line}}" }}) }}
}}
"""


LIST_ITEMS = {"w": "f32([1, -0.5, 0.25]) * (i + 1) / 3", "w.a * w.s": "{a: f32([1, -0.5, 0.25]) * (i + 1) / 3, s: 0.5 + i / 4, k: \"t\"}", "w + 0": "0.5 + i / 4"}


def list_expression(rng, depth=0):
    kind = rng.random()
    if kind < 0.45 or depth > 2:
        return rng.choice(["x", "x", "y", "item", "item", "b", "0.5"])
    if kind < 0.8:
        return f"({list_expression(rng, depth + 1)} {rng.choice('+-*')} {list_expression(rng, depth + 1)})"
    return f"{rng.choice(['tanh', 'sin', 'abs'])}({list_expression(rng, depth + 1)})"


def list_loop(rng, item):
    """A loop over the list ws that binds x and y anew."""
    e = lambda: list_expression(rng)
    turn = "; ".join(rng.choice([
        f"x = {e()}", f"x = {e()}", f"y = {e()}", "x = item", "y = x", f"if sum(x) > {rng.randint(-2, 3)} {{ x = {e()} }}",
        f"if sum(y) > {rng.randint(0, 9)} {{ {rng.choice(['break', 'continue', 'return sum(x)'])} }}", f"if i % 2 == 0 {{ y = {e()} }}",
    ]) for _ in range(rng.randint(1, 3)))
    bind = f"let item = {item}"
    return rng.choice([f"for w in ws {{ {bind}; {turn} }}", f"for w in ws {{ {bind}; {turn} }}", f"for i in 0..len(ws) {{ let w = ws[i]; {bind}; {turn} }}",
                       f"i = 0; while i < len(ws) {{ let w = ws[i]; i += 1; {bind}; {turn} }}"])


def lists_program(seed):
    rng = random.Random(seed)
    item = rng.choice(["w", "w", *LIST_ITEMS])
    loops = "; ".join(list_loop(rng, item) for _ in range(rng.choice([1, 1, 1, 1, 2])))
    wrap = rng.choice(["f", "f", "grad(f)", "grad(f)", "value_and_grad(f, wrt: (0, 1, 2))", "grad(f, wrt: (2, 0))", "grad(f, wrt: 1)", "jit(f)", "jit(grad(f))"])
    lengths = [rng.choice([0, 1, 2, 3, 4, 6, 9]) for _ in range(7)]
    return f"""fn f(ws, x, b) {{ let y = {rng.choice(['x', 'b', 'x * 2', '0.25'])}; let i = 0; {loops}; sum(x * {rng.choice(['1', 'b', 'y'])}) + sum(y) }}
let g = {wrap}
for n in ({", ".join(map(str, lengths))}) {{
  print(n, try {{ repr(g(map(0..n, fn(i) {LIST_ITEMS[item]}), f32([1, 0.5, -2]), f32([0.1, 0.7, -0.3]))) }} catch e {{ (e.id, e.message) }})
}}
"""


USES = ["x = fold(ws, fn(a, w) a * 0.5 + {item}, x); ", "y = y + sum(stack(map(ws, fn(w) sum({item})))); ", "x = x * len(ws); ", "x = x + sum(tree_leaves(ws)[0]); ",
        "let q = tree_map(fn(v) v * 2, p); for w in q.ws { x = x * 0.5 + {item} }; ", "let (k, v) = items(p)[1]; y = y + v; ", "x = x * (\"{p.k}\" == \"2.0\"); ",
        "p.ws = append(p.ws, p.ws[0]); ", "let l = ws; for w in l { x = x + {item} }; ", "p.k = p.k + 1; "]


def in_records(seed, text):
    """The program with its list in a record, which perhaps goes through another function, and perhaps with other uses of the list."""
    rng = random.Random(seed)
    item = re.search(r"let item = (.*?);", text).group(1)
    for use in rng.sample(USES, rng.choice([0, 0, 1, 1, 2])):
        text = text.replace("let i = 0; ", "let i = 0; " + use.replace("{item}", item), 1)
    name = rng.choice(["ws", "layers", "k2"])
    text = re.sub(r"\bws\b", f"p.{name}", text).replace(f"fn f(p.{name},", "fn f(p,", 1)
    text = text.replace("q.p.", "q.")
    start = text.index("repr(g(map(") + len("repr(g(")
    end = text.index(", f32([1, 0.5, -2])", start)
    text = f"{text[:start]}{{{name}: {text[start:end]}, k: 2.0}}{text[end:]}"
    if rng.random() < 0.3:
        text = text.replace("fn f(p, x, b)", "fn of(p, x, b)", 1).replace("let g = ", "fn f(p, x, b) = of(p, x * 1, b)\nlet g = ", 1)
    return text


MADE = ["for w in ws[1:] {", "for w in ws[:-1] {", "for w in ws[::-1] {", "for w in reverse(ws) {", "for w in ws + ws {", "for w in append(ws, ws[0]) {",
        "for w in ws[1:] + ws[:2] {", "for (j, w) in enumerate(ws) { x = x + j; ", "for (j, w) in enumerate(ws, start: 2) { if j % 2 == 0 { continue }; ",
        "for (w, v) in zip(ws, ws[1:]) { x = x * 0.5 + LEAF(v); ", "for (w, v) in zip(reverse(ws), ws) { x = x * 0.5 + LEAF(v); ", "for w in ws[i:] {",
        "for (j, (w, v)) in enumerate(zip(ws, ws[::2])) { y = y + LEAF(v) * j; ", "for w in map(ws, fn(v) v) {", "for (j, w) in enumerate(ws[1:]) { if j > 3 { break }; ",
        "let rows = stack(map(ws, fn(v) LEAF(v) * f32([1, 1, 1]))); for (j, r) in enumerate(rows) { let w = ws[j]; x = x * 0.5 + r * j; ",
        "let rows = stack(map(ws, fn(v) LEAF(v) * f32([1, 1, 1]))); for (w, r) in zip(ws, rows) { x = x * 0.5 + r; ", "let l = ws[1:]; for w in l {",
        "x = x * 0.5 + try { sum(stack(ws[3:])) } catch e { 1 }; for w in ws {", "y = y + try { sum(concat(ws[i:])) } catch e { x }; for w in ws {",
        "for j in 0..5 { x = x * 0.5 + sum(stack(append(ws[j:], ws[0]))) }; for w in ws {",
        "let l = map(ws, fn(v) LEAF(v) * f32([1, 1, 1])); x = x * 0.5 + sum(l) * 0.1 + try { max(l[1:]) } catch e { 1 }; y = y - min(append(l, x)); for w in ws {",
        "let s = map(ws, fn(v) sum(LEAF(v))); if any(map(s, fn(v) v > 1)) and not all(map(s, fn(v) v > 0)) { x = x - sum(s) / (1 + ws.len()) }; for w in ws {",
        "let l = map(ws, fn(v) float(sum(LEAF(v))) * 0.5); x = x * (sum(l) + prod(l[:3])) * 0.1; y = y + max(l + (0.5,)); for w in reverse(ws) {",
        "let huge = map(ws, fn(v) float(sum(LEAF(v))) * 1e38); x = x * 0.5 + try { max(stack(huge[1:])) / 1e38 } catch e { 1 }; for w in ws {"]
# Functions that give such lists; g is what the program calls.
GIVEN = ["fn gives(ws, x, b) = ws", "fn gives(ws, x, b) = (map(ws, fn(v) LEAF(v) * x), g(ws, x, b))", "fn gives(ws, x, b) { let l = ws[1:]; {l: l, r: reverse(l), n: len(l), g: g(ws, x, b)} }",
         "fn gives(ws, x, b) { let l = walk(ws, x); if sum(x) > 90 { return nil }; (l, l[-1][0] * x) }", "fn gives(ws, x, b) = walk(ws, x)", "fn gives(ws, x, b) { let l = walk(ws, x); return (l[1:], l + l) }",
         "fn gives(ws, x, b) { let l = map(ws, fn(v) sum(LEAF(v) * x)); let t = walk(ws, x); (t, stack(l), l, x * b) }", "fn gives(ws, x, b) = zip(ws, reverse(ws))",
         "fn gives(ws, x, b) { let (l, s) = (walk(ws, x), 2); {..{a: l}, b: enumerate(ws), s: s} }", "fn inner(ws, x) = (walk(ws, x), x * 2)\nfn gives(ws, x, b) { let (l, y) = inner(ws, x); let z = inner(ws, y)[0]; (l, z, x * y) }",
         "fn inner(ws, x) = {l: walk(ws, x), y: x * 2}\nfn gives(ws, x, b) = inner(append(ws, ws[0]), x * b)", "let gives = jit(fn(ws, x, b) (walk(ws, x), x * b))",
         "fn gives(ws, x, b) = map(walk(ws, x), fn(p) p[0] * p[1])", "fn gives(ws, x, b) { let l = (x,); for v in ws { l = append(l, LEAF(v) * x) }; if sum(x) > 0.5 { l } else { (g(ws, x, b), l) } }"]


def held_by_let(rng, loop, number):
    """The header of a loop over what a variable holds."""
    m = re.match(r"(.*)for (.*?) in (.*?) \{(.*)$", loop)
    l = f"l{number}"
    more = rng.choice(["", "", f"x = x + len({l}) * 0.1; ", f"y = y * 0.5 + try {{ len({l}[1:]) + len({l}[0]) }} catch e {{ 1 }}; "])
    return f"{m[1]}let {l} = {m[3]}; {more}for {m[2]} in {l} {{{m[4]}"


def made_of(seed, text, given):
    """The program with loops over what is made of the list; with `given` it may also be given such lists."""
    rng = random.Random(seed)
    item = re.search(r"let item = (.*?);", text).group(1)
    n = itertools.count()

    def loop(_):
        made = re.sub(r"LEAF\((\w)\)", lambda m: "(" + re.sub(r"\bw\b", m.group(1), item) + ")", rng.choice(MADE))
        return held_by_let(rng, made, next(n)) if rng.random() < 0.4 else made

    text = re.sub(r"for w in ws \{", loop, text)
    if not given or rng.random() < 0.5:
        return text

    def leaf(v):
        return "(" + re.sub(r"\bw\b", v, item) + ")"

    walk = f"fn walk(ws, x) {{ let ys = (); for v in ws {{ x = tanh(x + {leaf('v')}); ys = append(ys, (x, float(sum(x)))) }}; ys }}"
    gives = re.sub(r"LEAF\((\w)\)", lambda m: leaf(m.group(1)), rng.choice(GIVEN))
    return re.sub(r"\bg\(", "gives(", text).replace("\nfor n in ", f"\n{walk}\n{gives}\nfor n in ", 1)


def in_whiles(seed, text):
    """The program with loops over ranges that count by `while`, up or down."""
    rng = random.Random(seed)

    def loop(m):
        indent, v, a, b = m.groups()
        if rng.random() < 0.2:
            return m[0]
        if rng.random() < 0.3:
            return f"{indent}let {v} = {b}\n{indent}while {v} > {a} {{\n{indent}  {v} -= 1\n"
        end = f"{v} < {b} - 1" if rng.random() < 0.7 else f"{b} - 1 > {v}" if rng.random() < 0.5 else f"{v} + 2 <= {b}"
        return f"{indent}let {v} = {a} - 1\n{indent}while {end} {{\n{indent}  {v} += 1\n"

    return re.sub(r"^( *)for (\w+) in ([^{\n]+?)\.\.([^{\n]+?) \{\n", loop, text, flags=re.M)


# What differentiates and batches a function of --turns; of(A, b) is a number.
DERIVED = ["value_and_grad(of, wrt: (0, 1))"] * 4 + ["grad(of)", "grad(of, wrt: 1)", "fn(A, b) jvp(fn(b) f(A, b), b, b * 0.5 + 1)", "fn(A, b) vmap(fn(v) f(A, v))(stack((b, b * -0.5)))",
           "fn(A, b) vmap(value_and_grad(fn(v) of(A, v)))(stack((b, b * -0.5)))", "grad(fn(A, b) sum(vmap(fn(v) of(A, v))(stack((b, b * 0.5)))))",
           "fn(A, b) vjp(fn(v) f(A, v), b)[1]((b, A))", "fn(A, b) { for i in 1..3 { b = b - 0.01 * grad(fn(v) of(A[:, :len(b)], v))(b) }; b }",
           "fn(A, b) { let s = b * 0; for i in 0..len(b) { s[i] = sum(grad(fn(v) sum(tanh(v[:i]) * A[i, :i]) + sum(v[i:] ** 2))(b)) }; s }",
           "grad(fn(A, b) if sum(b) > 0 { of(A, b) } else { of(A * 0.5, b) })", "checkpoint(grad(of))", "grad(checkpoint(of))"]


def derive(seed, text):
    """The program with derivatives and batches of its function."""
    rng = random.Random(seed)
    of = "fn of(A, b) { let (s, B) = f(A, b); " + rng.choice(["sum(s * s) + sum(B * A)", "sum(tanh(s)) + sum(B[0])", "sum(s * b)", "sum(tanh(s) * b) + B[0, -1]"]) + " }"
    return text.replace("\nseed(", f"\n{of}\nlet g = {rng.choice(DERIVED)}\nseed(", 1).replace("repr(f(A, b))", "repr(g(A, b))", 1)


NAMED = ["x: [s0, s1], y: [s0, ...]", "x: [s0, ...], y: [s0, ...]", "x: [s0, s1], y: [s2, s3]", "x: [..., s1], y: [..., s3]", "x: [s0, _], y"]


def name_sizes(seed, text):
    """The program with a signature that names sizes."""
    rng = random.Random(seed)
    text = text.replace("\nfn f(x, y) {", f"\nfn f({rng.choice(NAMED)}) {{", 1)
    return text.replace("fn f(A, b) {", f"fn f({rng.choice(['A: [s0, s0], b: [s0]', 'A: [s0, s1], b: [s2]', 'A, b: [s0]'])}) {{", 1)


def run(quern, flags, path):
    done = subprocess.run([quern, *flags, path], capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def check(quern, seed, more, make):
    text = make(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.qn")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        cc = "1" if seed % 8 == 0 else "0"
        eager = run(quern, ["--jit", "off"], path)
        if eager[0] not in (0, 1):
            return f"seed {seed}: --jit off ends with {eager[0]}\n{eager[2].decode()}\n{text}"
        for mode in ("sync", "verify"):
            flags = ["--jit", mode, "--set", "jit.hot=1", "--set", "jit.cc=" + cc, *more]
            got = run(quern, flags, path)
            if got[0] != eager[0] or got[1] != eager[1]:
                a, b = eager[1].decode().split("\n"), got[1].decode().split("\n")
                at = next((i for i in range(min(len(a), len(b))) if a[i] != b[i]), 0)
                return (f"seed {seed}: {' '.join(flags)} ends with {got[0]} and differs\n  eager: {a[at][:300]}\n  other: {b[at][:300]}\n"
                        f"{got[2].decode()[-600:]}\n{text}")
    return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--quern", default="build/quern")
    p.add_argument("--seed", default="1")
    p.add_argument("--count", type=int)
    p.add_argument("--seconds", type=float)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--regions", action="store_true", help="with jit.regions=1")
    p.add_argument("--ints", action="store_true", help="with host ints that change")
    p.add_argument("--turns", action="store_true", help="loops that take parts of arrays")
    p.add_argument("--whiles", action="store_true", help="with --turns: loops that count by `while`")
    p.add_argument("--grads", action="store_true", help="with --turns: derivatives and batches of them")
    p.add_argument("--arms", action="store_true", help="branches and loops on data")
    p.add_argument("--lists", action="store_true", help="lists of many lengths")
    p.add_argument("--records", action="store_true", help="lists of many lengths in records")
    p.add_argument("--made", action="store_true", help="with --lists or --records: loops over what is made of the lists")
    p.add_argument("--long", action="store_true", help="lists of more than two items are stacked at the first recording")
    p.add_argument("--named", action="store_true", help="with signatures that name sizes")
    p.add_argument("--show", action="store_true", help="only print the programs")
    args = p.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if args.seed == "random" else int(args.seed)
    count = args.count if args.count is not None else 1 << 30 if args.seconds else 100
    more = ["--set", "jit.regions=1"] if args.regions else []
    if args.long:
        more += ["--set", "jit.leaves=20"]
    lists = (lambda seed: made_of(seed, lists_program(seed), not args.records)) if args.made else lists_program
    plain = make = turns_program if args.turns else arms_program if args.arms else lists if args.lists else ints_program if args.ints else program
    if args.named:
        make = lambda seed: name_sizes(seed, plain(seed))
    if args.whiles:
        make = lambda seed: in_whiles(seed, plain(seed))
    if args.grads:
        loops = make
        make = lambda seed: derive(seed, loops(seed))
    if args.records:
        make = lambda seed: in_records(seed, lists(seed))
    if args.lists or args.records:
        more += ["--set", "jit.turns=1000000"]  # so that the loop of calls is none itself
    if args.turns or args.arms:
        more += ["--set", "jit.unroll=4"]
    for i in range(count if args.show else 0):
        print(make(seed + i))
    count = 0 if args.show else count
    end = time.monotonic() + args.seconds if args.seconds else float("inf")
    passed = failed = at = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        while at < count and time.monotonic() < end:
            n = min(args.jobs * 4, count - at)
            for why in pool.map(lambda i: check(args.quern, i, more, make), range(seed + at, seed + at + n)):
                passed, failed = passed + (why is None), failed + (why is not None)
                if why:
                    print(why)
            at += n
    print(f"{passed} passed, {failed} failed (seed {seed})")
    return 1 if failed else 0


sys.exit(main())
