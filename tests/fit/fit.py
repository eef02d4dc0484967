#!/usr/bin/env python3
"""The polynomials of jit/kernel/math.def: weighted minimax fits by Remez exchange (mpmath), coefficients as hex floats.

Usage: fit.py [NAME...]; needs mpmath. Every row says which function g is approximated on which interval by a polynomial
with n coefficients, relative to which weight w (the error reported is max |p - g| * w), and in which type the
coefficients are rounded (f32: one after the other from the constant term up, refitting the rest each time; or, `polish`, all at once, then each
moved by a unit, alone and with another one, while that helps). A row made by `ratio` is a quotient of two polynomials, whose lower one begins with a given number.
"""
import struct
import sys
from mpmath import mp, mpf, matrix, lu_solve, exp, log, sin, cos, tan, asin, atan, atanh, sinh, erf, erfc, sqrt, pi

mp.dps = 50


def hexf(x, bits):
    """x rounded to f32 or f64, as a hex float."""
    if bits == 24:
        x = struct.unpack("f", struct.pack("f", float(x)))[0]
    text = float(x).hex()
    mantissa, exponent = text.split("p")
    return mantissa.rstrip("0").rstrip(".") + "p" + exponent, mpf(float(x))


def extrema(err, m):
    """Where the error is largest in each run of one sign: m of them, dropping at the ends."""
    runs, start = [], 0
    for i in range(1, len(err) + 1):
        if i == len(err) or (err[i] > 0) != (err[start] > 0):
            runs.append(max(range(start, i), key=lambda k: abs(err[k])))
            start = i
    while len(runs) > m:
        runs.pop(0 if abs(err[runs[0]]) < abs(err[runs[-1]]) else -1)
    return runs


def remez(g, w, lo, hi, n, fixed):
    """Minimax fit of g by sum c[k] x^k, k < n, with weight w; fixed[k] are given coefficients. Returns (c, error)."""
    k0 = len(fixed)
    m = n - k0 + 1
    lo, hi = mpf(lo), mpf(hi)
    xs = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(pi * (2 * i + 1) / (2 * m)) for i in range(m)]
    tail = lambda x: sum(fixed[k] * x**k for k in range(k0))
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(pi * i / (40 * m)) for i in range(40 * m + 1)]
    gv = [(x, g(x), w(x)) for x in grid]
    for _ in range(12):
        a, b = matrix(m, m), matrix(m, 1)
        for i, x in enumerate(xs):
            for k in range(n - k0):
                a[i, k] = x ** (k + k0) * w(x)
            a[i, m - 1] = (-1) ** i
            b[i] = (g(x) - tail(x)) * w(x)
        s = lu_solve(a, b)
        c = list(fixed) + [s[k] for k in range(n - k0)]
        err = [(mp.polyval(c[::-1], x) - gx) * wx for x, gx, wx in gv]
        runs = extrema(err, m)
        worst = max(abs(e) for e in err)
        if len(runs) < m or worst < abs(s[m - 1]) * mpf("1.001"):
            break
        xs = [grid[j] for j in runs]
    return c, worst


def fit(name, g, w, lo, hi, n, bits, fixed=()):
    c, best = remez(g, w, lo, hi, n, list(fixed))
    rounded = list(fixed)
    texts = []
    for k in range(len(fixed), n):
        t, v = hexf(c[k], bits)
        texts.append(t + ("f" if bits == 24 else ""))
        rounded.append(v)
        if k + 1 < n and bits == 24:
            c, _ = remez(g, w, lo, hi, n, rounded)
    xs = [mpf(lo) + (mpf(hi) - mpf(lo)) * i / 2000 for i in range(2001)]
    err = max(abs(mp.polyval(rounded[::-1], x) - g(x)) * w(x) for x in xs)
    print("%-16s n=%-2d 2^%.1f (exact coefficients 2^%.1f)\n  %s" %
          (name, n, mp.log(err, 2), mp.log(best, 2), ", ".join(texts)))


def near32(x, up):
    """The next f32 above or below one that is not 0."""
    bits = struct.unpack("i", struct.pack("f", x))[0] + (1 if (x > 0) == up else -1)
    return struct.unpack("f", struct.pack("i", bits))[0]


def polish(name, g, w, lo, hi, n):
    """Minimax fit with f32 coefficients, moved by units."""
    exact, best = remez(g, w, lo, hi, n, [])
    xs = [(mpf(lo) + mpf(hi)) / 2 - (mpf(hi) - mpf(lo)) / 2 * mp.cos(pi * i / 200) for i in range(201)]
    rows = [(float(x), float(g(x)), float(w(x))) for x in xs]

    def error(c):
        worst = 0.0
        for x, gx, wx in rows:
            p = 0.0
            for v in reversed(c):
                p = p * x + v
            worst = max(worst, abs(p - gx) * wx)
        return worst

    c, e = by_units([hexf(v, 24)[1] for v in exact], error)
    print("%-16s n=%-2d 2^%.1f (exact coefficients 2^%.1f)\n  %s" % (name, n, mp.log(e, 2), mp.log(best, 2), ", ".join(hexf(v, 24)[0] for v in c)))


def by_units(c, error):
    """f32 coefficients c, each moved by a unit, alone and with another one, while that makes error(c) less; and that error."""
    c = [float(v) for v in c]
    e, better = error(c), True
    while better:
        better = False
        for i in range(len(c)):
            for j in range(i + 1):
                for up in (False, True):
                    for other in (False, True):
                        d = list(c)
                        d[i] = near32(d[i], up)
                        if j < i:
                            d[j] = near32(d[j], other)
                        x = error(d)
                        if x < e:
                            c, e, better = d, x, True
    return c, e


def remez_ratio(g, w, grid, p, q):
    """Minimax fit of g on the points of a grid by N / D of degrees p and q with D(0) = 1, with weight w. Returns (N, D, error). The level times D is
    not linear in what is looked for: D is that of the turn before."""
    m = p + q + 2
    gv = [(x, g(x), w(x)) for x in grid]
    at = [round((len(grid) - 1) * (1 - float(mp.cos(pi * i / (m - 1)))) / 2) for i in range(m)]
    d = [mpf(1)] * m
    for _ in range(40):
        for _ in range(6):
            a, b = matrix(m, m), matrix(m, 1)
            for i, (x, gx, wx) in enumerate(gv[k] for k in at):
                for k in range(p + 1):
                    a[i, k] = x**k
                for k in range(1, q + 1):
                    a[i, p + k] = -gx * x**k
                a[i, m - 1] = (-1) ** i * d[i] / wx
                b[i] = gx
            s = lu_solve(a, b)
            upper, lower = [s[k] for k in range(p + 1)], [mpf(1)] + [s[p + k] for k in range(1, q + 1)]
            d = [mp.polyval(lower[::-1], gv[k][0]) for k in at]
        err = [(mp.polyval(upper[::-1], x) / mp.polyval(lower[::-1], x) - gx) * wx for x, gx, wx in gv]
        at, worst = extrema(err, m), max(abs(e) for e in err)
        if len(at) < m or worst < abs(s[m - 1]) * mpf("1.001"):
            break
        d = [mp.polyval(lower[::-1], gv[k][0]) for k in at]
    return upper, lower, worst


def ratio(name, g, w, grid, p, q, bits, first):
    """Minimax fit by a quotient with D(0) = first, whose coefficients are rounded, and those of f32 moved by units."""
    upper, lower, best = remez_ratio(g, w, grid, p, q)
    rows = [(x, g(x), w(x)) for x in grid]
    if bits == 24:
        rows = [tuple(float(v) for v in r) for r in rows]

    def error(c):
        worst = 0
        for x, gx, wx in rows:
            n, d = c[p], c[p + q]
            for v in reversed(c[:p]):
                n = n * x + v
            for v in reversed(c[p + 1 : p + q]):
                d = d * x + v
            worst = max(worst, abs(n / (d * x + first) - gx) * wx)
        return worst

    c = [hexf(v * mpf(first), bits)[1] for v in upper + lower[1:]]
    c, e = by_units(c, error) if bits == 24 else (c, error(c))
    texts = [hexf(v, bits)[0] for v in c]
    print("%-16s n=%d/%d 2^%.1f (exact coefficients 2^%.1f)\n  %s\n  %s, %s" %
          (name, p + 1, q + 1, mp.log(e, 2), mp.log(best, 2), ", ".join(texts[: p + 1]), hexf(first, bits)[0], ", ".join(texts[p + 1 :])))


def near0(f, c):
    """f(x), or its Taylor polynomial near 0 where f cancels."""
    return lambda x: f(x) if abs(x) > mpf(10) ** -8 else mp.polyval(c[::-1], x)


LN2H = log(2) / 2
one = lambda x: mpf(1)
# g with z = x*x of an odd function f: (f(x)/x - 1) / z; of an even one: (f(x) - 1 + z/2) / z^2
def odd(f, c3, c5):
    return near0(lambda z: (f(sqrt(z)) / sqrt(z) - 1) / z, [mpf(c3), mpf(c5)])

E = near0(lambda r: (exp(r) - 1 - r) / r**2, [mpf(1) / 2, mpf(1) / 6])
EG = near0(lambda r: (exp(r) - 1) / r, [mpf(1), mpf(1) / 2])
ET = near0(lambda r: (exp(2 * r) - 1) / r, [mpf(2), mpf(2)])
E2 = near0(lambda r: (mpf(2) ** r - 1) / r, [log(2), log(2) ** 2 / 2])
LG = near0(lambda f: (log(1 + f) - f + f * f / 2) / f**3, [mpf(1) / 3, -mpf(1) / 4])
# log(m) = 2 s + 2 s^3 R(s^2) with s = f / (2 + f)
LS = near0(lambda z: (atanh(sqrt(z)) / sqrt(z) - 1) / z, [mpf(1) / 3, mpf(1) / 5])
LS5 = near0(lambda z: ((atanh(sqrt(z)) / sqrt(z) - 1) / z - mpf(1) / 3) / z, [mpf(1) / 5, mpf(1) / 7])
SIN = odd(sin, -mpf(1) / 6, mpf(1) / 120)
COS = near0(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, [mpf(1) / 24, -mpf(1) / 720])
TAN = odd(tan, mpf(1) / 3, mpf(2) / 15)
ASIN = odd(asin, mpf(1) / 6, mpf(3) / 40)
ATAN = odd(atan, -mpf(1) / 3, mpf(1) / 5)
SINH = odd(sinh, mpf(1) / 6, mpf(1) / 120)
ERF1 = near0(lambda z: erf(sqrt(z)) / sqrt(z) - 1, [2 / sqrt(pi) - 1, -2 / (3 * sqrt(pi))])
def gelu_tail(k):
    """t (1 - N(t)) = t exp(-t^2/2) H(u) / (t + k) of the normal distribution function N, u = (t - k) / (t + k)."""
    def h(u):
        t = k * (1 + u) / (1 - u)
        return (t + k) * erfc(t / sqrt(2)) * exp(t * t / 2) / 2
    return h

def upper_tail(t):
    """1 - N(t) of the normal distribution function N is exp(-t^2/2) times this, which less t / sqrt(2 pi) gives 1 - N(t) - t n(t), the tail of gelu's
    derivative. Fits of it are relative to what that leaves, but to a tenth near its zero."""
    return erfc(t / sqrt(2)) * exp(t * t / 2) / 2

def slope_weight(t):
    return 1 / max(abs(upper_tail(t) - t / sqrt(2 * pi)), mpf("0.1"))

def from_zero(to, k, n):
    """Points t from 0 to `to`, which are dense where (t - k) / (t + k) has the extrema of a polynomial."""
    us = [-1 + (1 + (to - k) / (to + k)) * (1 - mp.cos(pi * i / n)) / 2 for i in range(n + 1)]
    return [k * (1 + u) / (1 - u) for u in us]

Z4 = (pi / 4 * mpf("1.0001")) ** 2
T8 = (sqrt(mpf(2)) - 1) ** 2 * mpf("1.0001")
LSMAX = ((sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1)) ** 2 * mpf("1.001")
LH = LN2H * mpf("1.002")

FITS = {
    # f32
    "exp32": lambda: fit("exp32", E, lambda r: r * r / exp(r), -LH, LH, 5, 24),
    "exp2_32": lambda: fit("exp2_32", E2, lambda r: abs(r) / mpf(2) ** r, -0.5, 0.5, 6, 24),
    "log32": lambda: fit("log32", LG, lambda f: abs(f**3 / log(1 + f)) if abs(f) > 1e-30 else mpf(0), -mpf(1) / 3, mpf(1) / 3, 9, 24),
    "sin32": lambda: fit("sin32", SIN, lambda z: z, 0, Z4, 3, 24),
    "cos32": lambda: fit("cos32", COS, lambda z: z * z, 0, Z4, 3, 24),
    "tan32": lambda: fit("tan32", TAN, lambda z: z, 0, Z4, 7, 24),
    "asin32": lambda: fit("asin32", ASIN, lambda z: z, 0, 0.25, 5, 24),
    "atan32": lambda: fit("atan32", ATAN, lambda z: z, 0, T8, 5, 24),
    "expf32": lambda: polish("expf32", EG, lambda r: abs(r) / exp(r), -LH, LH, 6),
    "exps32": lambda: polish("exps32", EG, lambda r: abs(r) / exp(r), -LH, LH, 5),
    # for |a| = n ln 2 / 2 + r
    "tanh32": lambda: polish("tanh32", ET, lambda r: 1 / ET(r), -LH / 2, LH / 2, 6),
    "sinh32": lambda: fit("sinh32", SINH, lambda z: z, 0, 1, 4, 24),
    "erf32": lambda: fit("erf32", ERF1, one, 0, mpf("0.95") ** 2, 7, 24),
    # erf(t) = 1 - exp2(q(t)), t from 0.93 to 4
    "erfc32": lambda: fit("erfc32", lambda t: log(erfc(t), 2), lambda t: log(2) * erfc(t) / erf(t), "0.92", "4.1", 8, 24),
    "gelu32": lambda: fit("gelu32", gelu_tail(mpf("3.5")), lambda u: 1 / gelu_tail(mpf("3.5"))(u), -1, mpf("12.5") / mpf("19.5"), 10, 24),
    "gelu_slope32": lambda: ratio("gelu_slope32", upper_tail, slope_weight, from_zero(mpf(15), 2, 440), 4, 4, 24, 1.25),
    "exp2s_32": lambda: fit("exp2s_32", E2, lambda r: abs(r) / mpf(2) ** r, -0.5, 0.5, 5, 24),
    # f64 helpers of f32 functions
    "log2_32d": lambda: fit("log2_32d", LS, lambda z: z, 0, LSMAX, 4, 53),
    "exp2_32d": lambda: fit("exp2_32d", E2, lambda r: abs(r) / mpf(2) ** r, -0.5, 0.5, 7, 53),
    "atan32d": lambda: fit("atan32d", ATAN, lambda z: z, 0, T8, 6, 53),
    # f64
    "exp64": lambda: fit("exp64", E, lambda r: r * r / exp(r), -LH, LH, 11, 53),
    "exp2_64": lambda: fit("exp2_64", E2, lambda r: abs(r) / mpf(2) ** r, -0.5, 0.5, 12, 53),
    "log64": lambda: fit("log64", LS, lambda z: z, 0, LSMAX, 8, 53),
    "pow64": lambda: fit("pow64", LS5, lambda z: z * z, 0, LSMAX, 9, 53),
    "sin64": lambda: fit("sin64", SIN, lambda z: z, 0, Z4, 7, 53),
    "cos64": lambda: fit("cos64", COS, lambda z: z * z, 0, Z4, 7, 53),
    "tan64": lambda: fit("tan64", TAN, lambda z: z, 0, Z4, 16, 53),
    "asin64": lambda: fit("asin64", ASIN, lambda z: z, 0, 0.25, 13, 53),
    "atan64": lambda: fit("atan64", ATAN, lambda z: z, 0, T8, 12, 53),
    "sinh64": lambda: fit("sinh64", SINH, lambda z: z, 0, 1, 8, 53),
    "erf64": lambda: fit("erf64", ERF1, one, 0, 1, 14, 53),
    # erfc(x) = exp(-x^2) / x-free factor: g(u) with u = (x - 2.5) / (x + 2.5), x from 1 to 6
    "erfc64": lambda: fit("erfc64", lambda u: (lambda x: erfc(x) * exp(x * x))(mpf("2.5") * (1 + u) / (1 - u)),
                          lambda u: mpf(1), (1 - mpf("2.5")) / (1 + mpf("2.5")), (6 - mpf("2.5")) / (6 + mpf("2.5")), 17, 53),
    "gelu64": lambda: fit("gelu64", gelu_tail(mpf(4)), lambda u: 1 / gelu_tail(mpf(4))(u), -1, mpf(36) / 44, 24, 53),
    "gelu_slope64": lambda: ratio("gelu_slope64", upper_tail, slope_weight, from_zero(mpf(39), 3, 840), 9, 10, 53, 1),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FITS:
        FITS[name]()
