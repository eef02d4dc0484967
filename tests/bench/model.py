"""./dev bench model: what schedules should take (jit/kernel/sched_price.c) beside what they take on this machine.

For each kernel: how many candidates it has, the rank correlation of predicted and measured times, and how much longer the chosen one takes than the
best. Behind that, over all: the rank correlation, and for how many kernels the choice is within 1.15 of the best. What a kernel takes is the least of
many short runs of one thread, or of launches that follow each other on a GPU. model.c says which kernels there are.

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
    command = [options.program, os.path.join(ROOT, "tests", "golden"), "--random", options.random, "--from", options.first, "--ms", options.ms]
    if options.kernel:
        command += ["--kernel", options.kernel]
    kernels = {}
    if options.gpu:
        command += ["--gpu", "1"]
    if options.read:
        command = ["cat", os.path.abspath(options.read)]
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
