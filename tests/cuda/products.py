#!/usr/bin/env python3
"""Matrix products on a device: eager and compiled give the same bits, and with gpu.portable=1 those of the CPU.

    products.py [--quern build/quern] [--sizes small|large] [--size I] [--dtype D]
    products.py [--quern build/quern] --times          TFLOP/s of square products, beside PyTorch where it is installed

One program makes products of many layouts, dtypes and batches, and their gradients, and saves what it gets; it runs with every
--jit. What calls with other layouts give (arguments that are views, the same function with both) is saved, too, and so is a later
call of the same function. All NaNs count as one value. Status 77 where there is no device. CUDA's libraries may be the fakes of
this folder (QUERN_CUDA).
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SKIPPED = 77

# Of x: m by k, y: k by n, z: m by n, v and u vectors, a: b by m by k, c: b by k by n, d: b by 1 by m by k, e: 3 by k by n.
FORMS = {
    "plain": "x @ y",
    "left_across": "xt.T @ y",
    "right_across": "x @ yt.T",
    "both_across": "xt.T @ yt.T",
    "own_transpose": "x.T @ x",
    "twice_transposed": "(xt.T * 0.5).T.T @ y",
    "gaps": "x[:, 1:] @ y[1:, :]",
    "gaps_across": "xt[1:].T @ y[1:]",
    "odd_address": "x[1:] @ y",
    "odd_address_across": "x @ yt[1:].T",
    "backwards": "x[::-1] @ y[:, ::-1]",
    "every_second": "x[::2] @ y[:, ::2]",
    "right_vector": "x @ v",
    "left_vector": "u @ x",
    "both_vectors": "v @ v",
    "one_column": "x @ y[:, :1]",
    "one_row": "x[:1] @ y",
    "one_between": "x[:, :1] @ y[:1]",
    "batch": "a @ c",
    "batch_left": "a @ y",
    "batch_right": "x @ c",
    "batch_vector": "a @ v",
    "batch_across": "a @ ct.transpose(1, 2)",
    "batch_left_across": "at.transpose(1, 2) @ c",
    "batch_left_across_one": "at.transpose(1, 2) @ y",
    "batch_one_across": "a @ yt.T",
    "batch_spread": "d @ e",
    "batch_spread_across": "dt.transpose(2, 3) @ e",
    "heads": "a.reshape({b}, 2, {m} // 2, {k}).permute(1, 0, 2, 3) @ c",
    "computed": "tanh(x) @ exp(y)",
    "computed_across": "tanh(xt).T @ (y + 1)",
    "epilogue": "tanh(x @ y + z[0]) * z",
    "chain": "(x @ y) @ (y.T @ x.T) @ z",
    "reshaped": "x.T.reshape({k} * {m}).reshape({k}, {m}).T @ y",
    "same_twice": "x @ y + (x @ y) * 2",
    "sliced_result": "(x @ y).T[1:] @ x",
    "widened": "z[0].broadcast_to({m}, {n}).T @ x",
    "einsum": 'einsum("bij,bjk->bik", a, c)',
    "einsum_across": 'einsum("bij,jk->bki", a, y)',
}
NAMES = "x xt y yt z u v a at c ct d dt e".split()
SIZES = {"small": [(6, 5, 7, 3), (16, 8, 24, 2), (2, 1, 3, 2)], "large": [(96, 130, 64, 4), (512, 256, 1024, 2), (34, 33, 5000, 2)]}
DTYPES = ("f32", "f64", "f16", "bf16", "i32")


def program(size, large, dtypes):
    """The text of a program for arrays of these sizes and dtypes, which takes the folder for its results."""
    m, n, k, b = size
    shapes = {"x": (m, k), "xt": (k, m), "y": (k, n), "yt": (n, k), "z": (m, n), "u": (m,), "v": (k,), "a": (b, m, k),
              "at": (b, k, m), "c": (b, k, n), "ct": (b, n, k), "d": (b, 1, m, k), "dt": (b, 1, k, m), "e": (3, k, n)}
    forms = {name: text.format(m=m, n=n, k=k, b=b) for name, text in FORMS.items() if name != "heads" or m % 2 == 0}
    names = {form: [name for name in NAMES if re.search(rf"\b{name}\b", text)] for form, text in forms.items()}
    yield 'fn keep(folder, name, r) { save("{folder}/{name}.npy", f64(r)) }'
    yield "fn product(p, q) = p @ q"
    for form, text in forms.items():
        yield f"fn f_{form}({', '.join(names[form])}) = {text}"
        yield f"fn loss_{form}({', '.join(names[form])}) = sum(f_{form}({', '.join(names[form])}) ** 2)"
    for dtype in dtypes:
        yield f"fn main_{dtype}(folder) {{"
        yield "  seed(7)"
        for name, shape in shapes.items():
            dims = ", ".join(map(str, shape))
            yield f"  let {name} = i32(randint(-9, 9, {dims}))" if dtype == "i32" else f"  let {name} = {dtype}(randn({dims}))"
        for form in forms:
            arguments = ", ".join(names[form])
            for turn in range(4):
                yield f'  keep(folder, "{form}_{dtype}_{turn}", f_{form}({arguments}))'
            if dtype != "f32" and (dtype != "bf16" or not large):
                continue
            for turn in range(3):
                wrt = tuple(range(min(2, len(names[form]))))
                yield f"  let g_{form}_{turn} = grad(loss_{form}, {wrt if len(wrt) > 1 else 0})({arguments})"
                for i in wrt:
                    yield f'  keep(folder, "{form}_{dtype}_grad{i}_{turn}", g_{form}_{turn}{f"[{i}]" if len(wrt) > 1 else ""})'
        views = ("x", "xt.T", "x[::-1]", "at[0].T", "x.T.T")
        for turn in range(4):
            for i, view in enumerate(views):
                yield f'  keep(folder, "views_{dtype}_{i}_{turn}", product({view}, y))'
                yield f'  keep(folder, "views_right_{dtype}_{i}_{turn}", product(yt, ({view}).T))'
        yield "}"
        yield f"main_{dtype}(args[0])"


def run(quern, folder, name, flags, text):
    place = os.path.join(folder, name)
    os.makedirs(place)
    path = os.path.join(folder, "program.qn")
    with open(path, "w") as f:
        f.write(text)
    done = subprocess.run([quern, *flags, path, place], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(f"{name}: status {done.returncode}\n{done.stdout[-2000:]}")
        return None
    results = {}
    for file in sorted(os.listdir(place)):
        values = numpy.load(os.path.join(place, file))
        results[file] = values.dtype.str, values.shape, numpy.where(numpy.isnan(values), numpy.nan, values).tobytes()
    return results


def compare(one, other, what):
    if one is None or other is None:
        return False
    bad = sorted(set(one) ^ set(other)) or [name for name in one if one[name] != other[name]]
    print(f"{what}: {len(one) - len(bad)} of {len(one)} are the same" + (f"; {', '.join(bad[:8])} differ" if bad else ""))
    return not bad


def turns(results, what):
    """Later calls of a function give what its first one gave."""
    if results is None:
        return False
    first, bad = {}, []
    for name, data in results.items():
        if first.setdefault(name.rsplit("_", 1)[0], data) != data:
            bad.append(name)
    if bad:
        print(f"{what}: later calls differ from the first: {', '.join(bad[:8])}")
    return not bad


TIMED = """
fn timed(d, n) {
  let x = d(randn(n, n)); let y = d(randn(n, n))
  let z = x @ y
  let reps = 3 + int(3e13 / (2.0 * n ** 3 + 1e10)) // 8
  let start = time()
  for _ in 0..reps { z = x @ y }
  let seconds = time() - start
  print("{n} {2e-12 * n ** 3 * reps / seconds:.1f} {float(z[0, 0]):.0f}")
}
"""
TORCH = """
import time, torch
torch.backends.cuda.matmul.allow_tf32 = False
for name, n in JOBS:
    x, y = (torch.randn(n, n, device="cuda", dtype=getattr(torch, name)) for _ in range(2))
    x @ y
    torch.cuda.synchronize()
    reps = 3 + int(3e13 / (2.0 * n ** 3 + 1e10)) // 8
    start = time.perf_counter()
    for _ in range(reps):
        x @ y
    torch.cuda.synchronize()
    print(name, n, "%.1f" % (2e-12 * n ** 3 * reps / (time.perf_counter() - start)))
"""


def times(quern, folder):
    """Prints a line for each dtype and size: TFLOP/s of the library, of our own kernels and of PyTorch."""
    sizes, table = (1024, 2048, 4096, 8192), {}
    dtypes = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
    path = os.path.join(folder, "times.qn")
    for column, flags in (("library", []), ("own", ["--set", "gpu.portable=1"])):
        for dtype in dtypes:
            few = sizes if column == "library" else sizes[:3]
            with open(path, "w") as f:
                f.write(TIMED + "".join(f"timed({dtype}, {n})\n" for n in few))
            done = subprocess.run([quern, "--device", "gpu", "--jit", "sync", *flags, path], capture_output=True, text=True)
            if done.returncode:
                print(done.stderr[-500:])
                return False
            for line in done.stdout.splitlines():
                table[column, dtype, int(line.split()[0])] = line.split()[1]
    jobs = [(name, n) for name in dtypes.values() for n in sizes]
    done = subprocess.run([sys.executable, "-c", TORCH.replace("JOBS", repr(jobs))], capture_output=True, text=True)
    back = {name: dtype for dtype, name in dtypes.items()}
    for line in done.stdout.splitlines():
        name, n, speed = line.split()
        table["torch", back[name], int(n)] = speed
    print(f"{'TFLOP/s':14}{'library':>9}{'own':>9}{'torch':>9}")
    for dtype in dtypes:
        for n in sizes:
            print(f"{dtype:5} {n:7} " + "".join(f"{table.get((column, dtype, n), '-'):>9}" for column in ("library", "own", "torch")))
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default=os.path.join(ROOT, "build", "quern"))
    parser.add_argument("--sizes", choices=sorted(SIZES), default="small")
    parser.add_argument("--size", type=int, help="only this one of them, by its number")
    parser.add_argument("--dtype", choices=DTYPES, help="only this one")
    parser.add_argument("--times", action="store_true", help="how fast products are")
    o = parser.parse_args()
    if subprocess.run([o.quern, "--device", "gpu", "-e", "[1]"], capture_output=True).returncode != 0:
        print("there is no GPU")
        return SKIPPED
    if o.times:
        with tempfile.TemporaryDirectory() as folder:
            return 0 if times(o.quern, folder) else 1
    hot = ["--set", "jit.hot=2"]
    good = True
    for size in SIZES[o.sizes] if o.size is None else SIZES[o.sizes][o.size : o.size + 1]:
        text = "\n".join(program(size, o.sizes == "large", [o.dtype] if o.dtype else DTYPES)) + "\n"
        with tempfile.TemporaryDirectory() as folder:
            def there(name, *flags):
                return run(o.quern, folder, name, ["--device", "gpu", *hot, *flags], text)
            off = there("off", "--jit", "off")
            cpu = run(o.quern, folder, "cpu", ["--jit", "off"], text)
            portable = there("portable", "--jit", "sync", "--set", "gpu.portable=1")
            for name, flags in (("sync", ["--jit", "sync"]), ("on", ["--jit", "on"]), ("verify", ["--jit", "verify"])):
                results = there(name, *flags)
                good = compare(off, results, f"{size}: eager and --jit {name}") and good
                good = turns(results, f"{size}: --jit {name}") and good
            good = turns(off, f"{size}: eager") and good
            good = compare(cpu, portable, f"{size}: the CPU and gpu.portable") and good
            if off and cpu:
                other = sum(off[name] != cpu[name] for name in off if name in cpu)
                print(f"{size}: the library gives other bits than our own kernels in {other} of {len(off)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
