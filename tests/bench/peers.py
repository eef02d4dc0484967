"""The benchmark's rows in NumPy, PyTorch and JAX: a process that keeps one of them loaded and answers a line of JSON with a line of JSON.

  peers.py list                      the peers that this interpreter has
  peers.py PEER MACHINE              PEER is numpy, torch or jax, MACHINE cpu or gpu

  {"do": "first", "row": R, "inputs": TEXTS, "variant": V, "to": FILE}   {"first": seconds}, and a part of the result in FILE
  {"do": "sample", "variant": V, "seconds": S, "each": E}               {"samples": [seconds a call, ...], "calls": how many in all}
  {"do": "rates", "processor": P}    bytes a second of a copy, operations a second of products; P: of processor time
  {"do": "drop"}                     forgets the row

Variants of torch are eager, compile (the default mode) and graphs (reduce-overhead). f32 is never TF32. An answer with "error" says why
a row failed. NumPy's rows on f64 are also the reference of everybody's results (run.py).
"""
import importlib.util
import json
import math
import os
import sys
import time

import numpy as np

PERIOD, PRIME = 1048573, 2147483647
BETA1, BETA2, EPSILON, STEP = 0.9, 0.999, 1e-8, 10


# ---- inputs -----------------------------------------------------------------------------------------------------------------

def fill(number, scale, offset, kind, shape):
    """The numbers of rows.qn's function of this name."""
    n = math.prod(shape)
    k = (np.arange(min(n, PERIOD), dtype=np.int64) * 48271 + number * 69621) % PRIME
    k = k * k % PRIME
    if kind == "i64":
        v = k % int(scale)
    else:
        v = (k.astype(np.float32) / np.float32(2147483648) - np.float32(0.5)) * np.float32(scale) + np.float32(offset)
    return np.resize(v, n).reshape(shape)


def arguments(texts):
    """The arguments of a row: arrays, and dicts for names with a dot; and whether floats are to be bf16."""
    made, half = {}, False
    for text in texts.split(" "):
        name, number, scale, offset, kind, shape = text.split(":")
        half = half or kind == "bf16"
        path, here = name.split("."), made
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = fill(int(number), float(scale), float(offset), kind, tuple(int(n) for n in shape.split("x")))
    return list(made.values()), half


def leaves(y):
    if isinstance(y, dict):
        return [leaf for v in y.values() for leaf in leaves(v)]
    return [leaf for v in y for leaf in leaves(v)] if isinstance(y, (tuple, list)) else [y]


def mapped(f, tree):
    if isinstance(tree, dict):
        return {k: mapped(f, v) for k, v in tree.items()}
    return [mapped(f, v) for v in tree] if isinstance(tree, (list, tuple)) else f(tree)


def picked(arrays):
    """rows.qn's function of this name."""
    out = []
    for a in arrays:
        v = np.asarray(a).reshape(-1)
        v = v if v.dtype == np.float64 else v.astype(np.float32)
        step = v.size // 65536
        out.append(np.append(v[:: step + 1 - step % 2], np.mean(np.abs(v), dtype=np.float64)))
    return out


def save(to, arrays):
    np.savez(to, **{f"r{k}": v for k, v in enumerate(picked(arrays))})


# ---- NumPy ----------------------------------------------------------------------------------------------------------------------

class Numpy:
    """Rows as methods, for arrays of f32 and f64. NumPy has no erf: Abramowitz and Stegun 7.1.26, off by at most 1.5e-7."""

    without = ("train", "resnet", "train_resnet")
    variants = ("eager",)

    def __init__(self, machine):
        self.calls = {}

    def erf(self, x):
        z = np.abs(x)
        t = 1 / (1 + 0.3275911 * z)
        p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        return np.copysign(1 - p * np.exp(-z * z), x)

    def cdf(self, x):
        return 0.5 * (1 + self.erf(x * math.sqrt(0.5)))

    def gelu(self, x):
        return x * self.cdf(x)

    def normed(self, x):
        m = x.mean(axis=-1, keepdims=True)
        d = x - m
        r = 1 / np.sqrt((d * d).mean(axis=-1, keepdims=True) + 1e-5)
        return d * r, r

    def layer_norm(self, x, g, b):
        return self.normed(x)[0] * g + b

    def chain(self, x):
        t = np.tanh(x * 2 + 1)
        return (t * t + x) * 0.5

    def softmax(self, x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        e /= e.sum(axis=-1, keepdims=True)
        return e

    def norm(self, x, g, b):
        return self.gelu(self.layer_norm(x, g, b)) + x

    def norm_back(self, x, g, b, dy):
        n, r = self.normed(x)
        h = n * g + b
        c = self.cdf(h)
        dh = dy * (c + h * np.exp(-0.5 * h * h) * (1 / math.sqrt(2 * math.pi)))
        dn = dh * g
        dx = r * (dn - dn.mean(axis=-1, keepdims=True) - n * (dn * n).mean(axis=-1, keepdims=True)) + dy
        return h * c + x, dx, (dh * n).sum(axis=0), dh.sum(axis=0)

    def columns(self, x):
        return x.sum(axis=0), (x * x).sum()

    def axpy(self, x, y):
        return 2.5 * x + y

    def attention(self, x, wq, wk, wv):
        return self.softmax((x @ wq) @ (x @ wk).swapaxes(-2, -1) / math.sqrt(x.shape[-1])) @ (x @ wv)

    def mlp(self, x, w1, b1, w2, b2):
        return self.gelu(x @ w1 + b1) @ w2 + b2

    def norm_linear(self, x, g, b, w, c):
        return self.gelu(self.layer_norm(x, g, b) @ w + c) + x

    def layer(self, p, x):
        def heads(x):
            return x.reshape(x.shape[0], x.shape[1], -1, 64).swapaxes(1, 2)
        h = self.layer_norm(x, p["g1"], p["b1"])
        q, k, v = heads(h @ p["wq"]), heads(h @ p["wk"]), heads(h @ p["wv"])
        a = self.softmax(q @ k.swapaxes(-2, -1) / 8) @ v
        x = x + a.swapaxes(1, 2).reshape(x.shape) @ p["wo"]
        return x + self.gelu(self.layer_norm(x, p["g2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]

    def rnn(self, x, h, wx, wh, b):
        for v in x:
            h = np.tanh(v @ wx + h @ wh + b)
        return h

    def black_scholes(self, s, k, t):
        rate, sigma = 0.02, 0.3
        spread = sigma * np.sqrt(t)
        d1 = (np.log(s / k) + (rate + 0.5 * sigma * sigma) * t) / spread
        discounted = k * np.exp(-rate * t)
        call = s * self.cdf(d1) - discounted * self.cdf(d1 - spread)
        return call, call - s + discounted

    def jacobi(self, u):
        u = u.copy()
        for _ in range(20):
            u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u

    def newton(self, a):
        x = a
        while np.abs(x * x - a).max() > 1e-3:
            x = 0.5 * (x + a / x)
        return x

    def nbody(self, p, m):
        d = p[None, :, :] - p[:, None, :]
        r2 = (d * d).sum(axis=-1) + 1e-3
        return np.einsum("ijk,ij->ik", d, m * r2 ** -1.5)

    def kmeans(self, x, c):
        near = np.argmin((c * c).sum(axis=-1) - 2 * (x @ c.T), axis=1)
        member = (near == np.arange(len(c))[:, None]).astype(x.dtype)
        return member @ x / np.maximum(member.sum(axis=1), 1)[:, None]

    def adam(self, p, g, m, v, rate=0.001):
        m = {k: BETA1 * m[k] + (1 - BETA1) * g[k] for k in p}
        v = {k: BETA2 * v[k] + (1 - BETA2) * (g[k] * g[k]) for k in p}
        c1, c2 = 1 - BETA1**STEP, 1 - BETA2**STEP
        return {k: p[k] - rate * ((m[k] / c1) / (np.sqrt(v[k] / c2) + EPSILON)) for k in p}, m, v

    def mandelbrot(self, re, im):
        x, y, count = np.zeros_like(re), np.zeros_like(im), np.zeros(re.shape, np.int64)
        for _ in range(50):
            inside = x * x + y * y <= 4
            x, y = np.where(inside, x * x - y * y + re, x), np.where(inside, 2 * x * y + im, y)
            count += inside
        return count

    def digits(self, p, m, v, x, y):
        h = np.maximum(x @ p["w1"] + p["b1"], 0)
        s = self.softmax(h @ p["w2"] + p["b2"])
        n = np.arange(len(y))
        value = -np.log(s[n, y]).mean()
        s[n, y] -= 1
        s /= len(y)
        dh = (s @ p["w2"].T) * (h > 0)
        return *self.adam(p, {"w1": x.T @ dh, "b1": dh.sum(0), "w2": h.T @ s, "b2": s.sum(0)}, m, v, 0.002), value

    def sort(self, x):
        return np.sort(x)

    def eight(self, a, b, c, d, e, f, g, h):
        return (a + b) * (c + d) + (e + f) * (g + h)

    def add(self, a, b):
        return a + b

    def tiny(self, x):
        return x * 2 + 1

    def matmul(self, a, b):
        return a @ b

    def wait(self):
        pass

    def prepare(self, row, args, half, variant):
        """A call of the row, and what makes NumPy arrays of its result."""
        f = np.add if row == "add" else getattr(self, row)
        return lambda: f(*args), leaves

    def drop(self):
        self.calls = {}

    def rates(self, clock):
        n = 1024
        x = np.random.default_rng(1).standard_normal((n, n), dtype=np.float32)
        return {"f32": 2 * n**3 / typical(lambda: x @ x, self.wait, clock)}


def typical(call, wait, clock):
    """Seconds of a call: the median of five times four, warm."""
    for _ in range(3):
        call()
    found = []
    for _ in range(5):
        wait()
        start = clock()
        for _ in range(4):
            call()
        wait()
        found.append((clock() - start) / 4)
    return sorted(found)[2]


# ---- PyTorch ----------------------------------------------------------------------------------------------------------------------

class Torch:
    without = ()
    variants = ("eager", "compile", "graphs")

    def __init__(self, machine):
        import torch
        import torch.nn.functional as F
        self.torch, self.F, self.calls = torch, F, {}
        self.device = "cuda" if machine == "gpu" and torch.cuda.is_available() else "cpu"
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def chain(self, x):
        t = self.torch.tanh(x * 2 + 1)
        return (t * t + x) * 0.5

    def softmax(self, x):
        return self.torch.softmax(x, dim=-1)

    def norm(self, x, g, b):
        return self.F.gelu(self.F.layer_norm(x, x.shape[-1:], g, b)) + x

    def columns(self, x):
        return x.sum(0), (x * x).sum()

    def axpy(self, x, y):
        return self.torch.add(y, x, alpha=2.5)

    def attention(self, x, wq, wk, wv):
        q, k, v = x @ wq, x @ wk, x @ wv
        return self.torch.softmax((q @ k.transpose(-2, -1)) / math.sqrt(x.shape[-1]), dim=-1) @ v

    def mlp(self, x, w1, b1, w2, b2):
        return self.F.gelu(x @ w1 + b1) @ w2 + b2

    def norm_linear(self, x, g, b, w, c):
        return self.F.gelu(self.F.layer_norm(x, x.shape[-1:], g, b) @ w + c) + x

    def layer(self, p, x):
        F = self.F

        def heads(x):
            return x.reshape(x.shape[0], x.shape[1], -1, 64).transpose(1, 2)
        d = x.shape[-1:]
        h = F.layer_norm(x, d, p["g1"], p["b1"])
        a = F.scaled_dot_product_attention(heads(h @ p["wq"]), heads(h @ p["wk"]), heads(h @ p["wv"]))
        x = x + a.transpose(1, 2).reshape(x.shape) @ p["wo"]
        return x + F.gelu(F.layer_norm(x, d, p["g2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]

    def layer_loss(self, p, x):
        return self.layer(p, x).float().square().mean()

    def resnet(self, p, x):
        F = self.F
        return F.relu(F.conv2d(F.relu(F.conv2d(x, p["w1"], padding=1)), p["w2"], padding=1) + x)

    def resnet_loss(self, p, x):
        return self.resnet(p, x).square().mean()

    def rnn(self, x, h, wx, wh, b):
        for t in range(x.shape[0]):
            h = self.torch.tanh(x[t] @ wx + h @ wh + b)
        return h

    def cdf(self, x):
        return 0.5 * (1 + self.torch.erf(x * math.sqrt(0.5)))

    def black_scholes(self, s, k, t):
        torch, rate, sigma = self.torch, 0.02, 0.3
        spread = sigma * torch.sqrt(t)
        d1 = (torch.log(s / k) + (rate + 0.5 * sigma * sigma) * t) / spread
        discounted = k * torch.exp(-rate * t)
        call = s * self.cdf(d1) - discounted * self.cdf(d1 - spread)
        return call, call - s + discounted

    def jacobi(self, u):
        u = u.clone()
        for _ in range(20):
            u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u

    def newton_step(self, x, a):
        x = 0.5 * (x + a / x)
        return x, (x * x - a).abs().max()

    def nbody(self, p, m):
        d = p[None, :, :] - p[:, None, :]
        r2 = (d * d).sum(-1) + 1e-3
        return (d * (m * r2 ** -1.5)[:, :, None]).sum(1)

    def kmeans(self, x, c):
        torch = self.torch
        near = torch.argmin((c * c).sum(-1) - 2 * (x @ c.T), dim=1)
        sums = torch.zeros_like(c).index_add(0, near, x)
        counts = torch.zeros_like(c[:, 0]).index_add(0, near, torch.ones_like(x[:, 0]))
        return sums / counts.clamp(min=1)[:, None]

    def adam(self, p, g, m, v, rate=0.001):
        m = {k: BETA1 * m[k] + (1 - BETA1) * g[k] for k in p}
        v = {k: BETA2 * v[k] + (1 - BETA2) * (g[k] * g[k]) for k in p}
        c1, c2 = 1 - BETA1**STEP, 1 - BETA2**STEP
        return {k: p[k] - rate * ((m[k] / c1) / (v[k] / c2).sqrt().add(EPSILON)) for k in p}, m, v

    def mandelbrot_turn(self, re, im, x, y, count):
        torch = self.torch
        inside = x * x + y * y <= 4
        return torch.where(inside, x * x - y * y + re, x), torch.where(inside, 2 * x * y + im, y), count + inside

    def digits_loss(self, p, x, y):
        return self.F.cross_entropy(self.torch.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], y)

    def sort(self, x):
        return self.torch.sort(x)[0]

    def eight(self, a, b, c, d, e, f, g, h):
        return (a + b) * (c + d) + (e + f) * (g + h)

    def add(self, a, b):
        return a + b

    def tiny(self, x):
        return x * 2 + 1

    def matmul(self, a, b):
        return a @ b

    # Rows that are more than a function: what is compiled, and what goes around it.

    def training(self, loss, compiled):
        """A step of gradient descent."""
        torch, loss = self.torch, compiled(loss)
        update = compiled(lambda ws, ds: [w - 0.1 * d for w, d in zip(ws, ds)])

        def step(p, x):
            value, ws = loss(p, x), list(p.values())
            gradient = torch.autograd.grad(value, ws)
            with torch.no_grad():
                return value, update(ws, list(gradient))
        return step

    def around(self, row, args, variant, compiled):
        torch = self.torch
        if row in ("train", "train_resnet", "digits", "norm_back"):
            for leaf in leaves(args[:3] if row == "norm_back" else args[0]):
                leaf.requires_grad_(True)
        if row == "train":
            return self.training(self.layer_loss, compiled)
        if row == "train_resnet":
            return self.training(self.resnet_loss, compiled)
        if row == "norm_back":
            f = compiled(self.norm)

            def both(x, g, b, dy):
                y = f(x, g, b)
                return y.detach(), torch.autograd.grad(y, [x, g, b], dy)
            return both
        if row == "newton":
            step = compiled(self.newton_step)

            def newton(a):
                x, off = a, (a * a - a).abs().max()
                while off > 1e-3:
                    x, off = step(x, a)
                return x
            return newton
        if row == "digits":
            loss, update = compiled(self.digits_loss), compiled(lambda p, g, m, v: self.adam(p, g, m, v, 0.002))

            def digits(p, m, v, x, y):
                value = loss(p, x, y)
                gradient = dict(zip(p, torch.autograd.grad(value, list(p.values()))))
                with torch.no_grad():
                    return update(p, gradient, m, v), value
            return digits
        if row == "adam" and variant == "eager":  # the library's own, in place
            p, g, m, v = args
            ws = list(p.values())
            for w, d in zip(ws, g.values()):
                w.grad = d
            optimizer = torch.optim.Adam(ws, lr=0.001, betas=(BETA1, BETA2), eps=EPSILON, fused=True)
            for k, w in p.items():
                optimizer.state[w] = {"step": torch.tensor(STEP - 1.0, device=w.device), "exp_avg": m[k], "exp_avg_sq": v[k]}

            def adam(p, g, m, v):
                optimizer.step()
                return p, m, v
            return adam
        if row == "mandelbrot":  # what torch.compile makes of several turns doubles with each
            turn = compiled(self.mandelbrot_turn)

            def mandelbrot(re, im):
                x, y, count = torch.zeros_like(re), torch.zeros_like(im), torch.zeros(re.shape, dtype=torch.int64, device=re.device)
                for _ in range(50):
                    x, y, count = turn(re, im, x, y, count)
                return count
            return mandelbrot
        if row == "rnn" and variant == "compile" and self.device == "cpu":  # compiling the unrolled steps takes minutes of two cores
            cell = compiled(lambda v, h, wx, wh, b: torch.tanh(v @ wx + h @ wh + b))

            def rnn(x, h, *weights):
                for t in range(x.shape[0]):
                    h = cell(x[t], h, *weights)
                return h
            return rnn
        return compiled(getattr(self, row))

    def prepare(self, row, args, half, variant):
        torch = self.torch
        args = mapped(lambda a: torch.from_numpy(a).to(self.device), args)
        args = mapped(lambda a: a.to(torch.bfloat16) if half and a.is_floating_point() else a, args)
        mode = {"eager": lambda g: g, "compile": torch.compile, "graphs": lambda g: torch.compile(g, mode="reduce-overhead")}[variant]
        f = self.around(row, args, variant, mode)
        grad = torch.enable_grad if row in ("train", "train_resnet", "digits", "norm_back") else torch.no_grad

        def call():
            if variant == "graphs":
                torch.compiler.cudagraph_mark_step_begin()
            with grad():
                return f(*args)
        return call, lambda y: [leaf.detach().float().cpu().numpy() for leaf in leaves(y)]

    def drop(self):
        self.calls = {}
        self.torch._dynamo.reset()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def rates(self, clock):
        torch, there = self.torch, self.device == "cuda"
        rate = {}
        if there:
            a = torch.rand(1 << 28, device=self.device)
            b = torch.empty_like(a)
            rate["copy"] = 2 * a.nbytes / typical(lambda: b.copy_(a), self.wait, clock)
            del a, b
        for name, kind, n in (("f32", torch.float32, 4096 if there else 1024), ("bf16", torch.bfloat16, 8192 if there else 0)):
            if n:
                x = torch.randn(n, n, device=self.device).to(kind)
                rate[name] = 2 * n**3 / typical(lambda: x @ x, self.wait, clock)
        return rate


# ---- JAX ----------------------------------------------------------------------------------------------------------------------------

class Jax:
    without = ()
    variants = ("eager",)

    def __init__(self, machine):
        if machine == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax, self.np, self.nn, self.calls, self.last = jax, jax.numpy, jax.nn, {}, None

    def wait(self):
        self.jax.block_until_ready(self.last)

    def chain(self, x):
        t = self.np.tanh(x * 2 + 1)
        return (t * t + x) * 0.5

    def softmax(self, x):
        return self.nn.softmax(x, axis=-1)

    def layer_norm(self, x, g, b):
        v = x.astype(self.np.float32)
        n = (v - v.mean(-1, keepdims=True)) * self.jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-5)
        return (n * g + b).astype(x.dtype)

    def gelu(self, x):
        return self.nn.gelu(x, approximate=False)

    def norm(self, x, g, b):
        return self.gelu(self.layer_norm(x, g, b)) + x

    def norm_back(self, x, g, b, dy):
        y, pullback = self.jax.vjp(self.norm, x, g, b)
        return y, pullback(dy)

    def columns(self, x):
        return x.sum(0), (x * x).sum()

    def axpy(self, x, y):
        return 2.5 * x + y

    def attention(self, x, wq, wk, wv):
        q, k, v = x @ wq, x @ wk, x @ wv
        return self.nn.softmax((q @ k.swapaxes(-2, -1)) / math.sqrt(x.shape[-1]), axis=-1) @ v

    def mlp(self, x, w1, b1, w2, b2):
        return self.gelu(x @ w1 + b1) @ w2 + b2

    def norm_linear(self, x, g, b, w, c):
        return self.gelu(self.layer_norm(x, g, b) @ w + c) + x

    def layer(self, p, x):
        def heads(x):
            return x.reshape(x.shape[0], x.shape[1], -1, 64).swapaxes(1, 2)
        h = self.layer_norm(x, p["g1"], p["b1"])
        q, k, v = heads(h @ p["wq"]), heads(h @ p["wk"]), heads(h @ p["wv"])
        a = self.nn.softmax((q @ k.swapaxes(-2, -1)) / 8, axis=-1) @ v
        x = x + a.swapaxes(1, 2).reshape(x.shape) @ p["wo"]
        return x + self.gelu(self.layer_norm(x, p["g2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]

    def stepped(self, loss, p, x):
        value, gradient = self.jax.value_and_grad(loss)(p, x)
        return value, self.jax.tree.map(lambda w, d: w - 0.1 * d, p, gradient)

    def train(self, p, x):
        return self.stepped(lambda p, x: self.np.mean(self.layer(p, x).astype(self.np.float32) ** 2), p, x)

    def resnet(self, p, x):
        def conv(x, w):
            return self.jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
        return self.nn.relu(conv(self.nn.relu(conv(x, p["w1"])), p["w2"]) + x)

    def train_resnet(self, p, x):
        return self.stepped(lambda p, x: self.np.mean(self.resnet(p, x) ** 2), p, x)

    def rnn(self, x, h, wx, wh, b):
        return self.jax.lax.scan(lambda h, v: (self.np.tanh(v @ wx + h @ wh + b), None), h, x)[0]

    def cdf(self, x):
        return 0.5 * (1 + self.jax.scipy.special.erf(x * math.sqrt(0.5)))

    def black_scholes(self, s, k, t):
        np, rate, sigma = self.np, 0.02, 0.3
        spread = sigma * np.sqrt(t)
        d1 = (np.log(s / k) + (rate + 0.5 * sigma * sigma) * t) / spread
        discounted = k * np.exp(-rate * t)
        call = s * self.cdf(d1) - discounted * self.cdf(d1 - spread)
        return call, call - s + discounted

    def jacobi(self, u):
        def sweep(_, u):
            return u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]))
        return self.jax.lax.fori_loop(0, 20, sweep, u)

    def newton(self, a):
        np = self.np
        return self.jax.lax.while_loop(lambda x: np.abs(x * x - a).max() > 1e-3, lambda x: 0.5 * (x + a / x), a)

    def nbody(self, p, m):
        d = p[None, :, :] - p[:, None, :]
        r2 = (d * d).sum(-1) + 1e-3
        return (d * (m * r2 ** -1.5)[:, :, None]).sum(1)

    def kmeans(self, x, c):
        np = self.np
        near = np.argmin((c * c).sum(-1) - 2 * (x @ c.T), axis=1)
        sums = np.zeros_like(c).at[near].add(x)
        counts = np.zeros_like(c[:, 0]).at[near].add(1.0)
        return sums / np.maximum(counts, 1)[:, None]

    def adam(self, p, g, m, v, rate=0.001):
        m = {k: BETA1 * m[k] + (1 - BETA1) * g[k] for k in p}
        v = {k: BETA2 * v[k] + (1 - BETA2) * (g[k] * g[k]) for k in p}
        c1, c2 = 1 - BETA1**STEP, 1 - BETA2**STEP
        return {k: p[k] - rate * ((m[k] / c1) / (self.np.sqrt(v[k] / c2) + EPSILON)) for k in p}, m, v

    def mandelbrot(self, re, im):
        np = self.np

        def turn(_, s):
            x, y, count = s
            inside = x * x + y * y <= 4
            return np.where(inside, x * x - y * y + re, x), np.where(inside, 2 * x * y + im, y), count + inside
        return self.jax.lax.fori_loop(0, 50, turn, (np.zeros_like(re), np.zeros_like(im), np.zeros(re.shape, np.int32)))[2]

    def digits(self, p, m, v, x, y):
        def loss(p):
            scores = self.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
            return -self.np.take_along_axis(self.nn.log_softmax(scores), y[:, None], axis=1).mean()
        value, gradient = self.jax.value_and_grad(loss)(p)
        return *self.adam(p, gradient, m, v, 0.002), value

    def sort(self, x):
        return self.np.sort(x)

    def eight(self, a, b, c, d, e, f, g, h):
        return (a + b) * (c + d) + (e + f) * (g + h)

    def tiny(self, x):
        return x * 2 + 1

    def matmul(self, a, b):
        return a @ b

    def prepare(self, row, args, half, variant):
        jax = self.jax
        kind = self.np.bfloat16 if half else self.np.float32
        put = jax.block_until_ready(mapped(lambda a: jax.device_put(a).astype(kind) if a.dtype == np.float32 else jax.device_put(a), args))
        f = self.np.add if row == "add" else jax.jit(getattr(self, row))

        def call():
            self.last = f(*put)
            return self.last

        def read(y):
            y = jax.tree.map(lambda a: np.asarray(a.astype(self.np.float32)), y)
            return leaves(self.ordered(y, args))
        return call, read

    def ordered(self, y, args):
        """jit orders the fields of records by name: here they have the order of the argument with the same fields."""
        if isinstance(y, dict):
            like = next((a for a in args if isinstance(a, dict) and set(a) == set(y)), y)
            return {k: self.ordered(y[k], args) for k in like}
        return [self.ordered(v, args) for v in y] if isinstance(y, (tuple, list)) else y

    def drop(self):
        self.calls, self.last = {}, None

    def rates(self, clock):
        return {}


# ---- the process --------------------------------------------------------------------------------------------------------------

PEERS = {"numpy": Numpy, "torch": Torch, "jax": Jax}


def first(peer, row, inputs, variant, to):
    args, half = arguments(inputs)
    call, read = peer.prepare(row, args, half, variant)
    peer.wait()
    start = time.perf_counter()
    y = call()
    peer.wait()
    seconds = time.perf_counter() - start
    save(to, read(y))
    peer.calls[variant] = call
    return {"first": seconds}


def sample(peer, call, seconds, each):
    """Seconds a call: each sample is calls after each other that take about `each` seconds, and a wait for the last one."""
    def many(n):
        start = time.perf_counter()
        for _ in range(n):
            call()
        peer.wait()
        return (time.perf_counter() - start) / n
    n = 1 + int(each / (peer.seconds.get(call) or many(1) + 1e-9))
    found, begin = [], time.perf_counter()
    while not found or time.perf_counter() - begin < seconds:
        found.append(many(n))
    peer.seconds = {call: found[-1]}
    return {"samples": found, "calls": n * len(found)}


def main():
    if sys.argv[1:] == ["list"]:
        print(" ".join(name for name in PEERS if importlib.util.find_spec(name)))
        return
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes elsewhere
    os.dup2(2, 1)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()
    try:
        peer = PEERS[sys.argv[1]](sys.argv[2])
        peer.seconds = {}
        peer.drop()
        answer({"ready": True})
    except Exception as e:  # it is not installed, or sees no GPU
        answer({"error": f"{type(e).__name__}: {e}"})
        return
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["do"] == "first":
                answer(first(peer, ask["row"], ask["inputs"], ask["variant"], ask["to"]))
            elif ask["do"] == "sample":
                answer(sample(peer, peer.calls[ask["variant"]], ask["seconds"], ask["each"]))
            elif ask["do"] == "rates":
                answer(peer.rates(time.process_time if ask["processor"] else time.perf_counter))
            else:
                peer.drop()
                answer({})
        except Exception as e:  # any: the table goes on
            answer({"error": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"[:200]})


if __name__ == "__main__":
    main()
