#!/usr/bin/env python3
"""Random programs of control flow (flow.py) whose loops run outside recordings: in a function that begins with what no
capture holds. So their turns are calls, and hot loops are handed over many turns at once. Arguments and what is required are those of control.py."""
import sys

from control import LOOPS, VM, Suite, main
from flow import Expression, Program, Statement

TURNS = ["--set", "jit.hot=2", "--set", "jit.turns=1", "--set", "jit.segments=0"]
MODES = {
    "loops": ["--jit", "sync", *TURNS, *LOOPS, *VM],
    "few": ["--jit", "sync", *TURNS, *LOOPS, *VM, "--set", "jit.run=2"],
    "verify": ["--jit", "verify", *TURNS, *LOOPS, *VM],
    "on": ["--jit", "on", *TURNS, *LOOPS, *VM],
    "compiled": ["--jit", "sync", *TURNS, *LOOPS, "--threads", "2"],
}


class Outside(Program):
    def __init__(self, seed, kind):
        super().__init__(seed, kind)
        statements = [Statement("let given = nil")]
        for s in self.top.statements:
            if s.text.startswith("fn f("):
                names = s.text[s.text.index("(") + 1:s.text.index(")")]
                s.text = "fn f() {}"
                s.parts[0].statements.insert(0, Statement(f"let ({names},) = nojit(fn() given)()", fixed=True))
            statements += self.lifted(s)
        self.top.statements = statements

    def lifted(self, s):
        """In place of a loop of calls f(...), these calls one after the other."""
        if not s.text.startswith("for _ in 0.."):
            return [s]
        call = s.parts[0].statements[0]
        values = call.parts[0].text[2:-1]
        one = [Statement(f"given = ({values},)", fixed=True), Statement(call.text, Expression("?", "f()"), fixed=True)]
        return one * int(s.text[12])

    def make_plain(self):
        super().make_plain()
        # (a loop around calls would be one whose turns are recorded)
        self.top.statements = [s for s in self.top.statements if "state" not in s.text and not s.text.startswith("try {}")]


if __name__ == "__main__":
    sys.exit(main(Suite(Outside, ("plain",), MODES, ("few", "verify", "on", "loops", "compiled", "few")), __doc__))
