#!/usr/bin/env python3
"""Compares captured control flow with the interpreter and with JAX's own forms (while_loop, fori_loop, scan, cond), in one run.

  control.py [--quern build/quern] [--row NAME] [--rounds N] [--python PYTHON] [--device gpu] [--without off] [--set NAME=VALUE ...]

Each row is one program, written as one would write it in each language. Participants are processes of their own that take turns, round
after round; each warms up (quern until its plan is there and compiled) and prints the median microseconds of a call. JAX and NumPy are left out
where they are not installed, NumPy also for gradients, which it has not.

  off     quern --jit off
  quern   quern --jit on (on a GPU --jit sync, since its compiler may take longer than warming up), with jit.turns=0 (else a loop that calls f and drops what it gives is compiled, and does nothing); `graphs` says into how many graphs the call went, with the breaks: 1/0 has no way back into the interpreter
  numpy   the same program in Python, with updates in place
  jax     jax.jit on the CPU, or with --device gpu on the GPU, like Quern (whose time() waits for the device)
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

QUERN = """
{body}
let on = len(args) > 0
fn timed(n) {{ let t = time(); for _ in 0..n {{ f(..inputs) }}; (time() - t) / n * 1e6 }}
for _ in 0..40 {{ f(..inputs) }}
let r = if on {{ explain(f, ..inputs) }} else {{ nil }}
let t = time()
fn ready(t) {{ if time() - t < 0.3 {{ return false }}; let r = explain(f, ..inputs); r.compiled >= len(r.kernels) or time() - t > 30 }}
while on and not ready(t) {{ for _ in 0..10 {{ f(..inputs) }} }}
let once = timed(1)
let n = max((1, min((2000, int(100_000 / (once + 1))))))
let all = map(0..5, fn(i) timed(n))
print("\\n=", sort(all)[2], if on {{ "{{r.graphs}}/{{len(r.breaks)}}" }} else {{ "-" }}, if on {{ r.eager_is_faster }} else {{ "-" }})
"""
JAX = """
import time, jax, jax.numpy as jnp
from jax import lax
jax.config.update("jax_platforms", "{platform}")
{body}
inputs = jax.device_put(inputs)
g = jax.jit(f)
for _ in range(10): jax.block_until_ready(g(*inputs))
def timed(n):
    t = time.perf_counter()
    for _ in range(n): r = g(*inputs)
    jax.block_until_ready(r)
    return (time.perf_counter() - t) / n * 1e6
n = max(1, min(2000, int(100000 / (timed(1) + 1))))
print("=", sorted(timed(n) for _ in range(5))[2])
"""
NUMPY = """
import time, numpy as np
{body}
inputs = tuple(np.asarray(a, np.float32) if np.ndim(a) else a for a in inputs)
def timed(n):
    t = time.perf_counter()
    for _ in range(n): f(*inputs)
    return (time.perf_counter() - t) / n * 1e6
n = max(1, min(2000, int(100000 / (timed(1) + 1))))
print("=", sorted(timed(n) for _ in range(5))[2])
"""

ROWS = {
    "newton": ("Newton's root, until it moves no more", """
fn f(x) { let y = x; while abs(y * y - x) > 1e-5 * x { y = 0.5 * (y + x / y) }; y }
let inputs = (f32(7.0),)
""", """
def f(x): return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-5 * x, lambda y: 0.5 * (y + x / y), x)
inputs = (jnp.float32(7.0),)
""", """
def f(x):
    y = x
    while abs(y * y - x) > np.float32(1e-5) * x: y = np.float32(0.5) * (y + x / y)
    return y
inputs = (np.float32(7),)
"""),
    "branch": ("a branch on mean(x) > 0, 4,096 elements", """
fn f(x) = if mean(x) > 0 { tanh(x) * 2 } else { x - 1 }
let inputs = (arange(4096) / 4096,)
""", """
def f(x): return lax.cond(jnp.mean(x) > 0, lambda x: jnp.tanh(x) * 2, lambda x: x - 1, x)
inputs = (jnp.arange(4096, dtype=jnp.float32) / 4096,)
""", """
def f(x): return np.tanh(x) * 2 if np.mean(x) > 0 else x - 1
inputs = (np.arange(4096) / 4096,)
"""),
    "rows": ("rows until their sum passes a bound, 256 of 512 x 64", """
fn f(m) { let s = zeros(64); for r in m { s = s + r; if sum(s) > 16000 { break } }; s }
let inputs = (ones(512, 64),)
""", """
def f(m):
    def body(c): return c[0] + 1, c[1] + m[c[0]]
    return lax.while_loop(lambda c: (c[0] < 512) & (jnp.sum(c[1]) <= 16000), body, (0, jnp.zeros(64)))[1]
inputs = (jnp.ones((512, 64)),)
""", """
def f(m):
    s = np.zeros(64, np.float32)
    for r in m:
        s = s + r
        if np.sum(s) > 16000: break
    return s
inputs = (np.ones((512, 64)),)
"""),
    "sort": ("insertion sort by hand, 200 elements", """
fn f(x) {
  for i in 1..x.shape[0] {
    let (v, j) = (x[i], i)
    while j > 0 and x[j - 1] > v { x[j] = x[j - 1]; j -= 1 }
    x[j] = v
  }
  x
}
let inputs = ((arange(200) * 37 % 101) * 1.0,)
""", """
def f(x):
    def outer(i, x):
        v = x[i]
        def test(c): return (c[0] > 0) & (c[1][c[0] - 1] > v)
        def move(c): return c[0] - 1, c[1].at[c[0]].set(c[1][c[0] - 1])
        j, x = lax.while_loop(test, move, (i, x))
        return x.at[j].set(v)
    return lax.fori_loop(1, x.shape[0], outer, x)
inputs = ((jnp.arange(200) * 37 % 101).astype(jnp.float32),)
""", """
def f(x):
    x = x.copy()
    for i in range(1, x.shape[0]):
        v, j = x[i], i
        while j > 0 and x[j - 1] > v:
            x[j] = x[j - 1]
            j -= 1
        x[j] = v
    return x
inputs = (np.arange(200) * 37 % 101,)
"""),
    "beam": ("a beam search by hand, 4 of 64 tokens, until all end, at most 32", """
fn f(e, w) {
  let (score, last, done) = (f32([0, -1e9, -1e9, -1e9]), i64([0, 0, 0, 0]), [false, false, false, false])
  let path = zeros(4, 32, dtype: i64)
  let t = 0
  while t < 32 and not all(done) {
    let l = log_softmax(e[last] @ w, axis: 1)
    l = where(done.reshape(4, 1), where(arange(64) == 1, 0.0, -1e9), l) + score.reshape(4, 1)
    let (best, at) = topk(l.reshape(256), 4)
    let from = at // 64
    last = at % 64
    score = best
    path = path[from]
    path[:, t] = last
    done = done[from] | (last == 1)
    t += 1
  }
  (path, score)
}
let inputs = (sin(arange(64 * 32).reshape(64, 32) * 1.7), sin(arange(32 * 64).reshape(32, 64) * 0.9))
""", """
def f(e, w):
    def test(c): return (c[0] < 32) & ~jnp.all(c[3])
    def body(c):
        t, score, last, done, path = c
        l = jax.nn.log_softmax(e[last] @ w, axis=1)
        l = jnp.where(done[:, None], jnp.where(jnp.arange(64) == 1, 0.0, -1e9), l) + score[:, None]
        best, at = lax.top_k(l.reshape(256), 4)
        last = at % 64
        path = path[at // 64].at[:, t].set(last)
        return t + 1, best, last, done[at // 64] | (last == 1), path
    c = lax.while_loop(test, body, (0, jnp.array([0, -1e9, -1e9, -1e9]), jnp.zeros(4, jnp.int32), jnp.zeros(4, bool), jnp.zeros((4, 32), jnp.int32)))
    return c[4], c[1]
inputs = (jnp.sin(jnp.arange(64 * 32).reshape(64, 32) * 1.7), jnp.sin(jnp.arange(32 * 64).reshape(32, 64) * 0.9))
""", """
def f(e, w):
    score, last, done = np.array([0, -1e9, -1e9, -1e9], np.float32), np.zeros(4, int), np.zeros(4, bool)
    path = np.zeros((4, 32), int)
    t = 0
    while t < 32 and not done.all():
        l = e[last] @ w
        l = l - l.max(axis=1, keepdims=True)
        l = l - np.log(np.exp(l).sum(axis=1, keepdims=True))
        l = (np.where(done[:, None], np.where(np.arange(64) == 1, np.float32(0), np.float32(-1e9)), l) + score[:, None]).reshape(256)
        at = np.argsort(-l, kind="stable")[:4]
        score, last = l[at], at % 64
        path = path[at // 64]
        path[:, t] = last
        done = done[at // 64] | (last == 1)
        t += 1
    return path, score
inputs = (np.sin(np.arange(64 * 32).reshape(64, 32) * 1.7), np.sin(np.arange(32 * 64).reshape(32, 64) * 0.9))
"""),
    "rnn": ("an RNN of 128 steps, batch 1, 64 units", """
fn f(x, wx, wh, b) { let h = zeros(64); for r in x { h = tanh(r @ wx + h @ wh + b) }; h }
let inputs = (rand(128, 64), rand(64, 64) * 0.1, rand(64, 64) * 0.1, zeros(64))
""", """
import numpy as np
def f(x, wx, wh, b): return lax.scan(lambda h, r: (jnp.tanh(r @ wx + h @ wh + b), None), jnp.zeros(64), x)[0]
r = np.random.default_rng(0).random
inputs = tuple(jnp.asarray(a, jnp.float32) for a in (r((128, 64)), r((64, 64)) * 0.1, r((64, 64)) * 0.1, np.zeros(64)))
""", """
def f(x, wx, wh, b):
    h = np.zeros(64, np.float32)
    for r in x: h = np.tanh(r @ wx + h @ wh + b)
    return h
r = np.random.default_rng(0).random
inputs = (r((128, 64)), r((64, 64)) * 0.1, r((64, 64)) * 0.1, np.zeros(64))
"""),
    "rnn_grad": ("its gradient by the weights", """
fn run(x, wx, wh, b) { let h = zeros(64); for r in x { h = tanh(r @ wx + h @ wh + b) }; sum(h) }
fn f(x, wx, wh, b) = grad(run, wrt: (1, 2, 3))(x, wx, wh, b)
let inputs = (rand(128, 64), rand(64, 64) * 0.1, rand(64, 64) * 0.1, zeros(64))
""", """
import numpy as np
def run(x, wx, wh, b): return jnp.sum(lax.scan(lambda h, r: (jnp.tanh(r @ wx + h @ wh + b), None), jnp.zeros(64), x)[0])
f = jax.grad(run, argnums=(1, 2, 3))
r = np.random.default_rng(0).random
inputs = tuple(jnp.asarray(a, jnp.float32) for a in (r((128, 64)), r((64, 64)) * 0.1, r((64, 64)) * 0.1, np.zeros(64)))
"""),
    "descent": ("gradient descent to a tolerance, 32 unknowns", """
fn loss(w, a, b) = sum((a @ w - b) ** 2)
fn f(w, a, b) { let g = w + 1; while sum(g * g) > 1e-6 { g = grad(loss)(w, a, b); w = w - 0.008 * g }; w }
let inputs = (zeros(32), arange(32 * 32).reshape(32, 32) % 7 * 0.1 + (arange(32).reshape(32, 1) == arange(32)), ones(32))
""", """
def loss(w, a, b): return jnp.sum((a @ w - b) ** 2)
def f(w, a, b):
    def body(c):
        g = jax.grad(loss)(c[0], a, b)
        return c[0] - 0.008 * g, g
    return lax.while_loop(lambda c: jnp.sum(c[1] * c[1]) > 1e-6, body, (w, w + 1))[0]
i = jnp.arange(32)
inputs = (jnp.zeros(32), jnp.arange(1024).reshape(32, 32) % 7 * 0.1 + (i[:, None] == i), jnp.ones(32))
""", """
def f(w, a, b):
    g = w + 1
    while np.sum(g * g) > 1e-6:
        g = 2 * (a @ w - b) @ a
        w = w - np.float32(0.008) * g
    return w
i = np.arange(32)
inputs = (np.zeros(32), np.arange(1024).reshape(32, 32) % 7 * 0.1 + (i[:, None] == i), np.ones(32))
"""),
    "descent_grad": ("the gradient through it, 16 unknowns", """
fn loss(w, a, b) = sum((a @ w - b) ** 2)
fn solved(a, b) { let w = zeros(16); let g = w + 1; while sum(g * g) > 1e-4 { g = grad(loss)(w, a, b); w = w - 0.02 * g }; sum(w) }
fn f(a, b) = grad(solved, wrt: (0, 1))(a, b)
let inputs = (arange(16 * 16).reshape(16, 16) % 7 * 0.1 + (arange(16).reshape(16, 1) == arange(16)), ones(16))
""", """
# while_loop has no reverse derivative: a scan over as many steps as it may take, which keeps what is done
def loss(w, a, b): return jnp.sum((a @ w - b) ** 2)
def solved(a, b):
    def body(c, _):
        def step(c):
            g = jax.grad(loss)(c[0], a, b)
            return c[0] - 0.02 * g, g
        return lax.cond(jnp.sum(c[1] * c[1]) > 1e-4, step, lambda c: c, c), None
    return jnp.sum(lax.scan(body, (jnp.zeros(16), jnp.ones(16)), None, length=700)[0][0])
f = jax.grad(solved, argnums=(0, 1))
i = jnp.arange(16)
inputs = (jnp.arange(256).reshape(16, 16) % 7 * 0.1 + (i[:, None] == i), jnp.ones(16))
"""),
    "report": ("100 steps of descent, the loss printed every 10", """
fn loss(w, a, b) = sum((a @ w - b) ** 2)
fn f(w, a, b) {
  for k in 0..100 {
    let (l, g) = value_and_grad(loss)(w, a, b)
    if k % 10 == 0 { print("step {k} loss {l}") }
    w = w - 0.008 * g
  }
  w
}
let inputs = (zeros(32), arange(32 * 32).reshape(32, 32) % 7 * 0.1 + (arange(32).reshape(32, 1) == arange(32)), ones(32))
""", """
def loss(w, a, b): return jnp.sum((a @ w - b) ** 2)
def f(w, a, b):
    def body(k, w):
        l, g = jax.value_and_grad(loss)(w, a, b)
        lax.cond(k % 10 == 0, lambda: jax.debug.print("step {k} loss {l}", k=k, l=l), lambda: None)
        return w - 0.008 * g
    return lax.fori_loop(0, 100, body, w)
i = jnp.arange(32)
inputs = (jnp.zeros(32), jnp.arange(1024).reshape(32, 32) % 7 * 0.1 + (i[:, None] == i), jnp.ones(32))
""", """
def f(w, a, b):
    for k in range(100):
        r = a @ w - b
        if k % 10 == 0: print("step", k, "loss", np.sum(r ** 2))
        w = w - np.float32(0.008) * (2 * r @ a)
    return w
i = np.arange(32)
inputs = (np.zeros(32), np.arange(1024).reshape(32, 32) % 7 * 0.1 + (i[:, None] == i), np.ones(32))
"""),
    "train": ("a top-level training loop, 100 steps of an MLP", """
fn loss(w, v, x, y) = mean((tanh(x @ w) @ v - y) ** 2)
let (w, v) = (arange(16 * 32).reshape(16, 32) % 11 * 0.02, arange(32).reshape(32, 1) % 5 * 0.1)
let x = arange(64 * 16).reshape(64, 16) % 13 * 0.1
let y = sum(x, axis: 1, keepdims: true) * 0.1
let (times, t) = ((), time())
for k in 0..400_000 { # of which the last tenth counts: most of the others are made while the code is being compiled
  let g = grad(loss, wrt: (0, 1))(w, v, x, y)
  w = w - 0.01 * g[0]
  v = v - 0.01 * g[1]
  if k % 100 == 99 { let now = time(); times = append(times, now - t); t = now }
}
print("\\n=", sort(stack(times[3_600:]))[200] * 1e6, "-", "-")
""", """
def loss(w, v, x, y): return jnp.mean((jnp.tanh(x @ w) @ v - y) ** 2)
def f(w, v, x, y):
    def body(_, c):
        g = jax.grad(loss, argnums=(0, 1))(*c, x, y)
        return c[0] - 0.01 * g[0], c[1] - 0.01 * g[1]
    return lax.fori_loop(0, 100, body, (w, v))
x = jnp.arange(1024).reshape(64, 16) % 13 * 0.1
inputs = (jnp.arange(512).reshape(16, 32) % 11 * 0.02, jnp.arange(32).reshape(32, 1) % 5 * 0.1, x, jnp.sum(x, axis=1, keepdims=True) * 0.1)
"""),
    "bisect": ("bisection of a cubic, 40 steps", """
fn f(a, b) { for _ in 0..40 { let m = (a + b) / 2; if m * m * m - m - 2 > 0 { b = m } else { a = m } }; a }
let inputs = (f32(1), f32(2))
""", """
def f(a, b):
    def body(_, c):
        m = (c[0] + c[1]) / 2
        up = m * m * m - m - 2 > 0
        return jnp.where(up, c[0], m), jnp.where(up, m, c[1])
    return lax.fori_loop(0, 40, body, (a, b))[0]
inputs = (jnp.float32(1), jnp.float32(2))
""", """
def f(a, b):
    for _ in range(40):
        m = (a + b) / np.float32(2)
        if m * m * m - m - 2 > 0: b = m
        else: a = m
    return a
inputs = (np.float32(1), np.float32(2))
"""),
    "power": ("a recursive power by a host number", """
fn power(x, n) = if n == 0 { 1 } else { x * power(x, n - 1) }
fn f(x) = power(x, 20)
let inputs = (ones(1000),)
""", """
def power(x, n): return 1 if n == 0 else x * power(x, n - 1)
def f(x): return power(x, 20)
inputs = (jnp.ones(1000),)
""", """
def power(x, n): return 1 if n == 0 else x * power(x, n - 1)
def f(x): return power(x, 20)
inputs = (np.ones(1000),)
"""),
    "power_n": ("a recursive power of a scalar, 900 levels", """
fn power(x, n) = if n == 0 { 1 } else { x * power(x, n - 1) }
fn f(x, n) = power(x, n)
let inputs = (f32(1.0001), 900)
""", """
def f(x, n): return lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, x * c[1]), (n, jnp.ones_like(x)))[1]
inputs = (jnp.float32(1.0001), 900)
""", """
def power(x, n): return 1 if n == 0 else x * power(x, n - 1)
def f(x, n): return power(x, n)
inputs = (np.float32(1.0001), 900)
"""),
    "jacobi": ("Jacobi by slice updates, 64 x 64, 100 sweeps", """
fn f(u) { for _ in 0..100 { u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) }; u }
let inputs = (arange(4096).reshape(64, 64) / 4096,)
""", """
def f(u): return lax.fori_loop(0, 100, lambda _, u: u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])), u)
inputs = (jnp.arange(4096, dtype=jnp.float32).reshape(64, 64) / 4096,)
""", """
def f(u):
    u = u.copy()
    for _ in range(100): u[1:-1, 1:-1] = np.float32(0.25) * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return u
inputs = (np.arange(4096).reshape(64, 64) / 4096,)
"""),
    "prefix": ("a recurrence over elements in place, 10,000", """
fn f(x) { for i in 1..x.shape[0] { x[i] = 0.5 * x[i - 1] + x[i] }; x }
let inputs = (ones(10_000),)
""", """
def f(x): return lax.fori_loop(1, x.shape[0], lambda i, x: x.at[i].set(0.5 * x[i - 1] + x[i]), x)
inputs = (jnp.ones(10000),)
""", """
def f(x):
    x = x.copy()
    for i in range(1, x.shape[0]): x[i] = np.float32(0.5) * x[i - 1] + x[i]
    return x
inputs = (np.ones(10000),)
"""),
    "scalar": ("a scalar loop over an array's elements, 10,000", """
fn f(x) { let (s, most) = (0, 0); for v in x { s = 0.9 * s + v; if s > most { most = s } }; (s, most) }
let inputs = (arange(10_000) % 17 * 1.0,)
""", """
def f(x):
    def step(c, v):
        s = 0.9 * c[0] + v
        return (s, jnp.maximum(s, c[1])), None
    return lax.scan(step, (jnp.float32(0), jnp.float32(0)), x)[0]
inputs = ((jnp.arange(10000) % 17).astype(jnp.float32),)
""", """
def f(x):
    s, most = np.float32(0), np.float32(0)
    for v in x:
        s = np.float32(0.9) * s + v
        if s > most: most = s
    return s, most
inputs = (np.arange(10000) % 17,)
"""),
    "solve": ("a triangular solve by rows, 200 x 200", """
fn f(l, b) { let x = zeros(200); for i in 0..200 { x[i] = (b[i] - l[i, :] @ x) / l[i, i] }; x }
let inputs = (arange(200 * 200).reshape(200, 200) % 5 * 0.01 + (arange(200).reshape(200, 1) == arange(200)), ones(200))
""", """
def f(l, b): return lax.fori_loop(0, 200, lambda i, x: x.at[i].set((b[i] - l[i] @ x) / l[i, i]), jnp.zeros(200))
i = jnp.arange(200)
inputs = (jnp.arange(40000).reshape(200, 200) % 5 * 0.01 + (i[:, None] == i), jnp.ones(200))
""", """
def f(l, b):
    x = np.zeros(200, np.float32)
    for i in range(200): x[i] = (b[i] - l[i, :] @ x) / l[i, i]
    return x
i = np.arange(200)
inputs = (np.arange(40000).reshape(200, 200) % 5 * 0.01 + (i[:, None] == i), np.ones(200))
"""),
    "sweep": ("Gauss-Seidel over a line, 20 sweeps of 1,000", """
fn f(u, b) { for _ in 0..20 { for i in 1..999 { u[i] = 0.5 * (u[i - 1] + u[i + 1] - b[i]) } }; u }
let inputs = (zeros(1000), ones(1000) * 0.001)
""", """
def f(u, b):
    def one(i, u): return u.at[i].set(0.5 * (u[i - 1] + u[i + 1] - b[i]))
    return lax.fori_loop(0, 20, lambda _, u: lax.fori_loop(1, 999, one, u), u)
inputs = (jnp.zeros(1000), jnp.ones(1000) * 0.001)
""", """
def f(u, b):
    u = u.copy()
    for _ in range(20):
        for i in range(1, 999): u[i] = np.float32(0.5) * (u[i - 1] + u[i + 1] - b[i])
    return u
inputs = (np.zeros(1000), np.ones(1000) * 0.001)
"""),
    "rk4": ("Runge-Kutta over 1,000 steps of a pendulum", """
fn d(y) = stack((y[1], -sin(y[0])))
fn f(y) {
  for _ in 0..1000 {
    let (h, k1) = (0.01, d(y))
    let k2 = d(y + h / 2 * k1)
    let k3 = d(y + h / 2 * k2)
    let k4 = d(y + h * k3)
    y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
  }
  y
}
let inputs = (f32([1, 0]),)
""", """
def d(y): return jnp.stack([y[1], -jnp.sin(y[0])])
def f(y):
    def step(_, y):
        h = 0.01
        k1 = d(y); k2 = d(y + h / 2 * k1); k3 = d(y + h / 2 * k2); k4 = d(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return lax.fori_loop(0, 1000, step, y)
inputs = (jnp.array([1.0, 0.0]),)
""", """
def d(y): return np.stack((y[1], -np.sin(y[0])))
def f(y):
    for _ in range(1000):
        h, k1 = np.float32(0.01), d(y)
        k2 = d(y + h / 2 * k1)
        k3 = d(y + h / 2 * k2)
        k4 = d(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y
inputs = (np.array([1, 0]),)
"""),
    "list": ("a list that grows, then is stacked, 100 rows", """
fn f(x, w) { let out = (); for i in 0..100 { x = tanh(x @ w); out = append(out, x) }; stack(out) }
let inputs = (ones(32), rand(32, 32) * 0.1)
""", """
def f(x, w):
    def step(x, _):
        x = jnp.tanh(x @ w)
        return x, x
    return lax.scan(step, x, None, length=100)[1]
inputs = (jnp.ones(32), jnp.ones((32, 32)) * 0.03)
""", """
def f(x, w):
    out = []
    for i in range(100):
        x = np.tanh(x @ w)
        out.append(x)
    return np.stack(out)
inputs = (np.ones(32), np.ones((32, 32)) * 0.03)
"""),
    "lstm": ("an LSTM of 1,024 steps, batch 1, 32 units", """
fn sig(x) = 1 / (1 + exp(-x))
fn f(x, wx, wh, b) {
  let (h, c) = (zeros(32), zeros(32))
  for r in x {
    let z = r @ wx + h @ wh + b
    c = sig(z[32:64]) * c + sig(z[:32]) * tanh(z[64:96])
    h = sig(z[96:]) * tanh(c)
  }
  h
}
let inputs = (sin(arange(1024 * 32.0)).reshape(1024, 32), cos(arange(32 * 128.0)).reshape(32, 128) * 0.1, sin(arange(32 * 128.0) * 3).reshape(32, 128) * 0.1, zeros(128))
""", """
def sig(x): return 1 / (1 + jnp.exp(-x))
def run(x, wx, wh, b):
    def step(hc, r):
        h, c = hc
        z = r @ wx + h @ wh + b
        c = sig(z[32:64]) * c + sig(z[:32]) * jnp.tanh(z[64:96])
        return (sig(z[96:]) * jnp.tanh(c), c), None
    return lax.scan(step, (jnp.zeros(32), jnp.zeros(32)), x)[0][0]
f = run
a = jnp.arange(1024 * 32, dtype=jnp.float32)
inputs = (jnp.sin(a).reshape(1024, 32), jnp.cos(a[:4096]).reshape(32, 128) * 0.1, jnp.sin(a[:4096] * 3).reshape(32, 128) * 0.1, jnp.zeros(128))
""", """
def sig(x): return 1 / (1 + np.exp(-x))
def f(x, wx, wh, b):
    h = c = np.zeros(32, np.float32)
    for r in x:
        z = r @ wx + h @ wh + b
        c = sig(z[32:64]) * c + sig(z[:32]) * np.tanh(z[64:96])
        h = sig(z[96:]) * np.tanh(c)
    return h
a = np.arange(1024 * 32)
inputs = (np.sin(a).reshape(1024, 32), np.cos(a[:4096]).reshape(32, 128) * 0.1, np.sin(a[:4096] * 3).reshape(32, 128) * 0.1, np.zeros(128))
"""),
    "lstm_grad": ("its gradient by the weights", """
fn sig(x) = 1 / (1 + exp(-x))
fn run(x, wx, wh, b) {
  let (h, c) = (zeros(32), zeros(32))
  for r in x {
    let z = r @ wx + h @ wh + b
    c = sig(z[32:64]) * c + sig(z[:32]) * tanh(z[64:96])
    h = sig(z[96:]) * tanh(c)
  }
  sum(h)
}
fn f(x, wx, wh, b) = grad(run, wrt: (1, 2, 3))(x, wx, wh, b)
let inputs = (sin(arange(1024 * 32.0)).reshape(1024, 32), cos(arange(32 * 128.0)).reshape(32, 128) * 0.1, sin(arange(32 * 128.0) * 3).reshape(32, 128) * 0.1, zeros(128))
""", """
def sig(x): return 1 / (1 + jnp.exp(-x))
def run(x, wx, wh, b):
    def step(hc, r):
        h, c = hc
        z = r @ wx + h @ wh + b
        c = sig(z[32:64]) * c + sig(z[:32]) * jnp.tanh(z[64:96])
        return (sig(z[96:]) * jnp.tanh(c), c), None
    return jnp.sum(lax.scan(step, (jnp.zeros(32), jnp.zeros(32)), x)[0][0])
f = jax.grad(run, argnums=(1, 2, 3))
a = jnp.arange(1024 * 32, dtype=jnp.float32)
inputs = (jnp.sin(a).reshape(1024, 32), jnp.cos(a[:4096]).reshape(32, 128) * 0.1, jnp.sin(a[:4096] * 3).reshape(32, 128) * 0.1, jnp.zeros(128))
"""),
    "jacobi_1d": ("Jacobi over a line, 1,000, 100 double sweeps", """
fn f(a, b) {
  for _ in 0..100 {
    b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
    a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
  }
  (a, b)
}
let inputs = (arange(1000.0) / 1000, arange(1000.0) / 500)
""", """
def f(a, b):
    def sweep(_, c):
        a, b = c
        b = b.at[1:-1].set(0.33333 * (a[:-2] + a[1:-1] + a[2:]))
        return a.at[1:-1].set(0.33333 * (b[:-2] + b[1:-1] + b[2:])), b
    return lax.fori_loop(0, 100, sweep, (a, b))
inputs = (jnp.arange(1000.0) / 1000, jnp.arange(1000.0) / 500)
""", """
def f(a, b):
    a, b = a.copy(), b.copy()
    for _ in range(100):
        b[1:-1] = np.float32(0.33333) * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = np.float32(0.33333) * (b[:-2] + b[1:-1] + b[2:])
    return a, b
inputs = (np.arange(1000) / 1000, np.arange(1000) / 500)
"""),
    "seidel_2d": ("Gauss-Seidel of 60 x 60, 10 sweeps", """
fn f(a) {
  for _ in 0..10 {
    for i in 1..59 {
      a[i, 1:-1] = a[i, 1:-1] + a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
      for j in 1..59 { a[i, j] = (a[i, j] + a[i, j - 1]) / 9 }
    }
  }
  a
}
let inputs = (arange(3600.0).reshape(60, 60) % 17 / 17,)
""", """
def f(a):
    def row(i, a):
        r = a[i, 1:-1] + a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
        a = a.at[i, 1:-1].set(r)
        return lax.fori_loop(1, 59, lambda j, a: a.at[i, j].set((a[i, j] + a[i, j - 1]) / 9), a)
    return lax.fori_loop(0, 10, lambda _, a: lax.fori_loop(1, 59, row, a), a)
inputs = (jnp.arange(3600.0).reshape(60, 60) % 17 / 17,)
""", """
def f(a):
    a = a.copy()
    for _ in range(10):
        for i in range(1, 59):
            a[i, 1:-1] += a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
            for j in range(1, 59): a[i, j] = (a[i, j] + a[i, j - 1]) / 9
    return a
inputs = (np.arange(3600).reshape(60, 60) % 17 / 17,)
"""),
    "lu": ("LU by elements, 40 x 40", """
fn f(a) {
  for i in 0..40 {
    for j in 0..i { a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j] }
    for j in i..40 { a[i, j] = a[i, j] - a[i, :i] @ a[:i, j] }
  }
  a
}
let inputs = (arange(1600.0).reshape(40, 40) % 7 * 0.01 + (arange(40).reshape(40, 1) == arange(40)) * 2,)
""", """
k = jnp.arange(40)
def f(a):
    def row(i, a):
        def low(j, a): return a.at[i, j].set((a[i, j] - jnp.where(k < j, a[i], 0) @ jnp.where(k < j, a[:, j], 0)) / a[j, j])
        def up(j, a): return a.at[i, j].set(a[i, j] - jnp.where(k < i, a[i], 0) @ jnp.where(k < i, a[:, j], 0))
        return lax.fori_loop(i, 40, up, lax.fori_loop(0, i, low, a))
    return lax.fori_loop(0, 40, row, a)
inputs = (jnp.arange(1600.0).reshape(40, 40) % 7 * 0.01 + (k[:, None] == k) * 2,)
""", """
def f(a):
    a = a.copy()
    for i in range(40):
        for j in range(i): a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j]
        for j in range(i, 40): a[i, j] -= a[i, :i] @ a[:i, j]
    return a
k = np.arange(40)
inputs = (np.arange(1600).reshape(40, 40) % 7 * 0.01 + (k[:, None] == k) * 2,)
"""),
    "ludcmp": ("LU by elements and two triangular solves, 40 x 40", """
fn f(a, b) {
  for i in 0..40 {
    for j in 0..i { a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j] }
    for j in i..40 { a[i, j] = a[i, j] - a[i, :i] @ a[:i, j] }
  }
  let y = zeros(40)
  for i in 0..40 { y[i] = b[i] - a[i, :i] @ y[:i] }
  let x = zeros(40)
  for i in range(39, -1, -1) { x[i] = (y[i] - a[i, i + 1:] @ x[i + 1:]) / a[i, i] }
  x
}
let inputs = (arange(1600.0).reshape(40, 40) % 7 * 0.01 + (arange(40).reshape(40, 1) == arange(40)) * 2, arange(40) / 40)
""", """
k = jnp.arange(40)
def f(a, b):
    def row(i, a):
        def low(j, a): return a.at[i, j].set((a[i, j] - jnp.where(k < j, a[i], 0) @ jnp.where(k < j, a[:, j], 0)) / a[j, j])
        def up(j, a): return a.at[i, j].set(a[i, j] - jnp.where(k < i, a[i], 0) @ jnp.where(k < i, a[:, j], 0))
        return lax.fori_loop(i, 40, up, lax.fori_loop(0, i, low, a))
    a = lax.fori_loop(0, 40, row, a)
    y = lax.fori_loop(0, 40, lambda i, y: y.at[i].set(b[i] - jnp.where(k < i, a[i], 0) @ y), jnp.zeros(40))
    def back(t, x):
        i = 39 - t
        return x.at[i].set((y[i] - jnp.where(k > i, a[i], 0) @ x) / a[i, i])
    return lax.fori_loop(0, 40, back, jnp.zeros(40))
inputs = (jnp.arange(1600.0).reshape(40, 40) % 7 * 0.01 + (k[:, None] == k) * 2, jnp.arange(40) / 40)
""", """
def f(a, b):
    a = a.copy()
    for i in range(40):
        for j in range(i): a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j]
        for j in range(i, 40): a[i, j] -= a[i, :i] @ a[:i, j]
    y, x = np.zeros(40, np.float32), np.zeros(40, np.float32)
    for i in range(40): y[i] = b[i] - a[i, :i] @ y[:i]
    for i in range(39, -1, -1): x[i] = (y[i] - a[i, i + 1:] @ x[i + 1:]) / a[i, i]
    return x
k = np.arange(40)
inputs = (np.arange(1600).reshape(40, 40) % 7 * 0.01 + (k[:, None] == k) * 2, np.arange(40) / 40)
"""),
    "lu_grad": ("the gradient through LU by parts, 256 x 256", """
fn lu(a) {
  let x = a
  for k in 0..255 {
    x[k + 1:, k] = x[k + 1:, k] / x[k, k]
    x[k + 1:, k + 1:] = x[k + 1:, k + 1:] - x[k + 1:, k:k + 1] * x[k:k + 1, k + 1:]
  }
  x
}
fn f(a) = grad(fn(a) sum(lu(a) ** 2))(a)
let inputs = (arange(65536.0).reshape(256, 256) % 7 * 0.01 + (arange(256).reshape(256, 1) == arange(256)) * 8,)
""", """
k = jnp.arange(256)
def lu(a):
    def step(i, a):
        factor = jnp.where(k > i, a[:, i] / a[i, i], 0)
        a = a.at[:, i].set(jnp.where(k > i, factor, a[:, i]))
        return a - factor[:, None] * jnp.where(k > i, a[i], 0)
    return lax.fori_loop(0, 255, step, a)
f = jax.grad(lambda a: jnp.sum(lu(a) ** 2))
inputs = (jnp.arange(65536.0).reshape(256, 256) % 7 * 0.01 + (k[:, None] == k) * 8,)
"""),
    "cholesky_grad": ("the gradient through Cholesky by columns, 256 x 256", """
fn cholesky(a) {
  let l = zeros_like(a)
  for j in 0..256 {
    let c = a[j:, j] - l[j:, :j] @ l[j, :j]
    l[j:, j] = c / sqrt(c[0])
  }
  l
}
fn f(a) = grad(fn(a) sum(cholesky(a) ** 2))(a)
let inputs = (arange(65536.0).reshape(256, 256) % 7 * 0.01 + (arange(256).reshape(256, 1) == arange(256)) * 8,)
""", """
k = jnp.arange(256)
def cholesky(a):
    def step(j, l):
        c = a[:, j] - l @ jnp.where(k < j, l[j], 0)
        return l.at[:, j].set(jnp.where(k >= j, c / jnp.sqrt(c[j]), 0))
    return lax.fori_loop(0, 256, step, jnp.zeros_like(a))
f = jax.grad(lambda a: jnp.sum(cholesky(a) ** 2))
inputs = (jnp.arange(65536.0).reshape(256, 256) % 7 * 0.01 + (k[:, None] == k) * 8,)
"""),
    "gauss": ("LU by rows and outer products, 64 x 64", """
fn f(a) {
  let k = arange(64)
  for i in 0..63 {
    let factor = where(k > i, a[:, i] / a[i, i], 0)
    a = a - factor.reshape(64, 1) * where(k > i, a[i], 0)
    a[:, i] = where(k > i, factor, a[:, i])
  }
  a
}
let inputs = (arange(4096.0).reshape(64, 64) % 7 * 0.01 + (arange(64).reshape(64, 1) == arange(64)) * 2,)
""", """
k = jnp.arange(64)
def f(a):
    def step(i, a):
        factor = jnp.where(k > i, a[:, i] / a[i, i], 0)
        a = a - factor[:, None] * jnp.where(k > i, a[i], 0)
        return a.at[:, i].set(jnp.where(k > i, factor, a[:, i]))
    return lax.fori_loop(0, 63, step, a)
inputs = (jnp.arange(4096.0).reshape(64, 64) % 7 * 0.01 + (k[:, None] == k) * 2,)
""", """
def f(a):
    a = a.copy()
    for i in range(63):
        a[i + 1:, i] /= a[i, i]
        a[i + 1:, i + 1:] -= np.outer(a[i + 1:, i], a[i, i + 1:])
    return a
k = np.arange(64)
inputs = (np.arange(4096).reshape(64, 64) % 7 * 0.01 + (k[:, None] == k) * 2,)
"""),
    "syrk": ("a symmetric product by parts of columns, 40 x 30", """
fn f(c, a) {
  for i in 0..40 {
    c[i, :i + 1] = c[i, :i + 1] * 1.2
    for k in 0..30 { c[i, :i + 1] = c[i, :i + 1] + 1.5 * a[i, k] * a[:i + 1, k] }
  }
  c
}
let inputs = (arange(1600.0).reshape(40, 40) % 7, arange(1200.0).reshape(40, 30) % 5)
""", """
j = jnp.arange(40)
def f(c, a):
    def row(i, c):
        r = jnp.where(j <= i, c[i] * 1.2, c[i])
        return c.at[i].set(lax.fori_loop(0, 30, lambda k, r: jnp.where(j <= i, r + 1.5 * a[i, k] * a[:, k], r), r))
    return lax.fori_loop(0, 40, row, c)
inputs = (jnp.arange(1600.0).reshape(40, 40) % 7, jnp.arange(1200.0).reshape(40, 30) % 5)
""", """
def f(c, a):
    c = c.copy()
    for i in range(40):
        c[i, :i + 1] *= np.float32(1.2)
        for k in range(30): c[i, :i + 1] += np.float32(1.5) * a[i, k] * a[:i + 1, k]
    return c
inputs = (np.arange(1600).reshape(40, 40) % 7, np.arange(1200).reshape(40, 30) % 5)
"""),
    "syr2k": ("a symmetric product of two, 40 x 30", """
fn f(c, a, b) {
  for i in 0..40 {
    c[i, :i + 1] = c[i, :i + 1] * 1.2
    for k in 0..30 { c[i, :i + 1] = c[i, :i + 1] + a[:i + 1, k] * 1.5 * b[i, k] + b[:i + 1, k] * 1.5 * a[i, k] }
  }
  c
}
let inputs = (arange(1600.0).reshape(40, 40) % 7, arange(1200.0).reshape(40, 30) % 5, arange(1200.0).reshape(40, 30) % 3)
""", """
j = jnp.arange(40)
def f(c, a, b):
    def row(i, c):
        r = jnp.where(j <= i, c[i] * 1.2, c[i])
        def add(k, r): return jnp.where(j <= i, r + a[:, k] * 1.5 * b[i, k] + b[:, k] * 1.5 * a[i, k], r)
        return c.at[i].set(lax.fori_loop(0, 30, add, r))
    return lax.fori_loop(0, 40, row, c)
inputs = (jnp.arange(1600.0).reshape(40, 40) % 7, jnp.arange(1200.0).reshape(40, 30) % 5, jnp.arange(1200.0).reshape(40, 30) % 3)
""", """
def f(c, a, b):
    c, w = c.copy(), np.float32(1.5)
    for i in range(40):
        c[i, :i + 1] *= np.float32(1.2)
        for k in range(30): c[i, :i + 1] += a[:i + 1, k] * w * b[i, k] + b[:i + 1, k] * w * a[i, k]
    return c
inputs = (np.arange(1600).reshape(40, 40) % 7, np.arange(1200).reshape(40, 30) % 5, np.arange(1200).reshape(40, 30) % 3)
"""),
    "symm": ("a product with a symmetric matrix, 30 x 40", """
fn f(c, a, b) {
  c = c * 1.2
  for i in 0..30 {
    for j in 0..40 {
      c[:i, j] = c[:i, j] + 1.5 * b[i, j] * a[i, :i]
      c[i, j] = c[i, j] + 1.5 * b[i, j] * a[i, i] + 1.5 * (b[:i, j] @ a[i, :i])
    }
  }
  c
}
let inputs = (arange(1200.0).reshape(30, 40) % 7, arange(900.0).reshape(30, 30) % 5, arange(1200.0).reshape(30, 40) % 3)
""", """
k = jnp.arange(30)
def f(c, a, b):
    def element(i, j, c):
        part = jnp.where(k < i, a[i], 0)
        c = c.at[:, j].add(1.5 * b[i, j] * part)
        return c.at[i, j].add(1.5 * b[i, j] * a[i, i] + 1.5 * (b[:, j] @ part))
    return lax.fori_loop(0, 30, lambda i, c: lax.fori_loop(0, 40, lambda j, c: element(i, j, c), c), c * 1.2)
inputs = (jnp.arange(1200.0).reshape(30, 40) % 7, jnp.arange(900.0).reshape(30, 30) % 5, jnp.arange(1200.0).reshape(30, 40) % 3)
""", """
def f(c, a, b):
    c, w = c * np.float32(1.2), np.float32(1.5)
    for i in range(30):
        for j in range(40):
            c[:i, j] += w * b[i, j] * a[i, :i]
            c[i, j] += w * b[i, j] * a[i, i] + w * (b[:i, j] @ a[i, :i])
    return c
inputs = (np.arange(1200).reshape(30, 40) % 7, np.arange(900).reshape(30, 30) % 5, np.arange(1200).reshape(30, 40) % 3)
"""),
    "trmm": ("a product with a triangular matrix in place, 30 x 40", """
fn f(a, b) {
  for i in 0..30 { for j in 0..40 { b[i, j] = b[i, j] + a[i + 1:, i] @ b[i + 1:, j] } }
  b * 1.5
}
let inputs = (arange(900.0).reshape(30, 30) % 5 * 0.1, arange(1200.0).reshape(30, 40) % 3)
""", """
k = jnp.arange(30)
def f(a, b):
    def element(i, j, b): return b.at[i, j].add(jnp.where(k > i, a[:, i], 0) @ b[:, j])
    return lax.fori_loop(0, 30, lambda i, b: lax.fori_loop(0, 40, lambda j, b: element(i, j, b), b), b) * 1.5
inputs = (jnp.arange(900.0).reshape(30, 30) % 5 * 0.1, jnp.arange(1200.0).reshape(30, 40) % 3)
""", """
def f(a, b):
    b = b.copy()
    for i in range(30):
        for j in range(40): b[i, j] += a[i + 1:, i] @ b[i + 1:, j]
    return b * np.float32(1.5)
inputs = (np.arange(900).reshape(30, 30) % 5 * 0.1, np.arange(1200).reshape(30, 40) % 3)
"""),
    "correlation": ("a correlation by columns, 100 x 60", """
fn f(x) {
  let d = x - mean(x, axis: 0)
  d = d / (sqrt(100.0) * sqrt(mean(d * d, axis: 0)) + 0.1)
  let c = zeros(60, 60)
  for i in 0..59 {
    let r = d[:, i] @ d[:, i + 1:]
    c[i, i + 1:] = r
    c[i + 1:, i] = r
  }
  c
}
let inputs = (arange(6000.0).reshape(100, 60) % 13,)
""", """
j = jnp.arange(60)
def f(x):
    d = x - jnp.mean(x, axis=0)
    d = d / (jnp.sqrt(100.0) * jnp.sqrt(jnp.mean(d * d, axis=0)) + 0.1)
    def one(i, c):
        r = d[:, i] @ d
        return c.at[i].set(jnp.where(j > i, r, c[i])).at[:, i].set(jnp.where(j > i, r, c[:, i]))
    return lax.fori_loop(0, 59, one, jnp.zeros((60, 60)))
inputs = (jnp.arange(6000.0).reshape(100, 60) % 13,)
""", """
def f(x):
    d = x - np.mean(x, axis=0)
    d = d / (np.float32(10) * np.sqrt(np.mean(d * d, axis=0)) + np.float32(0.1))
    c = np.zeros((60, 60), np.float32)
    for i in range(59): c[i, i + 1:] = c[i + 1:, i] = d[:, i] @ d[:, i + 1:]
    return c
inputs = (np.arange(6000).reshape(100, 60) % 13,)
"""),
    "adi": ("alternating directions, 40 x 40, 10 steps", """
fn f(u) {
  let (n, v, p, q) = (40, zeros(40, 40), zeros(40, 40), zeros(40, 40))
  for _ in 0..10 {
    v[0, 1:-1] = 1
    p[1:-1, 0] = 0
    q[1:-1, 0] = v[0, 1:-1]
    for j in 1..39 {
      p[1:-1, j] = 0.5 / (2 - 0.5 * p[1:-1, j - 1])
      q[1:-1, j] = (0.3 * u[j, :-2] + 0.4 * u[j, 1:-1] + 0.3 * u[j, 2:] + 0.5 * q[1:-1, j - 1]) / (2 - 0.5 * p[1:-1, j - 1])
    }
    v[39, 1:-1] = 1
    for k in 0..38 { let j = 38 - k; v[j, 1:-1] = p[1:-1, j] * v[j + 1, 1:-1] + q[1:-1, j] }
    u[1:-1, 0] = 1
    q[1:-1, 0] = u[1:-1, 0]
    for j in 1..39 {
      p[1:-1, j] = 0.4 / (2 - 0.4 * p[1:-1, j - 1])
      q[1:-1, j] = (0.3 * v[:-2, j] + 0.4 * v[1:-1, j] + 0.3 * v[2:, j] + 0.4 * q[1:-1, j - 1]) / (2 - 0.4 * p[1:-1, j - 1])
    }
    u[1:-1, 39] = 1
    for k in 0..38 { let j = 38 - k; u[1:-1, j] = p[1:-1, j] * u[1:-1, j + 1] + q[1:-1, j] }
  }
  u
}
let inputs = (arange(1600.0).reshape(40, 40) % 7 / 7,)
""", """
def f(u):
    def step(_, c):
        u, v, p, q = c
        v = v.at[0, 1:-1].set(1); p = p.at[1:-1, 0].set(0); q = q.at[1:-1, 0].set(v[0, 1:-1])
        def down(j, c):
            p, q = c
            q = q.at[1:-1, j].set((0.3 * u[j, :-2] + 0.4 * u[j, 1:-1] + 0.3 * u[j, 2:] + 0.5 * q[1:-1, j - 1]) / (2 - 0.5 * p[1:-1, j - 1]))
            return p.at[1:-1, j].set(0.5 / (2 - 0.5 * p[1:-1, j - 1])), q
        p, q = lax.fori_loop(1, 39, down, (p, q))
        v = v.at[39, 1:-1].set(1)
        v = lax.fori_loop(0, 38, lambda k, v: v.at[38 - k, 1:-1].set(p[1:-1, 38 - k] * v[39 - k, 1:-1] + q[1:-1, 38 - k]), v)
        u = u.at[1:-1, 0].set(1); q = q.at[1:-1, 0].set(u[1:-1, 0])
        def right(j, c):
            p, q = c
            q = q.at[1:-1, j].set((0.3 * v[:-2, j] + 0.4 * v[1:-1, j] + 0.3 * v[2:, j] + 0.4 * q[1:-1, j - 1]) / (2 - 0.4 * p[1:-1, j - 1]))
            return p.at[1:-1, j].set(0.4 / (2 - 0.4 * p[1:-1, j - 1])), q
        p, q = lax.fori_loop(1, 39, right, (p, q))
        u = u.at[1:-1, 39].set(1)
        u = lax.fori_loop(0, 38, lambda k, u: u.at[1:-1, 38 - k].set(p[1:-1, 38 - k] * u[1:-1, 39 - k] + q[1:-1, 38 - k]), u)
        return u, v, p, q
    z = jnp.zeros((40, 40))
    return lax.fori_loop(0, 10, step, (u, z, z, z))[0]
inputs = (jnp.arange(1600.0).reshape(40, 40) % 7 / 7,)
""", """
def f(u):
    u = u.copy()
    v, p, q = (np.zeros((40, 40), np.float32) for _ in range(3))
    for _ in range(10):
        v[0, 1:-1] = 1
        p[1:-1, 0] = 0
        q[1:-1, 0] = v[0, 1:-1]
        for j in range(1, 39):
            p[1:-1, j] = 0.5 / (2 - 0.5 * p[1:-1, j - 1])
            q[1:-1, j] = (0.3 * u[j, :-2] + 0.4 * u[j, 1:-1] + 0.3 * u[j, 2:] + 0.5 * q[1:-1, j - 1]) / (2 - 0.5 * p[1:-1, j - 1])
        v[39, 1:-1] = 1
        for j in range(38, 0, -1): v[j, 1:-1] = p[1:-1, j] * v[j + 1, 1:-1] + q[1:-1, j]
        u[1:-1, 0] = 1
        q[1:-1, 0] = u[1:-1, 0]
        for j in range(1, 39):
            p[1:-1, j] = 0.4 / (2 - 0.4 * p[1:-1, j - 1])
            q[1:-1, j] = (0.3 * v[:-2, j] + 0.4 * v[1:-1, j] + 0.3 * v[2:, j] + 0.4 * q[1:-1, j - 1]) / (2 - 0.4 * p[1:-1, j - 1])
        u[1:-1, 39] = 1
        for j in range(38, 0, -1): u[1:-1, j] = p[1:-1, j] * u[1:-1, j + 1] + q[1:-1, j]
    return u
inputs = (np.arange(1600).reshape(40, 40) % 7 / 7,)
"""),
    "vadv": ("tridiagonal sweeps down and up, 32 x 32 columns of 40", """
fn f(a, b, c, d) {
  for k in 1..40 {
    let w = a[k] / b[k - 1]
    b[k] = b[k] - w * c[k - 1]
    d[k] = d[k] - w * d[k - 1]
  }
  d[39] = d[39] / b[39]
  for m in 1..40 { let k = 39 - m; d[k] = (d[k] - c[k] * d[k + 1]) / b[k] }
  d
}
let z = arange(40960.0).reshape(40, 32, 32) % 11 / 11
let inputs = (z, z + 3, 1 - z, z * z)
""", """
def f(a, b, c, d):
    def down(k, t):
        b, d = t
        w = a[k] / b[k - 1]
        return b.at[k].add(-w * c[k - 1]), d.at[k].add(-w * d[k - 1])
    b, d = lax.fori_loop(1, 40, down, (b, d))
    d = d.at[39].set(d[39] / b[39])
    return lax.fori_loop(1, 40, lambda m, d: d.at[39 - m].set((d[39 - m] - c[39 - m] * d[40 - m]) / b[39 - m]), d)
z = jnp.arange(40960.0).reshape(40, 32, 32) % 11 / 11
inputs = (z, z + 3, 1 - z, z * z)
""", """
def f(a, b, c, d):
    b, d = b.copy(), d.copy()
    for k in range(1, 40):
        w = a[k] / b[k - 1]
        b[k] -= w * c[k - 1]
        d[k] -= w * d[k - 1]
    d[39] /= b[39]
    for k in range(38, -1, -1): d[k] = (d[k] - c[k] * d[k + 1]) / b[k]
    return d
z = np.arange(40960).reshape(40, 32, 32) % 11 / 11
inputs = (z, z + 3, 1 - z, z * z)
"""),
    "conv": ("a convolution by loops, 4 x 16 x 16 x 3, 8 filters of 3 x 3", """
fn f(x, w) {
  let out = zeros(4, 14, 14, 8)
  for i in 0..14 { for j in 0..14 { out[:, i, j, :] = sum(x[:, i:i + 3, j:j + 3, :].reshape(4, 3, 3, 3, 1) * w, axis: (1, 2, 3)) } }
  out
}
let inputs = (arange(3072.0).reshape(4, 16, 16, 3) % 7, arange(216.0).reshape(3, 3, 3, 8) % 5)
""", """
def f(x, w):
    def one(i, j, out):
        part = lax.dynamic_slice(x, (0, i, j, 0), (4, 3, 3, 3))
        return out.at[:, i, j, :].set(jnp.sum(part[..., None] * w, axis=(1, 2, 3)))
    return lax.fori_loop(0, 14, lambda i, out: lax.fori_loop(0, 14, lambda j, out: one(i, j, out), out), jnp.zeros((4, 14, 14, 8)))
inputs = (jnp.arange(3072.0).reshape(4, 16, 16, 3) % 7, jnp.arange(216.0).reshape(3, 3, 3, 8) % 5)
""", """
def f(x, w):
    out = np.zeros((4, 14, 14, 8), np.float32)
    for i in range(14):
        for j in range(14): out[:, i, j, :] = np.sum(x[:, i:i + 3, j:j + 3, :, None] * w, axis=(1, 2, 3))
    return out
inputs = (np.arange(3072).reshape(4, 16, 16, 3) % 7, np.arange(216).reshape(3, 3, 3, 8) % 5)
"""),
    "scattering": ("self-energies of scattering, 2 x 6 x 2 x 2 points, 8 x 8", """
fn f(g, d, p) {
  let s = zeros(2, 6, 8, 8)
  for k in 0..2 { for e in 0..6 { for q in 0..2 { for w in 0..2 { for a in 0..3 {
    let x = g[(k + q) % 2, (e + w) % 6] @ p[a]
    s[k, e] = s[k, e] + x @ p[(a + 1) % 3] * d[q, w, a]
  } } } } }
  s
}
let inputs = (sin(arange(768.0)).reshape(2, 6, 8, 8), cos(arange(12.0)).reshape(2, 2, 3), cos(arange(192.0)).reshape(3, 8, 8))
""", """
def f(g, d, p):
    def add(n, s):
        a, w, q, e, k = n % 3, n // 3 % 2, n // 6 % 2, n // 12 % 6, n // 72
        return s.at[k, e].add(g[(k + q) % 2, (e + w) % 6] @ p[a] @ p[(a + 1) % 3] * d[q, w, a])
    return lax.fori_loop(0, 144, add, jnp.zeros((2, 6, 8, 8)))
inputs = (jnp.sin(jnp.arange(768.0)).reshape(2, 6, 8, 8), jnp.cos(jnp.arange(12.0)).reshape(2, 2, 3), jnp.cos(jnp.arange(192.0)).reshape(3, 8, 8))
""", """
def f(g, d, p):
    s = np.zeros((2, 6, 8, 8), np.float32)
    for k in range(2):
        for e in range(6):
            for q in range(2):
                for w in range(2):
                    for a in range(3):
                        s[k, e] += g[(k + q) % 2, (e + w) % 6] @ p[a] @ p[(a + 1) % 3] * d[q, w, a]
    return s
inputs = (np.sin(np.arange(768)).reshape(2, 6, 8, 8), np.cos(np.arange(12)).reshape(2, 2, 3), np.cos(np.arange(192)).reshape(3, 8, 8))
"""),
    "cavity": ("cavity flow by slice updates, 32 x 32, 10 steps of 20 sweeps", """
fn f(u, v, p) {
  let (n, dt, dx) = (10, 0.001, 2 / 31)
  for _ in 0..n {
    let du = (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx)
    let dv = (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dx)
    let b = (du + dv) / dt - du * du - dv * dv - 2 * ((u[2:, 1:-1] - u[:-2, 1:-1]) * (v[1:-1, 2:] - v[1:-1, :-2])) / (4 * dx * dx)
    for _ in 0..20 {
      p[1:-1, 1:-1] = 0.25 * (p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]) - dx * dx / 4 * b
      p[:, -1] = p[:, -2]
      p[0, :] = p[1, :]
      p[:, 0] = p[:, 1]
      p[-1, :] = 0
    }
    let (un, vn) = (u, v)
    u[1:-1, 1:-1] = un[1:-1, 1:-1] - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, :-2]) - dt / (2 * dx) * (p[1:-1, 2:] - p[1:-1, :-2]) + 0.1 * dt / (dx * dx) * (un[1:-1, 2:] + un[1:-1, :-2] + un[2:, 1:-1] + un[:-2, 1:-1] - 4 * un[1:-1, 1:-1])
    v[1:-1, 1:-1] = vn[1:-1, 1:-1] - vn[1:-1, 1:-1] * dt / dx * (vn[1:-1, 1:-1] - vn[:-2, 1:-1]) - dt / (2 * dx) * (p[2:, 1:-1] - p[:-2, 1:-1]) + 0.1 * dt / (dx * dx) * (vn[1:-1, 2:] + vn[1:-1, :-2] + vn[2:, 1:-1] + vn[:-2, 1:-1] - 4 * vn[1:-1, 1:-1])
    u[-1, :] = 1
  }
  (u, v, p)
}
let inputs = (zeros(32, 32), zeros(32, 32), zeros(32, 32))
""", """
dt, dx = 0.001, 2 / 31
def f(u, v, p):
    def step(_, c):
        u, v, p = c
        du = (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx)
        dv = (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dx)
        b = (du + dv) / dt - du * du - dv * dv - 2 * ((u[2:, 1:-1] - u[:-2, 1:-1]) * (v[1:-1, 2:] - v[1:-1, :-2])) / (4 * dx * dx)
        def sweep(_, p):
            p = p.at[1:-1, 1:-1].set(0.25 * (p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]) - dx * dx / 4 * b)
            p = p.at[:, -1].set(p[:, -2])
            p = p.at[0, :].set(p[1, :])
            p = p.at[:, 0].set(p[:, 1])
            return p.at[-1, :].set(0)
        p = lax.fori_loop(0, 20, sweep, p)
        un, vn = u, v
        u = un.at[1:-1, 1:-1].add(-un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, :-2]) - dt / (2 * dx) * (p[1:-1, 2:] - p[1:-1, :-2])
                                    + 0.1 * dt / (dx * dx) * (un[1:-1, 2:] + un[1:-1, :-2] + un[2:, 1:-1] + un[:-2, 1:-1] - 4 * un[1:-1, 1:-1]))
        v = vn.at[1:-1, 1:-1].add(-vn[1:-1, 1:-1] * dt / dx * (vn[1:-1, 1:-1] - vn[:-2, 1:-1]) - dt / (2 * dx) * (p[2:, 1:-1] - p[:-2, 1:-1])
                                    + 0.1 * dt / (dx * dx) * (vn[1:-1, 2:] + vn[1:-1, :-2] + vn[2:, 1:-1] + vn[:-2, 1:-1] - 4 * vn[1:-1, 1:-1]))
        return u.at[-1, :].set(1), v, p
    return lax.fori_loop(0, 10, step, (u, v, p))
inputs = tuple(jnp.zeros((32, 32)) for _ in range(3))
""", """
dt, dx = 0.001, 2 / 31
def f(u, v, p):
    u, v, p = u.copy(), v.copy(), p.copy()
    for _ in range(10):
        du = (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx)
        dv = (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dx)
        b = (du + dv) / dt - du * du - dv * dv - 2 * ((u[2:, 1:-1] - u[:-2, 1:-1]) * (v[1:-1, 2:] - v[1:-1, :-2])) / (4 * dx * dx)
        for _ in range(20):
            p[1:-1, 1:-1] = 0.25 * (p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]) - dx * dx / 4 * b
            p[:, -1] = p[:, -2]
            p[0, :] = p[1, :]
            p[:, 0] = p[:, 1]
            p[-1, :] = 0
        un, vn = u.copy(), v.copy()
        u[1:-1, 1:-1] = un[1:-1, 1:-1] - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, :-2]) - dt / (2 * dx) * (p[1:-1, 2:] - p[1:-1, :-2]) + 0.1 * dt / (dx * dx) * (un[1:-1, 2:] + un[1:-1, :-2] + un[2:, 1:-1] + un[:-2, 1:-1] - 4 * un[1:-1, 1:-1])
        v[1:-1, 1:-1] = vn[1:-1, 1:-1] - vn[1:-1, 1:-1] * dt / dx * (vn[1:-1, 1:-1] - vn[:-2, 1:-1]) - dt / (2 * dx) * (p[2:, 1:-1] - p[:-2, 1:-1]) + 0.1 * dt / (dx * dx) * (vn[1:-1, 2:] + vn[1:-1, :-2] + vn[2:, 1:-1] + vn[:-2, 1:-1] - 4 * vn[1:-1, 1:-1])
        u[-1, :] = 1
    return u, v, p
inputs = (np.zeros((32, 32)), np.zeros((32, 32)), np.zeros((32, 32)))
"""),
}


def sample(argv, folder):
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, timeout=600)
    m = re.search(r"^= ([\d.e+-]+)(.*)$", done.stdout, re.M)
    if not m:
        return None, (done.stderr.strip().splitlines() or ["no result"])[0]
    return float(m.group(1)), m.group(2).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--without", action="append", default=[], choices=["off", "quern", "jax", "numpy"])
    parser.add_argument("--set", action="append", default=[], dest="tunables")
    o = parser.parse_args()
    quern = os.path.abspath(o.quern)
    def has(module): return subprocess.run([o.python, "-c", f"import {module}"], capture_output=True).returncode == 0
    has_jax, has_numpy = has("jax"), has("numpy") and o.device == "cpu"
    print(f"{'':60} {'off':>9} {'quern':>9} {'numpy':>9} {'jax':>9}   off/quern  numpy/..   jax/.. graphs")
    with tempfile.TemporaryDirectory() as folder:
        for name in o.row or ROWS:
            title, body, peer, *plain = ROWS[name]
            alone = 'print("\\n=' in body  # a program that times itself: a loop outside of functions
            script, other = os.path.join(folder, f"row_{name}.qn"), os.path.join(folder, f"row_{name}.py")
            with open(script, "w", encoding="utf-8") as f:
                f.write(body if alone else QUERN.format(body=body))
            with open(other, "w", encoding="utf-8") as f:
                f.write(JAX.format(body=peer, platform="cuda" if o.device == "gpu" else "cpu"))
            third = os.path.join(folder, f"numpy_{name}.py")
            with open(third, "w", encoding="utf-8") as f:
                f.write(NUMPY.format(body=plain[0] if plain else ""))
            tunables = [a for t in o.tunables for a in ("--set", t)]
            turns = [] if alone else ["--set", "jit.turns=0"]
            device = ["--device", o.device]
            jit = ["--jit", "on" if o.device == "cpu" else "sync"]
            ways = {"off": [quern, *device, "--jit", "off", script], "quern": [quern, *device, *jit, *turns, *tunables, script, "on"]}
            if has_jax:
                ways["jax"] = [o.python, other]
            if has_numpy and plain:
                ways["numpy"] = [o.python, third]
            ways = {w: argv for w, argv in ways.items() if w not in o.without}
            times, notes = {w: [] for w in ways}, {}
            for _ in range(o.rounds):
                for w, argv in ways.items():
                    took, notes[w] = sample(argv, folder)
                    if took is not None:
                        times[w].append(took)
            median = {w: statistics.median(t) for w, t in times.items() if t}
            def shown(w): return f"{median[w]:9.1f}" if w in median else f"{'-':>9}"
            def ratio(w): return f"{median[w] / median['quern']:9.2f}" if w in median and "quern" in median else f"{'-':>9}"
            print(f"{title:60} {shown('off')} {shown('quern')} {shown('numpy')} {shown('jax')}  {ratio('off')} {ratio('numpy')} {ratio('jax')} "
                  f"{notes.get('quern', '')}"
                  + "".join(f"\n    {w}: {notes[w]}" for w in ways if w not in median), flush=True)


if __name__ == "__main__":
    main()
