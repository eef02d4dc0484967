"""./dev bench model: what schedules should take (jit/kernel/sched_price.c) beside what they take on this machine.

For each kernel: how many candidates it has, the rank correlation of predicted and measured times, and how much longer the chosen one takes than the
best. Behind that, over all: the rank correlation, and for how many kernels the choice is within 1.15 of the best. What a kernel takes is the least of
many short runs of one thread, or of launches that follow each other on a GPU. GRAPHS and model.c say which kernels there are.

  --kernel TEXT   those whose name contains it, with all candidates
  --random N      of N random graphs (100)      --from SEED
  --ms N          milliseconds for a candidate (20)
  --gpu           on this machine's GPU
  --json          a line for each candidate, and nothing else
  --read FILE     the table of lines that --json printed before
  --worst N       the N kernels whose choice loses most, with their best and chosen schedules (15)
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

# Graphs over sizes a and b (c), as they are usual; the sizes of each for a CPU and for a GPU.
GRAPHS = {
    "softmax": """graph(%1: f32[{a}, {b}]) {{
 %2 = max %1 axes=[1] keepdims : f32[{a}, 1]
 %3 = sub %1, %2 : f32[{a}, {b}]
 %4 = exp %3 : f32[{a}, {b}]
 %5 = sum %4 axes=[1] keepdims : f32[{a}, 1]
 %6 = div %4, %5 : f32[{a}, {b}]
 return %6 }}""",
    "column sums": """graph(%1: f32[{a}, {b}]) {{
 %2 = sum %1 axes=[0] : f32[{b}]
 return %2 }}""",
    "row sums": """graph(%1: f32[{a}, {b}]) {{
 %2 = sum %1 axes=[1] : f32[{a}]
 return %2 }}""",
    "all sum": """graph(%1: f32[{a}, {b}]) {{
 %2 = mul %1, %1 : f32[{a}, {b}]
 %3 = sum %2 axes=[0, 1] : f32[]
 return %3 }}""",
    "transpose": """graph(%1: f32[{a}, {b}]) {{
 %2 = permute %1 order=[1, 0] : f32[{b}, {a}]
 %3 = exp %2 : f32[{b}, {a}]
 return %3 }}""",
    "outer chain": """graph(%1: f32[{a}, 1], %2: f32[{b}]) {{
 %3 = add %1, %2 : f32[{a}, {b}]
 %4 = tanh %3 : f32[{a}, {b}]
 %5 = mul %4, %1 : f32[{a}, {b}]
 return %5 }}""",
    "cumsum": """graph(%1: f32[{a}, {b}]) {{
 %2 = cumsum %1 axes=[1] : f32[{a}, {b}]
 return %2 }}""",
    "cumsum down": """graph(%1: f32[{a}, {b}]) {{
 %2 = cumsum %1 axes=[0] : f32[{a}, {b}]
 return %2 }}""",
    "product": """graph(%1: f32[{a}, {b}], %2: f32[{b}, {c}], %3: f32[{c}]) {{
 %4 = dot %1, %2 : f32[{a}, {c}]
 %5 = add %4, %3 : f32[{a}, {c}]
 %6 = tanh %5 : f32[{a}, {c}]
 return %6 }}""",
    "chain": """graph(%1: f32[{a}], %2: f32[{a}]) {{
 %3 = exp %1 : f32[{a}]
 %4 = add %3, %2 : f32[{a}]
 %5 = tanh %4 : f32[{a}]
 %6 = mul %5, %3 : f32[{a}]
 return %6 }}""",
    "bodies": """graph(%1: f32[{a}, 1, 3], %2: f32[1, {a}, 3]) {{
 %3 = sub %1, %2 : f32[{a}, {a}, 3]
 %4 = mul %3, %3 : f32[{a}, {a}, 3]
 %5 = sum %4 axes=[2] keepdims : f32[{a}, {a}, 1]
 %6 = const 0.01 : f32[]
 %7 = add %5, %6 : f32[{a}, {a}, 1]
 %8 = rsqrt %7 : f32[{a}, {a}, 1]
 %9 = mul %3, %8 : f32[{a}, {a}, 3]
 %10 = sum %9 axes=[1] : f32[{a}, 3]
 return %10 }}""",
}
MATRICES = (["1000x1000", "100000x16", "16x100000", "3000x700", "1000000x3", "50x50"],
            ["4096x4096", "1000000x64", "64x1000000", "100000x300", "10000000x3", "500x500", "16x4000000", "16384x1000"])
SIZES = {
    "softmax": (["8x131072", "512x1000", "4096x64", "100000x8", "64x16384"], MATRICES[1]),
    "product": (["64x64x64", "512x512x512", "32x512x1024", "1024x1024x16", "1x1000x1000", "16x100000x16", "1000x7x1000", "3x300x5000"],) * 2,
    "chain": (["1000", "100000", "3000000"], ["100000", "3000000", "100000000"]),
    "bodies": (["100", "1000"], ["1000", "8000"]),
}

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    of = [0.0] * len(values)
    at = 0
    while at < len(order):
        to = at
        while to < len(order) and values[order[to]] == values[order[at]]:
            to += 1
        for i in order[at:to]:
            of[i] = (at + to - 1) / 2
        at = to
    return of


def correlation(x, y):
    """Spearman's; None where one of both is constant."""
    a, b = ranks(x), ranks(y)
    n = len(a)
    ma, mb = sum(a) / n, sum(b) / n
    va, vb = sum((i - ma) ** 2 for i in a), sum((i - mb) ** 2 for i in b)
    return sum((i - ma) * (j - mb) for i, j in zip(a, b)) / (va * vb) ** 0.5 if va and vb else None


def shown(ns):
    return f"{ns:.0f} ns" if ns < 1e4 else f"{ns / 1e3:.0f} us" if ns < 1e7 else f"{ns / 1e6:.0f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "tests", "bench_model"))
    parser.add_argument("--quern", help=argparse.SUPPRESS)
    parser.add_argument("--kernel")
    parser.add_argument("--random", default="100")
    parser.add_argument("--from", dest="first", default="1")
    parser.add_argument("--ms", default="20")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--worst", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", metavar="FILE")
    options = parser.parse_args()
    if options.read:
        return compare(options, ["cat", os.path.abspath(options.read)])
    command = [options.program, os.path.join(ROOT, "tests", "golden"), "--random", options.random, "--from", options.first, "--ms", options.ms]
    if options.kernel:
        command += ["--kernel", options.kernel]
    if options.gpu:
        command += ["--gpu", "1"]
    with tempfile.NamedTemporaryFile("w", suffix=".graphs") as file:
        for name, graph in GRAPHS.items():
            for sizes in SIZES.get(name, MATRICES)[options.gpu]:
                file.write(f"# {name} {sizes}\n" + graph.format(**dict(zip("abc", sizes.split("x")))) + "\n")
        file.flush()
        return compare(options, command + ["--graphs", file.name])


def compare(options, command):
    kernels = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            if options.json:
                print(line, end="", flush=True)
                continue
            x = json.loads(line)
            kernels.setdefault((x["kernel"], x["seed"]), []).append(x)
    if options.json or process.returncode:
        return process.returncode
    rows = []
    for (name, _), all_of in kernels.items():
        best = min(all_of, key=lambda x: x["measured"])
        chosen = next((x for x in all_of if x["chosen"]), None)
        if not chosen or len(all_of) < 2:
            continue
        r = correlation([x["predicted"] for x in all_of], [x["measured"] for x in all_of])
        rows.append((name, all_of, r, chosen, best, chosen["measured"] / best["measured"]))
    if not rows:
        print("no kernel with several candidates")
        return 1
    width = min(60, max(len(r[0]) for r in rows))
    print(f"{'kernel':{width}} {'n':>3} {'rank':>6} {'chosen':>8} {'best':>8} {'ratio':>6} {'predicted/measured':>18}")
    for name, all_of, r, chosen, best, ratio in rows:
        print(f"{name[:width]:{width}} {len(all_of):3} {'' if r is None else f'{r:.2f}':>6} {shown(chosen['measured']):>8} {shown(best['measured']):>8}"
              f" {ratio:6.2f} {chosen['predicted'] / chosen['measured']:18.2f}")
        if options.kernel:
            for x in sorted(all_of, key=lambda x: x["measured"]):
                print(f"    {shown(x['measured']):>8} predicted {shown(x['predicted']):>8} {'*' if x['chosen'] else ' '} {x['schedule']}")
    if not options.kernel:
        print("\nwhere the choice loses most:")
        for name, all_of, r, chosen, best, ratio in sorted(rows, key=lambda x: -x[5])[:options.worst]:
            print(f"{ratio:6.2f}  {name}\n        chosen {shown(chosen['measured']):>8} predicted {shown(chosen['predicted']):>8}  {chosen['schedule']}\n"
                  f"        best   {shown(best['measured']):>8} predicted {shown(best['predicted']):>8}  {best['schedule']}")
    every = [x for row in rows for x in row[1]]
    ranked = [r[2] for r in rows if r[2] is not None]
    within = sum(r[5] <= 1.15 for r in rows)
    over_all = correlation([x["predicted"] for x in every], [x["measured"] for x in every])
    print(f"\n{len(rows)} kernels with {len(every)} candidates. Rank correlation over all {over_all:.3f}; of a kernel's candidates, mean {sum(ranked) / max(1, len(ranked)):.3f}."
          f" Choice within 1.15 of the best: {within} ({100 * within / len(rows):.0f} %).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
