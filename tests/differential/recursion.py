#!/usr/bin/env python3
"""Random functions that call themselves, once on each way: they print, draw random numbers, fail and ask for what ends a recording, on the way down, at
the end or on the way back. Output, errors and their traces are compared. They are run as those of control.py, whose options these are:

  recursion.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--mode NAME] ...
"""
import random
import sys

import control
from control import HOT, VM
from flow import Block, Expression, Statement

TESTS = ["len(v[v > {c}]) {is} {k}", "mean(v) > {c}", "n <= 0", "sum(v) {is} {c}", "n >= {k}", '"{{max(v)}}" == "3.0"', "int(sum(v)) % 5 == {k}"]
DONE = ['print("n {{n}}")', "print(sum(v) > {c})", "v = v + rand() * 0.0", "let q = nonzero(v)", 'print("mean {{mean(v)}}")', 'assert(sum(v) < {c}0, "large")',
        "let z = v[int(sum(v)) % 4]", "let u = v[v > {k}]", "for i in 0..2 {{ v = v * 1.0 }}", "w = w * 1"]
ENDS = ["w + v", "v[7]", "v * 2", "stack((v, w))", 'error("end {n}")', "v[:2] + w"]
ARGUMENTS = ["v * 0.5", "v * -1.0", "v + 1", "v * rand()", "v - n", "v[:] * 0.9"]
BACK = ["r + 1", "r[1:]", "r + w", "if len(r[r > 2]) > 1 { r + w } else { r }"]
GIVEN = ["ones(4) * 10", "arange(4) + 0.5", "zeros(4)", "zeros(0, dtype: i64)"]


class Recursion:
    def __init__(self, seed, kind):
        self.random = r = random.Random(seed)
        self.step = r.choice(("- {}", "+ {}"))  # all calls go one way, so that there is an end
        body = self.done(2) + [self.ends(self.test(), self.done(1)) for _ in range(r.randint(1, 2))]
        body.insert(r.randint(0, len(body)), self.ends("n < -4 or n > 12", [], fixed=True))
        body += self.done(2) + r.choice((self.tail, self.arms, self.returns, self.within))()
        called, beyond = "f", []
        if r.random() < 0.5:  # what the recording of another function ends with
            called, beyond = "g", [Statement("fn g(v, w, n) { let y = f(v, w, n); if any(y >= 2) { 1 } else { 0.5 } }", fixed=True)]
        numbers = ", ".join(str(r.choice((0, 1, 2, 3, 4, 6, 8))) for _ in range(6))
        call = f"{called}({r.choice(GIVEN)}, {r.choice(('i64([-3, 1])', 'ones(4)'))}, n)"
        shown = "(e.id, e.message, map(e.trace, fn(t) (t.function, t.line, t.column)))"
        calls = Statement(f"for n in ({numbers}) {{ seed(n); print(try {{ {call} }} catch e {{ {shown} }}); print(rand()) }}", fixed=True)
        self.top = Block([Statement("fn f(v, w, n) {}", Block(body), fixed=True), *beyond, calls])

    def text(self):
        return "\n".join(self.top.lines(0)) + "\n"

    def filled(self, texts):
        r = self.random
        return r.choice(texts).format(c=r.choice((0, 1, 2, 3, 5, 10)), k=r.choice((0, 1, 2, 3)), **{"is": r.choice(("==", "<", ">="))})

    def test(self):
        return self.filled(TESTS)

    def done(self, most):
        return [Statement(self.filled(DONE)) for _ in range(self.random.randint(0, most))]

    def ends(self, test, before, fixed=False):
        last = Statement(f"return {self.random.choice(ENDS)}", fixed=True)
        return Statement("if {} {}", Expression("C", test), Block([*before, last]), fixed=fixed)

    def call(self):
        return f"f({self.random.choice(ARGUMENTS)}, w, n {self.step.format(self.random.choice((1, 1, 2)))})"

    def tail(self):
        return [Statement(self.call(), fixed=True)]

    def arms(self):
        return [Statement("if {} {} else {}", Expression("C", self.test()), *(Block(self.done(1) + self.tail()) for _ in range(2)))]

    def returns(self):
        seen = Statement(self.filled(DONE).replace("v", "r")) if self.random.random() < 0.5 else Statement('print("back {n}")')
        return [Statement(f"let r = {self.call()}", fixed=True), seen, Statement(self.random.choice(BACK), fixed=True)]

    def within(self):
        return [Statement(f"{self.call()} * {self.random.choice(('2', 'rand()', 'n'))}", fixed=True)]


MODES = {
    "at_once": ["--jit", "sync", "--set", "jit.hot=1", *VM],
    "second": ["--jit", "sync", *HOT, "--set", "jit.unroll=8", *VM],
    **{name: control.MODES[name] for name in ("verify", "on", "no_unrolling", "no_regions")},
}
TURNS = ("second", "verify", "on", "second", "no_unrolling", "no_regions")

if __name__ == "__main__":
    sys.exit(control.main(control.Suite(Recursion, ("plain",), MODES, TURNS), __doc__))
