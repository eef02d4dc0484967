#!/usr/bin/env python3
"""Random programs of control flow that draw random numbers (flow.py): in arms, loops, conditions, functions and gradients; some call seed. They are run and compared as those of control.py, whose options these are:

  draws.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--mode NAME] ...

Behind each call the next number is printed, so that the state is compared that it has left. Where slopes are compared with differences, the
function begins with a seed, so that all its calls draw alike. There are no lanes: whether arms are run for some lanes of a vmap, and so how often
they draw, is not the same in all modes. But jacobians and hessians, and cotangents in lanes, share what the function itself has drawn.
"""
import random
import re
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
                elif s.text.startswith("fn g(") and seed >= 930_000_000:  # (programs of smaller seeds stay as they are)
                    s.text = self.in_lanes(s.text)
        self.top.statements = [Statement(f"seed({seed})", fixed=True)]
        for s in statements:
            self.top.statements.append(s)
            if s.text.startswith(("for _ in", "try")):
                self.top.statements.append(Statement("print(rand())", fixed=True))

    def in_lanes(self, text):
        """The derivative that is printed becomes one whose cotangents or tangents are lanes."""
        found, at = re.match(r"fn g\((.*?)\) = ", text), re.search(r"wrt: (\d+)", text)
        if not found or not at or self.luck.random() < 0.2:
            return text
        names, k = found.group(1).split(", "), at.group(1)
        by, given = names[int(k)], ", ".join(names)
        return found.group(0) + self.luck.choice([
            f"jacobian(f, wrt: {k})({given})",
            f"jacobian(fn(p) 0.5 * p * s({', '.join('p' if n == by else n for n in names)}))({by})",
            f"hessian(s, wrt: {k})({given})",
            f"jacobian(fn({given}) grad(s, wrt: {k})({given}) * s({given}), wrt: {k})({given})",
            f"{{ let (_y, p) = vjp(fn(p) s({', '.join('p' if n == by else n for n in names)}), {by}); vmap(fn(c) p(c))(f64([1.0, -0.5, 2.0])) }}",
        ])

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
