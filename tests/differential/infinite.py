#!/usr/bin/env python3
"""Random programs of control flow (flow.py) whose numbers become infinite, and whose gradients multiply plainly: products of matrices, running
products and rules of custom_grad, in arms, loops, conditions and functions. What the result does not depend on has no cotangent, and so no nan.
They are run and compared as those of control.py, whose options these are:

  infinite.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind grad] [--mode NAME] ...
"""
import random
import re
import sys

import control
from flow import Expression, Program, Statement

# Of two vectors, v and w.
GROWN = ["{v} * 1e30", "{v} * max(abs({v})) * 100.0", "{v} * {v} * {w}", "{v} * inf"]
PLAIN = ["{w} * (stack(({v}, {w})) @ {v})[-1]", "{v} * (stack(({w}, {v})) @ {w})[0]", "cumprod({v})", "ruled({v})", "again({v})"]


class Infinite(Program):
    def __init__(self, seed, kind):
        self.luck = random.Random(seed * 13 + 5)
        super().__init__(seed, kind)
        rules = ["let ruled = custom_grad(fn(v) v * v * 0.5, fn(ct, v) ct * v)", "let again = checkpoint(fn(v) cumprod(v) * 3.0)"]
        self.top.statements[:0] = [Statement(text, fixed=True) for text in rules]

    def statement(self, depth):
        out = super().statement(depth)
        if self.luck.random() < 0.4:
            out += self.multiplied()
        return out

    def multiplied(self):
        v, w, name = self.leaf("V"), self.leaf("V"), self.variable("V", True)
        text = self.luck.choice(self.luck.choice([GROWN, PLAIN]))
        operands = [v if place == "{v}" else w for place in re.findall("{[vw]}", text)]
        text = re.sub("{[vw]}", "{}", text)
        if name and self.luck.random() < 0.7:
            return [Statement(f"{name} = {text}", *operands)]
        name = self.fresh("V")
        self.declare(name, "V")
        return [Statement(f"let {name} = {text}", *operands)]


if __name__ == "__main__":
    sys.exit(control.main(control.Suite(Infinite, ("grad", "grad", "vmap"), control.MODES, control.TURNS), __doc__))
