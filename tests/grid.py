#!/usr/bin/env python3
"""The language's rules for numbers as grids: grid.py [--quern build/quern] PART

  promotion    the dtype of a op b, for every dtype, host kind and operator; of functions and reductions; of updates
  integers     host integers: results and errors at the edges of 64 bits; integer arrays, which wrap
  conversion   every dtype into every other, with values at the edges; host numbers into arrays
  equality     == and != between all kinds of values
  ordering     comparisons of host ints with host floats, which are exact: constants, variables, recorded numbers, sort
  conditions   what if, while, and, or, not take, and what and/or give; & and |

The rules are written down here a second time, in Python's own numbers and from the language's description; nothing is read
from the implementation's tables. Each part is one script of many small functions, whose lines of output are compared. It
runs interpreted and, recorded at the first call, in the block VM.
"""
import argparse
import math
import operator
import os
import struct
import subprocess
import sys
import tempfile

INTS = {"u8": (0, 2**8 - 1), "i8": (-2**7, 2**7 - 1), "i16": (-2**15, 2**15 - 1), "i32": (-2**31, 2**31 - 1),
        "i64": (-2**63, 2**63 - 1)}
FLOATS = ["f16", "bf16", "f32", "f64"]
MANTISSA = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
GREATEST = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "f32": (2 - 2.0**-23) * 2.0**127, "f64": 1.7976931348623157e308}
DTYPES = ["bool", *INTS, *FLOATS]
HOST = {"bool": "true", "int": "1", "float": "1.5"}
I64 = INTS["i64"]


# ---- the rules of promotion ---------------------------------------------------------------------------------------

def is_float(d):
    return d in FLOATS


def common(a, b):
    """The dtype of two arrays side by side."""
    if a == b:
        return a
    if is_float(a) and is_float(b):
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=["f16", "bf16", "f32", "f64"].index)
    if is_float(a) or is_float(b):
        return a if is_float(a) else b
    if "bool" in (a, b):
        return b if a == "bool" else a
    lo, hi = min(INTS[a][0], INTS[b][0]), max(INTS[a][1], INTS[b][1])
    return min((d for d in INTS if INTS[d][0] <= lo and hi <= INTS[d][1]), key=lambda d: INTS[d][1] - INTS[d][0])


def with_host(d, kind):
    """The dtype of an array beside a host number."""
    if is_float(d):
        return d
    if kind == "float":
        return "f32"
    if kind == "int" and d == "bool":
        return "i64"
    return d


def result(op, d, arithmetic_bool):
    """What an operator makes of operands that have come to dtype d."""
    if op in ("==", "!=", "<", "<=", ">", ">="):
        return "bool"
    if op == "/" and not is_float(d):
        return "f32"
    if op in ("+", "-", "*") and d == "bool" and arithmetic_bool:
        return "i64"
    if op in ("&", "|") and is_float(d):
        return "E206"
    return d


def sample(d):
    return f"{d}([1, 0])" if d == "bool" else f"{d}([1, 2])"


class Cases:
    """Expressions and what each prints: a value, or the id of an error."""

    def __init__(self, head=""):
        self.list, self.head = [], head

    def add(self, expression, want):
        self.list.append((expression, str(want)))

    def script(self):
        lines = [self.head, "fn t(f) { print(try { f() } catch e { e.id }) }"]
        lines += [f"t(fn() {expression})" for expression, _ in self.list]
        return "\n".join(lines) + "\n"


def promotion():
    c = Cases()
    for a in DTYPES:
        for b in DTYPES:
            for op in ("+", "-", "*", "/", "==", "<", ">="):
                c.add(f"({sample(a)} {op} {sample(b)}).dtype", result(op, common(a, b), True))
            if a != "bool" and b != "bool":
                ones = f"{b}([1, 1])"
                for op in ("//", "%", "**"):
                    c.add(f"({sample(a)} {op} {ones}).dtype", common(a, b))
            for op in ("&", "|"):
                both = (a == "bool") == (b == "bool") and not is_float(a) and not is_float(b)
                c.add(f"({sample(a)} {op} {sample(b)}).dtype", common(a, b) if both else "E206")
            c.add(f"maximum({sample(a)}, {sample(b)}).dtype", common(a, b))
            c.add(f"where([true, false], {sample(a)}, {sample(b)}).dtype", common(a, b))
            c.add(f"[{sample(a)}, {sample(b)}].dtype", common(a, b))
            c.add(f"concat(({sample(a)}, {sample(b)})).dtype", common(a, b))
        for kind, value in HOST.items():
            d = with_host(a, kind)
            for op in ("+", "-", "*", "/", "==", "<", ">="):
                c.add(f"({sample(a)} {op} {value}).dtype", result(op, d, True))
                c.add(f"({value} {op} {sample(a)}).dtype", result(op, d, True))
            if a != "bool" and kind != "bool":
                for op in ("//", "%", "**"):
                    c.add(f"({sample(a)} {op} {value}).dtype", d)
                    c.add(f"({value} {op} {sample(a)}).dtype", d)
            c.add(f"where([true, false], {sample(a)}, {value}).dtype", d)
            c.add(f"[{a}(1), {value}].dtype", d)
        number = "f32" if not is_float(a) else a
        for f in ("sqrt", "exp", "sin", "log", "tanh", "softmax", "layer_norm", "rms_norm", "norm"):
            c.add(f"{f}({sample(a)}).dtype", number)
        for f in ("mean", "var", "std"):
            c.add(f"{f}({sample(a)}).dtype", "f64" if a in INTS else number)
            c.add(f"{f}([{sample(a)}, {sample(a)}], axis: 0).dtype", "f64" if a in INTS else number)
        for f in ("sum", "prod", "cumsum"):
            c.add(f"{f}({sample(a)}).dtype", a if is_float(a) else "i64")
        for f in ("max", "min", "abs", "sort"):
            if a != "bool":
                c.add(f"{f}({sample(a)}).dtype", a)
        for f in ("argmax", "argmin", "argsort"):
            c.add(f"{f}({sample(a)}).dtype", "i64")
        for f in ("isnan", "isfinite"):
            c.add(f"{f}({sample(a)}).dtype", "bool")
        # x op= y may change the dtype, x[i] = v never does.
        for b in DTYPES:
            c.add(f"{{ let x = {sample(a)}; x += {sample(b)}; x.dtype }}", result("+", common(a, b), True))
            fits = is_float(a) or (b == "bool" if a == "bool" else not is_float(b))
            c.add(f"{{ let x = {sample(a)}; x[0] = {sample(b)}[0]; x.dtype }}", a if fits else "E206")
        c.add(f"{{ let x = {sample(a)}; x[0] = 1; x.dtype }}", a if a != "bool" else "E206")
        c.add(f"{{ let x = {sample(a)}; x[0] = true; x.dtype }}", a)
        c.add(f"{{ let x = {sample(a)}; x[0] = 1.5; x.dtype }}", a if is_float(a) else "E206")
    for value, d in (("1", "i64"), ("1.5", "f32"), ("true", "bool"), ("(1, 2.5)", "f32"), ("(1, true)", "i64")):
        c.add(f"array({value}).dtype", d)
    c.add("where([true], 1, 0).dtype", "i64")
    c.add("where([true], 1.0, 0).dtype", "f32")
    c.add("zeros(2).dtype", "f32")
    c.add("arange(2).dtype", "i64")
    c.add("[].dtype", "f32")
    c.add("[1, 2.0].dtype", "f32")
    return c


# ---- integers -------------------------------------------------------------------------------------------------------

def floor_parts(op, a, b):
    return a // b if op == "//" else a % b


def host_int(op, a, b):
    """The value or error of a op b on host integers; Python's // and % round down as Quern's do."""
    if op in ("//", "%"):
        if b == 0:
            return "E306"
        r = floor_parts(op, a, b)
    elif op == "**":
        if b < 0:
            return "E308"
        if abs(a) > 1 and b > 64:
            return "E305"
        r = a**b
    elif op in ("shl", "shr"):
        if b < 0 or b > 63:
            return "E307"
        r = a << b if op == "shl" else a >> b
    else:
        r = {"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "xor": a ^ b}[op]
    return r if I64[0] <= r <= I64[1] else "E305"


def wrapped(d, x):
    lo, hi = INTS[d]
    return (x - lo) % (hi - lo + 1) + lo


def array_int(op, d, a, b):
    bits = {"u8": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64}[d]
    if op in ("//", "%"):
        return "E306" if b == 0 else wrapped(d, floor_parts(op, a, b))
    if op == "**":
        return "E308" if b < 0 else wrapped(d, pow(a, b, 2**64))
    if op in ("shl", "shr"):
        if b < 0 or b >= bits:
            return "E307"
        return wrapped(d, a << b if op == "shl" else a >> b)
    return wrapped(d, {"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "xor": a ^ b}[op])


def written(n):
    return f"({n})" if n < 0 else str(n)


def applied(op, a, b):
    return f"{op}({a}, {b})" if op.isalpha() else f"{a} {op} {b}"


def integers():
    c = Cases()
    edges = [0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 10**9, -2**31, 2**32, 2**53 + 1, 2**62, -2**62, 2**63 - 1, -2**63]
    for op in ("+", "-", "*", "//", "%", "**", "&", "|", "xor", "shl", "shr"):
        for a in edges:
            for b in edges:
                c.add(applied(op, written(a), written(b)), host_int(op, a, b))
    for n in edges:
        c.add(f"-{written(n)}", -n if n != -2**63 else "E305")
        c.add(f"abs({n})", abs(n) if n != -2**63 else "E305")
        c.add(f"~{written(n)}", ~n)
        for m in edges:
            for op, r in (("==", n == m), ("<", n < m), (">=", n >= m)):
                c.add(f"{written(n)} {op} {written(m)}", str(r).lower())
            if m != 0:
                c.add(f"divmod({n}, {m})", f"({n // m}, {n % m})" if n // m <= I64[1] else "E305")
    for d, (lo, hi) in INTS.items():
        some = sorted({lo, lo + 1, -3, -1, 0, 1, 2, 5, 7, 8, hi // 2 + 1, hi - 1, hi} & set(range(lo, hi + 1)) if hi < 2**20
                      else {lo, lo + 1, -3, -1, 0, 1, 2, 5, 7, 8, hi // 2 + 1, hi - 1, hi})
        for op in ("+", "-", "*", "//", "%", "**", "&", "|", "xor", "shl", "shr"):
            for a in some:
                for b in some:
                    r = array_int(op, d, a, b)
                    both = applied(op, f"{d}([{a}])", f"{d}([{b}])")
                    c.add(f"int(({both})[0])" if not isinstance(r, str) else both, r)
        for a in some:
            c.add(f"int((-{d}([{a}]))[0])", wrapped(d, -a))
            c.add(f"int(abs({d}([{a}]))[0])", wrapped(d, abs(a)))
            c.add(f"int((~{d}([{a}]))[0])", wrapped(d, ~a))
            # Sums of narrow integers are i64.
            c.add(f"int(sum({d}([{a}, {a}])))", wrapped("i64", 2 * a))
    return c


# ---- conversion -------------------------------------------------------------------------------------------------------

def rounded(d, x):
    """x (an int or a finite float) as the nearest value of a float dtype, ties to even; past the greatest, infinite."""
    if d == "f64":
        try:
            return float(x)
        except OverflowError:
            return math.inf if x > 0 else -math.inf
    if x == 0:
        return float(x)
    if d == "f32" and isinstance(x, float):
        try:
            return struct.unpack("f", struct.pack("f", x))[0]
        except OverflowError:
            return math.copysign(math.inf, x)
    from fractions import Fraction
    exact = Fraction(x)
    least = {"f16": -24, "bf16": -133, "f32": -149}[d]
    exponent = max((math.frexp(float(x))[1] - MANTISSA[d]), least)
    unit = Fraction(2) ** exponent
    n = exact / unit
    whole = round(n)  # ties to even
    r = whole * unit
    if abs(r) > GREATEST[d]:
        return math.copysign(math.inf, x)
    return math.copysign(float(r), x)


def shown(x):
    """A float as Quern prints it (compared as a number, so only inf and nan need care)."""
    return "nan" if x != x else "inf" if x == math.inf else "-inf" if x == -math.inf else repr(float(x))


def conversion():
    c = Cases()
    numbers = [0, 1, -1, 2.5, -2.5, 0.1, 127, 128, -128, -129, 255, 256, -256, 32767, 32768, 65504, 65519, 65520, 65536, 2147483647,
               2147483648, -2147483648, -2147483649.0, 1e10, 2.0**63, -2.0**63, 9.3e18, 3.4e38, 1e39, 1e300, 1e-8, 6e-8, 1e-40, 1e-300,
               1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40, 1 + 2**-24 + 2**-50]  # just above a tie: one rounding, not two
    for d in FLOATS:
        for x in numbers:
            r = rounded("f64", x)
            value = shown(r)
            to_float = rounded(d, r)
            c.add(f"str(float(f64([{value}]).to({d})[0]))", shown(to_float))
            # A host number must fit the range of the dtype it takes; rounding is allowed.
            c.add(f"str(float((zeros(1, dtype: {d}) + {value})[0]))", shown(to_float) if math.isfinite(to_float) else "E207")
            if not math.isfinite(to_float):
                continue
            for i, (lo, hi) in INTS.items():
                n = int(to_float)
                c.add(f"int({d}([{value}]).to({i})[0])", n if lo <= n <= hi else "E309")
            c.add(f"bool({d}([{value}]))[0]", str(to_float != 0).lower())
        for special in ("nan", "inf", "-inf"):
            for i in INTS:
                c.add(f"{d}([{special}]).to({i})", "E309")
            c.add(f"str(float((zeros(1, dtype: {d}) + {special})[0]))", special)
    for a, (lo, hi) in INTS.items():
        values = [lo, lo + 1, -1, 0, 1, 100, 127, 128, 255, 2049, 4097, 65519, 65520, 2**24 + 1, 2**53 + 1, 2**62 + 1, hi, 2**30 + 2**22 + 1,
                  2**40 + 2**32 + 1, 2**62 + 2**38 + 1]
        for n in values:
            if not lo <= n <= hi:
                c.add(f"zeros(1, dtype: {a}) + {written(n)}", "E207")
                c.add(f"{{ let x = zeros(1, dtype: {a}); x[0] = {n}; x }}", "E207")
                continue
            for b in INTS:
                c.add(f"int({a}([{n}]).to({b})[0])", wrapped(b, n))
            for d in FLOATS:
                c.add(f"str(float({a}([{n}]).to({d})[0]))", shown(rounded(d, n)))
            c.add(f"{a}([{n}]).to(bool)[0]", str(n != 0).lower())
            c.add(f"int((zeros(1, dtype: {a}) + {written(n)})[0])", n)
        c.add(f"{{ let x = zeros(1, dtype: {a}); x[0] = 1.5; x }}", "E206")
        c.add(f"int({a}([true])[0])", 1)
    for text, want in (("int(2.7)", 2), ("int(-2.7)", -2), ("int(true)", 1), ("float(3)", "3.0"), ("int(nan)", "E309"),
                       ("int(inf)", "E309"), ("int(9.3e18)", "E309"), ("int(\"12\")", 12), ("int(\" -7 \")", -7), ("int(\"1.5\")", "E318"),
                       ("float(\"1e3\")", "1000.0"), ("float(\"inf\")", "inf"), ("int([5])", 5), ("float([5])", "5.0"),
                       ("int([1, 2])", "E301"), ("int(nil)", "E301"), ("float(\"\")", "E318")):
        c.add(text, want)
    return c


# ---- equality ------------------------------------------------------------------------------------------------------------

def equality():
    c = Cases()
    # (text, kind, what decides within the kind); arrays have their elements as well
    values = [("nil", "nil", None), ("true", "bool", True), ("false", "bool", False), ("1", "number", 1), ("0", "number", 0),
              ("1.0", "number", 1.0), ("0.5", "number", 0.5), ("9007199254740993", "number", 2**53 + 1),
              ("9007199254740992.0", "number", 2.0**53), ("nan", "number", math.nan), ('"1"', "str", "1"), ('""', "str", ""),
              ("()", "list", ()), ("(1,)", "list", (1,)), ("(1.0,)", "list", (1,)), ("(1, 2)", "list", (1, 2)),
              ("{}", "record", ()), ("{a: 1}", "record", (("a", 1),)), ("{a: 1, b: 2}", "record", (("a", 1), ("b", 2))),
              ("{b: 2, a: 1}", "record", (("a", 1), ("b", 2))), ("0..3", "range", (0, 3)), ("0..4", "range", (0, 4)),
              ("f32", "dtype", "f32"), ("f64", "dtype", "f64"), ("cpu", "device", "cpu"), ("sqrt", "fn", "sqrt"),
              ("exp", "fn", "exp"), ("[1, 2]", "array", (1, 2)), ("[1.0, 3.0]", "array", (1, 3)), ("[true, false]", "array", (1, 0))]
    for ta, ka, a in values:
        for tb, kb, b in values:
            if "array" in (ka, kb):
                elementwise = {ka, kb} <= {"array", "number", "bool"}
                if elementwise:
                    n = 2
                    left = a if ka == "array" else (a,) * n
                    right = b if kb == "array" else (b,) * n
                    want = [x == y for x, y in zip(left, right)]
                    # elements are compared in f32 where a float meets integers
                    if any(abs(v) > 2**24 for v in left + right if v == v) or (ka != kb and "[true" in ta + tb):
                        continue
                    c.add(f"list({ta} == {tb})", "(" + ", ".join(str(w).lower() for w in want) + ")")
                    c.add(f"list({ta} != {tb})", "(" + ", ".join(str(not w).lower() for w in want) + ")")
                    continue
                same = False
            else:
                same = ka == kb and a == b
            c.add(f"({ta}) == ({tb})", str(same).lower())
            c.add(f"({ta}) != ({tb})", str(not same).lower())
    c.add("([1, 2],) == ([1, 2],)", "true")
    c.add("([1, 2],) == ([1.0, 2.0],)", "false")
    c.add("{w: zeros(2)} == {w: zeros(2)}", "true")
    c.add("{w: zeros(2)} == {w: zeros(2, 1)}", "false")
    c.add("(fn(x) x) == (fn(x) x)", "false")
    c.add("{ let f = fn(x) x; f == f }", "true")
    return c


# ---- ordering -----------------------------------------------------------------------------------------------------------

COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def ordering():
    """Each comparison of constants and of variables; the recorded functions r... have numbers that their graph computes with, and a
    branch on one of them: the graph's answer and the guard's must agree with Python's, which is exact."""
    head = []
    for n, op in enumerate(COMPARISONS):
        head += [f"fn v{n}(a, b) = a {op} b", f"fn r{n}(x, a, b) = (x + 1, a {op} b)",
                 f"fn b{n}(x, a, b) = if a {op} b {{ x + 1 }} else {{ x }}",
                 f"fn w{n}(x, a, b) = where(a {op} b, x + 1, x)"]
    c = Cases("\n".join(head))
    ints = [0, 1, -1, 3, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -2**53 - 1, 2**54 + 1, 2**54 + 3, 2**62 + 1, 2**63 - 1, 2**63 - 512, 2**63 - 513,
            -2**63, -2**63 + 1, -2**62 - 1]
    floats = [0.0, -0.0, 0.5, 1.0, -1.0, 3.5, 2.0**53 - 1, 2.0**53, 2.0**53 + 2, -2.0**53, 2.0**54, 2.0**54 + 4, 2.0**62, -2.0**62, 2.0**63,
              2.0**63 - 1024, -2.0**63, -2.0**63 - 2048, 1e300, math.inf, -math.inf, math.nan]
    for i in ints:
        for f in floats:
            near = abs(i - f) <= 4096 or not math.isfinite(f)
            for a, b in ((i, f), (f, i)):
                ta, tb = (written(v) if isinstance(v, int) else f"({shown(v)})" for v in (a, b))
                for n, (op, function) in enumerate(COMPARISONS.items()):
                    want = str(function(a, b)).lower()
                    c.add(f"{ta} {op} {tb}", want)
                    c.add(f"v{n}({ta}, {tb})", want)
                    c.add(f"r{n}([0], {ta}, {tb})[1]", want)
                    if near:
                        c.add(f"int(b{n}([0], {ta}, {tb}))", int(function(a, b)))
                        c.add(f"int(w{n}([0], {ta}, {tb}))", int(function(a, b)))
                        c.add(f"(fn(x, a) (x + 1, a {op} {tb}))([0], {ta})[1]", want)
                        c.add(f"(fn(x, b) (x + 1, {ta} {op} b))([0], {tb})[1]", want)
            if f == f:
                c.add(f"sort(({shown(f)}, {i})) == ({', '.join(shown(v) if isinstance(v, float) else str(v) for v in sorted((f, i)))})",
                      "true")
    return c


# ---- conditions -------------------------------------------------------------------------------------------------------------

def conditions():
    c = Cases()
    good = [("true", True, False), ("false", False, False), ("[true]", True, True), ("[[false]]", False, True),
            ("all([true])", True, True), ("1 < 2", True, False), ("sum([1]) > 3", False, True)]
    bad = ["1", "0", "1.5", '""', '"a"', "()", "(1,)", "{}", "nil", "[1]", "[1.0]", "[true, false]", "zeros(0, dtype: bool)", "sqrt",
           "0..3", "f32", "u8([1])"]
    for text, truth, _ in good:
        c.add(f"if {text} {{ 1 }} else {{ 2 }}", 1 if truth else 2)
        c.add(f"{{ let n = 0; while {text} {{ n += 1; if n == 3 {{ break }} }}; n }}", 3 if truth else 0)
        c.add(f"{{ let r = not {text}; if r {{ 1 }} else {{ 2 }} }}", 2 if truth else 1)
        c.add(f"assert({text})", "nil" if truth else "E702")
    for text in bad:
        for use in (f"if {text} {{ 1 }} else {{ 2 }}", f"{{ while {text} {{ break }}; 1 }}", f"not {text}", f"true and {text}",
                    f"{text} and true", f"false or {text}", f"{text} or true"):
            if text == "{}" and not use.endswith(text):
                use = use.replace("{}", "({})", 1)
            c.add(use, "E302")
        # What is not evaluated is not looked at.
        c.add(f"false and {text}", "false")
        c.add(f"true or {text}", "true")
    for ta, a, array_a in good:
        for tb, b, array_b in good:
            for word, truth, second in (("and", a and b, a), ("or", a or b, not a)):
                array = array_a or (second and array_b)
                c.add(f"type(({ta}) {word} ({tb}))", "array" if array else "bool")
                c.add(f"if ({ta}) {word} ({tb}) {{ 1 }} else {{ 2 }}", 1 if truth else 2)
                if array:
                    c.add(f"(({ta}) {word} ({tb})).shape", "()")
    for a, ka in (("true", "bool"), ("5", "int"), ("1.5", "float"), ("[true, false]", "bool"), ("[5, 3]", "int"), ("[1.5]", "float"),
                  ('"a"', "other"), ("nil", "other"), ("(1,)", "other")):
        for b, kb in (("true", "bool"), ("3", "int"), ("2.5", "float"), ("[true, true]", "bool"), ("u8([1, 2])", "int")):
            for op in ("&", "|"):
                both = f"({a}) {op} ({b})"
                if ka == kb and ka in ("bool", "int"):
                    c.add(f"type({both}) == \"{ka}\" or type({both}) == \"array\"", "true")
                else:
                    c.add(f"try {{ {both} }} catch e {{ e.id == \"E206\" or e.id == \"E301\" }}", "true")
    return c


PARTS = {f.__name__: f for f in (promotion, integers, conversion, equality, ordering, conditions)}
MODES = (["--jit", "off"], ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.cc=0"])


def same(want, got):
    if want == got:
        return True
    try:
        return any(ch in want and ch in got for ch in ".e") and float(want) == float(got)
    except ValueError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--quern", default="build/quern")
    options = parser.parse_args()
    cases = PARTS[options.part]()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="quern-grid-") as folder:
        path = os.path.join(folder, options.part + ".qn")
        with open(path, "w", encoding="utf-8") as f:
            f.write(cases.script())
        for mode in MODES:
            done = subprocess.run([os.path.abspath(options.quern), *mode, path], capture_output=True, text=True, timeout=500)
            lines = done.stdout.splitlines()
            if done.returncode != 0 or len(lines) != len(cases.list):
                print(f"FAILED {' '.join(mode)}: status {done.returncode}, {len(lines)} lines for {len(cases.list)} cases\n"
                      f"{done.stderr[-2000:]}")
                bad += 1
                continue
            for (expression, want), got in zip(cases.list, lines):
                if same(want, got):
                    continue
                bad += 1
                if bad <= 40:
                    print(f"FAILED {' '.join(mode)}: {expression} is {got}, expected {want}")
    print(f"{len(cases.list)} cases, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
