#!/usr/bin/env python3
"""Random programs that change one thing between calls of a function: what was compiled may serve a call only where the interpreter would
have done the same.

  guards.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--set NAME=VALUE] [--mode NAME]
            [--every-mode] [--failures FOLDER]          (control.py, whose way of running, comparing and shrinking this is, has all options)

A program has a function of some *slots*. A slot has a value (an array, a number, a list, a function, ...) and a way by which the function
gets it: an argument by place, by name or by spread, a field or an item of one, a default, a global, a captured variable, what a function
returns that is an argument or a global, the seed, and what the function itself is wrapped in (jit and its options, grad, vmap, ...). The function
is called A A A B B A B, where B differs from A in one slot, and again with another slot. What each call gives, prints and raises is printed.

  plain     the function as it is, and as jit, nojit, checkpoint and closures make it
  derived   its derivatives and batches, too
"""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import control  # noqa: E402
from flow import Block, Statement  # noqa: E402

QUICK = ["--set", "jit.cc=0", "--threads", "1"]
MODES = {
    "sync": ["--jit", "sync", "--set", "jit.hot=1", *QUICK],
    "verify": ["--jit", "verify", "--set", "jit.hot=1", *QUICK],
    "on": ["--jit", "on", "--set", "jit.hot=1", *QUICK],
    "later": ["--jit", "sync", "--set", "jit.hot=2", "--set", "jit.turns=2", *QUICK],
    "exact_sizes": ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.symbolic=0", *QUICK],
    "hot_sizes": ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.hot_sizes=1", *QUICK],
    "few_entries": ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.entries=2", *QUICK],
    "no_regions": ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.regions=0", *QUICK],
    "no_parts": ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.segments=0", *QUICK],
    "compiled": ["--jit", "sync", "--set", "jit.hot=1", "--threads", "2"],
}
TURNS = ("verify", "on", "verify", "later", "exact_sizes", "hot_sizes", "verify", "few_entries", "no_regions", "verify", "no_parts", "later", "compiled")

X, Y = "f32([1.5, -2.0, 0.5])", "f32([0.5, 2.0, -1.0])"
# Values by kind, and within a kind by what makes them differ; the first is the most usual one.
VALUES = {
    "array": {
        "data": [X, Y, "f32([-1.5, -2.0, -0.5])", "f32([nan, inf, -0.0])", "zeros(3)", "f32([3.0, 2.0, 1.0])"],
        "dtype": ["f64([1.5, -2.0, 0.5])", "f16([1.5, -2.0, 0.5])", "bf16([1.5, -2.0, 0.5])", "i32([1, -2, 3])", "[1, -2, 3]", "u8([1, 2, 3])",
                  "[true, false, true]"],
        "rank": ["f32(1.5)", "f32([[1.5, -2.0, 0.5]])", "f32([[1.5, -2.0, 0.5], [0.0, 1.0, 2.0], [2.0, 2.0, -1.0]])", "ones(1, 1, 3)", "i64(2)",
                 "[true]", "f32([1.5])", "f32([[-1.5]])"],
        "ones": ["f32([1.5])", "ones(1)", "ones(3, 1)", "ones(1, 3)", "ones(1, 1)"],
        "size": ["f32([1.0, -2.0, 3.0, -4.0])", "ones(0)", "ones(2)", "ones(2, 3)", "ones(3, 2)", "ones(3, 0)", "ones(9)"],
        "layout": ["broadcast_to(f32(1.5), 3)", "f32([[1.5, 7.0], [-2.0, 8.0], [0.5, 9.0]]).T[0]", "f32([9.0, 1.5, 9.0, -2.0, 9.0, 0.5])[1::2]",
                   "f32([0.5, -2.0, 1.5])[::-1]", "f32([0.0, 1.5, -2.0, 0.5])[1:]", "f32([[1.5, -2.0], [0.5, 1.0], [2.0, 3.0]]).T",
                   "broadcast_to(f32([1.5, -2.0, 0.5]), (3, 3))"],
    },
    "int": {"near": ["2", "3", "1", "0", "-1"], "far": ["7", "100", "-4", "9007199254740993"]},
    "float": {"near": ["0.5", "2.0", "-1.5", "0.0", "1.0"], "far": ["nan", "inf", "-0.0", "1e300", "3.0"]},
    "bool": {"bool": ["true", "false"]},
    "text": {"text": ['"a"', '"b"', '""', '"abc"']},
    "nil": {"nil": ["nil"]},
    "dtype": {"dtype": ["f32", "f64", "f16", "i64", "bool"]},
    "range": {"range": ["0..3", "0..4", "1..3", "0..0", "range(0, 6, 2)", "range(3, 0, -1)"]},
    "list": {
        "items": [f"({X}, 2)", f"({Y}, 2)", f"({X}, 3)", f"({X}, 2.0)", f"({X}, true)", f"({X}, f32(2))", "(f64([1.5, -2.0, 0.5]), 2)", f"({X}, nil)",
                  f'({X}, "a")', f"({X}, tanh)"],
        "length": ["()", f"({X},)", f"({X}, 2, 2)", f"({X}, {Y}, {X}, {Y})", "(1, 2, 3)", "(1,)", "(0.5, 2)"],
        "nested": [f"({X}, (2,))", f"(({X}, 2), 2)", f"({X}, ({X}, (1, 2)))", "((),)", f"({X}, {{a: 2}})"],
    },
    "record": {
        "fields": [f"({{a: {X}, b: 2}})", f"({{a: {Y}, b: 2}})", f"({{a: {X}, b: 3}})", f"({{a: {X}, b: 2.0}})", "({a: ones(3, 1), b: 2})", f"({{a: {X}, b: nil}})",
                   f"({{a: {X}, b: tanh}})"],
        "names": [f"({{b: 2, a: {X}}})", f"({{a: {X}}})", f"({{a: {X}, b: 2, c: 1}})", f"({{a: {X}, c: 2}})", f"({{a: {{a: {X}, b: 1}}, b: 2}})"],
    },
    "function": {
        "code": ["fn(v) v * 2", "fn(v) v * 3", "fn(v) v * 2", "tanh", "sin", "relu", "fn(v, w = 2) v + w", "fn(v) if sum(v) > 0 { v } else { -v }", "fn(v) nil",
                 "fn(v) v.shape", "fn(v) float(sum(v))"],
        "captures": ["scaled(2)", "scaled(3)", "scaled(2.5)", "scaled(true)", f"scaled({X})", "scaled(f64(2))", "scaled(ones(3, 1))", "chosen(\"a\")", "chosen(\"b\")",
                     "chosen(nil)", "chosen(3)", "applied(tanh)", "applied(scaled(2))", "applied(scaled(3))", "applied(applied(sin))", "fields({k: 2})",
                     "fields({k: 3})", "fields({k: f32(2)})"],
        "made": ["grad(fn(v) sum(v * v))", "grad(fn(v) sum(v * v * v))", "vmap(fn(v) v * 2)", "vmap(fn(v) v * 3)", "jit(fn(v) v + 1)", "nojit(scaled(2))",
                 "jit(scaled(3))", "checkpoint(scaled(2))", "grad(fn(v) sum(scaled(2)(v)))", "vmap(scaled(3))", "composite(scaled(2))"],
    },
    "key": {"key": ["key(0)", "key(1)", "key(7)"]},
    "module": {"module": ["nn", "({relu: fn(v) v * 2})", "({relu: tanh})", "({relu: fn(v) v * 3})"]},
}
KINDS = ["array"] * 8 + ["int"] * 4 + ["float"] * 3 + ["bool"] * 2 + ["text"] * 2 + ["nil", "dtype", "range"] + ["list"] * 3 + ["record"] * 3 + ["function"] * 6 + ["key", "module"]

# What is done with a slot `$` of a kind; `#` is the first slot, an array.
USES = {
    "array": ["$ * 2", "$ + #", "tanh($)", "sum($)", "sum($, axis: -1)", "max($)", "mean($)", "$.shape", "$.rank", "$.dtype", "$.size", "len($)", "type($)",
              "$[0]", "$[-1]", "$[::-1]", "$.T", "$[:2]", "$ > 0", "$ == #", "where($ > 0, $, #)", "$ / len($)", "$ @ #", "zeros_like($)", "ones($.shape)",
              "float(sum($))", "int(max($))", "stack(($, #))", "concat(($, #))", "$.reshape(-1)", "cumsum($)", "sort($)", "\"{$}\"", "repr($)", "$.shape[0] * #",
              "($, #)", "({a: $, b: 1})", "sum($) / $.size", "broadcast_to($, (2, 3))", "map($, fn(v) v * 2)", "fold($, fn(a, v) a + v, 0)", "$ // 2", "abs($)", "$ ** 2",
              "squeeze($)", "nonzero($)", "$[$ > 0]", "roll($, 1)", "softmax($)", "exp($)", "$.to(f64)", "$ & $", "any($)", "argmax($)", "# + $[0]"],
    "int": ["# * $", "# + $", "$", "$ + 1", "$ % 2", "#[$]", "#[:$]", "zeros($)", "#.reshape($, -1)", "sum(#, axis: $)", "# ** $", "float($)", "# / $",
            "arange($)", "repeat((#,), $)", "$ > 2", "#[$:]", "type($)", "roll(#, $)", "\"{$}\"", "$ // 2 * #", "full(2, $)", "# // $", "min($, 2) * #",
            "stack(($, sum(#)))", "[$, 1]", "where(# > 0, $, 0)", "$ == 2", "# == $"],
    "float": ["# * $", "# + $", "$", "$ * 2", "$ > 1", "int($)", "# ** $", "full(2, $)", "type($)", "\"{$}\"", "# > $", "clip(#, -1, $)", "[$, 1]",
              "where(# > 0, $, 0)", "# / $", "sqrt($) * #", "$ == $", "maximum(#, $)", "$ // 1", "stack(($, sum(#)))", "f64($)"],
    "bool": ["$", "not $", "# * $", "if $ { # } else { -# }", "where(# > 0, $, false)", "int($)", "($ and sum(#) > 0)", "($ or sum(#) > 0)", "$ == true",
             "sum(#, keepdims: $)", "\"{$}\"", "type($)"],
    "text": ["$", "$ + \"b\"", "len($)", "if $ == \"a\" { # * 2 } else { # }", "\"{$} {sum(#)}\"", "({a: #, b: 2})[$]", "upper($)", "has({a: 1}, $)", "type($)",
             "gelu(#, approximate: $)"],
    "nil": ["$ == nil", "if $ == nil { # } else { # * 2 }", "type($)", "sum(#, axis: $)", "($, #)"],
    "dtype": ["#.to($)", "zeros(2, dtype: $)", "$ == f32", "#.dtype == $", "$(#)", "\"{$}\"", "full(2, 1, dtype: $)"],
    "range": ["fold($, fn(a, i) a + i, sum(#))", "#[$]", "len($)", "list($)", "map($, fn(i) # * i)", "$"],
    "list": ["$", "len($)", "$[0]", "$[-1]", "# * $[0]", "map($, type)", "tree_map(fn(v) v * 2, $)", "append($, #)", "$ + (#,)", "reverse($)", "$ == ()", "($, #)",
             "fold($, fn(a, v) a + v, 0)", "stack($)", "tree_leaves($)", "len(tree_leaves($))", "contains($, 2)", "# * len($)", "zip($, $)", "$[1:]"],
    "record": ["$", "$.a", "$.b", "# * $.a", "$.a * $.b", "keys($)", "values($)", "has($, \"c\")", "get($, \"c\", #)", "({..$, b: #})", "tree_map(fn(v) v * 2, $)",
               "remove($, \"b\")", "$[\"a\"]", "items($)", "len($)", "$ == $", "$.c"],
    "function": ["$(#)", "$(# + 1)", "twice($, #)", "map((#, #), $)", "$ == tanh", "sum($(#))", "grad(fn(v) sum($(v)))(#)", "vmap($)(stack((#, #)))",
                 "applied($)(#)", "type($)", "jit($)(#)", "jvp($, #, #)", "({f: $}).f(#)", "($, #)", "fold(0..3, fn(a, i) $(a), #)", "#.$()"],
    "key": ["rand(2, key: $)", "randn(3, key: $)", "split($, 2)", "rand(2, key: $) * #", "permutation(4, key: $)"],
    "module": ["$.relu(#)", "type($)", "map((#,), $.relu)"],
}
# Conditions on a slot.
TESTS = {
    "array": ["$.rank > 1", "$.dtype == f32", "len($) > 2", "sum($) > 0", "type($) == \"array\"", "$ == nil", "any($ > 1)", "$.size == 3", "max($) > 1.5"],
    "int": ["$ > 2", "$ == 3", "type($) == \"int\"", "$ % 2 == 0", "sum(#) > $"],
    "float": ["$ > 1", "$ == 2", "type($) == \"float\"", "max(#) > $"],
    "bool": ["$", "not $", "$ == true"],
    "text": ["$ == \"a\"", "len($) == 1", "starts_with($, \"a\")"],
    "nil": ["$ == nil"],
    "dtype": ["$ == f32", "$ != #.dtype"],
    "range": ["len($) == 3", "$ == (0..3)"],
    "list": ["len($) == 2", "$ == ()", "type($[0]) == \"array\"", "$[1] == 2"],
    "record": ["has($, \"c\")", "$.b == 2", "keys($)[0] == \"a\"", "sum($.a) > 0"],
    "function": ["$ == tanh", "type($) == \"fn\"", "sum($(#)) > 0"],
    "key": ["$[0] == 0"],
    "module": ["type($) == \"module\""],
}
# Loops with a slot.
TURNS_OF = {
    "array": ["for v in $ { acc = acc + v }", "for i in 0..len($) { acc = acc + $[i] }", "while count < 5 and sum(acc) < sum($) { acc = acc + 1; count += 1 }"],
    "int": ["for i in 0..($ % 5) { acc = acc * 0.5 + i }", "while count < $ % 5 { acc = acc + 1; count = count + 1 }"],
    "float": ["for i in 0..3 { acc = acc * $ + i }"],
    "list": ["for v in $ { acc = acc + v }"],
    "range": ["for i in $ { acc = acc * 0.5 + i }"],
    "record": ["for (k, v) in items($) { acc = acc + v }"],
    "function": ["for i in 0..3 { acc = $(acc) }"],
}
# Updates of a slot in place, where the function has it as a variable of its own, or of a global between calls.
UPDATES = {
    "array": ["$[0] = 7", "$[-1] = 0.5", "$ *= 2", "$[:] = 1", "$[0] += 1"],
    "list": ["$[0] = 7", "$ = append($, 1)", f"$[0] = {Y}", "$[1] = nil"],
    "record": ["$.a = 7", "$[\"c\"] = 1", f"$.a = {Y}", "$.b = 3"],
    "int": ["$ += 1"],
    "float": ["$ *= 2"],
    "text": ["$ += \"b\""],
    "bool": ["$ = not $"],
}
WRAPPED = {
    "plain": ["$", "jit($)", "jit($, dynamic: true)", "jit($, dynamic: false)", "nojit($)", "checkpoint($)", "fn(..a) $(..a)", "jit(fn(..a) $(..a))",
              "jit($, backend: \"eager\")", "jit($, mode: \"max-autotune\")", "fn(..a) twice(fn(v) v, $(..a))"],
    "derived": ["$", "jit($)", "grad(fn(..a) scalar($(..a)))", "value_and_grad(fn(..a) scalar($(..a)))", "jit(grad(fn(..a) scalar($(..a))))",
                "fn(a, ..b) jvp(fn(v) scalar($(v, ..b)), a, ones_like(a))", "fn(a, ..b) vmap(fn(v) $(v, ..b))(stack((a, a * 2)))",
                "fn(a, ..b) vmap(grad(fn(v) scalar($(v, ..b))))(stack((a, a * 2)))", "fn(a, ..b) grad(fn(v) sum(vmap(fn(w) scalar($(w, ..b)))(stack((v, v * 2)))))(a)",
                "fn(a, ..b) grad(fn(v) scalar(grad(fn(w) scalar($(w, ..b)))(v)))(a)", "checkpoint($)", "fn(a, ..b) vjp(fn(v) scalar($(v, ..b)), a)[0]"],
}
LIBRARY = """import nn
fn const(v) = fn() v
fn scaled(k) = fn(v) v * k
fn chosen(k) = fn(v) if k == "a" { v * 2 } else if k == nil { v } else { v - 1 }
fn applied(g) = fn(v) g(v) + 1
fn fields(r) = fn(v) v * r.k
fn twice(g, v) = g(g(v))
fn scalar(t) { let s = 0.0; for l in tree_leaves(t) { if type(l) == "array" { s = s + sum(l * 1.0) } else { s = s + l } }; s }"""
WAYS = ["place"] * 5 + ["name", "spread", "field", "item", "default", "default", "global", "global", "global", "capture", "capture", "thunk", "helper", "deep"]


class Slot:
    def __init__(self, name, kind, value, way):
        self.name, self.kind, self.value, self.way = name, kind, value, way

    def inside(self):
        """What the function calls it."""
        n = self.name
        return {"global": n, "field": f"o.{n}", "thunk": f"{n}_()", "helper": f"{n}_()", "deep": f"deep.part.{n}"}.get(self.way, f"{n}_")


class Program:
    def __init__(self, seed, kind):
        self.random = r = random.Random(seed * 2 + (kind == "derived"))
        self.kind = kind
        ways = [w for w in WAYS if kind == "plain" or w != "name"]
        first = r.choice(VALUES["array"]["data"][:3] if r.random() < 0.7 else self.some("array"))
        self.slots = [Slot("x", "array", first, "place")]
        for i in range(r.randint(1, 4)):
            k = r.choice(KINDS)
            self.slots.append(Slot(f"s{i}", k, r.choice(VALUES[k][next(iter(VALUES[k]))] if r.random() < 0.6 else self.some(k)), r.choice(ways)))
        self.wrapped = r.choice(WRAPPED[kind]) if r.random() < (0.5 if kind == "plain" else 0.9) else "$"
        self.seeded = r.random() < 0.15
        self.seed = r.choice("012")
        self.call_way = r.choice(["lines", "loop", "function"])
        self.always = r.random() < 0.3  # functions are made anew for each call
        self.top = Block([Statement(LIBRARY, fixed=True)])
        self.build()

    def text(self):
        return "\n".join(self.top.lines(0)) + "\n"

    def some(self, kind):
        return self.random.choice(list(VALUES[kind].values()))

    def by(self, *ways):
        return [s for s in self.slots if s.way in ways]

    # ---- the function ----------------------------------------------------------------------------------------------------------
    def fill(self, text, slot):
        return text.replace("#", self.slots[0].inside()).replace("$", slot.inside())

    def statement(self, depth):
        r = self.random
        slot = r.choice(self.slots) if r.random() < 0.85 else self.slots[0]
        kind = slot.kind if r.random() < 0.96 else r.choice(KINDS)
        way = r.random()
        if way < 0.62 or depth <= 0:
            use = self.fill(r.choice(USES[kind]), slot)
            if r.random() < 0.06:
                return [Statement(f"print({use})")]
            if r.random() < 0.1:
                use = f"try {{ {use} }} catch e {{ e.id }}"
            return [Statement(f"out = append(out, {use})")]
        if way < 0.8:
            return [Statement(f"if {self.fill(r.choice(TESTS[kind]), slot)} {{}} else {{}}", self.block(depth - 1), self.block(depth - 1))]
        if way < 0.9 and kind in TURNS_OF:
            loop, x = self.fill(r.choice(TURNS_OF[kind]), slot), self.slots[0].inside()
            return [Statement(f"out = append(out, (fn(acc) {{ let count = 0; {loop}; (acc, count) }})({x}))")
                    if r.random() < 0.2 else Statement(f"if true {{ let acc = {x}; let count = 0; {loop}; out = append(out, (acc, count)) }}")]
        if way < 0.95 and kind in UPDATES:
            name = f"own{r.randrange(100)}"
            text = r.choice(UPDATES[kind]).replace("$", name)
            return [Statement(f"let {name} = {slot.inside()}; {text}; out = append(out, {name})")]
        if self.seeded:
            return [Statement(f"out = append(out, {r.choice(['rand(2)', 'randn(3)', 'randint(0, 10, 2)', 'permutation(4)'])})")]
        return [Statement(f"if {self.fill(r.choice(TESTS[kind]), slot)} {{ return out }}")]

    def block(self, depth):
        return Block([s for _ in range(self.random.randint(1, 2)) for s in self.statement(depth)])

    def build(self):
        r, top = self.random, self.top.statements
        body = Block([Statement("let out = ()", fixed=True)])
        if self.seeded:
            body.statements.append(Statement(f"out = append(out, {r.choice(['rand(2)', 'randn(3)', 'rand(2) * x_'])})"))
        for _ in range(r.randint(2, 5)):
            body.statements += self.statement(2)
        body.statements.append(Statement("out", fixed=True))
        for s in self.slots:
            top.append(Statement(f"let {s.name} = {s.value}", fixed=True))
        parameters = [f"{s.name}_" for s in self.by("place", "thunk")] + ["o"] * bool(self.by("field")) + ["l"] * bool(self.by("item"))
        parameters += [f"{s.name}_ = {s.name}d" for s in self.by("default")] + [f"{s.name}_ = nil" for s in self.by("name")]
        parameters += ["..rest"] * bool(self.by("spread"))
        items = [Statement(f"let {s.name}_ = l[{i}]", fixed=True) for i, s in enumerate(self.by("item"))]
        items += [Statement(f"let {s.name}_ = rest[{i}]", fixed=True) for i, s in enumerate(self.by("spread"))]
        body.statements[1:1] = items
        outer = [f"{s.name}_" for s in self.by("capture")] + [f"{s.name}d" for s in self.by("default")]
        top.append(Statement(f"fn make({', '.join(outer)}) = fn({', '.join(parameters)}) {{}}", body, fixed=True))
        for s in self.by("helper"):
            top.append(Statement(f"let {s.name}_ = const({s.name})", fixed=True))
        top.append(Statement(f"let deep = ({{part: {{{', '.join(f'{s.name}: {s.name}' for s in self.by('deep')) or 'n: 0'}}}}})", fixed=True))
        top.append(Statement(self.made("let f"), fixed=True))
        top.append(Statement(self.called("let call"), fixed=True))
        if self.call_way == "function":
            top.append(Statement(f"fn go() {{ {self.call()} }}", fixed=True))
        self.calls(3)
        for _ in range(r.randint(1, 3)):
            self.change()

    def made(self, target):
        return f"{target} = make({', '.join(s.name for s in self.by('capture') + self.by('default'))})"

    def called(self, target):
        return f"{target} = {self.wrapped.replace('$', 'f')}"

    def call(self):
        a = [s.name if s.way == "place" else f"const({s.name})" for s in self.by("place", "thunk")]
        a += ["{" + ", ".join(f"{s.name}: {s.name}" for s in self.by("field")) + "}"] if self.by("field") else []
        a += ["(" + "".join(f"{s.name}, " for s in self.by("item")) + ")"] if self.by("item") else []
        if self.by("spread"):  # what has a default has to be given before them
            a += [s.name for s in self.by("default")] + [s.name for s in self.by("name")] + ["..(" + "".join(f"{s.name}, " for s in self.by("spread")) + ")"]
        else:
            a += [f"{s.name}_: {s.name}" for s in self.by("name")]
        return f"try {{ print(repr(call({', '.join(a)}))) }} catch e {{ print(e.id, e.line, e.message) }}"

    def calls(self, n):
        top = self.top.statements
        call = "go()" if self.call_way == "function" else self.call()
        if self.seeded:
            top.append(Statement(f"seed({self.seed})"))
        if self.call_way == "loop" and n > 1:
            top.append(Statement(f"for _ in 0..{n} {{ {call} }}"))
            return
        for _ in range(n):
            if self.always:
                top.append(Statement(self.made("f")))
                top.append(Statement(self.called("call")))
            top.append(Statement(call))

    # ---- one thing that changes -----------------------------------------------------------------------------------------------
    def other(self, slot):
        r = self.random
        way = r.random()
        groups = VALUES[slot.kind]
        if way < 0.15:
            fit = self.some(r.choice(KINDS))
        elif way < 0.55:
            fit = next((g for g in groups.values() if slot.value in g), [])
        else:
            fit = self.some(slot.kind)
        return r.choice([v for v in fit if v != slot.value] or ["nil"])

    def assign(self, slot, text):
        """The slot's variable gets a value, and all that was made of it follows."""
        top = self.top.statements
        top.append(Statement(text))
        if slot.way in ("capture", "default"):
            top.append(Statement(self.made("f")))
            top.append(Statement(self.called("call")))
        elif slot.way == "helper":
            top.append(Statement(f"{slot.name}_ = const({slot.name})"))
        elif slot.way == "deep":
            top.append(Statement(f"deep.part.{slot.name} = {slot.name}"))

    def change(self):
        r, top = self.random, self.top.statements
        way = r.random()
        if way < 0.12 and len(WRAPPED[self.kind]) > 1:
            before = self.wrapped
            after = r.choice([w for w in WRAPPED[self.kind] if w != before])

            def turn(now):
                self.wrapped = now
                top.append(Statement(self.called("call")))
            first, second = (lambda: turn(before)), (lambda: turn(after))
        elif way < 0.2 and self.seeded:
            before, after = self.seed, r.choice("3456")

            def turn(now):
                self.seed = now
            first, second = (lambda: turn(before)), (lambda: turn(after))
        else:
            slot = r.choice(self.slots)
            before, after = slot.value, self.other(slot)
            text = f"{slot.name} = {after}"
            if slot.kind in UPDATES and r.random() < 0.2:  # of the value that is there
                text = f"try {{ {r.choice(UPDATES[slot.kind]).replace('$', slot.name)} }} catch e {{ print(e.id) }}"
            first, second = (lambda: self.assign(slot, f"{slot.name} = {before}")), (lambda: self.assign(slot, text))
        second()
        self.calls(2)
        first()
        self.calls(1)
        second()
        self.calls(1)
        first()
        self.calls(1)


if __name__ == "__main__":
    sys.exit(control.main(control.Suite(Program, ("plain", "derived", "plain"), MODES, TURNS, ends=True), __doc__))
