#!/usr/bin/env python3
"""Compares captured control flow with the interpreter and with JAX's own forms (while_loop, fori_loop, scan, cond), in one run.

  control.py [--quern build/quern] [--row NAME] [--rounds N] [--python PYTHON] [--device gpu] [--without off] [--set NAME=VALUE ...]

Each row is one program, written as one would write it in each language. Participants are processes of their own that take turns, round
after round; each warms up (quern until its plan is there and compiled) and prints the median microseconds of a call. JAX is left out where
it is not installed; so is Quern's `off`, the interpreter alone, for no row.

  off     quern --jit off
  quern   quern --jit on (on a GPU --jit sync, since its compiler may take longer than warming up), with jit.turns=0 (else a loop that calls f and drops what it gives is compiled, and does nothing); `graphs` says into how many graphs the call went, with the breaks: 1/0 has no way back into the interpreter
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

ROWS = {
    "newton": ("Newton's root, until it moves no more", """
fn f(x) { let y = x; while abs(y * y - x) > 1e-5 * x { y = 0.5 * (y + x / y) }; y }
let inputs = (f32(7.0),)
""", """
def f(x): return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-5 * x, lambda y: 0.5 * (y + x / y), x)
inputs = (jnp.float32(7.0),)
"""),
    "branch": ("a branch on mean(x) > 0, 4,096 elements", """
fn f(x) = if mean(x) > 0 { tanh(x) * 2 } else { x - 1 }
let inputs = (arange(4096) / 4096,)
""", """
def f(x): return lax.cond(jnp.mean(x) > 0, lambda x: jnp.tanh(x) * 2, lambda x: x - 1, x)
inputs = (jnp.arange(4096, dtype=jnp.float32) / 4096,)
"""),
    "rows": ("rows until their sum passes a bound, 256 of 512 x 64", """
fn f(m) { let s = zeros(64); for r in m { s = s + r; if sum(s) > 16000 { break } }; s }
let inputs = (ones(512, 64),)
""", """
def f(m):
    def body(c): return c[0] + 1, c[1] + m[c[0]]
    return lax.while_loop(lambda c: (c[0] < 512) & (jnp.sum(c[1]) <= 16000), body, (0, jnp.zeros(64)))[1]
inputs = (jnp.ones((512, 64)),)
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
"""),
    "rnn": ("an RNN of 128 steps, batch 1, 64 units", """
fn f(x, wx, wh, b) { let h = zeros(64); for r in x { h = tanh(r @ wx + h @ wh + b) }; h }
let inputs = (rand(128, 64), rand(64, 64) * 0.1, rand(64, 64) * 0.1, zeros(64))
""", """
import numpy as np
def f(x, wx, wh, b): return lax.scan(lambda h, r: (jnp.tanh(r @ wx + h @ wh + b), None), jnp.zeros(64), x)[0]
r = np.random.default_rng(0).random
inputs = tuple(jnp.asarray(a, jnp.float32) for a in (r((128, 64)), r((64, 64)) * 0.1, r((64, 64)) * 0.1, np.zeros(64)))
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
fn f(w, a, b) { let g = w + 1; while sum(g * g) > 1e-6 { g = grad(loss)(w, a, b); w = w - 0.01 * g }; w }
let inputs = (zeros(32), arange(32 * 32).reshape(32, 32) % 7 * 0.1 + (arange(32).reshape(32, 1) == arange(32)), ones(32))
""", """
def loss(w, a, b): return jnp.sum((a @ w - b) ** 2)
def f(w, a, b):
    def body(c):
        g = jax.grad(loss)(c[0], a, b)
        return c[0] - 0.01 * g, g
    return lax.while_loop(lambda c: jnp.sum(c[1] * c[1]) > 1e-6, body, (w, w + 1))[0]
i = jnp.arange(32)
inputs = (jnp.zeros(32), jnp.arange(1024).reshape(32, 32) % 7 * 0.1 + (i[:, None] == i), jnp.ones(32))
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
"""),
    "power": ("a recursive power by a host number", """
fn power(x, n) = if n == 0 { 1 } else { x * power(x, n - 1) }
fn f(x) = power(x, 20)
let inputs = (ones(1000),)
""", """
def power(x, n): return 1 if n == 0 else x * power(x, n - 1)
def f(x): return power(x, 20)
inputs = (jnp.ones(1000),)
"""),
    "jacobi": ("Jacobi by slice updates, 64 x 64, 100 sweeps", """
fn f(u) { for _ in 0..100 { u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) }; u }
let inputs = (arange(4096).reshape(64, 64) / 4096,)
""", """
def f(u): return lax.fori_loop(0, 100, lambda _, u: u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])), u)
inputs = (jnp.arange(4096, dtype=jnp.float32).reshape(64, 64) / 4096,)
"""),
    "prefix": ("a recurrence over elements in place, 10,000", """
fn f(x) { for i in 1..x.shape[0] { x[i] = 0.5 * x[i - 1] + x[i] }; x }
let inputs = (ones(10_000),)
""", """
def f(x): return lax.fori_loop(1, x.shape[0], lambda i, x: x.at[i].set(0.5 * x[i - 1] + x[i]), x)
inputs = (jnp.ones(10000),)
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
"""),
    "solve": ("a triangular solve by rows, 200 x 200", """
fn f(l, b) { let x = zeros(200); for i in 0..200 { x[i] = (b[i] - l[i, :] @ x) / l[i, i] }; x }
let inputs = (arange(200 * 200).reshape(200, 200) % 5 * 0.01 + (arange(200).reshape(200, 1) == arange(200)), ones(200))
""", """
def f(l, b): return lax.fori_loop(0, 200, lambda i, x: x.at[i].set((b[i] - l[i] @ x) / l[i, i]), jnp.zeros(200))
i = jnp.arange(200)
inputs = (jnp.arange(40000).reshape(200, 200) % 5 * 0.01 + (i[:, None] == i), jnp.ones(200))
"""),
    "sweep": ("Gauss-Seidel over a line, 20 sweeps of 1,000", """
fn f(u, b) { for _ in 0..20 { for i in 1..999 { u[i] = 0.5 * (u[i - 1] + u[i + 1] - b[i]) } }; u }
let inputs = (zeros(1000), ones(1000) * 0.001)
""", """
def f(u, b):
    def one(i, u): return u.at[i].set(0.5 * (u[i - 1] + u[i + 1] - b[i]))
    return lax.fori_loop(0, 20, lambda _, u: lax.fori_loop(1, 999, one, u), u)
inputs = (jnp.zeros(1000), jnp.ones(1000) * 0.001)
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
    parser.add_argument("--without", action="append", default=[], choices=["off", "quern", "jax"])
    parser.add_argument("--set", action="append", default=[], dest="tunables")
    o = parser.parse_args()
    quern = os.path.abspath(o.quern)
    has_jax = subprocess.run([o.python, "-c", "import jax"], capture_output=True).returncode == 0
    print(f"{'':52} {'off':>9} {'quern':>9} {'jax':>9}  off/quern jax/quern graphs")
    with tempfile.TemporaryDirectory() as folder:
        for name in o.row or ROWS:
            title, body, peer = ROWS[name]
            script, other = os.path.join(folder, f"row_{name}.qn"), os.path.join(folder, f"row_{name}.py")
            with open(script, "w", encoding="utf-8") as f:
                f.write(QUERN.format(body=body))
            with open(other, "w", encoding="utf-8") as f:
                f.write(JAX.format(body=peer, platform="cuda" if o.device == "gpu" else "cpu"))
            tunables = [a for t in o.tunables for a in ("--set", t)]
            device = ["--device", o.device]
            jit = ["--jit", "on" if o.device == "cpu" else "sync"]
            ways = {"off": [quern, *device, "--jit", "off", script], "quern": [quern, *device, *jit, "--set", "jit.turns=0", *tunables, script, "on"]}
            if has_jax:
                ways["jax"] = [o.python, other]
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
            print(f"{title:52} {shown('off')} {shown('quern')} {shown('jax')} {ratio('off')} {ratio('jax')} {notes.get('quern', '')}"
                  + "".join(f"\n    {w}: {notes[w]}" for w in ways if w not in median), flush=True)


if __name__ == "__main__":
    main()
