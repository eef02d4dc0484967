"""The benchmark's rows for NumPy, PyTorch and JAX: python peers.py PEER ROW WARM SECONDS

PEER is numpy, torch, torch.compile or jax. Prints like rows.qn: `first S`, then one `sample S` each. `peers.py list`
prints the peers that can be imported.
"""
import importlib.util
import math
import os
import sys
import time

SHAPES = {
    "chain64": [(64, 64)],
    "chain4096": [(4096, 4096)],
    "softmax": [(4096, 2048)],
    "norm": [(8192, 1024), (1024,), (1024,)],
    "columns": [(8192, 1024)],
    "forward": [(256, 784)],
    "train": [(256, 784)],
    "attention": [(8, 256, 64)],
}


def numpy_rows(row):
    import numpy as np
    rng = np.random.default_rng(1)
    randn = lambda *s: rng.standard_normal(s, dtype=np.float32)  # noqa: E731
    inputs = [randn(*s) for s in SHAPES[row]]

    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def gelu(x):  # NumPy has no erf: the tanh form
        return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))

    w1, b1, w2, b2 = randn(784, 512) / 28, randn(512), randn(512, 10) / 22, randn(10)
    y = rng.integers(0, 10, 256)
    q, k, v = (randn(64, 64) / 8 for _ in range(3))

    def chain(x):
        t = np.tanh(x * 2 + 1)
        return (t * t + x) * np.float32(0.5)

    def norm(x, g, b):
        m = x.mean(axis=-1, keepdims=True)
        s = x.var(axis=-1, keepdims=True)
        return gelu((x - m) / np.sqrt(s + np.float32(1e-5)) * g + b) + x

    def forward(x):
        return np.maximum(x @ w1 + b1, 0) @ w2 + b2

    def train(x):
        h = np.maximum(x @ w1 + b1, 0)
        p = softmax(h @ w2 + b2)
        value = -np.log(p[np.arange(256), y]).mean()
        p[np.arange(256), y] -= 1
        p /= 256
        dh = (p @ w2.T) * (h > 0)
        return (w1 - 0.1 * (x.T @ dh), b1 - 0.1 * dh.sum(0), w2 - 0.1 * (h.T @ p), b2 - 0.1 * p.sum(0)), value

    def attention(x):
        return softmax((x @ q) @ (x @ k).transpose(0, 2, 1) / np.float32(8)) @ (x @ v)

    f = {"chain64": chain, "chain4096": chain, "softmax": softmax, "norm": norm, "columns": lambda x: x.sum(axis=0),
         "forward": forward, "train": train, "attention": attention}[row]
    return lambda: f(*inputs)


def torch_rows(row, compiled):
    import torch
    import torch.nn.functional as F
    torch.manual_seed(1)
    inputs = [torch.randn(*s) for s in SHAPES[row]]
    p = [torch.randn(784, 512) / 28, torch.randn(512), torch.randn(512, 10) / 22, torch.randn(10)]
    y = torch.randint(0, 10, (256,))
    q, k, v = (torch.randn(64, 64) / 8 for _ in range(3))

    def chain(x):
        t = torch.tanh(x * 2 + 1)
        return (t * t + x) * 0.5

    def norm(x, g, b):
        return F.gelu(F.layer_norm(x, (x.shape[-1],), g, b)) + x

    def forward(x):
        return torch.relu(x @ p[0] + p[1]) @ p[2] + p[3]

    def attention(x):
        return F.softmax((x @ q) @ (x @ k).transpose(-2, -1) / 8.0, dim=-1) @ (x @ v)

    def loss(w, x):
        return F.cross_entropy(torch.relu(x @ w[0] + w[1]) @ w[2] + w[3], y)

    step = torch.compile(loss) if compiled else loss

    def train(x):
        w = [t.detach().requires_grad_() for t in p]
        value = step(w, x)
        value.backward()
        with torch.no_grad():
            return [a - 0.1 * a.grad for a in w], value

    if row == "train":
        return lambda: train(*inputs)
    f = {"chain64": chain, "chain4096": chain, "softmax": lambda x: F.softmax(x, dim=-1), "norm": norm,
         "columns": lambda x: x.sum(dim=0), "forward": forward, "attention": attention}[row]
    if compiled:
        f = torch.compile(f)

    def run():
        with torch.no_grad():
            return f(*inputs)
    return run


def jax_rows(row):
    import jax
    import jax.numpy as jnp
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 32))
    randn = lambda *s: jax.random.normal(next(keys), s, dtype=jnp.float32)  # noqa: E731
    inputs = [randn(*s) for s in SHAPES[row]]
    p = [randn(784, 512) / 28, randn(512), randn(512, 10) / 22, randn(10)]
    y = jax.random.randint(next(keys), (256,), 0, 10)
    q, k, v = (randn(64, 64) / 8 for _ in range(3))

    def chain(x):
        t = jnp.tanh(x * 2 + 1)
        return (t * t + x) * 0.5

    def norm(x, g, b):
        m = x.mean(axis=-1, keepdims=True)
        s = x.var(axis=-1, keepdims=True)
        return jax.nn.gelu((x - m) / jnp.sqrt(s + 1e-5) * g + b, approximate=False) + x

    def net(w, x):
        return jax.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]

    def loss(w, x):
        return -jax.nn.log_softmax(net(w, x))[jnp.arange(256), y].mean()

    def train(w, x):
        value, g = jax.value_and_grad(loss)(w, x)
        return [a - 0.1 * b for a, b in zip(w, g)], value

    def attention(x):
        return jax.nn.softmax((x @ q) @ (x @ k).swapaxes(-2, -1) / math.sqrt(64), axis=-1) @ (x @ v)

    f = {"chain64": chain, "chain4096": chain, "softmax": lambda x: jax.nn.softmax(x, axis=-1), "norm": norm,
         "columns": lambda x: x.sum(axis=0), "attention": attention}.get(row)
    if row == "forward":
        inputs, f = [p, *inputs], net
    if row == "train":
        inputs, f = [p, *inputs], train
    f = jax.jit(f)
    return lambda: jax.block_until_ready(f(*inputs))


def peers():
    found = []
    if importlib.util.find_spec("numpy"):
        found.append("numpy")
    if importlib.util.find_spec("torch"):
        found += ["torch", "torch.compile"]
    if importlib.util.find_spec("jax"):
        found.append("jax")
    return found


def main():
    if sys.argv[1:] == ["list"]:
        print(" ".join(peers()))
        return
    peer, row, warm, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    if peer.startswith("torch"):
        import torch
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    f = {"numpy": lambda: numpy_rows(row), "torch": lambda: torch_rows(row, False),
         "torch.compile": lambda: torch_rows(row, True), "jax": lambda: jax_rows(row)}[peer]()

    def sample(calls):
        start = time.perf_counter()
        for _ in range(calls):
            f()
        return (time.perf_counter() - start) / calls

    print("first", sample(1))
    start, last = time.perf_counter(), 0.0
    while time.perf_counter() - start < warm:
        last = sample(1)
    calls = 1 if last > 1e-3 else 1 + int(1e-3 / (last + 1e-9))
    start, samples = time.perf_counter(), 0
    while samples < 5 or time.perf_counter() - start < seconds:
        print("sample", sample(calls))
        samples += 1


if __name__ == "__main__":
    main()
