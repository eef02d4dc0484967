"""The rows of `./dev bench cpu` and `./dev bench gpu`: sizes by machine, inputs, what must be moved and multiplied.

What a row computes is a function of its name (or of `f`) in rows.qn, in each class of peers.py and, for some, in loops.c. Its arguments
are the inputs in order; names with a dot are fields of a record.
"""
import math

F32, BF16, LABELS = "f32", "bf16", "i64"


class Input:
    """Numbers in offset + scale * [-1/2, 1/2), or labels from 0 to scale - 1: `fill` in rows.qn, peers.py and loops.c makes the same of them."""

    def __init__(self, name, shape, scale=1.0, offset=0.0, dtype=F32):
        self.name, self.shape, self.scale, self.offset, self.dtype = name, tuple(shape), float(scale), float(offset), dtype

    def text(self, number):
        return f"{self.name}:{number}:{self.scale!r}:{self.offset!r}:{self.dtype}:{'x'.join(map(str, self.shape))}"


class Row:
    """sizes: by machine ("cpu", "gpu"; a machine that is not there has no such row) and "small", for trying. inputs(*size) lists them.

    bytes(*size): those that must move: inputs read once, results written once. flops(*size): operations of products, or with `work`
    other operations. Rows that are not of the issue's list (`beside`) are shown, and not in the geometric mean.
    """

    def __init__(self, title, sizes, inputs, bytes=None, flops=None, work=False, f=None, half=False, calls=False, beside=False, named=False,
                 tolerance=2e-5, strays=0.0):
        self.title, self.sizes, self.make, self.f, self.half = title, sizes, inputs, f, half
        self.bytes_of, self.flops_of, self.work, self.calls, self.beside, self.named = bytes, flops, work, calls, beside or named or calls, named
        self.tolerance = 5e-2 if half else tolerance  # of the largest number in a result
        self.strays = strays  # the part of a result that may be off by more, where rounding decides a branch

    def inputs(self, machine):
        made = self.make(*self.sizes[machine])
        if self.half:
            for i in made:
                i.dtype = BF16 if i.dtype == F32 else i.dtype
        return made

    def spec(self, machine):
        return " ".join(i.text(k + 1) for k, i in enumerate(self.inputs(machine)))

    def name(self, machine):
        return self.title.format(*self.sizes[machine])

    def bytes(self, machine):
        return self.bytes_of(*self.sizes[machine]) if self.bytes_of else 0

    def flops(self, machine):
        return self.flops_of(*self.sizes[machine]) if self.flops_of else 0


def sizes(cpu, gpu, small):
    return {k: v for k, v in (("cpu", cpu), ("gpu", gpu), ("small", small)) if v is not None}


def one(scale=4.0):
    return lambda *shape: [Input("x", shape, scale)]


def weights(name, *shape, scale=1.0):
    """Weights of a product: numbers of variance 1 / (what a result sums)."""
    return Input(name, shape, scale * 3.5 / math.sqrt(math.prod(shape[:-1]) if len(shape) == 2 else math.prod(shape[1:])))


def normed(n, d):
    return [Input("x", (n, d), 4), Input("g", (d,), 1, 1), Input("b", (d,))]


def attention(b, t, d):
    return [Input("x", (b, t, d), 2)] + [weights(name, d, d) for name in ("wq", "wk", "wv")]


def attention_flops(b, t, d):
    return 3 * 2 * b * t * d * d + 2 * 2 * b * t * t * d


def layer(b, t, d):
    p = [Input("g1", (d,), 1, 1), Input("b1", (d,)), *(weights(name, d, d) for name in ("wq", "wk", "wv", "wo")), Input("g2", (d,), 1, 1),
         Input("b2", (d,)), weights("w1", d, 4 * d), Input("c1", (4 * d,)), weights("w2", 4 * d, d), Input("c2", (d,))]
    for i in p:
        i.name = "p." + i.name
    return p + [Input("x", (b, t, d), 2)]


def layer_flops(b, t, d):
    return 2 * b * t * d * d * 12 + 2 * 2 * b * t * t * d


def resnet(b, c, h):
    return [weights("p.w1", c, c, 3, 3), weights("p.w2", c, c, 3, 3), Input("x", (b, c, h, h), 2)]


def rnn(t, b, d):
    return [Input("x", (t, b, d), 2), Input("h", (b, d)), weights("wx", d, d, scale=0.5), weights("wh", d, d, scale=0.5), Input("b", (d,))]


def norm_linear(b, t, d):
    return [Input("x", (b, t, d), 4), Input("g", (d,), 1, 1), Input("b", (d,)), weights("w", d, d), Input("c", (d,))]


def adam(count, d):
    parts = [(f"{name}{k}", shape) for k in range(count) for name, shape in (("w", (d, d)), ("b", (d,)))]
    return [Input(f"{tree}.{name}", shape, scale, offset) for tree, scale, offset in (("p", 1, 0), ("g", 1, 0), ("m", 1, 0), ("v", 0.9, 0.5))
            for name, shape in parts]


def digits(n, d, h, k):
    shapes = (("w1", (d, h)), ("b1", (h,)), ("w2", (h, k)), ("b2", (k,)))
    trees = [Input(f"{tree}.{name}", shape, scale / math.sqrt(shape[0]), offset)
             for tree, scale, offset in (("p", 3.5, 0), ("m", 0.1, 0), ("v", 0.1, 0.1)) for name, shape in shapes]
    return trees + [Input("x", (n, d), 1, 0.5), Input("y", (n,), k, dtype=LABELS)]


ROWS = {
    "chain_small": Row("six-op chain, {} x {}", sizes((64, 64), (64, 64), (8, 64)), one(), f="chain"),
    "chain": Row("six-op chain, {} x {}", sizes((4096, 4096), (8192, 8192), (48, 32)), one(), lambda n, m: 8 * n * m),
    "softmax": Row("softmax, {} x {}", sizes((4096, 2048), (16384, 4096), (24, 40)), one(8), lambda n, m: 8 * n * m),
    "norm": Row("layer norm, gelu, residual, {} x {}", sizes((8192, 1024), (65536, 1024), (24, 32)), normed, lambda n, d: 8 * n * d),
    "norm_back": Row("    the same: forward and backward", sizes((8192, 1024), (65536, 1024), (24, 32)),
                     lambda n, d: normed(n, d) + [Input("dy", (n, d), 2)], lambda n, d: 16 * n * d, tolerance=1e-4),
    "columns": Row("column sums and full sum of squares, {} x {}", sizes((4096, 2048), (16384, 4096), (40, 24)), one(2),
                   lambda n, m: 4 * n * m, tolerance=1e-4),
    "axpy": Row("a * x + y, {}", sizes((1 << 24,), (1 << 26,), (1000,)), lambda n: [Input("x", (n,), 2), Input("y", (n,), 2)], lambda n: 12 * n),
    "attention_small": Row("attention, {} x {} x {}", sizes((1, 4, 64), (1, 4, 64), (1, 4, 16)), attention, f="attention"),
    "attention": Row("attention, {} x {} x {}", sizes((1, 256, 512), (4, 1024, 1024), (2, 8, 16)), attention, flops=attention_flops, tolerance=1e-4),
    "attention_bf16": Row("    the same in bf16", sizes(None, (4, 1024, 1024), (2, 8, 16)), attention, flops=attention_flops, f="attention", half=True),
    "mlp": Row("MLP, {0} x {1}, {2}, {1}", sizes((32, 512, 1024), (32, 512, 1024), (32, 16, 24)),
               lambda n, a, h: [Input("x", (n, a), 2), weights("w1", a, h), Input("b1", (h,)), weights("w2", h, a), Input("b2", (a,))],
               flops=lambda n, a, h: 4 * n * a * h),
    "norm_linear": Row("layer norm, linear, gelu, residual, {} x {} x {}", sizes((4, 512, 512), (32, 512, 512), (2, 12, 16)), norm_linear,
                       flops=lambda b, t, d: 2 * b * t * d * d),
    "norm_linear_bf16": Row("    the same in bf16", sizes(None, (32, 512, 512), (2, 12, 16)), norm_linear, lambda b, t, d: 4 * b * t * d,
                            f="norm_linear", half=True),
    "layer": Row("transformer layer, {} x {} x {}: forward", sizes((4, 64, 256), (16, 64, 512), (2, 8, 64)), layer, flops=layer_flops, tolerance=1e-4),
    "train": Row("    the same: training step", sizes((4, 64, 256), (16, 64, 512), (2, 8, 64)), layer, flops=lambda *s: 3 * layer_flops(*s),
                 tolerance=1e-3),
    "layer_bf16": Row("transformer layer, {} x {} x {}, bf16: forward", sizes(None, (8, 1024, 1024), (2, 8, 64)), layer, flops=layer_flops, f="layer",
                      half=True),
    "train_bf16": Row("    the same: training step", sizes(None, (8, 1024, 1024), (2, 8, 64)), layer, flops=lambda *s: 3 * layer_flops(*s), f="train",
                      half=True),
    "resnet": Row("ResNet block, {0} x {1} x {2} x {2}: forward", sizes((4, 64, 56), (32, 64, 56), (2, 8, 8)), resnet,
                  flops=lambda b, c, h: 36 * b * h * h * c * c, tolerance=1e-4),
    "train_resnet": Row("    the same: training step", sizes(None, (32, 64, 56), (2, 8, 8)), resnet, flops=lambda b, c, h: 90 * b * h * h * c * c,
                        tolerance=1e-3, beside=True),
    "rnn": Row("tanh RNN, {} steps, {} x {}", sizes((128, 32, 256), (128, 32, 256), (4, 32, 16)), rnn, flops=lambda t, b, d: 4 * t * b * d * d,
               tolerance=1e-3),
    "black_scholes": Row("Black-Scholes, {}", sizes((1 << 23,), (1 << 26,), (3000,)),
                         lambda n: [Input("s", (n,), 80, 60), Input("k", (n,), 80, 60), Input("t", (n,), 1.8, 1)], lambda n: 20 * n, tolerance=1e-4),
    "jacobi": Row("20 Jacobi sweeps, {0} x {0}", sizes((1024,), (2048,), (40,)), lambda n: [Input("u", (n, n))], lambda n: 20 * 8 * n * n),
    "newton": Row("Newton's square roots, a `while` on data, {}", sizes((1 << 20,), (1 << 20,), (1000,)), lambda n: [Input("a", (n,), 8, 5)],
                  tolerance=1e-4),
    "nbody": Row("n-body accelerations, {}", sizes((2048,), (8192,), (50,)), lambda n: [Input("p", (n, 3), 2), Input("m", (n,), 1, 1)],
                 flops=lambda n: 20 * n * n, work=True, tolerance=1e-3),
    "kmeans": Row("k-means step, {} x {} in {}", sizes((1 << 16, 16, 64), (1 << 20, 16, 64), (300, 4, 5)),
                  lambda n, d, k: [Input("x", (n, d), 2), Input("c", (k, d), 2)], flops=lambda n, d, k: 2 * n * d * k, tolerance=2e-3),
    "adam": Row("Adam, {0} weights of {1} x {1} and biases", sizes((10, 1000), (10, 1000), (3, 8)), adam, lambda n, d: 28 * n * (d * d + d),
                tolerance=1e-4),
    "mandelbrot": Row("Mandelbrot set, {} x {}, 50 turns", sizes((1024, 1024), (4096, 4096), (12, 20)),
                      lambda h, w: [Input("re", (h, w), 3.2, -0.7), Input("im", (h, w), 2.4)], flops=lambda h, w: 50 * 7 * h * w, work=True, strays=2e-3),
    "digits": Row("training step of the digits, {} x {}, {}, {}", sizes((64, 64, 256, 10), (64, 64, 256, 10), (8, 64, 12, 10)), digits,
                  flops=lambda n, d, h, k: 2 * n * (2 * d * h + 3 * h * k), tolerance=1e-3),
    "sort": Row("sort, {}", sizes((1000000,), (1 << 20,), (3000,)), one(2), lambda n: 8 * n, beside=True),
    "sort_rows": Row("sort along rows, {} x {}", sizes((1000, 1000), (4096, 1024), (5, 70)), one(2), lambda n, m: 8 * n * m, f="sort", beside=True),
    "eight": Row("a call with eight f32[{}]", sizes((4,), (4,), (4,)), lambda n: [Input(c, (n,)) for c in "abcdefgh"], calls=True),
    "add": Row("a + b on f32[{}]", sizes((8,), (8,), (8,)), lambda n: [Input("a", (n,)), Input("b", (n,))], calls=True),
    "tiny": Row("x * 2 + 1 on f32[{}]", sizes(None, (8,), (8,)), one(2), calls=True),
    **{f"matmul{n}": Row("matmul, {0} x {0} x {0}", sizes((n,), (n,), (n // 16,)), lambda n: [Input("a", (n, n), 2), Input("b", (n, n), 2)],
                         flops=lambda n: 2 * n**3, f="matmul", tolerance=1e-4, named=True)
       for n in (64, 128, 256, 512, 1024, 2048)},
}
