"""Random Quern programs that NumPy can follow.

A program is a function of a few arrays, built statement by statement. Each statement is a template: a text in Quern and
the same computation in NumPy, which runs at once on several sets of inputs (the same axes, other sizes), so the generator
knows all shapes, and takes a statement back that does not fit or leaves the range where results mean something.

Every value carries `tol`, a bound on how far two correct implementations may differ: 0 for what is exact (integers,
copies, comparisons of exact values), else the bound of its operands times the operation's steepness plus a few
units of rounding. Operations that jump (comparisons, floor, argmax, integer conversion) are used on exact values only.

Kinds of programs (and of each such with products of matrices, with many of them, or with none):
  plain   all dtypes; compared with NumPy within `tol`
  wild    inputs hold nan, inf, -0.0 and denormals, and nothing keeps operations in range; only eager and compiled are
          compared, bit for bit
  grad    f64, smooth operations, a scalar result; the gradient is compared with finite differences in NumPy
"""
import math
import random

import numpy as np

STORE = {"bool": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
         "f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}
FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("u8", "i8", "i16", "i32", "i64")
# Half a unit in the last place of 1.
EPS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
LIMIT = 1e4      # largest magnitude of a plain program's values
ELEMENTS = 30000  # largest array


def promote(a, b):
    """The dtype of an operation on arrays of two dtypes, by the table of the language."""
    if a == b:
        return a
    if a in FLOATS and b in FLOATS:
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=lambda d: STORE[d](0).itemsize if d != "bf16" else 2)
    if a in FLOATS or b in FLOATS:
        return a if a in FLOATS else b
    names = {np.dtype(v): k for k, v in STORE.items() if k not in FLOATS}
    return names[np.promote_types(STORE[a], STORE[b])]


def store(x, dtype):
    """x rounded to a dtype (computed in f64 before), kept in the NumPy type that stands for it."""
    x = np.asarray(x)
    if dtype == "bf16":
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        nan = np.isnan(x)
        odd = (bits >> np.uint64(16)) & np.uint64(1)
        bits = ((bits + np.uint64(0x7FFF) + odd) & np.uint64(0xFFFF0000)).astype(np.uint32)
        return np.where(nan, np.float32(np.nan), bits.view(np.float32)).astype(np.float32)
    with np.errstate(all="ignore"):
        return x.astype(STORE[dtype])


def wide(x):
    """What is computed with: f64 for floats, i64 for bools under arithmetic, integers as they are."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64) if x.dtype.kind == "b" else x


def within(index, size):
    """An index array for an axis of that size. NumPy lets any index pass where the result is empty; Quern does not."""
    if np.any(index < -size) or np.any(index >= size):
        raise Reject
    return index


def top(x):
    """The largest magnitude of an array."""
    if x.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(wide(x).astype(np.float64))))


# The elements of v, over and over, with the shape of the places of an update of x at index i.
SPREAD = """fn spread(v, i, x) {
  let shape = if x.rank == 1 { i.shape } else { i.shape + (x.shape[1],) }
  if v.size == 0 { return zeros(shape, dtype: v.dtype) }
  take(v.reshape(-1), arange(fold(shape, fn(n, m) n * m, 1)) % v.size).reshape(shape)
}
"""

# The elements of v, over and over, in a shape.
REPEATED = """fn repeated(v, shape) = take(v.reshape(-1), arange(fold(shape, fn(n, m) n * m, 1)) % v.size).reshape(shape)
"""

ERF = np.vectorize(math.erf, otypes=[np.float64])
SQRT2 = math.sqrt(2)


def chain(dtype, k):
    """The rounding of a sum of k products one after the other, as a part of the largest that it can be: equal terms err all alike."""
    return (4 + k / 2) * EPS["f64" if dtype == "f64" else "f32"] + 2 * EPS[dtype]


def sigmoid(x):
    e = np.exp(-np.abs(x))  # by way of tanh small ones would cancel
    return np.where(x < 0, e, 1.0) / (1 + e)


def summed(f, a, **how):
    """NumPy's sum, mean, ... of f64 with 64 bits of mantissa: over the first axes it adds one by one, whose errors exceed the bounds."""
    return f(a, **how) if a.dtype.kind != "f" else np.asarray(f(a.astype(np.longdouble), **how)).astype(np.float64)


def softmax(x, axis):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


class Value:
    """A variable of the program: its name, dtype, and for each set of inputs the array and the bound."""

    def __init__(self, name, dtype, arrays, tol):
        self.name, self.dtype, self.arrays, self.tol = name, dtype, arrays, tol

    @property
    def exact(self):
        return not any(self.tol)

    @property
    def shape(self):
        return self.arrays[0].shape

    @property
    def rank(self):
        return self.arrays[0].ndim

    @property
    def is_float(self):
        return self.dtype in FLOATS


class Reject(Exception):
    """The statement does not fit; try another one."""


class Program:
    def __init__(self, seed, kind, products="some", sets=2):
        self.random = random.Random(seed * 3 + {"plain": 0, "wild": 1, "grad": 2}[kind])
        self.kind, self.products, self.sets = kind, products, sets
        self.lines, self.values, self.replay = [], [], []
        self.counter = 0
        self.inputs = []
        self.make_inputs()
        for _ in range(self.random.randint(3, 12)):
            self.grow()
        self.finish()

    # ---- inputs ----------------------------------------------------------------------------------------------------
    def data(self, dtype, shape, rng):
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(np.bool_)
        if dtype in INTS:
            low = 0 if dtype == "u8" else -9
            return rng.integers(low, 10, shape).astype(STORE[dtype])
        if self.kind == "grad":
            return rng.standard_normal(shape)
        if self.kind == "wild":
            x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
            odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -3e-39, 65504.0, 1e30, -1.0, 88.8, -104.0, 0.5])
            return np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), x).astype(np.float64)
        return rng.integers(-24, 25, shape) / 8.0  # exact in every float type

    def make_inputs(self):
        r = self.random
        # Sizes by the name of their axis: a big one now and then, so that blocks, lanes and threads have tails.
        big = [1, 2, 3, 5, 8, 17, 64, 65, 130]
        sizes = [{axis: r.choice(big[1:] if axis == "k" else big[1:7]) for axis in "nmk"} for _ in range(self.sets)]
        if r.random() < 0.2:
            sizes[0]["k"], sizes[-1]["k"] = 1030, 2049
        elif r.random() < 0.15:  # long axes beside each other, which reductions take one after the other
            sizes[-1]["m"], sizes[-1]["k"] = r.choice([64, 70]), r.choice([65, 130])
        if self.kind == "grad":
            sizes = [{axis: r.choice([2, 3, 5, 7]) for axis in "nmk"} for _ in range(self.sets)]
        shapes = ["nk", "nk", "mk", "km", "k", "n1", "1k", "nmk", "", "kn", "nk", "kk"]
        dtypes = ["f64"] if self.kind == "grad" else ["f32"] * 6 + ["f64"] * 2 + ["f16", "i64", "i32", "i8", "u8", "bool", "i16"]
        for number in range(r.randint(2, 4)):
            axes, dtype = r.choice(shapes if number else shapes[:4]), r.choice(dtypes if number else dtypes[:8])
            arrays = []
            for size in sizes:
                rng = np.random.default_rng(r.getrandbits(48))
                shape = tuple(1 if a == "1" else size[a] for a in axes)
                arrays.append(store(self.data(dtype, shape, rng), dtype))
            self.inputs.append(Value(f"a{number}", dtype, arrays, [0.0] * self.sets))
        self.values += self.inputs

    # ---- statements ------------------------------------------------------------------------------------------------
    def pick(self, want=lambda v: True):
        """A value that fits, the newer the likelier."""
        fit = [v for v in self.values if want(v)]
        if not fit:
            raise Reject
        return fit[min(int(self.random.expovariate(0.5)), len(fit) - 1) - 1 if self.random.random() < 0.2 else
                   max(0, len(fit) - 1 - int(self.random.expovariate(0.4)))]

    def constant(self):
        return self.random.choice([-16, -12, -7, -4, -2, -1, 1, 2, 3, 4, 6, 8, 10, 16]) / 8

    def sixteenth(self, product, dtype):
        """Of a product, which itself is rounded to the dtype first and has to fit."""
        if dtype == "f16" and self.kind != "wild" and not top(product) < 60000:
            raise Reject
        return product / 16

    def add(self, text, operands, dtype, compute, gain=None, exact=False):
        """A statement `let v = text`: compute(arrays) in f64 or integers; gain(arrays, tols) is the operands' error as it
        comes out. An exact statement on exact operands stays exact; others round once more."""
        arrays, tols = [], []
        for i in range(self.sets):
            ins = [v.arrays[i] for v in operands]
            errors = [v.tol[i] for v in operands]
            try:
                with np.errstate(all="ignore"):
                    full = compute(*[wide(x) if x.dtype.kind == "f" else x for x in ins])
                    out = store(full, dtype)
            except (ValueError, IndexError):  # NumPy's errors about axes are both
                raise Reject from None
            if out.size > ELEMENTS or out.ndim > 5 or (out.size == 0 and self.kind != "wild"):
                raise Reject
            if self.kind != "wild" and not (top(out) < LIMIT):
                raise Reject
            arrays.append(out)
            if self.kind == "wild":
                tols.append(0.0 if exact and not any(errors) else 1.0)
            else:
                error = gain(ins, errors) if gain else sum(errors)
                rounding = 0.0 if exact or dtype not in FLOATS else 4 * EPS[dtype] * (top(out) + 2.0**-20)
                tols.append(error + rounding)
        if len({a.ndim for a in arrays}) > 1:
            raise Reject
        self.counter += 1
        value = Value(f"v{self.counter}", dtype, arrays, tols)
        text = text if isinstance(text, list) else [f"let $ = {text}"]
        self.lines.append("\n".join(text).replace("$", value.name))
        self.replay.append((value, operands, compute))
        self.values.append(value)
        return value

    def grow(self):
        templates = [self.unary] * 5 + [self.binary] * 6 + [self.reduction] * 4 + [self.view] * 4
        templates += {"none": [], "some": [self.matmul] * 2, "many": [self.matmul] * 12}[self.products]
        templates += [self.select, self.loop, self.update, self.gather, self.join, self.helper]
        templates += [self.moved] * 4 + [self.joined_views] * 2 + [self.scatter] * 3 + [self.indexed] * 2
        templates += [self.ordered, self.mask, self.running]
        templates += {"none": [], "some": [self.contraction], "many": [self.contraction] * 3}[self.products]
        templates += [self.windows, self.pooling] + {"none": [], "some": [self.convolution], "many": [self.convolution] * 3}[self.products]
        if self.kind != "grad":
            templates += [self.integer] * 2 + [self.compare] * 2 + [self.convert] * 2 + [self.scan, self.branch]
            templates += [self.mixed] * 2 + [self.bits] * 2
        else:
            templates += [self.scan]
        for _ in range(40):
            before = len(self.lines)
            try:
                self.random.choice(templates)()
                return
            except Reject:
                del self.lines[before:]

    SMOOTH = {  # text, NumPy, steepness where operands are kept in range
        "tanh": ("tanh({x})", np.tanh, 1),
        "sigmoid": ("sigmoid({x})", sigmoid, 1),
        "sin": ("sin({x})", np.sin, 1),
        "cos": ("cos({x})", np.cos, 1),
        "arctan": ("arctan({x})", np.arctan, 1),
        "erf": ("erf({x})", lambda x: ERF(x), 1.2),
        "gelu": ("gelu({x})", lambda x: 0.5 * x * (1 + ERF(x / SQRT2)), 1.5),
        "exp": ("exp(clip({x}, -3.0, 3.0))", lambda x: np.exp(np.clip(x, -3, 3)), 21),
        "expm1": ("expm1(clip({x}, -2.0, 2.0))", lambda x: np.expm1(np.clip(x, -2, 2)), 8),
        "sqrt": ("sqrt(abs({x}) + 0.5)", lambda x: np.sqrt(np.abs(x) + 0.5), 1),
        "rsqrt": ("rsqrt(abs({x}) + 0.5)", lambda x: 1 / np.sqrt(np.abs(x) + 0.5), 2),
        "log": ("log(abs({x}) + 0.5)", lambda x: np.log(np.abs(x) + 0.5), 2),
        "log1p": ("log1p(abs({x}))", lambda x: np.log1p(np.abs(x)), 1),
        "inverse": ("1 / (abs({x}) + 0.5)", lambda x: 1 / (np.abs(x) + 0.5), 4),
        "square": ("{x} ** 2", lambda x: x * x, None),
        "softsign": ("{x} / (abs({x}) + 1)", lambda x: x / (np.abs(x) + 1), 2),
        "power": ("(abs({x}) + 0.5) ** 1.5", lambda x: (np.abs(x) + 0.5) ** 1.5, None),
        "softmax": ("softmax({x}, axis: -1)", lambda x: softmax(x, -1), 2),
        "relu": ("relu({x})", lambda x: np.maximum(x, 0), 1),
        "abs": ("abs({x})", np.abs, 1),
        "negative": ("-{x}", np.negative, 1),
    }
    WILD = {
        "exp": ("exp({x})", np.exp, 1), "log": ("log({x})", np.log, 1), "sqrt": ("sqrt({x})", np.sqrt, 1),
        "tan": ("tan({x})", np.tan, 1), "sinh": ("sinh({x})", np.sinh, 1), "cosh": ("cosh({x})", np.cosh, 1),
        "inverse": ("1 / {x}", lambda x: 1 / x, 1), "cube": ("{x} ** 3", lambda x: x * x * x, 1),
        "exp2": ("exp2({x})", np.exp2, 1), "log2": ("log2({x})", np.log2, 1), "arcsin": ("arcsin({x})", np.arcsin, 1),
        "floor": ("floor({x})", np.floor, 1), "round": ("round({x})", np.round, 1), "sign": ("sign({x})", np.sign, 1),
        "trunc": ("trunc({x})", np.trunc, 1), "log10": ("log10({x})", np.log10, 1), "arccos": ("arccos({x})", np.arccos, 1),
    }

    def unary(self):
        x = self.pick(lambda v: v.is_float or self.kind != "grad" and v.dtype in INTS)
        table = dict(self.SMOOTH, **self.WILD) if self.kind == "wild" else self.SMOOTH
        name = self.random.choice(list(table))
        text, f, steep = table[name]
        if name == "softmax" and x.rank == 0:
            raise Reject
        keeps = name in ("abs", "negative", "square", "relu", "floor", "round", "trunc", "sign")
        if not x.is_float and (keeps or name in ("cube", "softsign")):  # integers wrap, and f computes with floats
            raise Reject
        dtype = x.dtype if x.is_float else "f32"

        def gain(ins, errors):
            s = steep if steep is not None else 3 * top(ins[0]) + 3
            inner = 2 * EPS[dtype] * top(ins[0]) if name == "gelu" else 0.0  # 1 + erf cancels where x is negative
            return s * errors[0] + inner
        self.add(text.format(x=x.name), [x], dtype, lambda a: f(a.astype(np.float64)), gain,
                 exact=name in ("abs", "negative", "relu"))

    def binary(self):
        r = self.random
        x = self.pick(lambda v: v.dtype != "bool" and (v.is_float or self.kind != "grad"))
        op = r.choice(["+", "-", "*", "*", "+", "/", "maximum", "minimum"])
        if r.random() < 0.35:
            c = self.constant()
            dtype = x.dtype if x.is_float else "f32"
            if op in ("maximum", "minimum"):
                f = np.maximum if op == "maximum" else np.minimum
                return self.add(f"{op}({x.name}, {c!r})", [x], dtype, lambda a: f(a.astype(np.float64), c), exact=x.is_float)
            f = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[op]
            left = r.random() < 0.3 and op != "/"
            text = f"{c!r} {op} {x.name}" if left else f"{x.name} {op} {c!r}"
            return self.add(text, [x], dtype, lambda a: f(c, a) if left else f(a, c), lambda i, e: e[0] * (8 if op == "/" else 2 if op == "*" else 1))
        y = self.pick(lambda v: v.dtype != "bool" and (v.is_float or self.kind != "grad"))
        dtype = promote(x.dtype, y.dtype)
        if op in ("maximum", "minimum"):
            if self.kind == "grad" and x is y:
                raise Reject
            f = np.maximum if op == "maximum" else np.minimum
            return self.add(f"{op}({x.name}, {y.name})", [x, y], dtype, lambda a, b: f(a, b), exact=not x.is_float == y.is_float or x.dtype == y.dtype)
        if op == "/":
            dtype = dtype if dtype in FLOATS else "f32"
            if self.kind == "wild":
                return self.add(f"{x.name} / {y.name}", [x, y], dtype, lambda a, b: a / b)
            return self.add(f"{x.name} / (abs({y.name}) + 1)", [x, y], dtype if y.is_float else dtype,
                            lambda a, b: a / (np.abs(b.astype(np.float64)) + 1) if b.dtype.kind == "f" else self.reject(),
                            lambda i, e: e[0] + top(i[0]) * e[1])
        f = {"+": np.add, "-": np.subtract, "*": np.multiply}[op]

        def compute(a, b):
            if dtype in FLOATS:
                return f(a.astype(np.float64), b.astype(np.float64))
            return f(a.astype(STORE[dtype]), b.astype(STORE[dtype]))

        def gain(i, e):
            return e[0] * top(i[1]) + e[1] * top(i[0]) if op == "*" else e[0] + e[1]
        return self.add(f"{x.name} {op} {y.name}", [x, y], dtype, compute, gain)

    def reject(self):
        raise Reject

    def integer(self):
        r = self.random
        x = self.pick(lambda v: v.dtype in INTS)
        c = r.choice([2, 3, 5, 7])
        text, f = r.choice([
            ("{x} // {c}", lambda a: a // STORE[x.dtype](c)), ("{x} % {c}", lambda a: a % STORE[x.dtype](c)),
            ("{x} + {c}", lambda a: a + STORE[x.dtype](c)), ("{x} * {c}", lambda a: a * STORE[x.dtype](c)),
            ("{x} & {c}", lambda a: a & STORE[x.dtype](c)), ("{x} | {c}", lambda a: a | STORE[x.dtype](c)),
            ("xor({x}, {c})", lambda a: a ^ STORE[x.dtype](c)), ("~{x}", lambda a: ~a),
            ("shl({x}, {c})", lambda a: a << STORE[x.dtype](c)), ("shr({x}, {c})", lambda a: a >> STORE[x.dtype](c)),
            ("-{x}", lambda a: -a), ("abs({x})", np.abs)])
        self.add(text.format(x=x.name, c=c), [x], x.dtype, f, exact=True)

    def compare(self):
        x, y = self.pick(lambda v: v.exact), self.pick(lambda v: v.exact)
        if {x.dtype, y.dtype} & {"bool"}:
            raise Reject
        op, f = self.random.choice([("<", np.less), ("<=", np.less_equal), (">", np.greater), ("==", np.equal), ("!=", np.not_equal)])
        dtype = promote(x.dtype, y.dtype)
        self.add(f"{x.name} {op} {y.name}", [x, y], "bool",
                 lambda a, b: f(store(a, dtype), store(b, dtype)), exact=True)

    def select(self):
        x, y = self.pick(lambda v: v.is_float), self.pick(lambda v: v.is_float)
        dtype = promote(x.dtype, y.dtype)
        if self.kind == "grad":
            return self.add(f"where({x.name} > 0.125, {x.name}, {y.name} * 0.5)", [x, y], dtype, lambda a, b: np.where(a > 0.125, a, b * 0.5))
        c = self.pick(lambda v: v.dtype == "bool")
        return self.add(f"where({c.name}, {x.name}, {y.name})", [c, x, y], dtype, lambda c, a, b: np.where(c, a, b), exact=True)

    def convert(self):
        x = self.pick(lambda v: v.dtype != "bool" or True)
        dtype = self.random.choice(["f32", "f64", "f16", "bf16", "i64", "i32"])
        if dtype in INTS and (x.is_float or self.kind == "wild" and x.is_float):
            raise Reject
        if dtype in ("i64", "i32") and x.dtype == "i64" and dtype == "i32":
            raise Reject
        self.add(f"{dtype}({x.name})", [x], dtype, lambda a: a, exact=dtype not in FLOATS)

    def reduction(self):
        r = self.random
        x = self.pick(lambda v: v.rank > 0 and (v.is_float or self.kind != "grad"))
        name = r.choice(["sum", "mean", "max", "min", "var", "sum", "mean", "prod", "argmax", "any", "all", "argmin"])
        axis = r.choice([None, -1, -1, 0, 0, r.randrange(x.rank), tuple(sorted(r.sample(range(x.rank), min(2, x.rank))))])
        if isinstance(axis, tuple) and len(axis) < 2:
            axis = axis[0]
        keep = axis is not None and r.random() < 0.4
        arguments = "" if axis is None else f", axis: {axis}"
        arguments += ", keepdims: true" if keep else ""
        count = lambda a: max(1, a.size // max(1, np.sum(a.astype(np.float64) * 0, axis=axis).size))  # noqa: E731
        if name in ("argmax", "argmin"):
            if not x.exact or x.dtype == "bool" or isinstance(axis, tuple) or axis is None or keep or self.kind == "grad":
                raise Reject
            f = np.argmax if name == "argmax" else np.argmin
            return self.add(f"{name}({x.name}, axis: {axis})", [x], "i64", lambda a: f(a, axis=axis), exact=True)
        if name in ("any", "all"):
            if x.dtype != "bool":
                raise Reject
            f = np.any if name == "any" else np.all
            return self.add(f"{name}({x.name}{arguments})", [x], "bool", lambda a: f(a, axis=axis, keepdims=keep), exact=True)
        if name in ("max", "min"):
            if x.dtype == "bool":
                raise Reject
            f = np.max if name == "max" else np.min
            return self.add(f"{name}({x.name}{arguments})", [x], x.dtype, lambda a: f(a, axis=axis, keepdims=keep),
                            lambda i, e: e[0], exact=True)
        floating = x.dtype if x.is_float else "f32"
        if name == "sum":
            return self.add(f"sum({x.name}{arguments})", [x], x.dtype if x.is_float else "i64",
                            lambda a: summed(np.sum, a if a.dtype.kind == "f" else a.astype(np.int64), axis=axis, keepdims=keep),
                            lambda i, e: (e[0] + (EPS[x.dtype if x.dtype == "f64" else "f32"] * 4 * top(i[0]) if x.is_float else 0)) * count(i[0]))
        if name in ("mean", "var") and x.dtype in INTS:
            floating = "f64"  # computed there, too
        if name == "mean":
            return self.add(f"mean({x.name}{arguments})", [x], floating,
                            lambda a: summed(np.mean, a.astype(np.float64), axis=axis, keepdims=keep),
                            lambda i, e: e[0] + 8 * EPS[floating] * top(i[0]))
        if name == "prod":
            if not x.is_float:
                raise Reject
            return self.add(f"prod(tanh({x.name}) * 0.25 + 1{arguments})", [x], x.dtype,
                            lambda a: np.prod(np.tanh(a) * 0.25 + 1, axis=axis, keepdims=keep),
                            lambda i, e: (e[0] + 4 * EPS[x.dtype]) * count(i[0]) * 1.3 ** min(count(i[0]), 60))
        return self.add(f"var({x.name}{arguments})", [x], floating,
                        lambda a: summed(np.var, a.astype(np.float64), axis=axis, keepdims=keep),
                        lambda i, e: 4 * top(i[0]) * (e[0] + 8 * EPS[floating] * top(i[0])))

    def scan(self):
        x = self.pick(lambda v: v.rank > 0 and v.dtype != "bool" and v.arrays[0].size < 5000)
        axis = self.random.randrange(-1, x.rank)
        dtype = x.dtype if x.is_float else "i64"
        self.add(f"cumsum({x.name}, axis: {axis})", [x], dtype,
                 lambda a: summed(np.cumsum, a if a.dtype.kind == "f" else a.astype(np.int64), axis=axis),
                 lambda i, e: (e[0] + (EPS["f32" if x.dtype in ("f16", "bf16") else x.dtype] * 4 * top(i[0]) if x.is_float else 0)) * max(1, i[0].size))

    def view(self):
        r = self.random
        x = self.pick(lambda v: v.rank > 0)
        n = x.rank
        choice = r.randrange(9)
        if choice == 0:
            i, j = r.randrange(n), r.randrange(n)
            return self.add(f"{x.name}.transpose({i}, {j})", [x], x.dtype, lambda a: np.swapaxes(a, i, j), exact=True)
        if choice == 1:
            return self.add(f"{x.name}.reshape(-1)", [x], x.dtype, lambda a: a.reshape(-1), exact=True)
        if choice == 2:
            axis = r.randrange(n)
            return self.add(f"flip({x.name}, {axis})", [x], x.dtype, lambda a: np.flip(a, axis), exact=True)
        if choice == 3:
            at = r.randint(0, n)
            key = ", ".join([":"] * at + ["new"])
            return self.add(f"{x.name}[{key}]", [x], x.dtype, lambda a: np.expand_dims(a, at), exact=True)
        if choice == 4 and n >= 2:
            order = list(range(n))
            r.shuffle(order)
            return self.add(f"{x.name}.permute({', '.join(map(str, order))})", [x], x.dtype, lambda a: np.transpose(a, order), exact=True)
        if choice == 5 and n >= 2:
            return self.add(f"{x.name}.reshape({x.name}.shape[0], -1)", [x], x.dtype, lambda a: a.reshape(a.shape[0], -1), exact=True)
        keys, places = [], []
        for _ in range(r.randint(1, n)):
            start, stop, step = r.choice([None, 0, 1]), r.choice([None, -1, 1000, 3]), r.choice([None, None, 2, -1])
            if step == -1:
                start = stop = None
            if r.random() < 0.2:
                index = r.choice([0, -1, 1])
                keys.append(index)
                places.append(str(index))
                continue
            keys.append(slice(start, stop, step))
            places.append(":".join("" if p is None else str(p) for p in ((start, stop) if step is None else (start, stop, step))))
        return self.add(f"{x.name}[{', '.join(places)}]", [x], x.dtype, lambda a: a[tuple(keys)], exact=True)

    def slices(self, rank):
        """Slices of some axes, negative steps and empty results among them: (text, keys)."""
        r = self.random
        keys, places = [], []
        for _ in range(r.randint(1, rank)):
            start, stop = r.choice([None, None, 0, 1, -2, 4]), r.choice([None, None, -1, 3, 1000])
            step = r.choice([None, 2, 3, -1, -2])
            if step is not None and step < 0:
                start, stop = r.choice([None, -1, 3, 1000]), r.choice([None, None, 0])
            keys.append(slice(start, stop, step))
            places.append(":".join("" if p is None else str(p) for p in (start, stop, step)))
        return f"[{', '.join(places)}]", tuple(keys)

    def move(self, x, rank, dtype):
        """One view of x: (text, NumPy)."""
        r = self.random
        axis = r.randrange(rank)
        choice = r.randrange(8)
        if choice <= 2:  # slices more often than the others
            text, keys = self.slices(rank)
            return x + text, lambda a: a[keys]
        if choice == 3:
            shift = r.choice([1, -1, 2, 5])
            return f"roll({x}, {shift}, {axis})", lambda a: np.roll(a, shift, axis)
        if choice == 4:
            widths = [(r.randint(0, 2), r.randint(0, 2)) for _ in range(rank)]
            value = self.constant() if dtype in FLOATS else r.choice([0, 1]) if dtype != "bool" else False
            text = f"({', '.join(f'({a}, {b})' for a, b in widths)},)"
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            return f"pad({x}, {text}, {shown})", lambda a: np.pad(a, widths, constant_values=value)
        if choice == 5:
            n = r.choice([2, 3])
            return f"repeat({x}, {n}, {axis})", lambda a: np.repeat(a, n, axis)
        if choice == 6:
            return f"flip({x}, {axis})", lambda a: np.flip(a, axis)
        other = r.randrange(rank)
        return f"transpose({x}, {axis}, {other})", lambda a: np.swapaxes(a, axis, other)

    def moved(self):
        """Views of views of x."""
        x = self.pick(lambda v: v.rank > 0)
        text, steps = x.name, []
        for _ in range(self.random.randint(1, 3)):
            text, step = self.move(text, x.rank, x.dtype)
            steps.append(step)

        def compute(a):
            for step in steps:
                a = step(a)
            return a
        return self.add(text, [x], x.dtype, compute, exact=True)

    def joined_views(self):
        """One after the other: views of two arrays, moved once more."""
        r = self.random
        x = self.pick(lambda v: v.rank > 0)
        y = self.pick(lambda v: v.rank == x.rank and v.dtype == x.dtype)
        axis = r.randrange(x.rank)
        (one, f), (two, g) = self.move(x.name, x.rank, x.dtype), self.move(y.name, y.rank, y.dtype)
        text, h = f"concat(({one}, {two}), axis: {axis})", lambda a: a
        if r.random() < 0.5:
            text, h = self.move(text, x.rank, x.dtype)
        return self.add(text, [x, y], x.dtype, lambda a, b: h(np.concatenate((f(a), g(b)), axis)), exact=True)

    def positions(self, count):
        """An index array for an axis: (text over `$n`, the axis's length; operands; NumPy)."""
        r = self.random
        if r.random() < 0.5:
            values = [r.randint(-1, 1) for _ in range(count)]
            if r.random() < 0.3:
                text = f"broadcast_to({values}, 2, {count})"
                return text, [], lambda n: np.broadcast_to(np.array(values), (2, count))
            return f"{values}", [], lambda n: np.array(values)
        kinds = ("i64", "i32", "i16")
        i = self.pick(lambda v: v.exact and v.dtype in kinds and v.rank in (1, 2) and v.arrays[0].size < 600)
        return f"({i.name} % $n)", [i], lambda n, a: a.astype(np.int64) % n if n else self.reject()

    def scatter(self):
        """Updates at index arrays: repeated places, stored or added."""
        r = self.random
        x = self.pick(lambda v: v.rank in (1, 2) and v.dtype != "bool" and 0 < v.arrays[0].size < 5000)
        text, more, place = self.positions(r.randint(1, 4))
        adds = r.random() < 0.5
        v = self.pick(lambda v: v.dtype == x.dtype and v.rank <= x.rank)
        free = r.random() < 0.3  # one number for all places
        if more and v is more[0]:
            raise Reject

        def compute(a, *others):
            a, index = np.array(a), within(place(len(a), *others[:len(more)]), len(a))
            shape = index.shape + a.shape[1:]
            value = np.full(shape, 2) if free else np.resize(others[len(more)], shape)  # as `spread` does
            if adds:
                np.add.at(a, index, value.astype(a.dtype) if a.dtype.kind != "f" else value)
            else:
                a[index] = value
            return a

        def gain(i, e):
            sums = EPS.get(x.dtype, 0) * (i[0].size + 600) * 4 * (top(i[0]) + top(i[-1]) + 2)
            if adds and len(i[0]):  # so often to one place at most: each addition rounds a sum that has grown, perhaps always the same way
                index = within(place(len(i[0]), *i[1:1 + len(more)]), len(i[0])).ravel() % len(i[0])
                most = int(np.bincount(index).max()) if index.size else 0
                sums = max(sums, EPS.get(x.dtype, 0) * most * (top(i[0]) + most * (2 if free else top(i[-1]))))
            return e[0] + (0 if free else e[-1] * (i[-1].size + 8)) + sums
        text = text.replace("$n", f"len({x.name})")
        value = "2" if free else f"$v"
        lines = [f"let $ = {x.name}", f"let $i = {text}"]
        if not free:
            lines.append(f"let $v = spread({v.name}, $i, {x.name})")
        lines.append(f"$[$i] {'+=' if adds else '='} {value}")
        return self.add(lines, [x] + more + [v], x.dtype, compute, gain, exact=not adds or x.dtype in INTS)

    def indexed(self):
        r = self.random
        x = self.pick(lambda v: v.rank > 0 and v.arrays[0].size < 5000)
        choice = r.randrange(4)
        if choice == 0:
            text, more, place = self.positions(r.randint(1, 4))
            axis = r.randrange(x.rank)
            text = text.replace("$n", f"{x.name}.shape[{axis}]")
            return self.add(f"take({x.name}, {text}, axis: {axis})", [x] + more, x.dtype,
                            lambda a, *o: np.take(a, within(place(a.shape[axis], *o), a.shape[axis]), axis), lambda n, e: e[0], exact=True)
        if choice == 1:
            axis = r.randrange(x.rank)
            y = self.pick(lambda v: v.exact and v.dtype != "bool" and v.rank == x.rank)

            def compute(a, b):
                index = np.argsort(b, axis, kind="stable")
                if any(m > n for m, n in zip(b.shape, a.shape)):
                    raise Reject
                cut = tuple(slice(None) if i == axis else slice(m) for i, m in enumerate(b.shape))
                return np.take_along_axis(a[cut], within(index, a.shape[axis]), axis)
            if any(p.shape[i] != q.shape[i] for p, q in zip(x.arrays, y.arrays) for i in range(x.rank) if i != axis):
                raise Reject
            if self.kind == "wild":
                raise Reject
            return self.add(f"gather({x.name}, argsort({y.name}, axis: {axis}), {axis})", [x, y], x.dtype, compute,
                            lambda n, e: e[0], exact=True)
        if choice == 2 and x.rank >= 2:
            i, j = [r.randint(-1, 0) for _ in range(3)], [r.randint(-1, 0) for _ in range(3)]
            return self.add(f"{x.name}[{i}, {j}]", [x], x.dtype,
                            lambda a: a[within(np.array(i), len(a)), within(np.array(j), a.shape[1])], exact=True)
        text, keys = self.slices(x.rank)
        n = r.choice([-1, 0])
        return self.add(f"{x.name}{text}[[{n}, 0]]", [x], x.dtype,
                        lambda a: a[keys][within(np.array([n, 0]), len(a[keys]))], exact=True)

    def ordered(self):
        x = self.pick(lambda v: v.rank > 0 and v.dtype != "bool" and v.arrays[0].size < 5000)
        axis = self.random.randrange(-1, x.rank)
        choice = self.random.randrange(4)
        if choice == 0 and x.exact and self.kind == "plain":
            return self.add(f"argsort({x.name}, axis: {axis})", [x], "i64",
                            lambda a: np.argsort(a, axis, kind="stable"), exact=True)
        if choice == 1:
            name = self.random.choice(["cummax", "cummin"])
            f = np.maximum if name == "cummax" else np.minimum
            return self.add(f"{name}({x.name}, axis: {axis})", [x], x.dtype, lambda a: f.accumulate(a, axis),
                            lambda i, e: e[0], exact=True)
        return self.add(f"sort({x.name}, axis: {axis})", [x], x.dtype, lambda a: np.sort(a, axis, kind="stable"),
                        lambda i, e: e[0], exact=True)

    def running(self):
        x = self.pick(lambda v: v.rank > 0 and v.is_float and v.arrays[0].size < 5000)
        axis = self.random.randrange(-1, x.rank)
        return self.add(f"cumprod(tanh({x.name}) * 0.125 + 0.75, axis: {axis})", [x], x.dtype,
                        lambda a: np.cumprod(np.tanh(a) * 0.125 + 0.75, axis),
                        lambda i, e: (e[0] + 8 * EPS[x.dtype]) * 8)

    def mask(self):
        x = self.pick(lambda v: v.rank >= 2 and v.is_float)
        k = self.random.choice([-1, 0, 1])
        name = self.random.choice(["tril", "triu"])
        f = np.tril if name == "tril" else np.triu
        return self.add(f"{name}({x.name}, {k})", [x], x.dtype, lambda a: f(a, k), exact=True)

    def contraction(self):
        x = self.pick(lambda v: v.rank == 2 and v.is_float)
        y = self.pick(lambda v: v.rank == 2 and v.dtype == x.dtype)
        spec = self.random.choice(["ij,jk->ik", "ij,kj->ki", "ij,ij->i", "ij,ij->j", "ij,jk->k", "ij,kj->i",
                                   "ij,jk->ijk", "ij,ij->"])

        def compute(a, b):
            return self.sixteenth(np.einsum(spec, a, b), x.dtype)

        def gain(i, e):
            terms, most = i[0].size + i[1].size, top(i[0]) * top(i[1])
            rounding = chain(x.dtype, max(i[0].shape + i[1].shape))
            return terms * (e[0] * top(i[1]) + e[1] * top(i[0]) + rounding * most)
        return self.add(f'einsum("{spec}", {x.name}, {y.name}) / 16', [x, y], x.dtype, compute, gain)

    def sweep(self, least_rank):
        """A value, and how windows go along its last two axes: sizes, strides, dilations, padding."""
        r = self.random
        x = self.pick(lambda v: v.rank in (least_rank, least_rank + 1) and v.dtype != "bool" and (v.is_float or self.kind != "grad"))
        sizes, strides, dilations, padding = ([r.choice(few) for _ in range(2)] for few in ([1, 2, 3], [1, 1, 2, 3], [1, 1, 2], [0, 0, 1]))
        return x, sizes, strides, dilations, padding

    def swept(self, a, sizes, strides, dilations, padding, fill=0):
        """The windows: [.., oh, ow, kh, kw]."""
        a = np.pad(a, [(0, 0)] * (a.ndim - 2) + [(p, p) for p in padding], constant_values=fill)
        reach = [(k - 1) * d + 1 for k, d in zip(sizes, dilations)]
        windows = np.lib.stride_tricks.sliding_window_view(a, reach, axis=(-2, -1))
        return windows[..., :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]

    def windows(self):
        x, sizes, strides, dilations, _ = self.sweep(1)
        axis = self.random.randrange(x.rank)

        def compute(a):
            v = np.lib.stride_tricks.sliding_window_view(a, (sizes[0] - 1) * dilations[0] + 1, axis=axis)
            return v[(slice(None),) * axis + (slice(None, None, strides[0]), Ellipsis, slice(None, None, dilations[0]))]
        self.add(f"windows({x.name}, {sizes[0]}, axis: {axis}, step: {strides[0]}, dilation: {dilations[0]})", [x], x.dtype, compute, exact=True)

    def pooling(self):
        x, sizes, strides, _, padding = self.sweep(2)
        padding = [min(p, k - 1) for p, k in zip(padding, sizes)]
        way = f"({sizes[0]}, {sizes[1]}), stride: ({strides[0]}, {strides[1]}), padding: ({padding[0]}, {padding[1]})"
        if self.random.random() < 0.6:
            least = -np.inf if x.is_float else np.iinfo(STORE[x.dtype]).min
            return self.add(f"max_pool2d({x.name}, {way})", [x], x.dtype,
                            lambda a: self.swept(a, sizes, strides, (1, 1), padding, least).max(axis=(-2, -1)), exact=True)
        dtype = x.dtype if x.is_float else "f32"
        if self.kind != "wild" and dtype == "f16" and top(x.arrays[0]) * 9 > 60000:
            raise Reject
        self.add(f"avg_pool2d({x.name}, {way})", [x], dtype,
                 lambda a: self.swept(a.astype(np.float64), sizes, strides, (1, 1), padding).mean(axis=(-2, -1)),
                 lambda i, e: e[0] + 16 * EPS[dtype] * top(i[0]))

    def convolution(self):
        """Over x[c, h, w], or over x[n, h, w] as images of one channel; weights are another value's elements."""
        x, sizes, strides, dilations, padding = self.sweep(2)
        y = self.pick(lambda v: v.dtype == x.dtype and all(a.size for a in v.arrays))
        if not x.is_float:
            raise Reject
        out, batched = self.random.randint(1, 3), x.rank == 2 or self.random.random() < 0.3
        each = not batched and self.random.random() < 0.4
        image = f"{x.name}[{'new' if x.rank == 2 else ':'}, new]" if batched else x.name
        channels = "1" if batched else f"{x.name}.shape[0]"
        shape = f"({f'{channels} * {out}' if each else out}, {'1' if each else channels}, {sizes[0]}, {sizes[1]})"
        way = f"stride: ({strides[0]}, {strides[1]}), padding: ({padding[0]}, {padding[1]}), dilation: ({dilations[0]}, {dilations[1]})"

        def compute(a, b):
            a = a.reshape((-1, 1) + a.shape[-2:]) if batched else a[None]
            v = self.swept(a, sizes, strides, dilations, padding)
            c = a.shape[1]
            if each:
                w = np.resize(b, (c, out, *sizes))
                y = np.einsum("nchwpq,cmpq->ncmhw", v, w).reshape(v.shape[0], c * out, *v.shape[2:4])
            else:
                y = np.einsum("nchwpq,ocpq->nohw", v, np.resize(b, (out, c, *sizes)))
            return self.sixteenth(y if batched else y[0], x.dtype)

        def gain(i, e):
            k = sizes[0] * sizes[1] * (1 if batched or each else i[0].shape[0])
            rounding = 4 * EPS["f64" if x.dtype == "f64" else "f32"] + 2 * EPS[x.dtype]
            return k * (e[0] * top(i[1]) + e[1] * top(i[0]) + rounding * top(i[0]) * top(i[1])) / 16
        self.add(f"conv2d({image}, repeated({y.name}, {shape}), {way}{f', groups: {channels}' if each else ''}) / 16", [x, y], x.dtype, compute, gain)

    def mixed(self):
        """Arithmetic between kinds: integers and bools with floats and with each other."""
        x = self.pick(lambda v: v.dtype in INTS or v.dtype == "bool")
        y = self.pick(lambda v: v.dtype != x.dtype)
        name = self.random.choice(["+", "-", "*", "maximum", "minimum"])
        if name in ("maximum", "minimum") and "bool" in (x.dtype, y.dtype):
            raise Reject
        dtype = promote(x.dtype, y.dtype)
        f = {"+": np.add, "-": np.subtract, "*": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[name]

        def compute(a, b):
            kind = np.float64 if dtype in FLOATS else STORE[dtype]
            return f(store(a, dtype).astype(kind), store(b, dtype).astype(kind))
        text = f"{name}({x.name}, {y.name})" if name[0] == "m" else f"{x.name} {name} {y.name}"

        def gain(i, e):
            converted = 2 * EPS.get(dtype, 0) * (top(i[0]) + top(i[1]))
            return (e[1] + converted) * (top(i[0]) + 1) if name == "*" else e[1] + converted
        return self.add(text, [x, y], dtype, compute, gain, exact=dtype in INTS)

    def bits(self):
        r = self.random
        x = self.pick(lambda v: v.exact and (v.dtype in INTS or v.dtype == "bool"))
        if x.dtype == "bool":
            y = self.pick(lambda v: v.dtype == "bool")
            text, f = r.choice([("{x} & {y}", np.logical_and), ("{x} | {y}", np.logical_or),
                                ("xor({x}, {y})", np.logical_xor), ("{x} & ~{y}", lambda a, b: a & ~b)])
            return self.add(text.format(x=x.name, y=y.name), [x, y], "bool", f, exact=True)
        y = self.pick(lambda v: v.dtype == x.dtype)
        of = STORE[x.dtype]
        most = 8 * of(0).itemsize - 1
        text, f = r.choice([
            ("{x} & {y}", np.bitwise_and), ("{x} | ~{y}", lambda a, b: a | ~b), ("xor({x}, {y})", np.bitwise_xor),
            ("shl({x}, {y} & 3)", lambda a, b: a << (b & of(3))),
            ("shr({x}, {y} & {most})", lambda a, b: a >> (b & of(most))),
            ("{x} // ({y} | 1)", lambda a, b: a // (b | of(1))), ("{x} % ({y} | 1)", lambda a, b: a % (b | of(1))),
            ("floor({x}) + {y}", np.add), ("sign({x}) - round({y})", lambda a, b: np.sign(a) - b),
            ("abs(-{x}) - {y}", lambda a, b: np.abs(-a) - b), ("maximum({x}, -{y})", lambda a, b: np.maximum(a, -b)),
            ("{x} ** 2 - {y}", lambda a, b: a * a - b),
            ("where({x} > {y}, {x}, 1)", lambda a, b: np.where(a > b, a, of(1)))])
        return self.add(text.format(x=x.name, y=y.name, most=most), [x, y], x.dtype, f, exact=True)

    def gather(self):
        x = self.pick(lambda v: v.rank > 0)
        if self.random.random() < 0.5:
            return self.add(f"{x.name}[[1, 0, -1, 1]]", [x], x.dtype, lambda a: a[within(np.array([1, 0, -1, 1]), len(a))], exact=True)
        i = self.pick(lambda v: v.exact and v.dtype in INTS and v.rank > 0)
        return self.add(f"{x.name}[{i.name} % len({x.name})]", [x, i], x.dtype, lambda a, b: a[b.astype(np.int64) % len(a)] if 0 < len(a) < 128 and a.size * b.size < 1 << 22 else self.reject(),
                        lambda n, e: e[0], exact=True)

    def join(self):
        x = self.pick(lambda v: v.rank > 0)
        y = self.pick(lambda v: v.rank == x.rank and v.dtype == x.dtype)
        if self.random.random() < 0.5:
            return self.add(f"stack(({x.name}, {y.name}))", [x, y], x.dtype, lambda a, b: np.stack((a, b)), exact=True)
        axis = self.random.randrange(x.rank)
        return self.add(f"concat(({x.name}, {y.name}), axis: {axis})", [x, y], x.dtype, lambda a, b: np.concatenate((a, b), axis), exact=True)

    def update(self):
        x = self.pick(lambda v: v.rank > 0 and v.is_float)
        y = self.pick(lambda v: v.dtype == x.dtype)
        if self.random.random() < 0.5:
            def compute(a, b):
                a = np.array(a)
                a[1:] = b[1:] if b.ndim == a.ndim else b
                return a
            if y.rank == 0:
                text = [f"let $ = {x.name}", f"$[1:] = {y.name}"]
            elif y.rank == x.rank:
                text = [f"let $ = {x.name}", f"$[1:] = {y.name}[1:]"]
            else:
                raise Reject
            return self.add(text, [x, y], x.dtype, compute, exact=True)

        def more(a):
            a = np.array(a)
            a[0] = a[0] + 0.5
            return a
        return self.add([f"let $ = {x.name}", "$[0] += 0.5"], [x], x.dtype, more)

    def matmul(self):
        x = self.pick(lambda v: v.rank in (1, 2, 3) and v.is_float)
        y = self.pick(lambda v: v.rank in (1, 2) and v.dtype == x.dtype)
        flip = y.rank == 2 and self.random.random() < 0.4
        inner = x.arrays[0].shape[-1]

        def compute(a, b):
            return self.sixteenth(np.matmul(a, b.T if flip else b), x.dtype)

        def gain(i, e):
            k = i[0].shape[-1]
            return k * (e[0] * top(i[1]) + e[1] * top(i[0]) + chain(x.dtype, k) * top(i[0]) * top(i[1])) / 16
        if inner > 4000:
            raise Reject
        self.add(f"({x.name} @ {y.name}{'.T' if flip else ''}) / 16", [x, y], x.dtype, compute, gain)

    def loop(self):
        x = self.pick(lambda v: v.is_float)
        y = self.pick(lambda v: v.dtype == x.dtype)
        n = self.random.randint(2, 4)

        def compute(a, b):
            v = a + 0 * b
            for i in range(n):
                v = np.tanh(store(store(v * 0.5, x.dtype).astype(np.float64) + b, x.dtype).astype(np.float64) + i)
                v = store(v, x.dtype).astype(np.float64)
            return v
        self.add([f"let $ = {x.name} + 0 * {y.name}", f"for i in 0..{n} {{ $ = tanh($ * 0.5 + {y.name} + i) }}"], [x, y], x.dtype, compute,
                 lambda i, e: n * (e[0] + e[1] + 8 * EPS[x.dtype] * (top(i[1]) + 4)))

    def branch(self):
        x = self.pick(lambda v: v.is_float)
        c = self.pick(lambda v: v.exact and v.dtype != "bool" and v.arrays[0].size > 0)
        # The decision is made once for all sets, or the bounds would be those of two programs.
        if self.kind == "wild" or len({bool(np.max(a) > 2) for a in c.arrays}) > 1:
            raise Reject

        def compute(a, b):
            return a * 0.5 if np.max(b) > 2 else np.tanh(a)
        self.add(f"if max({c.name}) > 2 {{ {x.name} * 0.5 }} else {{ tanh({x.name}) }}", [x, c], x.dtype, compute, lambda i, e: e[0])

    def helper(self):
        """Two operations in a function of their own: a call inside the recording."""
        x = self.pick(lambda v: v.is_float)
        self.add([f"let $ = half(fn(z) z * z - z, tanh({x.name}))"], [x], x.dtype,
                 lambda a: 0.5 * (np.tanh(a) ** 2 - np.tanh(a)), lambda i, e: 3 * e[0] + 8 * EPS[x.dtype])

    # ---- the whole ---------------------------------------------------------------------------------------------------
    def finish(self):
        made = self.values[len(self.inputs):]
        if not made:
            self.outputs = [self.inputs[0]]
        else:
            self.outputs = [made[-1]] + self.random.sample(made[:-1], min(len(made) - 1, self.random.randint(0, 2)))
        if self.kind == "grad":
            self.outputs = [v for v in self.outputs if v.is_float] or [self.inputs[0]]

    def function(self):
        """The function's text: a record of its outputs, or for grad the mean of their squares."""
        names = ", ".join(v.name for v in self.inputs)
        body = "\n".join("  " + line for text in self.lines for line in text.split("\n"))
        if self.kind == "grad":
            last = "  " + " + ".join(f"mean(sin({v.name}) ** 2)" for v in self.outputs)
        else:
            # bf16 has no file format here: it is saved as the f32 of the same value.
            items = (f"o{n}: {'f32(' + v.name + ')' if v.dtype == 'bf16' else v.name}" for n, v in enumerate(self.outputs))
            last = "  {" + ", ".join(items) + "}"
        return f"fn half(f, x) = 0.5 * f(x)\n{SPREAD}{REPEATED}\nfn f({names}) {{\n{body}\n{last}\n}}\n"

    def calls(self):
        """The input set of each phase of the program: the first until f is hot, then the others, and back again."""
        return list(range(self.sets)) + [0]

    def text(self, path="args[0]"):
        """The program, its files in the folder that `path` gives. Each phase calls f five times and saves the results of
        the first and the last call."""
        names = [v.name for v in self.inputs]
        lines = [self.function(), f"let path = {path}"]
        lines.append(f"let g = grad(f, wrt: ({', '.join(map(str, range(len(names))))}))" if self.kind == "grad" else "let g = f")
        lines += [f'let in{s} = load("{{path}}/in{s}.npz")' for s in range(self.sets)]
        for phase, s in enumerate(self.calls()):
            arguments = ", ".join(f"in{s}.{n}" for n in names)
            keep = f"g({arguments})"
            if self.kind == "grad":
                lines.append(f"fn kept{phase}(r) = {{{', '.join(f'o{n}: r[{n}]' for n in range(len(names)))}}}")
                keep = f"kept{phase}({keep})"
            lines.append(f'save("{{path}}/{self.file(phase, 0)}", {keep})')
            lines.append(f"for _ in 0..3 {{ g({arguments}) }}")
            lines.append(f'save("{{path}}/{self.file(phase, 1)}", {keep})')
        return "\n".join(lines) + "\n"

    def file(self, phase, last):
        return f"out-{phase}-{'last' if last else 'first'}.npz"

    def saved(self):
        """(file name, number of its input set) of everything that the program saves, in order."""
        return [(self.file(phase, last), s) for phase, s in enumerate(self.calls()) for last in (0, 1)]

    def write_inputs(self, folder):
        for s in range(self.sets):
            np.savez(f"{folder}/in{s}.npz", **{v.name: v.arrays[s] for v in self.inputs})

    def value(self, inputs):
        """For grad: f at other inputs, by NumPy."""
        known = {v.name: x for v, x in zip(self.inputs, inputs)}
        with np.errstate(all="ignore"):
            for value, operands, compute in self.replay:
                known[value.name] = np.asarray(compute(*[known[o.name] for o in operands]), dtype=np.float64)
        return float(sum(np.mean(np.sin(known[v.name]) ** 2) for v in self.outputs))
