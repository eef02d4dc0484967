#!/usr/bin/env python3
"""What a call costs, in instructions: cost.py [--quern build/quern] [PATTERN]

Counts with callgrind, which gives the same number on every machine and at any load. A cost is the difference between a
long and a short loop, divided by the difference in turns: what one turn costs, the loop itself included. All loops run in
one process; `seed(0)` stands between them, at which callgrind writes its counters out.

  eager ops       each row of the op table, on tiny arrays, through the forms in which programs write it: at most TINY
  turns           programs of the interpreter alone: per turn of a loop, per update of a value with one owner, per call
  compiled call   y = f(...), a compiled function of eight tiny arrays, less the instructions inside its kernels: as it stands, as
                  jit(f)(...), and as a turn of a loop outside functions, which is a compiled call itself
  start           of a process that runs an empty program
  long calls      what a call costs for each of its layers, globals, branches: as much where there are many as where there are few

And what the call that is recorded costs the calling thread, as a multiple of the same call with `--jit off`; and what 150 calls cost it while a compiler runs that does not end, as a multiple of the same calls with
`--jit off`: recording, looking up and running plans on the block VM included.

The bounds are limits that must hold, not goals. With a pattern, the costs of the turns that match it are printed, no more.
"""
import argparse
import glob
import os
import re
import runpy
import subprocess
import sys
import tempfile

WARM, SHORT, LONG = 2, 300, 1300  # turns; the first loop makes what is made once
TINY = 800  # an eager op on a tiny array with its call

SETUP = """
let x = [1.0, 2.0, 3.0, 4.0]
let z = [0.5, 0.25, 0.125, 0.75]
let m = [[1.0, 2.0], [3.0, 4.0]]
let n = [[0.5, 0.25], [0.75, 1.0]]
let t = arange(8).reshape(2, 2, 2) / 8
let i = [1, 2, 3, 0]
let i2 = [1, 0]
let im = [[0, 1], [1, 0]]
let c = x > 2
let cm = m > 2
let s = x[0]
let k = key(0)
let d = f64([1, 2, 3, 4])
let h = bf16([1, 2, 3, 4])
let hh = f16([1, 2, 3, 4])
let i32s = i32([1, 2, 3, 4])
let u = u8([1, 2, 3, 4])
let y = x
let total = 0.0
let half = 0.5
fn fib(n) = if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
"""

# Expressions of each row of the op table (lang/ops.def): what reaches the row and no other, or where a statement, the statement.
OPS = {
    "add": ["x + 1", "x + z", "m + n", "m + 1", "m + i2", "x + s", "t + m", "x + i", "x + d", "h + 1", "h + h", "h + hh", "i + 1", "i + u", "u + 1", "c + c", "i + 0.5"],
    "sub": ["x - z", "i32s - i"],
    "mul": ["x * z", "m * s", "x * i32s", "x * c", "h * x"],
    "div": ["x / z", "i / 2", "i / i"],
    "floordiv": ["x // z", "i // 2"],
    "mod": ["x % z", "i % 3"],
    "pow": ["x ** 2", "x ** z", "i ** 2"],
    "neg": ["-x", "-h"],
    "abs": ["abs(x)", "abs(i)"],
    "sign": ["sign(x)"],
    "minimum": ["minimum(x, 1)", "x.minimum(z)"],
    "maximum": ["maximum(x, z)", "x.maximum(1)"],
    "floor": ["floor(x)"],
    "ceil": ["ceil(x)"],
    "round": ["round(x)"],
    "trunc": ["trunc(x)"],
    "sqrt": ["sqrt(x)", "sqrt(i)"],
    "rsqrt": ["rsqrt(x)"],
    "exp": ["exp(x)", "exp(i)", "exp(h)"],
    "exp2": ["exp2(x)"],
    "expm1": ["expm1(x)"],
    "log": ["log(x)"],
    "log2": ["log2(x)"],
    "log10": ["log10(x)"],
    "log1p": ["log1p(x)"],
    "sin": ["sin(x)"],
    "cos": ["cos(x)"],
    "tan": ["tan(x)"],
    "arcsin": ["arcsin(z)"],
    "arccos": ["arccos(z)"],
    "arctan": ["arctan(x)"],
    "arctan2": ["arctan2(x, z)"],
    "sinh": ["sinh(x)"],
    "cosh": ["cosh(x)"],
    "tanh": ["tanh(x)"],
    "sigmoid": ["sigmoid(x)"],
    "erf": ["erf(x)"],
    "silu": ["silu(x)"],
    "gelu": ["gelu(x)"],
    "gelu_tanh": ["gelu(x, approximate: \"tanh\")"],
    "eq": ["x == z", "i == 2"],
    "ne": ["x != z"],
    "lt": ["x < 2", "x < i"],
    "le": ["x <= z"],
    "gt": ["m > n"],
    "ge": ["x >= z"],
    "bitand": ["c & c", "i & 3"],
    "bitor": ["c | c"],
    "xor": ["xor(c, c)"],
    "invert": ["~c"],
    "shl": ["shl(i, 1)"],
    "shr": ["shr(i, 1)"],
    "isnan": ["isnan(x)"],
    "isinf": ["isinf(x)"],
    "isfinite": ["isfinite(x)"],
    "where": ["where(c, x, z)", "where(c, x, 0)", "where(cm, m, n)", "where(cm, m, 0)", "where(cm, i2, m)"],
    "cast": ["f32(i)", "i64(x)", "x.to(f64)", "bf16(x)", "bool(x)", "f32(h)"],
    "stop_gradient": ["stop_gradient(x)"],
    "sum": ["sum(x)", "x.sum()", "sum(i)", "sum(c)", "sum(h)", "sum(m, axis: 0)", "sum(m, axis: -1)", "m.sum(axis: 1)", "m.sum(axis: 1, keepdims: true)", "sum(t, axis: (0, 1))", "sum(t, axis: 1)",
            "mean(x)", "mean(i)", "mean(m, axis: 0)", "mean(m, axis: 1)", "m.mean(axis: 1, keepdims: true)"],
    "prod": ["prod(x)"],
    "max": ["max(x)", "max(m, axis: 0)", "max(m, 1)", "m.max(axis: 1, keepdims: true)"],
    "min": ["min(x)", "min(m, axis: 1)"],
    "argmax": ["argmax(x)", "argmax(m, axis: 0)", "argmax(m, axis: 1)"],
    "argmin": ["argmin(x)"],
    "any": ["any(c)", "any(cm, axis: 0)"],
    "all": ["all(c)"],
    "cumsum": ["cumsum(x)", "cumsum(m, axis: 0)"],
    "cumprod": ["cumprod(x)"],
    "cummax": ["cummax(x)"],
    "cummin": ["cummin(x)"],
    "reshape": ["x.reshape(2, 2)", "reshape(x, 2, -1)"],
    "broadcast": ["broadcast_to(x, 3, 4)", "zeros(4)", "full(4, 1.5)"],
    "permute": ["m.T", "transpose(m, 0, 1)", "m.transpose(-2, -1)", "permute(t, 2, 0, 1)"],
    "slice": ["x[1:3]", "x[1:]", "x[::-1]", "x[1]", "m[0]", "m[:, 0]", "m[0, 1]", "m[1:, :1]", "x[:, new]", "m[..., 0]", "flip(x)"],
    "pad": ["pad(x, 1)"],
    "concat": ["concat((x, z))", "concat((m, n), axis: 1)", "stack((x, z))", "[x, z]", "[1.0, 2.0, 3.0]", "[[1, 2], [3, 4]]", "f64([1, 2])"],
    "iota": ["arange(4)"],
    "index": ["x[i]", "x[i2]", "m[i2]", "m[i2, i2]", "m[:, i2]", "take(x, i)", "take(m, i2, axis: 1)"],
    "scatter": ["y[i] = x", "y[i] += x", "scatter_add(x, i, z)"],
    "gather": ["gather(m, im, 1)"],
    "slice_put": ["y[0] = 1", "y[1:3] = 0", "y[0] += 1"],
    "compress": ["x[c]", "m[cm]", "y[c] = 0"],
    "nonzero": ["nonzero(c)"],
    "dot": ["x @ z", "m @ i2", "i2 @ m", "m @ n", "m @ m.T", "t @ t", "t @ m", "d @ d", "i @ i", "h @ h"],
    "sort": ["sort(x)", "sort(m, axis: 0)"],
    "argsort": ["argsort(x)"],
    "random_bits": ["randint(0, 5, 4)"],
    "random_uniform": ["rand(4)"],
    "random_normal": ["randn(4)", "randn(4, key: k)"],
}
# Rows that programs do not reach on their own.
MADE = {
    "smul": "of gradients",
    "gelu_slope": "of gradients",
    "fit": "of numbers beside arrays in recordings",
    "window": "of convolution and pooling",
    "gather_add": "of gradients",
    "gemm": "of matrix products in plans",
    "recurrence": "of gradients",
}


def local(setup, turn):
    """A loop in a function."""
    return f"fn run(n) {{\n{setup}\nfor i in 0..n {{ {turn} }}\n}}\nrun(COUNT)\n"


LOCAL_X = "let x = [1.0, 2.0, 3.0, 4.0]\nlet y = x"
# What runs (COUNT is how many turns), at most how many instructions a turn may take, and what it is divided by.
TURNS = {
    "eager op in a function": (local(LOCAL_X, "y = x + 1"), TINY, 1),
    "float loop": (local("let s = 0.0\nlet x = 0.5", "s = (s + x) * 0.25 - i * 0.125"), 200, 1),
    "int loop with a branch": (local("let k = 0", "if i % 3 == 0 { k += i } else { k = k - 1 }"), 180, 1),
    "top-level loop": ("for i in 0..COUNT { total = (total + half) * 0.25 - i * 0.125 }", 300, 1),
    "list append": (local("let l = ()", "l = append(l, i)"), 480, 1),
    "list item": (local("let l = list(0..2000)", "l[i] = l[i] + 1"), 220, 1),
    "text append": (local('let s = ""', 's = s + "ab"'), 240, 1),
    "record field": (local("let r = {a: 0, b: 1}", "r.a = r.a + i"), 180, 1),
    "record field four deep": (local("let r = {b: {c: {d: {e: 0}}}}", "r.b.c.d.e = i"), 240, 1),
    "array element": (local("let x = zeros(2000)", "x[i] = i * 0.5"), 220, 1),
    "call of fib": ("for _ in 0..COUNT { fib(8) }", 270, 67),
}
# Calls that are COUNT long, run with these options: what they cost for each of COUNT is the same for all lengths.
CHECKPOINTED = """
fn layer(x, w) = tanh(x * w)
let saved = checkpoint(layer)
let ruled = custom_grad(fn(x) tanh(x * 1.5), fn(x, ct) ct * 2)
fn many(x, ws) { for w in ws { x = saved(x, w) }; x }
fn total(x, ws) = sum(many(x, ws))
fn one(x, w, n) { for _ in 0..n { x = saved(x, w) }; sum(x) }
fn by_rule(x, n) { for _ in 0..n { x = ruled(x) }; sum(x) }
let ws = list(map(0..COUNT, fn(i) ones(4) * (1 + i / 10_000)))
let f = x
seed(0)
"""
RECORDED = ["--jit", "sync", "--set", "jit.hot=1", "--set", "jit.cc=0", "--set", "jit.nodes=100_000"]
LENGTHS = {
    "checkpointed layer": (["--jit", "off"], CHECKPOINTED + "grad(total, (0, 1))(x, ws)"),
    "checkpointed layer with a host number": (["--jit", "off"], CHECKPOINTED + "grad(one, (0, 1))(x, 1.5, COUNT)"),
    "checkpointed layer, pullback": (["--jit", "off"], CHECKPOINTED + "let (y, back) = vjp(fn(x) many(x, ws), x)\nback(y)"),
    "checkpointed layer, in lanes": (["--jit", "off"], CHECKPOINTED + "vmap(grad(fn(x) total(x, ws)))(m.reshape(1, 4))"),
    # more nodes than a recording has by default, so that all are run once and not, of many, some twice
    "layer with a rule": (["--jit", "off", "--set", "jit.nodes=1000000"], CHECKPOINTED + "grad(by_rule)(x, COUNT)"),
    "global that is recorded": (RECORDED, lambda n: "".join(f"let g{i} = x\n" for i in range(n)) + "fn f(x) {\n" + "".join(f"  x = x + g{i}\n" for i in range(n)) +
                                "  x\n}\nseed(0)\nf(x)"),
    "branch that is recorded": (RECORDED, "fn f(x, l) { for w in l { if w > 0 { x = x + 1 } }; x }\nlet l = list(map(0..COUNT, fn(i) i + 1))\nseed(0)\nf(x, l)"),
    "step of an unrolled RNN, recorded and planned": (
        RECORDED, "fn f(l, w) { let h = ones(4); for x in l { h = tanh(h * w + x) }; sum(h) }\nlet l = (1, ..list(map(1..COUNT, fn(i) 0.5 / i)))\nseed(0)\nf(l, x)"),
    "result that is recorded": (RECORDED, "fn f(x, n) { let l = (); for i in 0..n { l = append(l, x + i) }; l }\nseed(0)\nf(x, COUNT)"),
}
LENGTHS["element that a captured loop updates"] = (
    RECORDED + ["--set", "jit.regions=1", "--set", "jit.unroll=8"],
    "fn f(x, y, n) { for j in 1..n { if x[j] < 1e9 { y[j] = y[j - 1] + x[j] } }; y }\n"
    "let a = arange(COUNT) * 0.5\nfor _ in 0..4 { f(a, a, COUNT) }\nseed(0)\nf(a, a, COUNT)")
LENGTHS["column that a captured loop stores into"] = (
    RECORDED + ["--set", "jit.regions=1", "--set", "jit.unroll=8"],
    "fn f(x, v, n) { for j in 0..n { x[:, j, :] = sin(v) * j }; x }\n"
    "let (a, v) = (zeros(2, COUNT, 3), x[:3])\nfor _ in 0..4 { f(a, v, COUNT) }\nseed(0)\nf(a, v, COUNT)")
LENGTHS["array that loops in a captured loop store into"] = (
    RECORDED + ["--set", "jit.regions=1", "--set", "jit.unroll=8"],
    "fn f(x, v, n) { for i in 0..n { for j in 0..9 { x[:, j, :] = sin(v) * i - j } }; x }\n"
    "let (a, v) = (zeros(2, COUNT, 3), x[:3])\nfor _ in 0..4 { f(a, v, COUNT) }\nseed(0)\nf(a, v, COUNT)")
FEW, MANY, LENGTH_BOUND = 250, 4000, 1.1


def nested(depth, before, turn, behind):
    """A function of so many loops, one in another, and calls of it."""
    loops = "".join(f"let s{k} = {before}\nfor _ in 0..2 {{\nif x[0] > 0 {{ s{k} = {turn.replace('S', f's{k}')} }}\n" for k in range(depth))
    ends = "".join(f"}}\nx = x + {behind.replace('S', f's{k}')}\n" for k in reversed(range(depth)))
    return f"fn f(x) {{\n{loops}x = x * 0.99\n{ends}x\n}}\nseed(0)\nfor k in 0..4 {{ f(x * k) }}"


# What is recorded in vain, in ways of ways, is bounded: each loop more could take ten times as long.
DEEP, DEEP_BOUND = 7, 600_000_000
NESTS = {
    "nested loops whose variables change kind": lambda depth: nested(depth, "0", "S + x[1]", "S"),
    "nested loops whose lists grow on data": lambda depth: nested(depth, "()", "append(S, x[0])", "len(S)"),
}
START_BOUND = 5_000_000  # a process that runs an empty program, the system's loader included

CALLS_SETUP = """
let x = [1.0, 2.0, 3.0, 4.0]
let y = x
fn f(a, b, c, d, e, g, h, i) = (a + b) * (c + d) + (e + g) * (h + i)
for _ in 0..100 { y = f(x, x, x, x, x, x, x, x) }
"""
JIT_SETUP = CALLS_SETUP.replace("fn f(", "fn inner(").replace("for _", "let f = jit(inner)\nfor _")
COMPILED_BOUND, JIT_BOUND, TURN_BOUND = 1600, 1950, 2500
WHILE_COMPILING, CALLS = 1.25, 150
RECORDING = 3  # the call that is recorded, as a multiple of the same call with --jit off
RECORDED_ROWS = ("rnn 64", "transformer 16", "mlp gradient")  # of tests/bench/recording.py


def callgrind(command, out, *options, env=None):
    """Runs a program under callgrind, which writes to files that begin with `out`; its messages."""
    command = ["valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={out}", *command]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))
    if done.returncode != 0:
        sys.exit(f"FAILED {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stderr


def totals(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return int(re.search(r"^totals: (\d+)", f.read(), re.M).group(1))


def turn_costs(quern, programs, folder):
    """What a turn of each program costs; a program is a text with COUNT in it."""
    text, out = SETUP, os.path.join(folder, "turns")
    for at, program in enumerate(programs):
        for count in (WARM, SHORT, LONG):
            mine = re.sub(r"\brun\b", f"run{at}x{count}", program).replace("COUNT", str(count))
            text += f"y = x + 0\nseed(0)\n{mine}\n"
    script = os.path.join(folder, "turns.qn")
    with open(script, "w", encoding="utf-8") as f:
        f.write(text + "seed(0)\n")
    callgrind([quern, "--jit", "off", "--threads", "1", script], out, "--dump-before=builtin_seed")
    parts = {int(path.rsplit(".", 1)[1]): totals(path) for path in glob.glob(out + ".[0-9]*")}
    # part k is what ran before the k-th seed(0), counted from 1: the first is the setup
    return [(parts[3 * at + 4] - parts[3 * at + 3]) / (LONG - SHORT) for at in range(len(programs))]


def length_cost(quern, folder, options, program, count):
    """What a call that is `count` long costs for each of them."""
    script, out = os.path.join(folder, "length.qn"), os.path.join(folder, f"length{count}")
    text = program(count) if callable(program) else program.replace("COUNT", str(count))
    with open(script, "w", encoding="utf-8") as f:
        f.write(f"{SETUP}\n{text}\nseed(0)\n")
    for path in glob.glob(out + "*"):
        os.remove(path)
    callgrind([quern, *options, "--threads", "1", script], out, "--dump-before=builtin_seed")
    return totals(out + ".2") / count


def compiled_call(quern, folder, *flags, setup=CALLS_SETUP):
    """A call of a compiled function, less what its kernels take."""
    flags, costs = ["--jit", "sync", "--set", "jit.hot=2", "--threads", "1", *flags], []
    env = {"QUERN_CACHE": os.path.join(folder, "cache")}
    script, out = os.path.join(folder, "calls.qn"), os.path.join(folder, "calls")
    for count in (0, 300, 1300):  # the first fills the kernel cache, so that no compiler runs in the others
        with open(script, "w", encoding="utf-8") as f:
            f.write(setup + f"for _ in 0..{count} {{ y = f(x, x, x, x, x, x, x, x) }}\n")
        collected = re.search(r"Collected\s*:\s*(\d+)", callgrind([quern, *flags, script], out, env=env))
        costs.append(int(collected.group(1)) - kernel_share(out))
    return (costs[2] - costs[1]) / 1000


def kernel_share(path):
    """Self cost of functions that lie in no named part of the binary or a system library: emitted code."""
    names, inside, cost, skip = {}, False, 0, False
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            found = re.match(r"ob=\((\d+)\)(?: (.*))?", line)
            if found:
                if found.group(2):
                    names[found.group(1)] = found.group(2).strip()
                name = names.get(found.group(1), "")
                inside = "/cache/" in name or "memfd" in name or name == "???" or name.endswith(".o")
            elif line.startswith("cob="):
                found = re.match(r"cob=\((\d+)\)(?: (.*))?", line)
                if found and found.group(2):
                    names[found.group(1)] = found.group(2).strip()
            elif line.startswith("calls="):
                skip = True
            elif line[:1] in "+-*0123456789":
                if not skip and inside:
                    cost += int(line.split()[1])
                skip = False
    return cost


def main_thread(quern, flags, text, folder):
    """Instructions of the thread that runs the script, with a compiler that takes longer than the script."""
    script, out, bin_folder = (os.path.join(folder, name) for name in ("w.qn", "threads", "bin"))
    os.makedirs(bin_folder, exist_ok=True)
    with open(os.path.join(bin_folder, "cc"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexec sleep 300\n")
    os.chmod(f.name, 0o755)
    with open(script, "w", encoding="utf-8") as f:
        f.write(text)
    env = {"QUERN_CACHE": os.path.join(folder, "nothing"), "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    callgrind([quern, *flags, "--threads", "1", script], out, "--separate-threads=yes", env=env)
    return totals(out + "-01")


def op_table():
    """The rows' names."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lang", "ops.def")
    with open(path, encoding="utf-8") as f:
        return re.findall(r"^OP_(?!TOPIC)[A-Z]+\((\w+),", f.read(), re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("pattern", nargs="?", help="only the turns that match it")
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    failed = [f"row {row} of the op table has no expression" for row in op_table() if row not in OPS and row not in MADE]

    def check(name, cost, bound):
        print(f"{name}: {cost:.0f}, at most {bound}")
        if cost > bound:
            failed.append(f"{name}: {cost:.0f} exceeds {bound}")

    turns = dict(TURNS)
    for row, expressions in OPS.items():
        for e in expressions:
            statement = e if re.match(r"y\[[^]]*\] \W?= ", e) else f"y = {e}"
            turns[f"{row}: {e}"] = (f"for _ in 0..COUNT {{ {statement} }}", TINY, 1)
    if options.pattern:
        turns = {name: turn for name, turn in turns.items() if re.search(options.pattern, name)}
    with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
        for (name, (_, bound, calls)), cost in zip(turns.items(), turn_costs(quern, [text for text, _, _ in turns.values()], folder)):
            check(name, cost / calls, bound)
        for name, (flags, program) in LENGTHS.items():
            if options.pattern and not re.search(options.pattern, name):
                continue
            few, many = (length_cost(quern, folder, flags, program, count) for count in (FEW, MANY))
            print(f"{name}: {few:.0f} of {FEW}, {many:.0f} of {MANY}")
            if many > LENGTH_BOUND * few:
                failed.append(f"{name}: {many:.0f} of {MANY} exceed {few:.0f} of {FEW}")
        for name, program in NESTS.items():
            if not options.pattern or re.search(options.pattern, name):
                check(name, DEEP * length_cost(quern, folder, RECORDED[:-2], program, DEEP), DEEP_BOUND)
        if not options.pattern:
            check("compiled call", compiled_call(quern, folder, "--set", "jit.turns=0"), COMPILED_BOUND)
            check("compiled call of jit(f)", compiled_call(quern, folder, "--set", "jit.turns=0", setup=JIT_SETUP), JIT_BOUND)
            check("compiled turn", compiled_call(quern, folder), TURN_BOUND)
            empty, out = os.path.join(folder, "empty.qn"), os.path.join(folder, "empty")
            open(empty, "w", encoding="utf-8").close()
            callgrind([quern, empty], out)
            check("start of the process", totals(out), START_BOUND)
    here = os.path.dirname(os.path.abspath(__file__))
    rows = runpy.run_path(os.path.join(here, "bench", "recording.py"))["ROWS"]
    for name in RECORDED_ROWS:
        if options.pattern and not re.search(options.pattern, f"recording {name}"):
            continue
        with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
            text, inputs = rows[name]
            flags = ["--set", "jit.hot=2", "--set", "jit.short=0", "--set", "jit.cc=0"]
            once, twice = (f"seed(1)\n{text}\n{inputs}\n" + "f(..inputs)\n" * calls for calls in (1, 2))
            on, off = (main_thread(quern, [*flags, "--jit", mode], twice, folder) - main_thread(quern, [*flags, "--jit", mode], once, folder) for mode in ("on", "off"))
        print(f"recording {name}: {on / off:.2f} times the call with --jit off, at most {RECORDING}")
        if on > RECORDING * off:
            failed.append(f"recording {name}")
    programs = runpy.run_path(os.path.join(here, "cli", "run.py"))["WHILE_COMPILING"]
    for name, program in {} if options.pattern else programs.items():
        with tempfile.TemporaryDirectory(prefix="quern-cost-") as folder:
            text = "seed(1)\n" + program
            calls = text + f"for _ in 0..{CALLS} {{ f(x) }}\n"
            start = main_thread(quern, ["--jit", "off"], text, folder)
            off, on = (main_thread(quern, ["--jit", mode], calls, folder) - start for mode in ("off", "on"))
        print(f"{name}: {CALLS} calls while a compiler runs {on / off:.3f} times those of --jit off, at most {WHILE_COMPILING}")
        if on > WHILE_COMPILING * off:
            failed.append(f"{name}: calls while a compiler runs")
    sys.exit("FAILED: " + "; ".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
