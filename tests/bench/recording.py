#!/usr/bin/env python3
"""What recording a call costs the calling thread, as a multiple of the same call with `--jit off`.

  recording.py [--quern build/quern] [--row NAME] [--copies N] [--set NAME=VALUE ...]

Each row is a function. A script has many copies of it; each is called twice (its second call is the one that is recorded), with pauses in between in which
the compiler threads come to rest. What is printed are medians over the copies, of microseconds: recorded, eager (the second calls of the same script with
`--jit off`), and their ratio. Kernels stay on the block VM (jit.cc=0): compilers would take turns with what is timed.
"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile

RNN = "fn f(x, w, u) { let h = zeros(w.shape[0]); for i in list(0..STEPS) { h = tanh(h @ w + x[i] @ u) }; sum(h) }"
RNN_INPUTS = "let inputs = (randn(STEPS, 16), randn(SIZE, SIZE) / SIZE, randn(16, SIZE))"
LAYER = """
fn attention(x, p) = softmax(((x @ p.q) @ (x @ p.k).transpose(-2, -1)) / 8, axis: -1) @ (x @ p.v)
fn f(p, x) {
  let h = layer_norm(x + attention(x, p), p.g1, p.b1)
  layer_norm(h + gelu(h @ p.up + p.bu) @ p.down + p.bd, p.g2, p.b2)
}
"""
LAYER_INPUTS = """
let p = {q: randn(64, 64) / 8, k: randn(64, 64) / 8, v: randn(64, 64) / 8, up: randn(64, 256) / 8, bu: zeros(256), down: randn(256, 64) / 16, bd: zeros(64),
  g1: ones(64), b1: zeros(64), g2: ones(64), b2: zeros(64)}
let inputs = (p, randn(ROWS, 64))
"""
MLP = """
fn loss(p, x, y) { for l in p { x = tanh(x @ l.w + l.b) }; mean((x - y) ** 2) }
fn f(p, x, y) = grad(loss)(p, x, y)
"""
MLP_INPUTS = """
let p = map(0..4, fn(i) {w: randn(64, 64) / 8, b: zeros(64)})
let inputs = (p, randn(32, 64), randn(32, 64))
"""
OPS = "fn f(x, y) {\n" + "".join(f"  x = x * 1.01 + y\n  y = sqrt(abs(x) + {i}) - maximum(x, y)\n" for i in range(14)) + "  x + y\n}"
SCALARS = "fn f(a, x, n) { let b = 1.0; for i in list(0..n) { let c = a * b + 1; a = c / (b + 2); b = b * 0.99 + c * 0.01 }; x * a + b }"
ROWS = {f"rnn {size}": (RNN.replace("STEPS", "64"), RNN_INPUTS.replace("SIZE", str(size)).replace("STEPS", "64")) for size in (4, 8, 64, 128)}
ROWS |= {
    "rnn loop 64": (RNN.replace("list(0..STEPS)", "0..512"), RNN_INPUTS.replace("SIZE", "64").replace("STEPS", "512")),
    "rnn grad 64": (RNN.replace("fn f", "fn loss").replace("STEPS", "64") + "\nfn f(x, w, u) = grad(loss, (1, 2))(x, w, u)",
                    RNN_INPUTS.replace("SIZE", "64").replace("STEPS", "64")),
    "100 ops": (OPS, "let inputs = (randn(1000), randn(1000))"),
    "transformer 16": (LAYER, LAYER_INPUTS.replace("ROWS", "16")),
    "transformer 128": (LAYER, LAYER_INPUTS.replace("ROWS", "128")),
    "mlp gradient": (MLP, MLP_INPUTS),
    "scalars": (SCALARS, "let inputs = (1.5, ones(8), 100)"),
}
# At the top level, where nothing around the calls is recorded.
TIMED = """
f_NUMBER(..inputs)
t = time()
f_NUMBER(..inputs)
took = time() - t
t = time()
while time() - t < 20 * took + 0.002 { }
print(took * 1e6)
"""


def renamed(text, i):
    """The text with another name for each function that it defines."""
    for name in re.findall(r"^fn (\w+)", text, re.M):
        text = re.sub(rf"\b{name}\b(?!:)", f"{name}_{i}", text)
    return text


def times(quern, script, flags):
    done = subprocess.run([quern, *flags, "--set", "jit.turns=0", "--set", "jit.hot=2", "--set", "jit.cc=0", "--threads", "1", script],
                          capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--row", action="append", help="rows that match it only")
    parser.add_argument("--copies", type=int, default=25)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    flags = [word for setting in options.set for word in ("--set", setting)]
    print(f"{'':18}{'recorded':>10}{'eager':>10}{'ratio':>8}   microseconds")
    with tempfile.TemporaryDirectory(prefix="quern-recording-") as folder:
        script = os.path.join(folder, "rows.qn")
        for name, (functions, inputs) in ROWS.items():
            if options.row and not any(re.search(row, name) for row in options.row):
                continue
            with open(script, "w", encoding="utf-8") as f:
                f.write("seed(1)\n" + inputs + "\nlet t = 0.0\nlet took = 0.0\n")
                f.writelines(renamed(functions, i) + TIMED.replace("NUMBER", str(i)) for i in range(options.copies))
            recorded, eager = (statistics.median(times(options.quern, script, [*flags, "--jit", mode])) for mode in ("on", "off"))
            print(f"{name:18}{recorded:10.1f}{eager:10.1f}{recorded / eager:8.2f}", flush=True)


if __name__ == "__main__":
    main()
