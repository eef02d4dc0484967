#!/usr/bin/env python3
"""Random functions with sizes that data decide: parts of arrays as long as a number that is made of them, lists of as many items, in arms of branches on
these numbers, in turns of loops, behind early returns and in functions that are called. Each is called with data of which other numbers are made, 0 and
numbers that fit nothing among them. Output, values, errors and their traces are compared. They are run as those of control.py, whose options these are:

  data_sizes.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--mode NAME] ...
"""
import random
import sys

import control
from control import HOT, VM
from flow import Block, Expression, Statement

NUMBERS = ["int(sum(x > {c}))", "int(argmax(x))", "int(x[0])", "int(sum(x > {c})) - {k}", "int(sum(w)) // 4", "len(l)", "o.shape[0]", "(n + m) // 2", "min((n, {k}))",
           "max((m - n, 0))", "n", "m", "n - 1", "int(max(x)) % 5", "int(sum(x)) % 7", "{k}", "n + {k}"]
PARTS = ["x[:n]", "x[n:]", "x[n:m]", "x[:m]", "w[:n]", "w[n:] * 2", "x[:n - {k}]", "x[m:n]", "o[:n]", "o[1:]", "zeros(n)", "arange(m) * 0.5", "x[::2]", "x", "x[-n:]",
         "ones(n) * x[1]", "w[:m] + 1", "o * 2", "sort(x[:n])", "cumsum(x[:m])", "x[:n] + arange(n)", "concat((x[:n], w[m:]))", "reshape(zeros(n, 2), 2 * n)", "x[:len(l)]"]
ITEMS = ["max({o})", "sum({o})", "mean({o})", "min({o})", "{o}[0]", "{o}[-1]", "argmax({o})", "sum({o} * {o})", "{o}.shape[0]", "sum(softmax({o}))", "{o}[n]", "var({o})",
         "sum({o} @ {o})", "sum(stack(l))", "l[0]", "sum(l[:n])", "n * 1.0", "m", "sum(cumsum({o}))", "sum(outer({o}, {o}))", "sum({o}[1:] - {o}[:-1])", "l[-1]", "max(stack(l))",
         "sum(where({o} > 1, {o}, 0))", "sum(vmap(fn(v) v * v)({o}))", "sum(map({o}, fn(v) v + 1))", "sum(x) * 0.5", "0.5"]
TESTS = ["n {is} {k}", "m {is} {k}", "n {is} m", "o.shape[0] {is} {k}", "len(l) {is} {k}", "sum(x) {is} {c}", "n {is} {k} and m {is} {k}", "n {is} {k} or sum(x) {is} {c}",
         "not (n {is} m)", "len(o) > 0 and {item} > {c}", "x[n] > {c}", "s {is} {c}", "o.shape[0] {is} m", "min((n, m)) {is} {k}", "n - {k} {is} m", "int(s) % 3 == 1"]
DATA = [[0] * 8, [1] * 8, [5, 3, 1, 0, 2, 4, 6, 7], [-3, 2, -1, 4, 0, 1, 1, 2], [8, 7, 6, 5, 4, 3, 2, 1], [2, 2, 5, 0, 0, 9, 1, 3], [-9, -8, -7, 1, -1, 0, 0, 0], [3, 1, 4, 1, 5, 9, 2, 6],
        [0, 0, 0, 0, 0, 0, 0, 5], [1, -1, 1, -1, 1, -1, 1, -1], [4, 4, 4, 4, -4, -4, -4, -4], [100, 2, 3, 4, 5, 6, 7, 8]]


class DataSizes:
    def __init__(self, seed, kind):
        self.random = r = random.Random(seed)
        self.called = r.random() < 0.3
        body = [Statement(f"let n = {self.filled(NUMBERS[:5])}", fixed=True), Statement("let m = {}", Expression("K", self.filled(NUMBERS[:5])), fixed=True),
                Statement("let s = {}", Expression("S", r.choice(("0.0", "x[1]", "0.0", "sum(w)")))), Statement("let l = ()", fixed=True), Statement("let o = {}", Expression("V", self.filled(PARTS[:8]).replace("o[", "x[")))]
        body += self.block(3, r.randint(2, 5))
        body += [self.returned()]
        top = [Statement("fn f(x, w) {}", Block(body), fixed=True)]
        call = "f"
        if self.called:
            top.append(Statement("fn g(x, w) { let s = 0.0; for i in 0..3 { s = s + sum(f(x + i, w)) }; s }" if r.random() < 0.5 else
                                 "fn g(x, w) { let y = f(x, w); if sum(y) > 2 { y * 2 } else { y } }", fixed=True))
            call = "g"
        data = ", ".join(str([v + r.choice((0, 0, 0, 0.5)) for v in d]) for d in r.sample(DATA, len(DATA)))
        dtype = r.choice(("f32", "f32", "f64", "i32"))
        shown = "(e.id, e.message, map(e.trace, fn(t) (t.function, t.line, t.column)))"
        top.append(Statement(f"for d in ({data}) {{ print(try {{ {call}({dtype}(d), f32([1, 5, 0, 2, 1, 3, 2, 2])) }} catch e {{ {shown} }}) }}", fixed=True))
        if r.random() < 0.5:
            top.append(Statement(f"for d in ({data}) {{ print(try {{ {call}({dtype}(d), f32([1, 0, 0, 1, 0, 0, 2, 1])) }} catch e {{ {shown} }}) }}", fixed=True))
        self.top = Block(top)

    def text(self):
        return "\n".join(self.top.lines(0)) + "\n"

    def filled(self, texts):
        r = self.random
        text = r.choice(texts)
        if "{item}" in text:
            text = text.replace("{item}", r.choice(ITEMS))
        return text.format(c=r.choice((0, 1, 2, 3, 5)), k=r.choice((0, 1, 2, 3, 4)), o=r.choice(("o", "o", "x[:n]", "x[n:]", "x[:m]", "w[:n]")), **{"is": r.choice(("==", "!=", "<", ">", "<=", ">="))})

    def item(self):
        return Expression("S", self.filled(ITEMS))

    def returned(self):
        return Statement("return {}", Expression("S", self.filled(self.random.choice((ITEMS, ITEMS, PARTS, ["s", "s", "(s, o)", "(n, s)"])))), fixed=True)

    def block(self, depth, n):
        return [self.statement(depth) for _ in range(n)]

    def statement(self, depth):
        r = self.random
        pick = r.random()
        if depth and pick < 0.30:
            test = Expression("C", self.filled(TESTS))
            if r.random() < 0.6:
                return Statement("if {} {} else {}", test, Block(self.block(depth - 1, r.randint(1, 2))), Block(self.block(depth - 1, r.randint(1, 2))))
            return Statement("if {} {}", test, Block(self.block(depth - 1, r.randint(1, 2))))
        if depth and pick < 0.36:
            return Statement("if {} {}", Expression("C", self.filled(TESTS)), Block([self.returned()]))
        if depth and pick < 0.48:
            head = r.choice(("for i in 0..4 {}", "for i in 0..n {}", "for i in 0..8 {}", "for v in x {}", "for i in 0..o.shape[0] {}"))
            inner = self.block(depth - 1, 1)
            if "i" in head[:5] and r.random() < 0.4:
                inner.append(Statement(r.choice(("if n > i { s = s + max(x[:n - i]) }", "s = s + sum(x[i:n])", "if x[i] > 1 { l = append(l, x[i] * 2.0) }", "if i < n { s = s + w[i] }",
                                                 "if m > i { o = x[:m - i] }"))))
            return Statement(head, Block(inner))
        if depth and pick < 0.52:
            return Statement("let k{} = 0; while k{} < 3 {{ k{} = k{} + 1; s = s + {} }}".replace("{}", "0", 4), self.item())
        if pick < 0.60:
            return Statement("for i in 0..8 { if x[i] > {} { l = append(l, {}) } }".replace("{}", str(r.choice((0, 1, 2, 4))), 1).replace("{}", r.choice(("x[i] * 2.0", "x[i]", "w[i] + x[i]", "s"))))
        if pick < 0.70:
            return Statement("n = {}", Expression("K", self.filled(NUMBERS)))
        if pick < 0.80:
            return Statement("o = {}", Expression("V", self.filled(PARTS)))
        if pick < 0.84:
            return Statement('print("n {n} {s}")')
        if pick < 0.87:
            return Statement("try {{ s = s + {} }} catch e {{ s = s - 1 }}", self.item())
        return Statement("s = s + {}", self.item())


MODES = {
    "at_once": ["--jit", "sync", "--set", "jit.hot=1", *VM],
    "second": ["--jit", "sync", *HOT, "--set", "jit.unroll=8", *VM],
    **{name: control.MODES[name] for name in ("verify", "on", "no_unrolling", "no_regions")},
}
TURNS = ("second", "at_once", "on", "second", "no_unrolling", "at_once", "verify", "second")

if __name__ == "__main__":
    sys.exit(control.main(control.Suite(DataSizes, ("plain",), MODES, TURNS), __doc__))
