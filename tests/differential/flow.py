"""Random Quern programs of control flow, for control.py: branches, loops, early ends, errors, closures and effects around arrays.

A program is a tree: statements (`Statement`) with expressions (`Expression`) and blocks in them, which are typed while they are made, so
that most programs run, and which can be taken apart afterwards, so that failing ones become short (`smaller`). Nothing here knows what a
program should do: `--jit off` says that.

Types are letters:

  V  float array of the length of the first argument     M  matrix, its rows like V            S  array of rank 0
  K  integer array of rank 0                             N  host float                         I  host int
  C  condition: bool, or array of one element            R  record {a: V, b: S, n: I}          L  list (V, V)
  Q  list that grows, of S                               T  text

Kinds of programs:

  plain   calls of a function with several sets of arguments, of other data, sizes and dtypes, and loops at the top level
  grad    a scalar function of f64; gradients of it in several forms, and slopes by differences, which control.py compares
  vmap    a function in lanes, and in a loop over them, whose results must be the same

Every program draws which features it has at all, so that many can be captured whole, and some hardly anywhere. All loops end: a `while`
has a counter that nothing else changes, or divides what it looks at, and the number of turns of all loops together is bounded.
"""
import random

TURNS = 400  # of innermost loops in a call, at most


def is_operand(text):
    """Does an operator or index beside it take all of the text?"""
    depth, quoted = 0, False
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        if not quoted and depth == 0 and (c in " -" or i == 0 and c == "-"):
            return False
        depth += 0 if quoted else (c in "([{") - (c in ")]}")
    return True


def fill(text, parts):
    """Texts in the places of `{}`, in parentheses where an operator, an index or a field is beside them."""
    shown, pieces = [], text.split("{}")
    for part, before, after in zip(parts, pieces, pieces[1:]):
        beside = (before.rstrip()[-1:] or " ") in "+-*/%@.<>=!" and not before.endswith("= ") or (after.lstrip()[:1] or " ") in "+-*/%@.[<>=!"
        shown.append(f"({part})" if beside and not is_operand(part) else part)
    return text.format(*shown)


class Expression:
    """Text with `{}` where other expressions stand; parentheses are written where they are needed."""

    def __init__(self, type, text, *parts):
        self.type, self.text, self.parts = type, text, list(parts)

    def show(self):
        if not self.parts:
            return self.text
        return fill(self.text, [p.show() for p in self.parts])


class Block:
    def __init__(self, statements=()):
        self.statements = list(statements)

    def lines(self, indent):
        return [line for s in self.statements for line in s.lines(indent)]


class Statement:
    """Text with `{}` where expressions and blocks stand. One that is `fixed` is no statement to leave out, as the step of a loop's counter."""

    def __init__(self, text, *parts, fixed=False):
        self.text, self.parts, self.fixed = text, list(parts), fixed

    def lines(self, indent):
        pad, filled = "  " * indent, []
        for p in self.parts:
            inner = p.lines(indent + 1) if isinstance(p, Block) else None
            filled.append(p.show() if inner is None else "{\n" + "".join(line + "\n" for line in inner) + pad + "}")
        return (pad + (fill(self.text, filled) if filled else self.text)).split("\n")


# Features of which a program has some: (name, how often)
FEATURES = (("print", 0.3), ("read", 0.35), ("error", 0.3), ("try", 0.3), ("return", 0.4), ("leave", 0.5), ("closure", 0.5), ("record", 0.5), ("list", 0.4),
            ("grow", 0.3), ("matrix", 0.5), ("store", 0.5), ("integer", 0.6), ("while", 0.7), ("for", 0.8), ("if", 0.9), ("retype", 0.25), ("random", 0.08),
            ("text", 0.15), ("recursion", 0.2), ("global", 0.3), ("host", 0.7), ("slice", 0.5), ("odd", 0.15), ("helpers", 0.6))

TWICE_WITHOUT = [("if", 0.8), ("leave", 0.9), ("return", 0.9), ("try", 0.9), ("while", 0.8), ("read", 0.7), ("matrix", 0.3)]
SMOOTH = ["tanh({})", "sin({})", "cos({}) * 0.5", "{} / (abs({}) + 1)", "exp(clip({}, -2.0, 1.0))", "sqrt(abs({}) + 0.5)", "arctan({})", "-{}", "sigmoid({})"]


class Program:
    def __init__(self, seed, kind):
        self.random = r = random.Random(seed * 3 + {"plain": 0, "grad": 1, "vmap": 2, "twice": 1}[kind])
        self.twice, kind = kind == "twice", "grad" if kind == "twice" else kind
        self.kind = kind
        self.has = {name for name, chance in FEATURES if r.random() < chance}
        if kind == "plain" and random.Random(seed * 7 + 1).random() < 0.35:  # its own numbers: programs of older seeds stay as they were
            self.has.add("step")
        self.own = random.Random(seed * 7 + 2)  # of what was added later
        self.derived = random.Random(seed * 7 + 5)  # of derivatives in lanes
        # of derivatives of lanes (programs of smaller seeds, which tests/corpus.txt has, stay as they are)
        self.outside = random.Random(seed * 7 + 6) if seed >= 250_000_000 else None
        # of chains of unlike arms
        chains = seed >= 620_000_000 if kind == "grad" else kind == "plain" and (400_200_000 <= seed < 400_300_000 or seed >= 410_000_000)
        self.chains = random.Random(seed * 7 + 8) if chains else None
        if self.chains and self.chains.random() < 0.6:
            self.chains = None
        if kind == "plain" and self.own.random() < 0.5:
            self.has |= {"words", "spans", "asks"}
        if (kind == "plain" or (kind == "grad" and seed >= 620_000_000)) and random.Random(seed * 7 + 3).random() < 0.4:
            self.has.add("unlike")
        self.calls = random.Random(seed * 11 + 5) if 660_000_000 <= seed < 670_000_000 or seed >= 700_000_000 else None  # (likewise)
        self.results = random.Random(seed * 11 + 9) if seed >= 1_430_000_000 and not self.twice else None  # of calls with unlike results (likewise)
        self.unlikes = []  # functions that give such, and what uses a call of them: a number
        self.lists = random.Random(seed * 11 + 3) if seed >= 400_400_000 else None  # (likewise)
        if seed >= 400_000_000 and not self.twice and random.Random(seed * 7 + 8).random() < 0.5:
            self.has.add("kinds")
        if seed >= 402_000_000 and not self.twice and random.Random(seed * 7 + 9).random() < 0.5:
            self.has |= {"step", "chosen"}
        # (programs of smaller seeds, which tests/corpus.txt has, stay as they are)
        if kind == "plain" and seed >= 140_000_000 and random.Random(seed * 7 + 4).random() < 0.5:
            self.has |= {"try", "refuse"}
        if kind != "plain":
            self.has -= {"print", "random", "text", "odd", "global"} | ({"error", "retype"} if kind == "grad" else set())
        if kind != "vmap" and seed >= 500_000_000 and random.Random(seed * 7 + 8).random() < 0.4:
            self.has |= {"try", "refuse", "assert"}
        if self.twice:  # mostly of what is captured inside two gradients
            own = random.Random(seed * 7 + 6)
            # (programs of smaller seeds, which tests/corpus.txt has, stay as they are)
            without = TWICE_WITHOUT if seed < 400_600_000 else [(name, {"if": 0.2, "return": 0.7}.get(name, chance)) for name, chance in TWICE_WITHOUT]
            self.has -= {name for name, chance in without if own.random() < chance}
            self.has |= {"for"}
        # of derivatives of second derivatives, and of loops in loops inside of these (likewise)
        self.deeper = random.Random(seed * 7 + 10) if self.twice and seed >= 614_000_000 else None
        self.laned = random.Random(seed * 7 + 11) if self.twice and seed >= 618_000_000 else None
        if kind == "vmap":
            self.has -= {"read", "try"} if r.random() < 0.9 else set()
        self.counter = 0
        self.scopes = []      # of the function that is being made: lists of (name, type, may be assigned)
        self.turns = 1        # of the loops around the present place, multiplied
        self.loops = 0        # of the present function, around the present place
        self.result = None    # the type of what the function returns
        self.functions = []   # (name, parameter types, result type, turns)
        self.budget = 0       # statements that may still be made
        self.in_lambda = False
        self.top = Block()
        {"plain": self.make_plain, "grad": self.make_grad, "vmap": self.make_vmap}[kind]()

    def text(self):
        return "\n".join(self.top.lines(0)) + "\n"

    # ---- names -------------------------------------------------------------------------------------------------------------
    def fresh(self, letter):
        self.counter += 1
        return f"{letter.lower()}{self.counter}"

    def declare(self, name, type, assigned=True):
        self.scopes[-1].append((name, type, assigned))

    def variables(self, type, assigned=False):
        return [n for scope in self.scopes for n, t, a in scope if t == type and (a or not assigned)]

    def variable(self, type, assigned=False):
        """A variable's name, the newer the likelier; None if there is none."""
        fit = self.variables(type, assigned)
        return fit[max(0, len(fit) - 1 - int(self.random.expovariate(0.5)))] if fit else None

    def chance(self, feature, p):
        return feature in self.has and self.random.random() < p

    # ---- expressions ---------------------------------------------------------------------------------------------------------
    def leaf(self, type):
        r = self.random
        name = self.variable(type)
        if name and r.random() < 0.9:
            return Expression(type, name)
        if type == "N":
            return Expression("N", r.choice(["0.5", "1.5", "2.0", "0.25", "-1.0", "0.1", "3.0"]))
        if type == "I":
            return Expression("I", str(r.choice([0, 1, 1, 2, 2, 3, 4, 5, -1, 7])))
        if type == "T":
            return Expression("T", r.choice(['"a"', '"text"', '""']))
        if type == "C":
            return Expression("C", "{} > {}", self.leaf("S"), self.leaf("N"))
        if type == "S":
            vector = self.variable("V")
            if vector:
                return Expression("S", r.choice(["sum({})", "{}[0]", "mean({})", "max({})", "{}[-1]"]), Expression("V", vector))
            return Expression("S", r.choice(["f32(1.5)", "f32(-0.5)"]) if self.kind != "grad" else "f64(0.5)")
        if type == "K":
            return Expression("K", r.choice(["i64(3)", "i64(0)", "i64(7)"])) if r.random() < 0.3 else Expression("K", "sum({} > {})", self.leaf("V"), self.leaf("N"))
        if type == "V":
            if name:
                return Expression("V", name)
            return Expression("V", "f32([1.0, -2.0, 0.5])" if self.kind != "grad" else "f64([1.0, -2.0, 0.5])")
        if type == "M":
            return Expression("M", name) if name else Expression("M", "stack(({}, {}))", self.leaf("V"), self.leaf("V"))
        if type == "R":
            return Expression("R", "({{a: {}, b: {}, n: {}}})", self.leaf("V"), self.leaf("S"), self.leaf("I"))
        if type == "L":
            return Expression("L", "({}, {})", self.leaf("V"), self.leaf("V"))
        if type == "Q":
            return Expression("Q", name) if name else Expression("Q", "({},)", self.leaf("S"))
        raise AssertionError(type)

    def make(self, type, depth):
        """An expression of a type."""
        r = self.random
        if type == "n":
            return Expression("n", "{} % 6", self.leaf("I"))
        if depth <= 0 or r.random() < 0.25:
            return self.leaf(type)
        d = depth - 1
        if type in "VSNIRLMK" and r.random() < 0.12:
            special = self.special(type, d)
            if special:
                return special
        return getattr(self, "make_" + type)(d)

    def special(self, type, d):
        """What gives any type: branches, attempts, calls."""
        r = self.random
        ways = []
        if "if" in self.has and not self.in_lambda:
            ways += ["if", "if"]
        if self.chance("try", 0.6):
            ways.append("try")
        fit = [f for f in self.functions if f[2] == type and f[3] * self.turns <= TURNS]
        if fit:
            ways += ["call"] * 3
        way = r.choice(ways) if ways else None
        if way == "if":
            return Expression(type, "(if {} {{ {} }} else {{ {} }})", self.make("C", d), self.make(type, d), self.make(type, d))
        if way == "try":
            return Expression(type, "(try {{ {} }} catch _e {{ {} }})", self.make(type, d), self.leaf(type))
        if way == "call":
            name, parameters, _, _ = r.choice(fit)
            return Expression(type, f"{name}(" + ", ".join("{}" for _ in parameters) + ")", *(self.make(t, d) for t in parameters))
        return None

    def make_V(self, d):
        r, V = self.random, lambda: self.make("V", d)
        ways = ["binary"] * 4 + ["number"] * 3 + ["scalar", "unary", "unary", "where", "clip"]
        ways += ["view"] * ("slice" in self.has) * 2 + ["row", "rows"] * ("matrix" in self.has) + ["closure"] * ("closure" in self.has)
        ways += ["record"] * bool(self.variables("R")) * 2 + ["list"] * bool(self.variables("L")) * 2
        way = r.choice(ways)
        if way == "binary":
            return Expression("V", r.choice(["({} + {})", "({} - {})", "{} * {}", "maximum({}, {})", "minimum({}, {})", "({} + {} * 0.5)"]), V(), V())
        if way == "number":
            return Expression("V", r.choice(["({} + {})", "{} * {}", "({} - {})", "maximum({}, {})"]), V(), self.make(r.choice("NNI") if "host" in self.has else "S", d))
        if way == "scalar":
            return Expression("V", r.choice(["({} + {})", "{} * {}", "({} - {})"]), V(), self.make("S", d))
        if way == "unary":
            text, v = r.choice(SMOOTH), V()
            return Expression("V", text, *[v] * text.count("{}"))
        if way == "where":
            return Expression("V", "where({} > {}, {}, {})", V(), self.make("N", d), V(), V())
        if way == "clip":
            return Expression("V", "clip({}, -8, 8)", V())
        if way == "view":
            v = V()
            text = r.choice(["{}[::-1]", "concat(({}[1:], {}[:1]))", "cumsum({}) * 0.25", "sort({})", "{} * 0"])
            return Expression("V", text, *[v] * text.count("{}"))
        if way == "row":
            m = self.make("M", d)
            return Expression("V", "{}[{}]", m, self.index(m, d) if r.random() < 0.6 else self.place(m, d))
        if way == "rows":
            return Expression("V", r.choice(["sum({}, axis: 0)", "mean({}, axis: 0)", "max({}, axis: 0)"]), self.make("M", d))
        if way == "closure":
            return self.closure(d)
        if way == "record":
            return Expression("V", "{}.a", self.make("R", d))
        return Expression("V", "{}[{}]", self.make("L", d), self.list_index(d))

    def list_index(self, d):
        r = self.random
        if "host" in self.has and r.random() < 0.4:
            return Expression("I", "{} % 2", self.make("I", d))
        return Expression("I", r.choice("01"))

    def index(self, array, d):
        """A host int within an array's first axis; now and then perhaps not."""
        r = self.random
        counters = self.variables("I")
        if counters and r.random() < (0.2 if "error" in self.has else 0.03):
            return Expression("I", r.choice(counters))
        if r.random() < 0.5:
            return Expression("I", r.choice(["0", "-1", "0", "len({}) - 1"]), array)
        return Expression("I", "{} % len({})", self.make("I", d), array)

    def place(self, array, d):
        """An array's element within an array's first axis; where errors are wanted perhaps not."""
        if "error" in self.has and self.random.random() < 0.3:
            return self.make("K", d)
        return Expression("K", "{} % len({})", self.make("K", d), array)

    def closure(self, d):
        """A vector by way of a function that is made on the spot."""
        r = self.random
        before, self.in_lambda = self.in_lambda, True
        self.scopes.append([("v", "V", False)])
        body = self.make("V", d)
        self.scopes.pop()
        self.scopes.append([("a", "V", False), ("b", "V", False)])
        two = self.make("V", min(d, 1))
        self.scopes.pop()
        self.in_lambda = before
        way = r.randrange(6)
        if way == 0:
            return Expression("V", "(fn(v) {})({})", body, self.make("V", d))
        if way == 1:
            return Expression("V", "map({}, fn(v) {})[{}]", self.make("L", d), body, self.list_index(d))
        if way == 2:
            return Expression("V", "fold({}, fn(a, b) {}, {})", self.make("L", d), two, self.make("V", d))
        if way == 3:
            return Expression("V", "({{f: fn(v) {}}}).f({})", body, self.make("V", d))
        if way == 4:
            return Expression("V", "twice(fn(v) {}, {})", body, self.make("V", d))
        return Expression("V", "tree_map(fn(v) {}, {})[0]", body, self.make("L", d))

    def make_S(self, d):
        r, V = self.random, lambda: self.make("V", d)
        ways = ["reduce"] * 4 + ["binary"] * 3 + ["number"] * 3 + ["unary", "item", "item", "dot", "where"]
        ways += ["part"] * ("slice" in self.has) + ["element", "row"] * ("matrix" in self.has) + ["record"] * bool(self.variables("R")) * 2 + ["last"] * bool(self.variables("Q")) * 2
        ways += ["integer"] * ("integer" in self.has)
        way = r.choice(ways)
        if way == "reduce":
            return Expression("S", r.choice(["sum({})", "mean({})", "max({})", "min({})", "max(abs({}))", "sum({} * 0.5)"]), V())
        if way == "binary":
            return Expression("S", r.choice(["({} + {})", "({} - {})", "{} * {}", "maximum({}, {})"]), self.make("S", d), self.make("S", d))
        if way == "number":
            return Expression("S", r.choice(["({} + {})", "{} * {}", "({} - {})"]), self.make("S", d), self.make(r.choice("NI") if "host" in self.has else "S", d))
        if way == "unary":
            text, s = r.choice(SMOOTH), self.make("S", d)
            return Expression("S", text, *[s] * text.count("{}"))
        if way == "item":
            v = V()
            return Expression("S", "{}[{}]", v, self.index(v, d) if r.random() < 0.7 or self.kind == "vmap" else self.place(v, d))
        if way == "dot":
            return Expression("S", "({} @ {}) * 0.125", V(), V())
        if way == "where":
            return Expression("S", "where({} > {}, {}, {})", self.make("S", d), self.make("S", d), self.make("S", d), self.make("S", d))
        if way == "part":
            return Expression("S", r.choice(["sum({}[{}:])", "sum({}[:{}])"]), V(), self.make("I", d))
        if way == "element":
            m = self.make("M", d)
            return Expression("S", "{}[{}, {}]", m, self.index(m, d), Expression("I", r.choice(["0", "-1"])))
        if way == "row":
            return Expression("S", r.choice(["sum(({} @ {})[-1:]) * 0.125", "max({} * {})"]), self.make("M", d), V())
        if way == "record":
            return Expression("S", "{}.b", self.make("R", d))
        if way == "last":
            q = self.variable("Q")
            return Expression("S", r.choice([f"{q}[-1]", f"sum(stack({q}))", f"{q}[len({q}) // 2]"]))
        return Expression("S", "({} + {})", self.make("S", d), self.make("K", d))

    def make_K(self, d):
        r = self.random
        way = r.randrange(6)
        if way == 0:
            return Expression("K", "argmax({})", self.make("V", d))
        if way == 1:
            return Expression("K", "sum({} > {})", self.make("V", d), self.make(r.choice("NS"), d))
        if way == 2:
            return Expression("K", r.choice(["({} + {})", "({} - {})", "{} * {} % 7", "({} + {}) // 2"]), self.make("K", d), self.make(r.choice("KI"), d))
        if way == 3:
            return Expression("K", r.choice(["{} % 3", "{} // 2", "abs({})", "3 * {} + 1"]), self.make("K", d))
        if way == 4 and "error" in self.has:
            return Expression("K", r.choice(["{} // {}", "{} % {}"]), self.make("K", d), self.make("K", d))
        return Expression("K", "where({} > {}, {}, {})", self.make("S", d), self.make("S", d), self.make("K", d), self.make("K", d))

    def make_N(self, d):
        r = self.random
        ways = ["binary"] * 2 + ["unary", "int"] + ["read"] * 3 * ("read" in self.has)
        way = r.choice(ways)
        if way == "binary":
            return Expression("N", r.choice(["({} + {})", "{} * {}", "({} - {})"]), self.make("N", d), self.make("N", d))
        if way == "unary":
            return Expression("N", r.choice(["abs({})", "-{}", "{} / 2", "sin({})", "max(({}, 0.5))"]), self.make("N", d))
        if way == "int":
            return Expression("N", r.choice(["{} * 0.5", "({} + 0.5)", "float({})"]), self.make("I", d))
        return Expression("N", "float({})", self.make("S", d))

    def make_I(self, d):
        r = self.random
        ways = ["binary"] * 2 + ["modulo", "half", "length"] + ["matrix"] * ("matrix" in self.has) + ["read"] * ("read" in self.has) + ["record"] * bool(self.variables("R"))
        ways += ["list"] * bool(self.variables("Q"))
        way = r.choice(ways)
        if way == "binary":
            return Expression("I", r.choice(["({} + {})", "({} - {})", "({} * {}) % 11"]), self.make("I", d), self.make("I", d))
        if way == "modulo":
            return Expression("I", r.choice(["{} % 3", "{} % 5", "{} % 2"]), self.make("I", d))
        if way == "half":
            if "error" in self.has and r.random() < 0.4:
                return Expression("I", r.choice(["{} // {}", "{} % {}"]), self.make("I", d), self.make("I", d))
            return Expression("I", r.choice(["{} // 2", "abs({})"]), self.make("I", d))
        if way == "length":
            return Expression("I", r.choice(["len({})", "{}.shape[0]", "{}.size"]), self.leaf("V"))
        if way == "matrix":
            return Expression("I", "len({})", self.leaf("M"))
        if way == "read":
            return Expression("I", "int(clip({}, -4, 4))", self.make("S", d)) if r.random() < 0.5 else Expression("I", "int({})", self.make("K", d))
        if way == "record":
            return Expression("I", "{}.n", self.make("R", d))
        return Expression("I", f"len({self.variable('Q')})")

    def make_C(self, d):
        r = self.random
        ways = ["number"] * 4 + ["scalars"] * 2 + ["any", "all"]
        ways += ["ints"] * 4 * ("host" in self.has) + ["integer"] * 2 * ("integer" in self.has) + ["join"] * 2 + ["not"] + ["nan"] * ("odd" in self.has)
        ways += ["floats"] * ("host" in self.has)
        way = r.choice(ways)
        order = r.choice([">", "<", ">=", "<="])
        if way == "number":
            return Expression("C", f"{{}} {order} {{}}", self.make("S", d), self.make("N", min(d, 1)))
        if way == "scalars":
            return Expression("C", f"{{}} {order} {{}}", self.make("S", d), self.make("S", d))
        if way in ("any", "all"):
            return Expression("C", f"{way}({{}} {order} {{}})", self.make("V", d), self.make(r.choice("NNVS"), min(d, 1)))
        if way == "ints":
            return Expression("C", r.choice(["{} > {}", "{} < {}", "{} == {}", "{} != {}"]), self.make("I", d), self.make("I", d)) if r.random() < 0.6 else \
                Expression("C", r.choice(["{} % 2 == 0", "{} % 3 == 1", "{} > 2", "{} == 1"]), self.make("I", d))
        if way == "integer":
            return Expression("C", r.choice(["{} % 2 == 0", "{} > 1", "{} == 1", "{} != 0"]), self.make("K", d))
        if way == "join":
            return Expression("C", r.choice(["({} and {})", "({} or {})"]), self.make("C", d), self.make("C", d))
        if way == "not":
            return Expression("C", "not ({})", self.make("C", d))
        if way == "nan":
            return Expression("C", r.choice(["isnan({})", "{} == inf"]), self.make("S", d))
        return Expression("C", f"{{}} {order} {{}}", self.make("N", d), self.make("N", d))

    def make_M(self, d):
        r = self.random
        way = r.randrange(5)
        if way == 0:
            return Expression("M", r.choice(["{} + {}", "{} * {}", "{} - {}"]).join("()"), self.make("M", d), self.make("V", d))
        if way == 1:
            return Expression("M", r.choice(["({} + {})", "{} * {}"]), self.make("M", d), self.make(r.choice("NS"), d))
        if way == 2:
            return Expression("M", r.choice(["tanh({})", "{}[::-1]", "-{}", "{} * 0.5"]), self.make("M", d))
        if way == 3 and "closure" in self.has:
            before, self.in_lambda = self.in_lambda, True
            self.scopes.append([("v", "V", False)])
            body = self.make("V", d)
            self.scopes.pop()
            self.in_lambda = before
            return Expression("M", "vmap(fn(v) {})({})", body, self.make("M", d))
        return Expression("M", "where({} > {}, {}, {})", self.make("M", d), self.make("N", d), self.make("M", d), self.make("S", d))

    def make_R(self, d):
        r = self.random
        if r.random() < 0.5 and self.variables("R"):
            field, type = r.choice([("a", "V"), ("b", "S"), ("n", "I")])
            return Expression("R", f"({{{{..{{}}, {field}: {{}}}}}})", self.leaf("R"), self.make(type, d))
        return Expression("R", "({{a: {}, b: {}, n: {}}})", self.make("V", d), self.make("S", d), self.make("I", d))

    def make_L(self, d):
        r = self.random
        v = self.variable("L")
        if v and r.random() < 0.3:
            return Expression("L", f"reverse({v})")
        return Expression("L", "({}, {})", self.make("V", d), self.make("V", d))

    def make_Q(self, d):
        v = self.variable("Q")
        if v and self.random.random() < 0.5:
            return Expression("Q", f"append({v}, {{}})", self.make("S", d))
        return Expression("Q", "({}, {})", self.make("S", d), self.make("S", d))

    def make_T(self, d):
        r = self.random
        if r.random() < 0.5:
            return Expression("T", '"{{{}}}|"', self.leaf(r.choice("NI")))
        return Expression("T", r.choice(['"{{{}:.2f}}"', "str({})"]), self.leaf(r.choice("SN")))

    # ---- statements ----------------------------------------------------------------------------------------------------------
    def some_type(self):
        types = ["V"] * 5 + ["S"] * 4 + ["N", "I", "I"] * ("host" in self.has) + ["M"] * ("matrix" in self.has) + ["K"] * ("integer" in self.has)
        types += ["R"] * ("record" in self.has) + ["L"] * ("list" in self.has) + ["Q"] * ("grow" in self.has) + ["T"] * ("text" in self.has)
        return self.random.choice(types)

    def block(self, depth, most):
        self.scopes.append([])
        out = Block()
        for _ in range(self.random.randint(1, most)):
            if self.budget <= 0:
                break
            out.statements += self.statement(depth)
        if not out.statements:
            out.statements += self.assign(depth)
        self.scopes.pop()
        return out

    def statement(self, depth):
        """A list of statements: one, with what it needs before it."""
        r = self.random
        self.budget -= 1
        ways = ["assign"] * 6 + ["let"] * 3 + ["add"] * 3
        if depth > 0:
            ways += ["if_"] * 5 * ("if" in self.has) + ["for_"] * 4 * ("for" in self.has) + ["while_"] * 3 * ("while" in self.has) + ["try_"] * 2 * ("try" in self.has)
        ways += ["store"] * 3 * ("store" in self.has) + ["print_"] * 2 * ("print" in self.has) + ["leave"] * 2 * ("leave" in self.has and self.loops > 0)
        ways += ["return_"] * ("return" in self.has) + ["error"] * ("error" in self.has) + ["retype"] * ("retype" in self.has) + ["swap", "local"] + ["draw"] * ("random" in self.has)
        ways += ["step"] * 4 * ("step" in self.has)
        if self.lists and "grow" in self.has and depth > 0 and self.turns * 9 <= TURNS and self.lists.random() < 0.3:
            return self.growing()
        if "unlike" in self.has and self.own.random() < 0.25:
            return self.unlike()
        if self.unlikes and depth > 0 and not self.in_lambda and self.turns * 6 <= TURNS and self.results.random() < 0.35:
            return self.later(self.calls_unlike)
        if "kinds" in self.has and not self.in_lambda and self.turns * 6 <= TURNS and self.own.random() < 0.3:
            return self.later(self.kinds)
        if self.chains and self.chains.random() < 0.25:
            return self.chain()
        return getattr(self, r.choice(ways))(depth) or []

    def growing(self):
        """A loop in which a list grows in some way, and what uses the list."""
        r = self.lists
        q, t, i, target = self.fresh("q"), self.fresh("t"), self.fresh("i"), self.fresh("V")
        s, v, c = self.leaf("S").show(), self.leaf("V").show(), r.choice(["{t} > 0.3", "sum({v}) > {i}", "{i} % 3 == 1", "{t} * {i} < 1"])
        first = r.choice(["()", "()", "({s},)", "({s}, {s} * 0.5)"])
        held = r.choice(["plain"] * 5 + ["record", "tuple"])
        here = {"plain": q, "record": f"{q}.h", "tuple": f"{q}[1]"}[held]
        names = {"s": s, "v": v, "q": here, "i": i, "t": t}
        some = ["{q} = append({q}, {t})", "{q} = append({q}, {t} * {i})", "{q} += ({t},)"]
        some += ["{q} = (..{q}, {t})"] if held == "plain" else []
        if first != "()":
            some += ["{q} = append({q}, {q}[-1] * 0.9 + {s})", "{q} = append({q}, {q}[len({q}) - 1] + {t})", "{q} = append({q}, {q}[0] * {q}[-1])", "{q}[0] = {q}[-1] * 0.5"]
        more = [p.format(**names) for p in (r.choice(some), r.choice(some))]
        if held == "tuple":
            more = [f"let (a{q}, b{q}) = {q}", f"{q} = (a{q} * 0.9, append(b{q}, a{q} + {t}))"]
        step = f"{t} = {t} * 0.8 + {s} * 0.1"
        c = c.format(**names)
        body = r.choice([[step] + more, [step] + more[:1] if held != "tuple" else [step] + more, [step, f"if {c} {{ {'; '.join(more)} }}"],
                         [step, f"if {c} {{ continue }}"] + more, [step] + more + [f"if {c} {{ break }}"]])
        head = r.choice([f"for {i} in 0..{r.choice([3, 7, 9])}", f"for {i} in 0..{r.choice([3, 9])}", f"for {i} in 1..4"])
        use = r.choice(["{v} * len({q})", "{v} + if len({q}) > 0 {{ {q}[-1] }} else {{ {s} }}", "{v} + sum({q})", "{v} * if len({q}) > 1 {{ sum(stack({q})) }} else {{ 2 }}",
                        "{v} + fold({q}, fn(a, b) a * 0.5 + b, {s})", "{v} + sum(map({q}, fn(a) a * 2))"]).format(**names)
        first = first.format(**names)
        start = {"plain": first, "record": f"{{a: 1, h: {first}}}", "tuple": f"({s}, {first})"}[held]
        self.declare(target, "V")
        return [Statement(f"let {t} = {s} * 1.0"), Statement(f"let {q} = {start}"), Statement(f"{head} {{}}", Block([Statement(l) for l in body])),
                Statement(f"let {target} = {{}}", Expression("V", use))]

    def unlike(self):
        """A branch whose arms do not agree in what they make of a variable, and what uses it."""
        name, v, s = self.fresh("u"), self.leaf("V"), self.leaf("S")
        first, second, use = self.own.choice([
            ("1", "2.5", "{v} * {u}"), ("1", "{s}", "{v} * {u}"), ("{v}", "{s}", "{v} + {u}"), ("{v}[:1]", "{v}", "{v} + sum({u})"),
            ("nil", "{v}", "if {u} == nil {{ {v} }} else {{ {u} * 2 }}"), ("({v},)", "({v}, {v} * 2)", "{v} + sum(concat({u}))"),
            ("{{a: {v}}}", "{{a: {s}, b: 1}}", "{v} * {u}.a"), ('"a"', '"bc"', "{v} * len({u})"), ("tanh", "fn(z) z * 0.5", "{u}({v})")])
        if self.own.random() < 0.5:
            first, second = second, first
        names = {"v": v.show(), "s": s.show(), "u": name}
        target = self.fresh("V")
        out = [Statement(f"let {name} = if {{}} {{}} else {{}}", self.make("C", 2), Block([Statement("{}", Expression("V", first.format(**names)))]),
                         Block([Statement("{}", Expression("V", second.format(**names)))]))]
        if self.own.random() < 0.4:
            out += self.assign(1)
        out.append(Statement(f"let {target} = {{}}", Expression("V", use.format(**names))))
        self.declare(target, "V")
        return out

    def unlike_function(self, name):
        """A function whose results are of unlike kinds, by a condition on data."""
        r = self.results
        first, second, use = r.choice([
            ("mean(v)", "0.5", "sum({c})"), ("v", "sum(v)", "mean({c})"), ("0", "sum(v) * 0.1", "{c}"), ("v", "v[:1]", "sum({c})"), ("nil", "v * 2", "(if {c} == nil { 0.25 } else { 0.75 })"),
            ("(sum(v), 1)", "(0.5, 2)", "{c}[0] * {c}[1]"), ("{a: mean(v)}", "{a: 0.5, b: 1}", "{c}.a"), ('"a"', '"bc"', "len({c})"), ("1", "2.5", "{c}")])
        if r.random() < 0.5:
            first, second = second, first
        when = r.choice(["sum(v) > w", "sum(v) < 0.3", "sum(v * v) > 2.5", "w > 0.2"])
        text = r.choice([f"fn {name}(v, w) {{ if {when} {{ return {first} }}; {second} }}", f"fn {name}(v, w) = if {when} {{ {first} }} else {{ {second} }}",
                         f"fn {name}(v, w) {{ let u = if {when} {{ {first} }} else {{ {second} }}; u }}"])
        self.top.statements.append(Statement(text, fixed=True))
        if r.random() < 0.3:
            self.top.statements.append(Statement(f"fn {name}d(v, w) {{ {name}(v * 0.5, w + 0.1) }}", fixed=True))
            name += "d"
        self.unlikes.append((name, use))

    def calls_unlike(self):
        """A loop that calls such functions in turns of few statements."""
        r = self.results
        s, t, i, target = self.fresh("s"), self.fresh("t"), self.fresh("i"), self.fresh("V")
        v, first = self.leaf("V").show(), self.leaf("S").show()
        names = {"s": s, "t": t, "i": i, "v": v, "n": r.choice([0, 1, 4, 9]), "m": r.choice([2, 5])}

        def term():
            function, use = r.choice(self.unlikes)
            call = f"{function}({r.choice(['{v} * {s}', '{v} + {s}', '{v}', '{v} - {s} * 0.5'])}, {r.choice(['{s}', '0.3', '-{s}'])})"
            kept = r.random() < 0.25
            return ([f"let {t} = " + call] if kept else [], use.replace("{c}", t if kept else call))
        before, value = term()
        other = term()[1] if not before and r.random() < 0.3 else "1"
        head, step = r.choice([("for {i} in 0..{n} {}", "{s} = tanh({s} * 0.5 + @) * @@"), ("for {i} in 0..{m} {}", "{s} = clip({s} * 0.8 - @ * @@, -3.0, 3.0)"),
                               ("while abs({s}) > 0.05 {}", "{s} = {s} * 0.6 * tanh(@ * @@)")])
        step = step.replace("@@", other).replace("@", value)
        for name, text in names.items():
            before, step, head = [b.replace("{" + name + "}", str(text)) for b in before], step.replace("{" + name + "}", str(text)), head.replace("{" + name + "}", str(text))
        wrapped = r.random()
        plain = [Statement(line) for line in [*before, step]]
        if wrapped < 0.2 and "while" not in head:
            plain = [Statement("if {} {}", self.make("C", 1), Block(plain))]
        elif wrapped < 0.4:
            plain = [Statement(f"for {i}n in 0..{names['m']} {{}}", Block(plain))]
        self.declare(target, "V")
        return [Statement(f"let {s} = clip({first} * 1.0, -3.0, 3.0)"), Statement(head, Block(plain)),
                Statement(f"let {target} = {v} * {s}")]

    def kinds(self):
        """A loop whose turns change what a variable is: from nothing or an int to what was found, summed or seen last; or one that goes back and forth."""
        r = self.random
        u, y, c, i, e = (self.fresh(letter) for letter in "uycie")
        v, s = self.leaf("V").show(), self.leaf("S").show()
        names = {"u": u, "y": y, "c": c, "i": i, "e": e, "v": v, "s": s, "a": self.leaf("N").show(), "b": self.leaf("S").show(), "n": r.choice([0, 1, 3, 6])}
        counts = r.random() < 0.7
        before, head, last = r.choice([
            ("", "for {i} in 0..{n} {{}}", ""), ("", "for {i} in 0..int(clip({s}, -1.0, 5.0)) {{}}", ""), ("", "for ({i}, {e}) in enumerate({v}) {{}}", ""),
            ("", "for {e} in {v} {{}}", "")] if counts else [
            ("let {c} = clip({s}, -9.0, 9.0)", "while abs({c}) > 0.3 {{}}", "{c} = {c} * 0.4"), ("let {c} = clip(sum({v}), -9.0, 9.0)", "while {c} > 0.3 {{}}", "{c} = {c} - 1.7")])
        item = "{e}" if "{e}" in head else "{y}[0]"
        at = "{i}" if "{i}" in head else "1"
        when = r.choice([item + " > {a}", "sum({y}) > {b}", "max({y}) < {a}", item + " < {b}"])
        first, turn, use = r.choice([
            ("nil", [("if " + when + " {{}}", ["{u} = (" + at + ", {y})", "break"])], "if {u} == nil {{ {v} }} else {{ {u}[1] * {u}[0] }}"),
            ("-1", [("if " + when + " {{}}", ["{u} = {y} * 2", "break"])], "{v} + {u}"),
            ("0", [("{u} = {u} + {y}", None)], "{v} + {u}"), ("0.0", [("{u} = {u} + sum({y})", None)], "{v} * {u}"), ("i64(0)", [("{u} = {u} + {y}", None)], "{v} + {u}"),
            ("nil", [("if {u} != nil {{}}", ["{y} = {y} - {u} * 0.5"]), ("{u} = {y}", None)], "if {u} == nil {{ {v} }} else {{ {u} }}"),
            ('"up"', [('if {u} == "up" {{}}', ["{y} = {y} + 0.3"]), ("if sum({y}) > {a} {{}}", ['{u} = "down"', "{y} = {y} * 0.5"]),
                      ("if min({y}) < {b} {{}}", ['{u} = "up"'])], "if {u} == \"up\" {{ {y} }} else {{ {v} }}"),
            ("nil", [("if {u} == nil or " + item + " > {u}[1] {{}}", ["{u} = (" + at + ", " + item + ")"])], "if {u} == nil {{ {v} }} else {{ {v} * {u}[1] + {u}[0] }}"),
            ("0", [("if " + when + " {{}} else {{}}", ["{u} = 0"], ["{u} = {y}"])], "{v} - {u}"),
            ("0", [("if " + when + " {{}}", ["{u} = " + item]), ("if {u} > 2 {{}}", ["{u} = 1"])], "{v} - {u}")])
        fills = [Statement("{y} = {y} * 0.8 + {a}".format(**names))] if r.random() < 0.6 else []
        for text, *blocks in turn:
            blocks = [Block([Statement(line.format(**names)) for line in b]) for b in blocks if b]
            fills.append(Statement(text.format(**names), *blocks))
        fills += [Statement(last.format(**names), fixed=True)] if last else []
        fills += [Statement("if sum({y}) > 40 {{}}".format(**names), Block([Statement("continue" if not last else "break")]))] if r.random() < 0.2 else []
        target = self.fresh("V")
        out = [Statement(f"let {u} = {first}"), Statement(f"let {y} = {{}}", Expression("V", v))]
        out += [Statement(before.format(**names))] if before else []
        out += [Statement(head.format(**names), Block(fills)), Statement(f"let {target} = {{}}", Expression("V", use.format(**names)))]
        self.declare(target, "V")
        return out

    def chain(self):
        """Several branches that each may change what a variable is, and what uses it."""
        r, name, target = self.chains, self.fresh("u"), self.fresh("V")
        v, s = self.leaf("V").show(), self.leaf("S").show()
        start, first, second, use = r.choice([
            (v, "{s} * sum({u}) * 0.5", "{v} * sum({u}) * 0.25", "{v} + sum({u})"), ("nil", "{v} * {k}", None, "if {u} == nil {{ {v} }} else {{ {u} * 2 }}"),
            ("0", "{u} * 0.5 + {v}", "{u} + 1", "{v} + {u} * 0.5"), ("()", "append({u}, {v})", None, "if len({u}) > 1 {{ {u}[1] }} else {{ {v} }}"),
            (f"{{a: {v}}}", "{{a: {u}.a * 0.5}}", "{{a: {s}, b: {k}}}", "{v} * {u}.a"),
            (s, "({v}, {k})", "{s}", 'if type({u}) == "list" {{ {u}[0] }} else {{ {v} * {u} }}')])
        out = [Statement(f"let {name} = {{}}", Expression("V", start))]
        for i in range(r.choice([2, 2, 3, 3, 4, 5])):
            arms = [Block([Statement(f"{name} = {{}}", Expression("V", arm.format(v=v, s=s, u=name, k=i + 1)))]) if arm else Block()
                    for arm in ((first, second) if r.random() < 0.5 else (second, first))]
            out.append(Statement("if {} {} else {}", self.make("C", 2), *arms))
            if r.random() < 0.2:
                out += self.assign(1)
        out.append(Statement(f"let {target} = {{}}", Expression("V", use.format(v=v, s=s, u=name))))
        self.declare(target, "V")
        return out

    def let(self, _):
        type = self.some_type()
        value = self.make(type, 3) if type != "Q" or self.random.random() < 0.5 else Expression("Q", "()")
        name = self.fresh(type)
        self.declare(name, type)
        return [Statement(f"let {name} = {{}}", value)]

    def assign(self, _):
        type = self.some_type()
        name = self.variable(type, True)
        return [Statement(f"{name} = {{}}", self.make(type, 3))] if name else self.let(0)

    def add(self, _):
        r = self.random
        type = r.choice("VVSSNIK")
        name = self.variable(type, True)
        if not name or self.in_lambda:
            return None
        if self.variable("Q", True) and r.random() < 0.5:
            q = self.variable("Q", True)
            return [Statement(f"{q} = append({q}, {{}})", self.make("S", 2))]
        other = {"V": "VSN", "S": "SN", "N": "N", "I": "I", "K": "KI"}[type]
        value = self.make(r.choice(other), 2)
        if type in "IK":  # host ints do not wrap
            return [Statement(f"{name} = ({name} {r.choice('+-*')} {{}}) % 31", value)]
        return [Statement(f"{name} {r.choice(['+=', '+=', '-=', '*='])} {{}}", value)]

    def swap(self, _):
        for type in self.random.sample("VSNIM", 5):
            names = self.variables(type, True)
            if len(names) > 1:
                a, b = self.random.sample(names, 2)
                return [Statement(f"({a}, {b}) = ({b}, {a})")]
        return None

    def store(self, _):
        r = self.random
        ways = [t for t in "VVVMRL" if self.variables(t, True)]
        type = r.choice(ways) if ways else None
        if not type:
            return None
        name = self.variable(type, True)
        whole = Expression(type, name)
        equals = r.choice(["=", "=", "=", "+=", "*="])
        if type == "V":
            return [r.choice([
                lambda: Statement(f"{name}[{{}}] {equals} {{}}", self.index(whole, 1), self.make("S", 2)),
                lambda: Statement(f"{name}[{{}}] {equals} {{}}", self.index(whole, 1), self.make("N", 2)),
                lambda: Statement(f"{name}[{{}}:] {equals} {{}}", self.make("I", 1), self.make(r.choice("SN"), 2)),
                lambda: Statement(f"{name}[1:] {equals} {{}}[:-1]", self.make("V", 1)),
                lambda: Statement(f"{name}[{name} > {{}}] {equals} {{}}", self.make("N", 1), self.make("N", 1)),
                lambda: Statement(f"{name}[[0, -1]] {equals} {{}}", self.make("S", 1)),
                lambda: Statement(f"{name}[{{}}] {equals} {{}}", self.place(whole, 1), self.make("S", 1)),
                lambda: Statement(f"{name}[1:-1] {equals} 0.5 * ({name}[2:] + {name}[:-2])"),
            ])()]
        if type == "M":
            return [r.choice([
                lambda: Statement(f"{name}[{{}}] {equals} {{}}", self.index(whole, 1), self.make("V", 2)),
                lambda: Statement(f"{name}[{{}}, 0] {equals} {{}}", self.index(whole, 1), self.make("S", 2)),
                lambda: Statement(f"{name}[:, {{}}] {equals} {{}}", self.index(Expression("V", f"{name}[0]"), 1), self.make("S", 1)),
                lambda: Statement(f"{name}[1:] {equals} {{}}", self.make("V", 2)),
            ])()]
        if type == "R":
            field, of = r.choice([("a", "V"), ("b", "S"), ("n", "I"), ("a[0]", "S"), ("a[1:]", "N")])
            return [Statement(f"{name}.{field} {equals if of in 'VSN' else '='} {{}}", self.make(of, 2))]
        return [Statement(f"{name}[{{}}] {equals} {{}}", self.list_index(1), self.make("V", 2))]

    def print_(self, _):
        r = self.random
        if r.random() < 0.3:
            return [Statement(f'print("p{self.fresh("")}")')]
        types = [r.choice("VSSNII" + ("R" if "record" in self.has else "") + ("T" if "text" in self.has else "")) for _ in range(r.randint(1, 2))]
        return [Statement("print(" + ", ".join("{}" for _ in types) + ")", *(self.make(t, 1) for t in types))]

    def leave(self, depth):
        """A way out of a loop's turn, nearly always under a condition."""
        r = self.random
        word = Statement(r.choice(["break", "continue"]))
        if r.random() < 0.05:
            return [word]
        before = self.block(0, 2).statements if r.random() < 0.4 else []
        if r.random() < 0.25 and depth > 0:
            return [Statement("if {} {} else {}", self.make("C", 2), Block(before + [word]), self.block(depth - 1, 2))]
        return [Statement("if {} {}", self.make("C", 2), Block(before + [word]))]

    def return_(self, depth):
        value = Statement("return {}", self.make(self.result, 2))
        if self.random.random() < 0.1:
            return [value] if depth < 2 else None
        before = self.block(0, 2).statements if self.random.random() < 0.3 else []
        return [Statement("if {} {}", self.make("C", 2), Block(before + [value]))]

    def later(self, make):
        """What `make` gives; it draws numbers of its own."""
        self.random, self.own = self.own, self.random
        made = make()
        self.random, self.own = self.own, self.random
        return made

    def words(self):
        """What a text of an error ends with, and its parts."""
        if "words" not in self.has or self.own.random() < 0.4:
            return "", []
        return self.own.choice([" {{{}}}", " {{{}:.3f}}", " {{[{}]}}"]), [self.later(lambda: self.leaf("S"))]

    def error(self, _):
        r = self.random
        way = r.randrange(4)
        number = self.fresh("")
        end, parts = self.words()
        if way == 0:
            return [Statement(f'assert({{}}, "a{number}{end}")', self.make("C", 2), *parts)]
        if way == 1 and parts:
            return [Statement("if {} {}", self.make("C", 2), Block([Statement(f'error("e{number}{end}")', *parts)]))]
        if way == 1:
            text = Statement(f'error("e{number} {{{{{{}}}}}}")', self.leaf("I")) if r.random() < 0.4 and "host" in self.has else Statement(f'error("e{number}")')
            return [Statement("if {} {}", self.make("C", 2), Block([text]))]
        if way == 2:
            v = self.leaf("V")
            name = self.fresh("S")
            self.declare(name, "S")
            return [Statement(f"let {name} = {{}}[{{}}]", v, self.make(r.choice("IK"), 2))]
        return None

    def retype(self, _):
        """Variables that get another type in a loop's first turn or in an arm."""
        r = self.random
        if self.loops and r.random() < 0.7:
            return None
        type = r.choice("SVN")
        name = self.fresh(type)
        first = r.choice(["0", "nil", "0.0", "1"])
        out = [Statement(f"let {name} = {first}")]
        if first == "nil":
            fill = Statement(f"if {name} == nil {{}} else {{}}", Block([Statement(f"{name} = {{}}", self.make(type, 2))]),
                             Block([Statement(f"{name} = {name} * 0.5 + {{}}", self.make(type, 1))]))
            out += self.counted(1, [fill]) + [Statement(f"let {name}_ = {{}} * 0", self.leaf(type))]
            self.declare(name + "_", type)
            return out
        step = Statement(f"{name} = {name} {r.choice('+-*')} {{}}", self.make(type, 2))
        out += self.counted(1, [step])
        self.declare(name, type)
        return out

    def local(self, _):
        """A function that captures what is there, used right away."""
        if "closure" not in self.has or self.in_lambda:
            return None
        r = self.random
        name = self.fresh("g")
        before = self.loops, self.result, self.in_lambda, self.turns
        self.loops, self.result, self.in_lambda = 0, "V", False
        outer, self.scopes = self.scopes, [[(n, t, False) for scope in self.scopes for n, t, _ in scope], [("v", "V", True), ("c", "S", True)]]
        saved, self.budget = self.budget, min(self.budget, 4)
        body = self.block(1, 3)
        body.statements.append(Statement("{}", self.make("V", 2)))
        self.budget = saved - 2
        self.scopes = outer
        self.loops, self.result, self.in_lambda, self.turns = before
        target = self.variable("V", True)
        use = Statement((f"{target} = " if target else f"let {name}v = ") + f"{name}({{}}, {{}})", self.make("V", 1), self.make("S", 1))
        out = [Statement(f"fn {name}(v, c) {{}}", body), use]
        if not target:
            self.declare(name + "v", "V")
        if r.random() < 0.3:
            out[0] = Statement(f"let {name} = fn(v, c) {{}}", body)
        return out

    def draw(self, _):
        name = self.fresh("V")
        v = self.leaf("V")
        self.declare(name, "V")
        return [Statement(f"let {name} = {{}} + {self.random.choice(['rand(len({}))', 'rand(len({}), key: key(3))', 'rand(len({}), dtype: {}.dtype)'])}", v, v, v)]

    def step(self, _):
        """What no capture holds: a number that is a size, a mask, the length of a text, a clock, a call that asks for no compilation; and what data chooses."""
        chosen = [("V", "({}, {}, {})[int({}) % 3]", "V", "V", "V", "S"), ("V", "({}, {}, {})[int({} * 2)]", "V", "V", "V", "S"), ("S", "({}, {})[int(abs({})) % 2]", "S", "S", "S"),
                  ("S", "({}, {})[argmax({}) % 2]", "S", "S", "V"), ("V", "roll({}, int({} * 3))", "V", "S"), ("N", "(0.5, 2.0, 0.25)[int({}) % 3]", "S"),
                  ("I", "(1, 0, 2)[int({}) % 3]", "S"), ("V", "map(progress((1, 2)), fn(k) {} * k)[int({}) % 2]", "V", "S")]
        type, text, *parts = self.random.choice(("chosen" in self.has) * chosen + [
            ("S", "sum(zeros(int(clip({}, 0.0, 3.0))) + {})", "S", "S"), ("S", "sum({}[{} > {}])", "V", "V", "S"), ("I", "len(str({})) % 7", "S"),
            ("N", "time() * 0 + {}", "N"), ("V", "nojit(fn(v) v * 2)({})", "V"), ("I", "nonzero({} > {}).shape[0]", "V", "S"),
            ("V", "concat(({}[:1], zeros(int(clip({}, 0.0, 2.0))), {}))[:{}.shape[0]]", "V", "S", "V", "V")])
        leaves = [self.leaf(p) for p in parts]
        name = self.variable(type, True)
        if name and self.random.random() < 0.5:
            return [Statement(f"{name} = {text}", *leaves)]
        name = self.fresh(type)
        self.declare(name, type)
        return [Statement(f"let {name} = {text}", *leaves)]

    def if_(self, depth):
        r = self.random
        parts, text = [self.make("C", 3), self.block(depth - 1, 3)], "if {} {}"
        for _ in range(r.choice([0, 0, 0, 1, 2])):
            parts += [self.make("C", 2), self.block(depth - 1, 2)]
            text += " else if {} {}"
        if r.random() < 0.6:
            parts.append(self.block(depth - 1, 3))
            text += " else {}"
        if r.random() < 0.15 and len(parts) > 2:  # as a value
            type = self.some_type()
            name = self.fresh(type)
            if len(parts) % 2 == 0:
                parts.append(Block())
                text += " else {}"
            for p in parts:
                if isinstance(p, Block):
                    p.statements.append(Statement("{}", self.make(type, 2)))
            self.declare(name, type)
            return [Statement(f"let {name} = " + text, *parts)]
        return [Statement(text, *parts)]

    def try_(self, depth):
        r = self.random
        body = self.block(depth - 1, 3)
        if r.random() < 0.5:
            end, parts = self.words()
            body.statements += [s for s in [Statement("if {} {}", self.make("C", 2), Block([Statement(f'error("t{self.fresh("")}{end}")', *parts)]))]]
        if "refuse" in self.has and self.own.random() < 0.7:
            body.statements.insert(self.own.randrange(len(body.statements) + 1), self.later(self.refuse))
        while "assert" in self.has and self.own.random() < 0.6:
            for statement in reversed(self.later(self.check)):
                body.statements.insert(self.own.randrange(len(body.statements) + 1), statement)
        self.scopes.append([])
        handler = self.block(depth - 1, 2)
        self.scopes.pop()
        if "print" in self.has and r.random() < 0.4:
            handler.statements.insert(0, Statement("print(e.id, e.message, e.line)"))
            return [Statement("try {} catch e {}", body, handler)]
        return [Statement("try {} catch _e {}", body, handler)]

    def check(self):
        """Assertions, also in loops and functions, about variables that the body may rebind."""
        r = self.random
        v = self.variable("V", True)
        name, low, high = self.leaf("V").show() if v is None else v, r.choice([-3, -1, 0, 0.5]), r.choice([1, 2, 4, 9])
        said = r.choice(['"low"', '"low"', f'"low {{{name}[0]}}"'] if "words" in self.has else ['"low"'])
        held = r.choice([f"sum({name}) > {low}", f"max({name}) < {high}", f"{name}[0] < {high}", f"{name}[1] * {name}[0] > {low}"])
        to = "" if v is None else f"{v} = "
        f = self.fresh("f")
        lines = r.choice([
            [f"assert({held}, {said})"],
            [f"if not ({held}) {{ error({said}) }}"],
            [f"let {f} = fn(u) {{ let w = u * 0.5; assert(sum(u) < {high}, {said}); w + tanh(u) }}", f"{to}{f}({name})"],
            [f"for k{f} in 0..{r.choice([3, 20, 60])} {{ {to}{name} * {r.choice([0.9, 1.1])} + k{f} * 0.01; assert({held}, {said}) }}"],
            [f"for k{f} in 0..{r.choice([4, 30])} {{ if not ({held}) {{ {r.choice(['break', f'error({said})'])} }}; let w{f} = {name}; {to}{name} * 1.2; if sum({name}) > {high} {{ error({said}) }}; {to}{name} + w{f} * 0.1 }}"]])
        return [Statement(line) for line in lines]

    def refuse(self):
        """An operation that fails on some data, whose result reaches a variable, if there is one."""
        r = self.random
        v, s = self.leaf("V").show(), self.leaf("S").show()
        text = r.choice([f"{v}[int({s})]", f"{v}[int({s} * 2) - 3]", f"f32(12 // int({s}))", f"f32(7 % (int({s}) - 1))", f"f32(9 / int({s} + 2))",
                         f"f32(int({s} / {s}))", f"f32(int({s} * 1e19) % 5)"])
        name = self.fresh("q")
        return Statement(f'let {name} = {text}; assert({name} == {name}, "{name}")')

    def count(self):
        """How many turns a loop may have here: a text, and a number that it stays below."""
        r = self.random
        most = TURNS // self.turns
        numbers = [n for n in (1, 2, 3, 4, 5, 7, 12, 20) if n <= most]
        if not numbers:
            return None, 1
        n = r.choice(numbers)
        return str(n), n

    def body(self, depth, turns, first=(), last=()):
        """A loop's body; `first` and `last` are its own."""
        self.turns, self.loops = self.turns * turns, self.loops + 1
        out = self.block(depth - 1, 4)
        self.turns, self.loops = self.turns // turns, self.loops - 1
        out.statements = list(first) + out.statements + list(last)
        return out

    def counted(self, _depth, statements):
        text, _ = self.count()
        return [Statement(f"for _ in 0..{text or 1} {{}}", Block(statements))]

    def for_(self, depth):
        r = self.random
        if self.in_lambda:
            return None
        text, n = self.count()
        if not text:
            return None
        ways = ["range"] * 4 + ["length", "elements"] + ["rows"] * 2 * ("matrix" in self.has) + ["list"] * ("list" in self.has) + ["argument"] * 2 + ["step", "computed"]
        way = r.choice(ways)
        name = self.fresh("i")
        self.scopes.append([])
        many = max(1, min(TURNS // self.turns, 12))
        if way in ("length", "elements", "rows") and many < 10:
            way = "range"
        if way == "range":
            self.declare(name, "I", r.random() < 0.1)
            out = Statement(f"for {name} in {r.choice(['0', '0', '1', '-1'])}..{text} {{}}", self.body(depth, n + 1))
        elif way == "argument" and self.own.random() < 0.2:
            text = self.own.choice(["120", "3", "01234", "2102"])
            self.declare(name, "I", False)
            out = Statement(f'for {name}t in "{text}" {{}}', self.body(depth, len(text), [Statement(f"let {name} = int({name}t)", fixed=True)]))
        elif way == "argument":
            limit, number = min(n, 9), self.leaf("I")
            self.declare(name, "I", False)
            out = Statement(f"for {name} in 0..{{}} {{}}", Expression("I", f"{{}} % {limit + 1}", number), self.body(depth, limit))
        elif way == "computed":
            numbers = [Expression("I", "{} % 3", self.make("I", 1)), Expression("I", f"{{}} % {n + 1}", self.make("I", 2))]
            self.declare(name, "I", False)
            out = Statement(f"for {name} in {{}}..{{}} {{}}", *numbers, self.body(depth, n))
        elif way == "step" and "spans" in self.has and self.own.random() < 0.7:
            bounds, n = self.later(lambda: self.span(n)), max(n, 4)
            self.declare(name, "I", False)
            out = Statement(f"for {name} in range({{}}, {{}}, {{}}) {{}}", *bounds, self.body(depth, n))
        elif way == "step":
            self.declare(name, "I", False)
            out = Statement(f"for {name} in {r.choice([f'range(0, {text}, 2)', f'range({text}, 0, -1)', f'range(1, {text})', f'range({text})'])} {{}}", self.body(depth, n))
        elif way == "length":
            v = self.leaf("V")
            self.declare(name, "I", False)
            out = Statement(f"for {name} in {r.choice(['0', '1'])}..{r.choice(['len({})', '{}.shape[0]'])} {{}}", v, self.body(depth, 10))
        elif way == "elements":
            v = self.make("V", 1)
            self.declare(name, "S", r.random() < 0.2)
            out = Statement(f"for {name} in {{}} {{}}", v, self.body(depth, 10))
        elif way == "rows":
            m = self.make("M", 1)
            self.declare(name, "V", r.random() < 0.2)
            if r.random() < 0.3:
                self.declare(name + "n", "I", False)
                out = Statement(f"for ({name}n, {name}) in enumerate({{}}) {{}}", m, self.body(depth, 10))
            else:
                out = Statement(f"for {name} in {{}} {{}}", m, self.body(depth, 10))
        else:
            items = self.make("L", 2)
            self.declare(name, "V", r.random() < 0.2)
            out = Statement(f"for {name} in {{}} {{}}", items, self.body(depth, 3))
        self.scopes.pop()
        return [out]

    def span(self, n):
        """Start, end and step of a range with at most max(n, 4) items."""
        r = self.random

        def number(text):
            data = r.random() < 0.7
            return Expression("I", text.format("int({})") if data else text, self.make("K" if data else "I", 1))

        step = r.choice(["2", "-1", "1", "-3", "{} % 5 - 2", "{} % 3 + 1", "{} % 3 - 3"])
        return [number("{} % 4") if r.random() < 0.8 else Expression("I", "0"), number(f"{{}} % {n + 1}"), number(step) if "{" in step else Expression("I", step)]

    def asked(self, condition, name, rebind):
        """A condition that may also print, or rebind a variable."""
        if "asks" not in self.has or self.own.random() < 0.6:
            return condition
        extra = self.own.choice([f'print("asked", {name})', rebind, rebind, f'print("asked", {name}); {rebind}'])
        return f"(if true {{{{ {extra}; {condition} }}}} else {{{{ false }}}})"

    def while_(self, depth):
        r = self.random
        if self.in_lambda:
            return None
        text, n = self.count()
        if not text:
            return None
        way = r.choice(["host", "host", "both", "forever", "array", "shrinks", "shrinks", "read"])
        name = self.fresh("n")
        step = Statement(f"{name} += 1", fixed=True)
        before = Statement(f"let {name} = {'i64(0)' if way == 'array' else '0'}")
        if way in ("shrinks", "read"):
            if n < 7 or self.turns * 9 > TURNS or (way == "read" and "read" not in self.has):
                way = "host"
            else:
                v = self.fresh("V")
                before = Statement(f"let {v} = clip({{}}, -30, 30)", self.make("V", 2))
                self.declare(v, "V", False)
                look = r.choice([f"max(abs({v})) > 1", f"sum({v} * {v}) > 0.5", f"any({v} > 0.75)"]) if way == "shrinks" else f"float(max(abs({v}))) > 1"
                shrink = Statement(f"{v} = {v} * 0.5", fixed=True)
                return [before, Statement(f"while {self.asked(look, f'sum({v})', f'{v} = {v} * 0.75')} {{}}", self.body(depth, 9, [shrink]))]
        if way == "array":
            self.declare(name, "K", False)
            return [before, Statement(f"while {self.asked(f'{name} < {text}', name, step.text)} {{}}", self.body(depth, n, [step]))]
        if way == "both":
            condition = self.make("C", 2)
            self.declare(name, "I", False)
            order = r.random() < 0.5
            both = f"{'{} and ' if order else ''}{name} < {text}{'' if order else ' and {}'}"
            return [before, Statement(f"while {self.asked(both, name, step.text)} {{}}", condition, self.body(depth, n, [step]))]
        self.declare(name, "I", False)
        if way == "forever":
            out = Statement("if {} {}", Expression("C", f"{name} > {text}"), Block([Statement("break")]), fixed=True)
            more = [Statement("if {} {}", self.make("C", 2), Block([Statement("break")]))] if r.random() < 0.6 else []
            return [before, Statement("while true {}", self.body(depth, n + 1, [step, out] + more))]
        return [before, Statement(f"while {self.asked(f'{name} < {text}', name, step.text)} {{}}", self.body(depth, n, [step]))]

    # ---- functions -------------------------------------------------------------------------------------------------------------
    def function(self, name, parameters, result, size, depth):
        """fn name(parameters): (name, type) pairs."""
        self.scopes = [[], []]
        for n, t in parameters:
            self.declare(n, t)
        if "global" in self.has:
            self.scopes[0] += [("scale", "N", False), ("offset", "V", False), ("steps", "I", False)]
        self.turns, self.loops, self.result, self.budget = 1, 0, result, size
        body = Block()
        while self.budget > 0:
            body.statements += self.statement(depth)
        body.statements.append(Statement("{}", self.make(result, 3), fixed=True))
        head = ", ".join(n for n, _ in parameters)
        self.top.statements.append(Statement(f"fn {name}({head}) {{}}", body))
        self.scopes = []

    def helpers(self):
        r = self.random
        if "closure" in self.has:
            self.top.statements.append(Statement("fn twice(f, x) = f(f(x) * 0.5)"))
        if "helpers" in self.has:
            for number in range(r.randint(1, 2)):
                types = [r.choice("VVSI" if "host" in self.has else "VVS") for _ in range(r.randint(1, 3))]
                if "V" not in types:
                    types[0] = "V"
                result = r.choice("VVS")
                keep, TURNS_HERE = self.has, 30
                self.function(f"h{number}", [(f"{t.lower()}{i}", t) for i, t in enumerate(types)], result, r.randint(1, 5), 2)
                self.has = keep
                self.functions.append((f"h{number}", types, result, TURNS_HERE))
        if "recursion" in self.has:
            self.scopes = [[("v", "V", False), ("n", "I", False)]]
            self.top.statements.append(Statement(
                "fn again(v, n) = if n <= 0 or {} {{ {} }} else {{ again({}, n - 1) }}",
                self.make("C", 1), self.make("V", 2), self.make("V", 2)))
            self.functions.append(("again", ["V", "n"], "V", 12))  # n: an int of which little is left
            self.scopes = []
        # (programs of smaller seeds, which tests/corpus.txt has, stay as they are)
        if self.results and self.results.random() < 0.5:
            for number in range(self.results.randint(1, 2)):
                self.unlike_function(f"unlike{number}")
        if self.calls and self.calls.random() < 0.6:
            for number in range(self.calls.randint(1, 2)):
                self.recursive(f"calls{number}", self.calls.choice(["data", "data", "back", "fields", "tree"]))

    def recursive(self, name, way):
        """A function that calls itself: as its last act, or doing something with what the calls return, or twice."""
        keep = self.has
        self.has = self.has - {"print", "random", "error", "helpers", "closure", "text", "global", "odd", "read"}
        functions, self.functions = self.functions, []
        self.scopes = [[("v", "V", False), ("w", "V", False), ("n", "I", False)]]
        V, C = (lambda d=2: self.make("V", d)), (lambda: self.make("C", 1))
        name_of = lambda text: Expression("V", text)
        head = f"fn {name}(v, w, n)"
        if way == "data":
            lines = [Statement(head + " = if n <= 0 or {} {{ {} }} else {{ " + name + "({}, {}, n - 1) }}", C(), V(), V(), self.calls.choice([name_of("w"), V(1)]))]
        elif way == "back":
            lines = [Statement(head + " = if n <= 0 {{ {} }} else {{ {} * " + name + "(v, w, n - 1) * 0.5 + {} }}", V(), self.calls.choice([name_of("v"), name_of("w"), V(1)]), V())]
        elif way == "fields":
            lines = [Statement(head + " {}", Block([
                Statement("if n <= 0 or {} {}", C(), Block([Statement("return {}", V(), fixed=True)]), fixed=True),
                Statement("let u = {}", V()), Statement("if {} {}", C(), Block([Statement("return " + name + "({}, w, n - 2)", V(), fixed=True)])),
                Statement(name + "({}, {}, n - 1)", V(), self.calls.choice([name_of("w"), name_of("v")]), fixed=True)]))]
        else:
            lines = [Statement(head + " = if n <= 0 or {} {{ {} }} else {{ " + name + "({}, w, n - 1) + " + name + "({}, v, n - 2) * 0.5 }}", C(), V(), V(), V())]
        self.top.statements += lines
        self.scopes, self.has, self.functions = [], keep, functions
        self.functions.append((name, ["V", "V", "n"], "V", 12))

    # ---- whole programs ----------------------------------------------------------------------------------------------------------
    def number(self, wild):
        r = self.random
        if wild and r.random() < 0.15:
            return r.choice(["nan", "inf", "-inf", "-0.0", "1e30", "1e-40"])
        if self.kind == "grad":  # hardly ever at a kink
            return repr(r.randint(-3000, 3000) / 1000)
        return repr(r.randint(-24, 24) / 8)

    def value(self, type, n, rows, dtype, wild=False):
        """The text of an argument."""
        def row(length):
            return "[" + ", ".join(self.number(wild) for _ in range(length)) + "]"
        if dtype in ("i64", "i32") and type in "VMSRL":
            def row(length):
                return "[" + ", ".join(str(self.random.randint(-5, 5)) for _ in range(length)) + "]"
        if type == "V":
            return f"{dtype}({row(n)})" if n else f"zeros(0, dtype: {dtype})"
        if type == "M":
            return f"{dtype}([{', '.join(row(n) for _ in range(rows))}])" if n and rows else f"zeros({rows}, {n}, dtype: {dtype})"
        if type == "S":
            return f"{dtype}({row(1)[1:-1]})"
        if type == "N":
            return self.number(wild)
        if type == "I":
            return str(self.random.choice([0, 1, 2, 3, 4, 5, 7, 11, -3]))
        if type == "K":
            return f"i64({self.random.randint(0, 9)})"
        if type == "R":
            return f"{{a: {self.value('V', n, rows, dtype, wild)}, b: {self.value('S', n, rows, dtype, wild)}, n: {self.value('I', n, rows, dtype)}}}"
        if type == "L":
            return f"({self.value('V', n, rows, dtype, wild)}, {self.value('V', n, rows, dtype, wild)})"
        raise AssertionError(type)

    def parameters(self):
        r = self.random
        types = ["V"] + r.sample(["V", "S", "V"] + ["N", "I", "I"] * ("host" in self.has) + ["M"] * 2 * ("matrix" in self.has) + ["K"] * ("integer" in self.has)
                                 + ["R"] * ("record" in self.has) + ["L"] * ("list" in self.has), r.randint(1, 3))
        return [("x" if i == 0 else f"{t.lower()}{chr(97 + i)}", t) for i, t in enumerate(types)]

    def globals(self):
        if "global" in self.has:
            self.top.statements += [Statement(f"let {name} = {self.value(type, 3, 2, 'f32')}") for name, type in (("scale", "N"), ("offset", "V"), ("steps", "I"))]

    def make_plain(self):
        r = self.random
        if "random" in self.has:
            self.top.statements.append(Statement("seed(5)"))
        self.globals()
        self.helpers()
        parameters = self.parameters()
        result = r.choice(["V", "V", "S", "S", "R", "L", "N", "I", "M", "K"])
        self.function("f", parameters, result, r.randint(2, 14), r.choice([2, 3, 3, 4]))
        bare = r.random() < 0.4
        wild = "odd" in self.has
        dtypes = ["f32"] * 6 + ["f64"] * 2 + ["f16", "bf16", "i64"]
        n, rows, dtype = 3 if "global" in self.has else r.choice([1, 2, 3, 3, 4, 8]), r.choice([1, 2, 3, 5]), r.choice(dtypes)
        sets, out = [], self.top.statements
        for number in range(r.randint(2, 5)):
            if number:
                change = r.choice(["data", "data", "data", "size", "dtype", "mixed"])
                if change == "size":
                    n, rows = n if "global" in self.has else r.choice([0, 1, 2, 3, 5, 9]), r.choice([0, 1, 2, 4, 6])
                elif change == "dtype":
                    dtype = r.choice(dtypes)
            values = [self.value(t, n, rows, r.choice(dtypes) if number and change == "mixed" else dtype, wild) for _, t in parameters]
            if number and r.random() < 0.5:  # most arguments as they were
                before = sets[-1]
                values = [new if r.random() < 0.4 else old for old, new in zip(before, values)]
            sets.append(values)
        for number, values in enumerate(sets + sets[:1]):
            if "global" in self.has and number and r.random() < 0.4:
                out.append(Statement(f"scale = {self.number(False)}"))
            call = Expression("?", f"f({', '.join(values)})")
            loop = Block([Statement("print(repr({}))" if bare else "print(try {{ repr({}) }} catch e {{ repr(e) }})", call)])
            out.append(Statement(f"for _ in 0..{r.choice([2, 3, 4])} {{}}", loop))
        # A loop at the top level, around calls.
        if result == "V" and r.random() < 0.4:
            others = ", ".join(sets[0][1:])
            again = Expression("V", f"f(state, {others})" if others else "f(state)")
            body = Block([Statement("state = tanh({}) * 2", again)])
            if r.random() < 0.5:
                body.statements.append(Statement('if sum(state) > 1 {}', Block([Statement('print("more", turn)')])))
            out += [Statement(f"let state = {sets[0][0]}"),
                    Statement("try {} catch e {}", Block([Statement("for turn in 0..12 {}", body)]), Block([Statement("print(repr(e))")])),
                    Statement("print(repr(state))")]

    def make_grad(self):
        r = self.random
        self.helpers()
        parameters = self.parameters()
        self.function("f", parameters, "S", r.randint(2, 12), r.choice([2, 3, 3]))
        floats = [i for i, (_, t) in enumerate(parameters) if t in "VSNM"]
        r.shuffle(floats)
        wrt = floats[0]
        names = [n for n, _ in parameters]
        ways = ["grad", "grad", "grad", "value_and_grad", "tree", "jvp", "second", "inner", "vjp"]
        way = r.choice(ways)
        if self.twice:
            way = r.choice(["second", "inner", "hessian", "jvp grad", "grad jvp", "jvp jvp", "vjp grad", "steps", "steps"])
        if self.deeper and self.deeper.random() < 0.4:
            way = self.deeper.choice(["third", "jvp hessian", "jacobian grad", "grad jvp grad"])
        if self.laned and self.laned.random() < 0.7:
            way = self.laned.choice(["second of lanes", "jvp of lanes", "second in lanes", "steps in lanes"])
        out = self.top.statements
        arguments = ", ".join(names)
        of, tail = names[wrt], "sum" if parameters[wrt][1] in "VM" else ""
        if self.twice:
            out.append(Statement("fn total(v) = sum(v) * 1.0"))
        slope, lanes = f"grad(fn({of}) s({arguments}))", f"stack(({of}, {of} * 0.5, {of} + 0.1))"
        out.append(Statement(f"fn s({arguments}) {{}}", self.recurrence(names[wrt], arguments)) if self.twice else Statement(f"fn s({arguments}) = sum(f({arguments})) * 1.0"))
        form = {"grad": f"grad(s, wrt: {wrt})({arguments})", "value_and_grad": f"value_and_grad(s, wrt: {wrt})({arguments})",
                "tree": f"grad(s, wrt: ({', '.join(map(str, sorted(floats)))},))({arguments})",
                "jvp": f"jvp(fn({names[wrt]}) s({arguments}), {names[wrt]}, {names[wrt]} * 0.5)",
                "second": f"grad(fn({arguments}) sum(grad(s, wrt: {wrt})({arguments}) * 0.5), wrt: {wrt})({arguments})",
                "inner": f"value_and_grad(fn({arguments}) s({arguments}) + sum(grad(s, wrt: {wrt})({arguments})) * 0.25, wrt: {wrt})({arguments})",
                "vjp": f"vjp(fn({names[wrt]}) s({arguments}), {names[wrt]})[1](0.5)",
                "hessian": f"hessian(fn({of}) s({arguments}))({of})",
                "jvp grad": f"jvp({slope}, {of}, {of} * 0.5)",
                "grad jvp": f"grad(fn({of}) jvp(fn({of}) s({arguments}), {of}, {of} * 0.5 + 0.1)[1] * 1.0)({of})",
                "jvp jvp": f"jvp(fn({of}) jvp(fn({of}) s({arguments}), {of}, {of} * 0.5)[1], {of}, {of} * 0.3)",
                "vjp grad": f"vjp({slope}, {of})[1]({of} * 0.5)",
                "third": f"grad(fn({of}) total(sin(grad(fn({of}) total({slope}({of}) * 0.7))({of}))))({of})",
                "jvp hessian": f"jvp(hessian(fn({of}) s({arguments})), {of}, {of} * 0.5)",
                "jacobian grad": f"jacobian(fn({of}) grad(fn({of}) total({slope}({of}) * {of}))({of}))({of})",
                "grad jvp grad": f"grad(fn({of}) total(jvp({slope}, {of}, {of} * 0.5 + 0.1)[1]))({of})",
                "second of lanes": f"grad(fn({of}) total(grad(fn({of}) total(vmap(fn({of}) s({arguments}))({lanes})))({of}) * {of}))({of})",
                "jvp of lanes": f"jvp(grad(fn({of}) total(vmap(fn({of}) s({arguments}))({lanes}))), {of}, {of} * 0.5)",
                "second in lanes": f"vmap(fn({of}) grad(fn({of}) total({slope}({of}) * {of}))({of}))({lanes})",
                "steps in lanes": f"grad(fn({of}) total(vmap(fn({of}) {{ let p = {of} - {slope}({of}) * 0.01; {of} = p; s({arguments}) }})({lanes})))({of})",
                "steps": f"grad(fn({of}) {{ let p = {of}; for _ in 0..2 {{ p = p - {slope}(p) * 0.01 }}; {of} = p; s({arguments}) + {tail}(p) }})({of})"}[way]
        out.append(Statement(f"fn g({arguments}) = {form}"))
        for number in range(r.randint(1, 3)):
            n, rows = r.choice([1, 2, 3, 3, 4, 8]), r.choice([1, 2, 3])
            values = [self.value(t, n, rows, "f64" if number < 2 else "f32") for _, t in parameters]
            call = Expression("?", f"g({', '.join(values)})")
            out.append(Statement(f"for _ in 0..{r.choice([2, 3, 4])} {{}}", Block([Statement("print(try {{ repr({}) }} catch e {{ repr(e) }})", call)])))
            if number < 2 and not self.twice:
                # The gradient along a direction, and central differences of two widths, in the eager interpreter.
                direction = "(0.7 + 0.3 * sin(arange(size) * 1.7))" if parameters[wrt][1] in "VM" else "0.7"
                given = ", ".join(f"p{n}" if i == wrt else v for i, (n, v) in enumerate(zip(names, values)))
                at = names[wrt]
                lines = Block([Statement(f"let p{at} = {values[wrt]}")])
                if parameters[wrt][1] in "VM":
                    lines.statements += [Statement(f"let size = p{at}.size"),
                                         Statement(f"let direction = f64{direction}.reshape(p{at}.shape)")]
                else:
                    lines.statements.append(Statement("let direction = 0.7"))
                up = ", ".join(f"p{n} + h * direction" if i == wrt else v for i, (n, v) in enumerate(zip(names, values)))
                down = ", ".join(f"p{n} - h * direction" if i == wrt else v for i, (n, v) in enumerate(zip(names, values)))
                lines.statements += [Statement(f"let slope = sum(grad(nojit(s), wrt: {wrt})({given}) * direction)"),
                                     Statement("let h = 1e-5"), Statement(f"let wide = (nojit(s)({up}) - nojit(s)({down})) / (2 * h)"),
                                     Statement("h = 2.5e-6"), Statement(f"let close = (nojit(s)({up}) - nojit(s)({down})) / (2 * h)"),
                                     Statement(f"let side = (nojit(s)({up}) - nojit(s)({given})) / h"),
                                     Statement(f'print("slopes", float(slope), float(wide), float(close), float(side), float(nojit(s)({given})))')]
                for line in lines.statements:
                    line.fixed = True
                out.append(Statement("try {} catch _e {}", lines, Block([Statement('print("no slopes")')])))

    def recurrence(self, name, arguments):
        """The body of a function: a loop of smooth steps, of which gradients read values of one turn and of the next; then f of what it gives."""
        r = random.Random(self.own.random())

        def term(depth):
            if depth == 0:
                return r.choice(["a", "a", "a", "b", "c", "0.3"])
            one, other = term(depth - 1), term(r.choice([0, depth - 1]))
            return r.choice([r.choice(SMOOTH).replace("{}", f"({one})"), r.choice(SMOOTH).replace("{}", f"({one})"), f"({one} * {other})", f"({one} + {other})", f"({one} - {other} * 0.3)"])

        steps = [r.choice(["a = tanh({})", "a = sin({}) * 0.9", "b = cos({})", "a = exp(-abs({}))", "b = tanh({})", "a = a * 0.5 + tanh({}) * 0.3", "b += sin({})",
                           "let t = b * 0.5; b = a; a = t + tanh({}) * 0.1", "b = a", "a += b * tanh({})", "c = c"]).format(term(2)) for _ in range(r.randint(1, 4))]
        lines = [Statement(f"let (a, b, c) = ({name} * 0.5, {name} * 0.3 + 0.1, {name})")] if r.random() < 0.7 else [Statement(f"let (a, b, c) = ({name}, {name}, {name} * 0.7)")]
        turn = [Statement(s) for step in steps for s in step.split("; ")]
        nested = self.deeper and self.deeper.random() < 0.7
        if nested:
            turn = self.nested(self.deeper, turn)
        lines.append(Statement(f"for _ in 0..{r.choice([9, 12, 16]) // (3 if nested else 1)} {{}}", Block(turn)))
        lines.append(Statement(f"{name} = {r.choice(['a', 'a + b', 'a * b', 'a + b * a', 'sin(b) * a + c'])}"))
        lines.append(Statement(r.choice([f"sum(f({arguments}))", f"sum(f({arguments})) + sum({name} * {name})", f"sum(f({arguments})) + sum(a * {name})", "sum(a * a * b)"]).replace("sum(", "total(")))
        return Block(lines)

    def nested(self, r, turn):
        """The statements of a turn, some of them in loops and in arms."""
        inside = turn[r.randint(0, len(turn) - 1):] if r.random() < 0.5 else list(turn)
        outside = turn[:len(turn) - len(inside)]
        if any(s.text.startswith("let t") for s in outside) and not any(s.text.startswith("let t") for s in inside):
            inside, outside = list(turn), []
        if r.random() < 0.4:
            inside.insert(r.randint(0, len(inside)), Statement(f"if total({r.choice('ab')}) > {r.choice(['0.5', '1.5'])} {{}}", Block([Statement(r.choice(["break", "continue", "a = a * 0.9"]))])))
        loop = Statement(f"for j in 0..{r.choice([1, 2, 3, 4])} {{}}", Block(inside))
        if r.random() < 0.3:
            loop = Statement(f"for k in 0..2 {{}}", Block([loop, Statement("c = c * 0.9 + sin(a) * 0.1")]))
        if r.random() < 0.4:
            loop = Statement(f"if total(a) > {r.choice(['0.1', '0.9'])} {{}} else {{}}", Block([loop]), Block([Statement("b = tanh(b * a)")]))
        return outside + [loop] + ([Statement("a = a * 0.7 + c * 0.1")] if r.random() < 0.5 else [])

    def make_vmap(self):
        r = self.random
        self.helpers()
        parameters = self.parameters()
        result = r.choice("VVSSK")
        self.function("f", parameters, result, r.randint(2, 10), r.choice([2, 2, 3]))
        names = [n for n, _ in parameters]
        lanes = r.choice([1, 2, 3, 4])
        axes = []
        for number, (_, t) in enumerate(parameters):
            axes.append(number == 0 or (t in "VSKM" and r.random() < 0.5))
        out = self.top.statements
        arguments = ", ".join(names)
        own = self.derived
        derives = r.random() < 0.25 and result == "S"
        if derives and ("while" not in self.has or own.random() < 0.5):
            out.append(Statement(f"fn of({arguments}) = grad(f)({arguments})"))
        elif derives or (result in "SV" and own.random() < 0.25):
            # of the first parameter alone, whose tangent it is, too
            some = [f"jvp({{}}, {names[0]}, {names[0]})[1]", "jacobian({})(" + names[0] + ")",
                    f"vjp({{}}, {names[0]})[1](" + ("1.0" if result == "S" else f"f({arguments})") + ")"]
            of = own.choice(some).format(f"fn({names[0]}) f({arguments})")
            out.append(Statement(f"fn of({arguments}) = {of}"))
        else:
            out.append(Statement(f"fn of({arguments}) = f({arguments})"))
        entries = ", ".join("0" if a else "nil" for a in axes)
        out.append(Statement(f"let v = vmap(of, in_axes: ({entries},))"))
        total = ""
        if self.outside and out[-2].text == f"fn of({arguments}) = f({arguments})" and self.outside.random() < 0.5:
            floats = [i for i, (_, t) in enumerate(parameters) if t in "VSM" or (t == "N" and not axes[i])]
            wrt = sorted(self.outside.sample(floats, self.outside.randint(1, len(floats))))
            name = self.outside.choice(["grad", "value_and_grad"])
            out.append(Statement(f"let total = {name}(fn({arguments}) sum(v({arguments}) * 0.5), wrt: ({', '.join(map(str, wrt))},))"))
            total = "total"
        out.append(Statement(f"fn looped({arguments}) = stack(map(list(0..{lanes}), fn(l) of({', '.join(n + '[l]' if a else n for n, a in zip(names, axes))})))"))
        n, rows, dtype = r.choice([1, 2, 3, 4, 8]), r.choice([1, 2, 3]), r.choice(["f32", "f32", "f64"])
        for number in range(r.randint(1, 3)):
            if number and r.random() < 0.4:
                n, rows = r.choice([1, 2, 3, 5]), r.choice([1, 2, 4])
            values = []
            for (_, t), mapped in zip(parameters, axes):
                some = [self.value(t, n, rows, dtype) for _ in range(lanes if mapped else 1)]
                values.append(f"stack(({', '.join(some)},))" if mapped else some[0])
            given = ", ".join(values)
            out.append(Statement('print("looped", try {{ repr({}) }} catch e {{ e.id }})', Expression("?", f"looped({given})"), fixed=False))
            loop = Block([Statement('print("lanes", try {{ repr({}) }} catch e {{ e.id }})', Expression("?", f"v({given})"))])
            if total:
                loop.statements.append(Statement('print("total", try {{ repr({}) }} catch e {{ e.id }})', Expression("?", f"total({given})")))
            out.append(Statement(f"for _ in 0..{r.choice([2, 3])} {{}}", loop))


# ---- smaller programs --------------------------------------------------------------------------------------------------------------

def blocks_of(block):
    """All blocks of a tree, the outer ones first."""
    yield block
    for s in block.statements:
        for p in s.parts:
            if isinstance(p, Block):
                yield from blocks_of(p)


def slots_of(block):
    """(holder, number) of every expression of a tree, the outer ones first."""
    for s in block.statements:
        for i, p in enumerate(s.parts):
            if isinstance(p, Block):
                yield from slots_of(p)
            else:
                yield from slots_in(s, i)


def slots_in(holder, i):
    yield holder, i
    for k in range(len(holder.parts[i].parts)):
        yield from slots_in(holder.parts[i], k)


def inner(e):
    """The expressions within one."""
    for p in e.parts:
        yield p
        yield from inner(p)


SIMPLE = {"N": ["1.0"], "I": ["1", "0"], "V": ["x", "v"], "C": ["true", "false"], "S": [], "K": ["i64(1)"]}


def smaller(top, fails):
    """Takes parts of a program out as long as `fails(text)` says that it still does; the tree is changed."""
    def still():
        return fails("\n".join(top.lines(0)) + "\n")

    progress = True
    while progress:
        progress = False
        # Statements, many at once, then fewer.
        for block in list(blocks_of(top)):
            size = max(1, len(block.statements) // 2)
            while size:
                at = 0
                while at < len(block.statements):
                    before = block.statements
                    block.statements = before[:at] + [s for s in before[at:at + size] if s.fixed] + before[at + size:]
                    if len(block.statements) < len(before) and still():
                        progress = True
                    else:
                        block.statements = before
                        at += size
                size //= 2
        # A statement's blocks in its place; an `if` without its other arms.
        for block in list(blocks_of(top)):
            at = 0
            while at < len(block.statements):
                s, before = block.statements[at], block.statements
                for p in [p for p in s.parts if isinstance(p, Block)]:
                    if s.text.startswith(("fn ", "let ")):
                        continue
                    block.statements = before[:at] + p.statements + before[at + 1:]
                    if still():
                        progress, before = True, block.statements
                        break
                    block.statements = before
                if s.text.startswith("if {} {} else"):
                    text, parts = s.text, s.parts
                    s.text, s.parts = "if {} {}", parts[:2]
                    if still():
                        progress = True
                    else:
                        s.text, s.parts = text, parts
                at += 1
        # Expressions: one of their parts of the same type, or something simple, in their place.
        for holder, i in list(slots_of(top)):
            if i >= len(holder.parts):
                continue
            e = holder.parts[i]
            if not isinstance(e, Expression):
                continue
            options = [p for p in inner(e) if p.type == e.type]
            if e.parts:
                options += [Expression(e.type, text) for text in SIMPLE.get(e.type, [])]
            for option in options:
                holder.parts[i] = option
                if still():
                    progress = True
                    break
                holder.parts[i] = e
    return "\n".join(top.lines(0)) + "\n"
