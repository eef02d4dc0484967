"""PyTorch and JAX for gpu.py: a process that keeps one of them loaded and answers a line of JSON with a line of JSON.

  gpu_peers.py torch|jax small|full        {"do": "rates"} {"do": "first", "row": R, "variant": V}
                                       {"do": "sample", "variant": V, "seconds": S} {"do": "drop"}

Variants of torch are eager, compile (the default mode) and graphs (reduce-overhead), of jax jit. f32 is never TF32. An answer with
"error" says why a row failed.
"""
import json
import math
import os
import sys
import time

import numpy as np

F32 = np.float32


def fill(number, scale, *shape):
    """The numbers of gpu.qn's function of this name."""
    n = math.prod(shape)
    x = ((np.arange(n, dtype=np.int64) * 7919 + number * 104729) % 10007).astype(F32)
    return ((x / F32(10007) - F32(0.5)) * F32(scale)).reshape(shape)


def sizes(row, small):
    """(arrays by name or in a list, are they bf16?) of a row."""
    def n(size, other):
        return other if small else size
    if row == "chain64":
        return [fill(1, 4, 64, 64)], False
    if row == "chain8192":
        return [fill(1, 4, n(8192, 48), n(8192, 32))], False
    if row == "softmax":
        return [fill(1, 8, n(16384, 24), n(4096, 40))], False
    if row == "norm":
        d = n(1024, 32)
        return [fill(1, 4, n(65536, 24), d), fill(2, 1, d) + 1, fill(3, 1, d)], False
    if row == "columns":
        return [fill(1, 2, n(16384, 40), n(4096, 24))], False
    if row.startswith("attention"):
        b, t, d = (1, 4, 64) if row == "attention4" else (n(4, 2), n(1024, 8), n(1024, 16))
        s = 3.5 / math.sqrt(d)
        return [fill(1, 2, b, t, d), fill(2, s, d, d), fill(3, s, d, d), fill(4, s, d, d)], row == "attention_bf16"
    if row == "mlp":
        a, h = n(512, 16), n(1024, 24)
        return [fill(1, 2, 32, a), fill(2, 3.5 / math.sqrt(a), a, h), fill(3, 1, h), fill(4, 3.5 / math.sqrt(h), h, a), fill(5, 1, a)], False
    if row == "norm_linear":
        d = n(512, 16)
        return [fill(1, 4, n(16384, 24), d), fill(2, 1, d) + 1, fill(3, 1, d), fill(4, 3.5 / math.sqrt(d), d, d), fill(5, 1, d)], True
    if row.endswith("resnet"):
        c = n(64, 8)
        s = 3.5 / math.sqrt(9 * c)
        x, w1, w2 = fill(1, 2, n(32, 2), c, n(56, 8), n(56, 8)), fill(2, s, c, c, 3, 3), fill(3, s, c, c, 3, 3)
        return [x, w1, w2] if row == "resnet" else [{"w1": w1, "w2": w2}, x], False
    if row.startswith(("layer", "train")):
        half = row.endswith("bf16")
        b, t, d = (n(8, 2), n(1024, 8), n(1024, 64)) if half else (n(16, 2), n(64, 8), n(512, 64))
        s = 3.5 / math.sqrt(d)
        p = {"g1": fill(1, 1, d) + 1, "b1": fill(2, 1, d), "wq": fill(3, s, d, d), "wk": fill(4, s, d, d), "wv": fill(5, s, d, d),
             "wo": fill(6, s, d, d), "g2": fill(7, 1, d) + 1, "b2": fill(8, 1, d), "w1": fill(9, s, d, 4 * d), "c1": fill(10, 1, 4 * d),
             "w2": fill(11, s / 2, 4 * d, d), "c2": fill(12, 1, d)}
        return [p, fill(13, 2, b, t, d)], half
    if row == "rnn":
        t, d = n(128, 4), n(256, 16)
        return [fill(1, 2, t, 32, d), fill(2, 1, 32, d), fill(3, 2 / math.sqrt(d), d, d), fill(4, 2 / math.sqrt(d), d, d), fill(5, 1, d)], False
    if row == "sort":
        return [fill(1, 2, n(1048576, 3000))], False
    if row == "sort_rows":
        return [fill(1, 2, n(4096, 5), n(1024, 70))], False
    if row == "tiny":
        return [fill(1, 2, 8)], False
    raise KeyError(row)


def leaves(y):
    if isinstance(y, dict):
        return [leaf for v in y.values() for leaf in leaves(v)]
    return [leaf for v in y for leaf in leaves(v)] if isinstance(y, (tuple, list)) else [y]


def mapped(f, tree):
    if isinstance(tree, dict):
        return {k: mapped(f, v) for k, v in tree.items()}
    return [mapped(f, v) for v in tree] if isinstance(tree, list) else f(tree)


def marks(arrays):
    """gpu.qn's `check`, in f64."""
    out = []
    for a in arrays:
        v = np.asarray(a, dtype=np.float64).reshape(-1)
        out += [float(np.mean(np.abs(v))), float(np.mean(v * ((np.arange(v.size) * 31) % 17 - 8)))]
    return out


# ---- PyTorch ----------------------------------------------------------------------------------------------------------------------

class Torch:
    def __init__(self, small):
        import torch
        import torch.nn.functional as F
        self.torch, self.F, self.small = torch, F, small
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def function(self, row):
        torch, F = self.torch, self.F

        def chain(x):
            t = torch.tanh(x * 2 + 1)
            return (t * t + x) * 0.5

        def norm(x, g, b):
            return F.gelu(F.layer_norm(x, x.shape[-1:], g, b)) + x

        def attention(x, wq, wk, wv):
            q, k, v = x @ wq, x @ wk, x @ wv
            return torch.softmax((q @ k.transpose(-2, -1)) / math.sqrt(x.shape[-1]), dim=-1) @ v

        def mlp(x, w1, b1, w2, b2):
            return F.gelu(x @ w1 + b1) @ w2 + b2

        def norm_linear(x, g, b, w, c):
            return F.gelu(F.layer_norm(x, x.shape[-1:], g, b) @ w + c) + x

        def heads(x):
            return x.reshape(x.shape[0], x.shape[1], -1, 64).transpose(1, 2)

        def layer(p, x):
            d = x.shape[-1:]
            h = F.layer_norm(x, d, p["g1"], p["b1"])
            a = F.scaled_dot_product_attention(heads(h @ p["wq"]), heads(h @ p["wk"]), heads(h @ p["wv"]))
            x = x + a.transpose(1, 2).reshape(x.shape) @ p["wo"]
            return x + F.gelu(F.layer_norm(x, d, p["g2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]

        def layer_loss(p, x):
            return layer(p, x).float().square().mean()

        def rnn(x, h, wx, wh, b):
            for t in range(x.shape[0]):
                h = torch.tanh(x[t] @ wx + h @ wh + b)
            return h

        def resnet(x, w1, w2):
            return F.relu(F.conv2d(F.relu(F.conv2d(x, w1, padding=1)), w2, padding=1) + x)

        def resnet_loss(p, x):
            return resnet(x, p["w1"], p["w2"]).square().mean()

        simple = {"softmax": lambda x: torch.softmax(x, dim=-1), "norm": norm, "columns": lambda x: (x.sum(0), (x * x).sum(0)), "mlp": mlp,
                  "norm_linear": norm_linear, "rnn": rnn, "tiny": lambda x: x * 2 + 1, "resnet": resnet, "train_resnet": resnet_loss,
                  "sort": lambda x: torch.sort(x)[0], "sort_rows": lambda x: torch.sort(x)[0]}
        if row.startswith("chain"):
            return chain
        if row.startswith("attention"):
            return attention
        if row.startswith("layer"):
            return layer
        return simple[row] if row in simple else layer_loss

    def first(self, row, variant):
        torch = self.torch
        arrays, half = sizes(row, self.small)
        args = mapped(lambda a: torch.from_numpy(a).to(self.device, torch.bfloat16 if half else torch.float32), arrays)
        f = self.function(row)
        compiled = {"eager": lambda g: g, "compile": torch.compile, "graphs": lambda g: torch.compile(g, mode="reduce-overhead")}[variant]
        if row.startswith("train"):
            p, x = args
            names = list(p)
            for w in p.values():
                w.requires_grad_(True)
            loss = compiled(f)
            update = compiled(lambda ws, ds: [w - 0.1 * d for w, d in zip(ws, ds)])

            def call():
                if variant == "graphs":
                    torch.compiler.cudagraph_mark_step_begin()
                value = loss(p, x)
                ws = [p[n] for n in names]
                gradient = torch.autograd.grad(value, ws)
                with torch.no_grad():
                    return value, update(ws, list(gradient))
        else:
            g = compiled(f)

            def call():
                with torch.no_grad():
                    return g(*args)
        self.calls[variant] = call
        self.wait()
        start = time.perf_counter()
        y = call()
        self.wait()
        seconds = time.perf_counter() - start
        result = marks(leaf.detach().float().cpu().numpy() for leaf in leaves(y))
        del y
        for _ in range(3):
            call()
        self.wait()
        return {"first": seconds, "check": result}

    def drop(self):
        self.calls = {}
        self.torch._dynamo.reset()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def rates(self):
        """Bytes a second of a copy (read and written), f32 and bf16 operations a second of a product."""
        torch, n = self.torch, 256 if self.small else 8192

        def best(call, work):
            for _ in range(3):
                call()
            found = []
            for _ in range(5):
                self.wait()
                start = time.perf_counter()
                for _ in range(4):
                    call()
                self.wait()
                found.append((time.perf_counter() - start) / 4)
            return work / sorted(found)[2]
        a = torch.rand(n * n * 4, device=self.device)
        b = torch.empty_like(a)
        rate = {"copy": best(lambda: b.copy_(a), 2 * a.nbytes)}
        del a, b
        for name, kind, m in (("f32", torch.float32, n // 2), ("bf16", torch.bfloat16, n)):
            x = torch.randn(m, m, device=self.device).to(kind)
            rate[name] = best(lambda: x @ x, 2 * m**3)
        return rate


# ---- JAX ----------------------------------------------------------------------------------------------------------------------------

class Jax:
    def __init__(self, small):
        import jax
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax, self.small = jax, small

    def function(self, row):
        jax = self.jax
        jnp, nn = jax.numpy, jax.nn

        def chain(x):
            t = jnp.tanh(x * 2 + 1)
            return (t * t + x) * 0.5

        def layer_norm(x, g, b):
            v = x.astype(jnp.float32)
            n = (v - v.mean(-1, keepdims=True)) * jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-5)
            return (n * g + b).astype(x.dtype)

        def gelu(x):
            return nn.gelu(x, approximate=False)

        def attention(x, wq, wk, wv):
            q, k, v = x @ wq, x @ wk, x @ wv
            return nn.softmax((q @ k.swapaxes(-2, -1)) / math.sqrt(x.shape[-1]), axis=-1) @ v

        def heads(x):
            return x.reshape(x.shape[0], x.shape[1], -1, 64).swapaxes(1, 2)

        def layer(p, x):
            h = layer_norm(x, p["g1"], p["b1"])
            q, k, v = heads(h @ p["wq"]), heads(h @ p["wk"]), heads(h @ p["wv"])
            a = nn.softmax((q @ k.swapaxes(-2, -1)) / 8, axis=-1) @ v
            x = x + a.swapaxes(1, 2).reshape(x.shape) @ p["wo"]
            return x + gelu(layer_norm(x, p["g2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]

        def stepped(loss):
            def step(p, x):
                value, gradient = jax.value_and_grad(loss)(p, x)
                return value, jax.tree.map(lambda w, d: w - 0.1 * d, p, gradient)
            return step

        def rnn(x, h, wx, wh, b):
            return jax.lax.scan(lambda h, v: (jnp.tanh(v @ wx + h @ wh + b), None), h, x)[0]

        def conv(x, w):
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")

        def resnet(x, w1, w2):
            return nn.relu(conv(nn.relu(conv(x, w1)), w2) + x)

        simple = {"softmax": lambda x: nn.softmax(x, axis=-1), "norm": lambda x, g, b: gelu(layer_norm(x, g, b)) + x,
                  "columns": lambda x: (x.sum(0), (x * x).sum(0)), "mlp": lambda x, w1, b1, w2, b2: gelu(x @ w1 + b1) @ w2 + b2,
                  "norm_linear": lambda x, g, b, w, c: gelu(layer_norm(x, g, b) @ w + c) + x, "rnn": rnn, "tiny": lambda x: x * 2 + 1,
                  "sort": jnp.sort, "sort_rows": jnp.sort, "resnet": resnet, "train_resnet": stepped(lambda p, x: jnp.mean(resnet(x, p["w1"], p["w2"]) ** 2)),
                  "train": stepped(lambda p, x: jnp.mean(layer(p, x).astype(jnp.float32) ** 2))}
        if row.startswith("chain"):
            return chain
        if row.startswith("attention"):
            return attention
        if row.startswith("layer"):
            return layer
        return simple[row] if row in simple else simple["train"]

    def wait(self):
        self.jax.block_until_ready(self.last)

    def first(self, row, variant):
        jax = self.jax
        arrays, half = sizes(row, self.small)
        kind = jax.numpy.bfloat16 if half else jax.numpy.float32
        args = jax.block_until_ready(mapped(lambda a: jax.device_put(a).astype(kind), arrays))
        f = jax.jit(self.function(row))

        def call():
            self.last = f(*args)
            return self.last
        self.calls[variant] = call
        start = time.perf_counter()
        y = call()
        self.wait()
        seconds = time.perf_counter() - start
        # JAX orders the fields of records by name, as its inputs' order is not kept through jit.
        if row.startswith("train"):
            y = (y[0], {k: y[1][k] for k in args[0]})
        result = marks(np.asarray(leaf.astype(jax.numpy.float32)) for leaf in leaves(y))
        del y
        for _ in range(3):
            call()
        self.wait()
        return {"first": seconds, "check": result}

    def drop(self):
        self.calls, self.last = {}, None


def sample(peer, call, seconds):
    """Seconds a call: each sample is many calls after each other, and waits for the last one."""
    def many(n):
        peer.wait()
        start = time.perf_counter()
        for _ in range(n):
            call()
        peer.wait()
        return (time.perf_counter() - start) / n
    one = many(2)
    n = 1 + int(seconds / 4 / (one + 1e-7))
    found, begin = [], time.perf_counter()
    while len(found) < 2 or time.perf_counter() - begin < seconds:
        found.append(many(n))
    return {"samples": found}


def main():
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes elsewhere
    os.dup2(2, 1)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()
    try:
        peer = {"torch": Torch, "jax": Jax}[sys.argv[1]](sys.argv[2] == "small")
        peer.drop()
        answer({"ready": True})
    except Exception as e:  # it is not installed, or sees no GPU
        answer({"error": f"{type(e).__name__}: {e}"})
        return
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["do"] == "first":
                answer(peer.first(ask["row"], ask["variant"]))
            elif ask["do"] == "sample":
                answer(sample(peer, peer.calls[ask["variant"]], ask["seconds"]))
            elif ask["do"] == "rates":
                answer(peer.rates())
            else:
                peer.drop()
                answer({})
        except Exception as e:  # any: the table goes on
            answer({"error": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"[:200]})


main()
