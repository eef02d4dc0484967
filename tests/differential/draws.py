#!/usr/bin/env python3
"""Random programs of control flow that draw random numbers (flow.py): in arms, loops, conditions, functions and gradients; some call seed. They are run and compared as those of control.py, whose options these are:

  draws.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--mode NAME] ...

Behind each call the next number is printed, so that the state is compared that it has left. Where slopes are compared with differences, the
function begins with a seed, so that all its calls draw alike. There are no lanes: whether arms are run for some lanes of a vmap, and so how often
they draw, is not the same in all modes.
"""
import random
import sys

import control
from flow import Expression, Program, Statement


class Drawing(Program):
    def __init__(self, seed, kind):
        self.luck = random.Random(seed * 11 + 3)
        super().__init__(seed, kind)
        statements = self.top.statements
        if kind == "grad":
            for s in statements:
                if s.text.startswith("fn s("):
                    s.text = s.text.replace("= ", "{ seed(7); ", 1) + " }"
        self.top.statements = [Statement(f"seed({seed})", fixed=True)]
        for s in statements:
            self.top.statements.append(s)
            if s.text.startswith(("for _ in", "try")):
                self.top.statements.append(Statement("print(rand())", fixed=True))

    def leaf(self, type):
        x = self.luck.random()
        if type == "S" and x < 0.12 and self.scopes:
            return Expression("S", self.luck.choice(["rand()", "randn()", "rand(dtype: f64)"]))
        if type == "C" and x < 0.3:
            return Expression("C", self.luck.choice(["rand() < 0.5", "rand() < 0.8", "randn() > 0"]))
        return super().leaf(type)

    def make_C(self, d):
        if self.luck.random() < 0.25:
            return Expression("C", self.luck.choice(["rand() < 0.5", "randn() > 0.3", "bool(bernoulli(0.7))", "randint(0, 3) == 1"]))
        return super().make_C(d)

    def statement(self, depth):
        out = super().statement(depth)
        if self.luck.random() < 0.3:
            out += self.drawn()
        return out

    def drawn(self):
        v, name = self.leaf("V"), self.variable("V", True)
        if self.luck.random() < 0.07:
            return [Statement("seed({})", self.leaf("I"))]
        text = self.luck.choice(["{} + rand(len({}))", "{} * randn(len({}))", "where(rand(len({})) < 0.5, {}, 0)", "{}[permutation(len({}))]",
                                 "{} + randint(-2, 3, len({}))"])
        if name and self.luck.random() < 0.6:
            return [Statement(f"{name} = {text}", v, v)]
        name = self.fresh("V")
        self.declare(name, "V")
        return [Statement(f"let {name} = {text}", v, v)]


if __name__ == "__main__":
    sys.exit(control.main(control.Suite(Drawing, ("plain", "plain", "grad"), control.MODES, control.TURNS), __doc__))
