#!/usr/bin/env python3
"""What only a GPU can tell: `./dev gpu-test` builds Quern and runs this.

  gpu_test.py [PART...] [--quern build/quern] [--out FOLDER] [--limit SECONDS] [--scale X] [--list]

The parts stand below, each a function with its limit in seconds and its word for the table. Those that end by themselves come first,
in order; then those that can fill any time. A part makes checks; what it could not begin within its time is counted as left out, not as
failed. All of it goes to FOLDER while it runs (log.txt:
everything; summary.txt: the table; failing random programs in failures.tar.gz), so a run that is ended loses nothing. --limit
bounds the whole: each part gets its share of what is left, by the limits of those that are still to come, so that all are reached; what a part
leaves is the others'. --scale stretches the parts' limits, for a slow machine.

A new part: a function with @part(LIMIT), or @part(LIMIT, fills=True) if it rarely ends before that. It calls p.check(good, name, text) for each thing it looks at, p.each(jobs, function) to
look at many beside each other, p.output(command) to run a program within the part's time, and p.skip(why) for what cannot be done here.

Kernels are cached in a folder of the run's own. Status 1 if a part fails, 77 if there is no GPU.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
ROOT = os.path.dirname(TESTS)
MODES = ("off", "sync", "on", "verify")
sys.path.insert(0, TESTS)
from examples import KERNELS  # the library's products are none

SKIPPED = 77
GPU = ["--device", "gpu"]
# What an example prints of times, and where its arrays are.
VARYING = re.compile(r"[0-9.]+ (?:ns|us|ms|s|seconds)\b|\b(?:cpu|gpu\(0\))")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
PARTS = {}


def part(limit, fills=False):
    """Adds a function to the parts; its first line of documentation is what --list shows."""
    def add(function):
        PARTS[function.__name__] = (function, limit, fills)
        return function
    return add


def in_order(names):
    """Those that end by themselves, then those that fill their time."""
    return sorted(names, key=lambda name: PARTS[name][2])


class Late(Exception):
    """The part's time is up."""


class Part:
    """One part's run: its time, checks and counts."""

    def __init__(self, o, name, seconds):
        self.o, self.name, self.begin, self.end = o, name, time.monotonic(), time.monotonic() + seconds
        self.passed, self.failed, self.left_out, self.notes = 0, 0, 0, []
        self.stop = False

    def left(self):
        return 0.0 if self.stop else self.end - time.monotonic()

    def say(self, text):
        """To the log alone."""
        self.o.log.write(text.rstrip("\n") + "\n")
        self.o.log.flush()

    def note(self, text):
        """A word for the table."""
        self.notes.append(text)
        self.say(text)

    def check(self, good, name, text=""):
        self.passed += bool(good)
        self.failed += not good
        self.say(f"{'ok     ' if good else 'FAILED '} {self.name}: {name}" + (f"\n{text}" if text and not good else ""))
        if not good:
            print(f"FAILED {self.name}: {name}\n{text[-3000:]}", flush=True)

    def skip(self, why):
        self.left_out += 1
        self.note(f"left out: {why}")

    def output(self, command, timeout=120, partly=False, **more):
        """(status, stdout and stderr) of a program; status None if it did not end in time. Late if that is the part's time, unless
        what it said until then is wanted."""
        timeout = min(timeout, self.left())
        if timeout <= 0:
            raise Late
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                   errors="replace", start_new_session=True, **more)
        try:
            text = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text = process.communicate()[0]
            if self.left() <= 0 and not partly:
                raise Late from None
            return None, text + "\nit did not end in time"
        return process.returncode, text

    def quern(self, *arguments, **more):
        return self.output([self.o.quern, *arguments], **more)

    def each(self, jobs, function, workers=None):
        """function(job) for every job, some at a time; those that time does not reach are left out."""
        with concurrent.futures.ThreadPoolExecutor(workers or self.o.jobs) as pool:
            def one(job):
                if self.left() <= 0:
                    return False
                try:
                    function(job)
                    return True
                except Late:
                    return False
            done = sum(pool.map(one, jobs))
        if done < len(jobs):
            self.left_out += len(jobs) - done
            self.say(f"{len(jobs) - done} of {len(jobs)} were not reached")


# ---- what the parts share ----------------------------------------------------------------------------------------------------

def scripts():
    found = glob.glob(os.path.join(TESTS, "language", "**", "*.qn"), recursive=True)
    return sorted(p for p in found if not os.path.basename(p).startswith("_") and "/lib/" not in p)


def script_named(*names):
    return [p for p in scripts() if os.path.splitext(os.path.basename(p))[0] in names]


def portable(p):
    """The flags under which products have the CPU's bits, or none where the binary does not know them."""
    return ["--set", "gpu.portable=1"] if "gpu.portable" in p.quern("help", "tunables")[1] else []


def temporary(p, text, suffix=".qn"):
    handle, path = tempfile.mkstemp(suffix=suffix, dir=p.o.folder)
    with os.fdopen(handle, "w", encoding="utf-8") as f:
        f.write(text)
    return path


# ---- the parts -----------------------------------------------------------------------------------------------------------------

@part(20)
def doctor(p):
    """what is there, as `quern doctor` says it"""
    status, text = p.quern("doctor")
    print(text)
    p.check(status == 0, "quern doctor", text)


@part(40)
def kernels(p):
    """random L programs against their definition, with one block and with many"""
    found = [path for place in ("/usr/local/cuda/lib64", os.path.join(os.environ.get("CUDA_HOME", "/none"), "lib64"))
             for path in sorted(glob.glob(os.path.join(place, "libnvrtc.so.1[23]")))]
    if not found or not os.path.exists(p.o.device_test):
        return p.skip("NVRTC or build/tests/cuda_device is not there")
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = os.path.dirname(found[0]) + ":" + environment.get("LD_LIBRARY_PATH", "")

    def unit(first):
        status, text = p.output([p.o.device_test, found[0], str(first), "32"], env=environment)
        p.check(status == 0, f"programs from {first}", text)
    p.each(range(1, 321, 32), unit, 8)


@part(200, fills=True)
def language(p):
    """the language scripts in four modes, arrays on the device"""
    run = [sys.executable, os.path.join(TESTS, "language", "run.py"), "--quern", p.o.quern, *GPU]

    def one(job):
        status, text = p.output(run + ["--mode", job[0], job[1]])
        p.check(status == 0, f"{os.path.relpath(job[1], TESTS)} [{job[0]}]", text)
    p.each([(mode, path) for mode in MODES for path in scripts()], one)


def agree(one, two):
    """Do two texts say the same, numbers within a fiftieth? (Products by a library round otherwise.)"""
    if NUMBER.sub("#", one) != NUMBER.sub("#", two):
        return False
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(two)))
    return all(abs(a - b) <= 0.02 * max(1.0, abs(a)) for a, b in pairs)


def said(text):
    return VARYING.sub("#", KERNELS.sub("", text))


@part(80)
def examples(p):
    """the examples end with the CPU's arrays and print what they print there"""
    compare = [sys.executable, os.path.join(TESTS, "examples.py"), "--quern", p.o.quern, *GPU]
    bits = portable(p)

    def one(path):
        name = os.path.basename(path)
        arguments = ["1", "2"] if name in ("digits.qn", "convnet.qn") else []
        status, text = p.output([*compare, *bits, path, *arguments], timeout=p.o.scale * 75)
        p.check(status == 0, f"{name}: the same output and arrays as on the CPU" + " with gpu.portable=1" * bool(bits), text)
        want = said(p.quern(path, *arguments)[1])
        for mode in ("off", "on", "sync") if bits else ():
            begin = time.monotonic()
            status, text = p.quern(*GPU, "--jit", mode, path, *arguments)
            p.check(status == 0 and agree(said(text), want), f"{name} [{mode}, {time.monotonic() - begin:.1f} s]", text)
    p.each(sorted(glob.glob(os.path.join(ROOT, "examples", "*.qn"))), one)


def differential_run(p, what, *flags):
    """Runs random programs until their number or the time is up."""
    kept = os.path.join(p.o.folder, p.name)
    command = [sys.executable, os.path.join(TESTS, "differential", "run.py"), "--quern", p.o.quern, "--seed", "random", "--device", "gpu",
               "--seconds", str(max(1.0, p.left() * 0.8 - 5)), "--jobs", str(p.o.jobs), "--failures", kept, *flags]
    status, text = p.output(command, timeout=p.left(), partly=True)
    found = re.findall(r"^(\d+) passed, (\d+) failed", text, re.M)
    failures = "".join(re.findall(r"^FAILED .*(?:\n(?!\d+ passed).*)*\n", text, re.M))
    p.say(failures)
    if status not in (0, 1, None):
        return p.check(False, f"{what}: status {status}", text)
    if not found:
        return p.skip(f"{what}: no program ended in time")
    passed, failed = map(int, found[-1])
    p.passed += passed
    p.failed += failed
    p.note(f"{passed} programs {what}")
    if failed:
        print(failures[-6000:], flush=True)


@part(150, fills=True)
def differential(p):
    """at least 1,000 random programs without products: the CPU's bits, eager and compiled"""
    differential_run(p, "with the CPU's bits", "--count", "1200", "--products", "none")


@part(50, fills=True)
def products(p):
    """random programs with products: the CPU's bits if gpu.portable is set; without, eager and compiled are the same"""
    bits = portable(p)
    if bits:
        end, p.end = p.end, p.begin + (p.end - p.begin) * 0.6
        differential_run(p, "with gpu.portable=1, the CPU's bits", "--count", "200", "--batch", "4", "--products", "many", *bits)
        p.end = end
        differential_run(p, "with the library's products, eager and compiled", "--count", "200", "--batch", "4", "--products", "many", "--eager-there")
    else:
        differential_run(p, "with products, the CPU's bits", "--count", "200", "--batch", "4", "--products", "many")


@part(60, fills=True)
def sorting(p):
    """sort and argsort of every dtype, length, layout and axis: NumPy's stable order"""
    command = [sys.executable, os.path.join(TESTS, "differential", "sorting.py"), "--quern", p.o.quern, "--seed", "random", "--count", "40",
               "--edges", "--seconds", str(max(1.0, p.left() * 0.8 - 5)), "--device", "gpu", "--jit", "sync"]
    status, text = p.output(command, timeout=p.left())
    p.check(status == 0, "sorting there: the order of NumPy", text)


@part(60, fills=True)
def lanes(p):
    """random programs in all lanes of vmap at once: the bits of the CPU's loop over the lanes"""
    bits = portable(p)
    command = [sys.executable, os.path.join(TESTS, "differential", "lanes.py"), "--quern", p.o.quern, "--seed", "random", *GPU, "--seconds",
               str(max(1.0, p.left() * 0.7 - 5)), "--jobs", str(p.o.jobs), "--products", "some" if bits else "none", *bits]
    status, text = p.output(command, timeout=p.left(), partly=True)
    found = re.search(r"^(\d+) passed, (\d+) raised, (\d+) refused, (\d+) FAILED", text, re.M)
    if status not in (0, 1, None) or not found:
        return p.check(False, f"vmap and the loop: status {status}", text)
    p.passed += int(found.group(1)) + int(found.group(2))
    p.failed += int(found.group(4))
    p.say(text)


BLOCK_VM_TIMES = """
# Seconds of a call over 16 Mi f32, on the block VM and compiled; a copy beside them.
let x = randn(16_777_216); let y = randn(16_777_216)
fn add(x, y) = x + y
fn relu_like(x, y) = maximum(x, 0.0)
fn chain(x, y) = abs((x * 2.0 + y) * x - 1.0) * 0.5 + maximum(x, y)
fn tanhs(x, y) = tanh(x)
fn rows(x, y) = softmax(x.reshape(16384, 1024), axis: -1)
fn sums(x, y) = sum(x.reshape(16384, 1024), axis: 0)
fn total(x, y) = sum(x)
fn copied(x, y) = x.reshape(4096, 4096)[:, :] + 0.0
fn seconds(f) {
  for _ in 0..20 { let _r = f(x, y) }
  let best = inf
  for _ in 0..5 {
    let start = time()
    for _ in 0..20 { let _r = f(x, y) }
    best = minimum(best, (time() - start) / 20)
  }
  best
}
for (name, f, bytes) in (("add", add, 12), ("maximum", relu_like, 8), ("8 ops", chain, 12), ("tanh", tanhs, 8), ("softmax", rows, 8),
                         ("columns", sums, 4), ("sum", total, 4), ("x + 0", copied, 8)) {
  let s = float(seconds(f))
  print("{name} {s * 1e6:.1f} us {bytes * 0.016777216 / s:.0f} GB/s")
}
"""


@part(170, fills=True)
def block_vm(p):
    """the block VM alone: language scripts, random programs with the CPU's bits, and how fast it is beside compiled kernels"""
    path = temporary(p, BLOCK_VM_TIMES)
    for what, text in (("f32", "ones(1000) * 2.0"), ("all dtypes", "randn(1000)")):
        for time_of in ("compiling", "loading"):
            begin = time.monotonic()
            status, said = p.quern(*GPU, "--jit", "off", "--set", "gpu.vm=2", "-e", f"float(sum({text}))")
            p.check(status == 0, "starts", said)
            print(f"a program that begins with {time_of} the interpreter of {what}: {time.monotonic() - begin:.2f} s", flush=True)
    for mode, flags in (("off", "gpu.vm=2"), ("sync", "gpu.vm=2"), ("sync", "gpu.vm=0")):
        status, text = p.quern(*GPU, "--jit", mode, "--set", "jit.hot=1", "--set", flags, path)
        p.check(status == 0, f"times, {mode}, {flags}", text)
        p.say(f"--jit {mode} --set {flags}\n{text}")
        print(f"--jit {mode} --set {flags}\n{text}", flush=True)
    environment = dict(os.environ, QUERN_SET="gpu.vm=2")
    run = [sys.executable, os.path.join(TESTS, "language", "run.py"), "--quern", p.o.quern, *GPU]

    def one(job):
        status, text = p.output(run + ["--mode", job[0], job[1]], env=environment)
        p.check(status == 0, f"{os.path.relpath(job[1], TESTS)} [{job[0]}]", text)
    p.each([(mode, path) for mode in ("off", "sync") for path in scripts()], one)
    differential_run(p, "with the CPU's bits", "--count", "200", "--products", "none", "--set", "gpu.vm=2")


@part(240, fills=True)
def layouts(p):
    """products of many layouts, dtypes and batches, and their gradients: eager and compiled, and with gpu.portable the CPU"""
    def one(job):
        size, dtype = job
        status, text = p.output([sys.executable, os.path.join(HERE, "products.py"), "--quern", p.o.quern, "--sizes", "large", "--size", str(size),
                                 "--dtype", dtype], timeout=240)
        p.check(status == 0, f"{dtype} of sizes {size}", text)
        p.say(text)
    p.each([(size, dtype) for dtype in ("f32", "bf16", "f16", "f64", "i32") for size in range(3)], one)


@part(60)
def matmul(p):
    """how fast products are: the library's, our own, PyTorch's"""
    status, text = p.output([sys.executable, os.path.join(HERE, "products.py"), "--quern", p.o.quern, "--times"])
    p.check(status == 0, "square products", text)
    p.note(text)


ERRORS = {  # id, text, line: one of the last calls fails, in compiled code
    "index": ("E303", "fn f(x, i) {\n  let y = x * 2\n  y[i] + 1\n}\nlet x = arange(10)\nfor k in [0, 3, 9, 2, 12] { f(x, [k, 1]) }", 3),
    "division": ("E306", "fn f(x, y) {\n  let z = x + 1\n  z // y\n}\nlet x = arange(6)\nfor k in 0..6 { f(x, arange(6) + 5 - k) }", 3),
    "conversion": ("E309", "fn f(x) {\n  let z = x * 2\n  i32(z)\n}\nfor k in 0..6 { f(f32([1, 2, 3]) * 10.0 ** (4 * k)) }", 3),
}


@part(30)
def errors(p):
    """an error in a kernel is the CPU's, with its line, in every mode"""
    jobs = [(name, mode) for name in ERRORS for mode in MODES]

    def one(job):
        name, mode = job
        identity, text, line = ERRORS[name]
        path = temporary(p, text + "\n")
        flags = ["--jit", mode, "--set", "jit.hot=2"]
        want, got = p.quern("--jit", "off", path), p.quern(*GPU, *flags, path)
        good = got[0] == 1 and f"error[{identity}" in got[1] and f":{line}:" in got[1] and VARYING.sub("#", got[1]) == VARYING.sub("#", want[1])
        p.check(good, f"{name} [{mode}]", f"on the CPU:\n{want[1]}\non the GPU:\n{got[1]}")
    p.each(jobs, one)


MEMORY = """
fn attempt(f) { try { f(); "none" } catch e { e.id } }
print(attempt(fn() zeros(1_000_000_000_000)))
print(attempt(fn() {
  let kept = ()
  for i in 0..1000 { kept = append(kept, full(1_000_000_000, 1.0)) }
  len(kept)
}))
fn g(x) = sum(exp(x) * x)
let x = arange(1000) / 1000
let last = 0
for i in 0..20 { last = g(x) }
print("{last:.1f}")
let big = ones(2_000_000_000)
print(sum(big[:16]))
"""


@part(40)
def memory(p):
    """out of device memory: an error value, and all goes on after it"""
    path = temporary(p, MEMORY)
    for mode in ("off", "sync", "on"):
        begin = time.monotonic()
        status, text = p.quern(*GPU, "--jit", mode, path)
        p.check(status == 0 and text.splitlines() == ["E601", "E601", "998.6", "16.0"],
                f"a terabyte, then block after block until nothing is left [{mode}, {time.monotonic() - begin:.1f} s]", text)


LOOPS = {
    "kernels": "let x = ones(4096, 4096)\nprint(\"begun\", to: \"stderr\")\nwhile true { x = tanh(x) * 0.5 + 1 }",
    "compiled": "fn f(x) {\n  let y = tanh(x) * 0.5 + 1\n  y * y - x\n}\nlet x = ones(4096, 4096)\nprint(\"begun\", to: \"stderr\")\nwhile true { x = f(x) }",
    "one call": "fn f(x) {\n  while min(x) > -1.0 { x = tanh(x) * 0.5 + 1 }\n  x\n}\nlet x = ones(4096, 4096)\nprint(\"begun\", to: \"stderr\")\nf(x)",
}


@part(40)
def interrupt(p):
    """Ctrl-C ends a loop of kernels soon"""
    def one(name):
        path = temporary(p, LOOPS[name])
        process = subprocess.Popen([p.o.quern, *GPU, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        late = threading.Timer(min(15, p.left()), process.kill)
        late.start()
        begun = process.stderr.readline()
        late.cancel()
        if not begun:
            return p.check(False, f"{name}: it does not begin", process.communicate()[1])
        time.sleep(2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            text = process.communicate(timeout=10)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return p.check(False, f"{name}: it goes on", process.communicate()[1])
        seconds = time.monotonic() - begin
        p.check(seconds < 2 and process.returncode not in (0, None) and process.returncode > 0 and "interrupt" in text.lower(),
                f"{name}: ended after {seconds:.2f} s with status {process.returncode}", text)
    p.each(list(LOOPS), one, 1)


@part(60)
def digits(p):
    """the digits demo trains to its accuracy"""
    def one(seed):
        begin = time.monotonic()
        status, text = p.quern(*GPU, os.path.join(ROOT, "examples", "digits.qn"), str(seed))
        found = re.search(r"test accuracy ([0-9.]+) %", text)
        p.check(status == 0 and found and float(found.group(1)) >= 96, f"seed {seed}", text)
        if found:
            p.note(f"seed {seed}: {found.group(1)} %, {time.monotonic() - begin:.1f} s")
    p.each([1, 2, 3], one, 1)


CALLS = """
import optim
import nn

{functions}
fn tiny(x) = sin(x) * 2.0 + x
fn checked(x, i) = x[i] * 2.0
fn loss(p, x, y) = cross_entropy(linear(relu(linear(x, p.hidden)), p.out), y)
fn step(p, state, x, y) {
  let (value, gradient) = value_and_grad(loss)(p, x, y)
  let (next, moments) = optim.adam(p, gradient, state, lr: 0.002)
  (next, moments, value)
}

# Microseconds a call when only the last one is waited for, and when each is.
fn times(name, f, x, calls) {
  let _y = f(x)
  for _ in 0..30 { _y = f(x) }
  let best = inf
  let alone = inf
  for _ in 0..5 {
    let start = time()
    for _ in 0..calls { _y = f(x) }
    best = minimum(best, (time() - start) / calls)
    start = time()
    for _ in 0..calls { _y = f(x); let _now = time() }
    alone = minimum(alone, (time() - start) / calls)
  }
  print("{name}: {best * 1e6} {alone * 1e6}")
}

let x = arange(8) * 0.125
let chosen = [0, 1]
times("tiny call, 8 floats", tiny, x, 2000)
times("the same with a check", fn(x) checked(x, chosen), x, 500)
times("10 kernels", chain10, x, 1000)
times("100 kernels", chain100, x, 200)
seed(1)
let params = {hidden: nn.linear_init(64, 256), out: nn.linear_init(256, 10)}
let state = optim.adam_init(params)
let pictures = randn(64, 64)
let labels = arange(64) % 10
times("digits, training step", fn(x) step(params, state, x, labels)[2], pictures, 200)

# The same in a loop that keeps what a step makes: buffers take turns. Then with batches that are views at other addresses each.
fn wide(p, x, y) = cross_entropy(linear(relu(linear(relu(linear(x, p.first)), p.second)), p.out), y)
fn descend(p, x, y, rate) {
  let (value, g) = value_and_grad(wide)(p, x, y)
  (tree_map(fn(a, b) a - b * rate, p, g), value)
}
fn training(name, all, steps) {
  let p = {first: nn.linear_init(256, 256), second: nn.linear_init(256, 256), out: nn.linear_init(256, 10)}
  let turns = len(all) // 64
  let _value = 0.0
  let best = inf
  for k in 0..6 {
    let start = time()
    for i in 0..steps {
      let at = i % turns * 64
      (p, _value) = descend(p, all[at:at + 64], labels, 0.01)
    }
    if k > 0 { best = minimum(best, (time() - start) / steps) }
  }
  print("{name}: {best * 1e6} {best * 1e6}")
}
training("MLP, training loop", randn(64, 256), 200)
training("the same, 100 batches", randn(6400, 256), 200)
"""


@part(60)
def calls(p):
    """microseconds a call: tiny calls, plans of 10 and 100 small kernels, training steps; compiled and eager"""
    functions = ""
    for n in (10, 100):
        lines = "".join(f"  x = cumsum(x) * 0.5\n" for _ in range(n))
        functions += f"fn chain{n}(x) {{\n{lines}  x\n}}\n"
    path = temporary(p, CALLS.replace("{functions}", functions))
    rows = {}
    for mode in ("sync", "off"):
        status, text = p.quern(*GPU, "--jit", mode, path)
        found = re.findall(r"^(.+): (\S+) (\S+)$", text, re.M)
        p.check(status == 0 and len(found) == 7, f"--jit {mode}", text)
        for name, best, alone in found:
            rows.setdefault(name, []).append((float(best), float(alone)))
    p.say(f"{'us a call':26}{'compiled':>10}{'waited for':>12}{'eager':>10}{'waited for':>12}")
    for name, times in rows.items():
        p.say(f"{name:26}" + "".join(f"{best:10.1f}{alone:12.1f}" for best, alone in times))
        p.note(f"{name}: {times[0][0]:.1f} us, eager {times[-1][0]:.1f}")


SANITIZED = ("reductions", "indexing_combined", "stdlib_random", "broadcast_scans", "same_bits", "scatter", "slices", "matmul", "grad",
             "masks", "sorting_lengths")


@part(110, fills=True)
def sanitizer(p):
    """compute-sanitizer finds nothing in the kernels of some scripts: memory, races, barriers"""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        return p.skip("compute-sanitizer is not there")
    chosen = [path for path in scripts() if os.path.splitext(os.path.basename(path))[0] in SANITIZED]

    def one(job):
        check, path = job
        status, text = p.output([tool, "--tool", check, "--error-exitcode", "9", p.o.quern, *GPU, "--jit", "sync", "--set", "jit.hot=1", path])
        last = text.strip().splitlines()[-1] if text.strip() else ""
        p.check(status is not None and status != 9, f"{check} {os.path.basename(path)}: {last}", text)
    p.each([(check, path) for path in chosen for check in ("memcheck", "racecheck", "synccheck")], one, max(1, p.o.jobs // 2))


# ---- the run ---------------------------------------------------------------------------------------------------------------------

def table(o, rows):
    """The summary, to stdout's end and to its file."""
    lines = [f"{'part':14}{'passed':>8}{'failed':>8}{'left out':>10}{'seconds':>9}  "]
    for p, seconds in rows:
        notes = "; ".join(p.notes)
        lines.append(f"{p.name:14}{p.passed:8}{p.failed:8}{p.left_out:10}{seconds:9.1f}  {notes}")
    text = "\n".join(lines)
    with open(os.path.join(o.out, "summary.txt"), "w", encoding="utf-8") as f:
        f.write(text + "\n")
    return text


def run_part(o, name, later, rows):
    function, limit, _ = PARTS[name]
    left = o.end - time.monotonic()
    share = left * limit / (limit + sum(PARTS[n][1] for n in later))
    p = Part(o, name, min(limit * o.scale, share))
    print(f"==== {name}", flush=True)
    p.say(f"==== {name}")
    if p.left() < 1:
        p.skip("no time was left for it")
    else:
        try:
            function(p)
        except Late:
            p.skip("the rest: its time was up")
        except Exception as e:  # a part that cannot be run is a failure, and the next ones are
            p.check(False, "the part itself", f"{type(e).__name__}: {e}")
    rows.append((p, time.monotonic() - p.begin))
    print(f"---- {name}: {p.passed} passed, {p.failed} failed, {p.left_out} left out, {time.monotonic() - p.begin:.1f} s", flush=True)
    table(o, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quern", default=os.path.join(ROOT, "build", "quern"))
    parser.add_argument("--device-test", default=os.path.join(ROOT, "build", "tests", "cuda_device"))
    parser.add_argument("--out", default=os.environ.get("OUT") or os.path.join(ROOT, "build", "gpu-test"))
    parser.add_argument("--limit", type=float, default=560, help="seconds for everything")
    parser.add_argument("--scale", type=float, default=1, help="factor for the parts' limits")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="the parts")
    o = parser.parse_args()
    if o.list:
        for name in in_order(PARTS):
            function, limit, fills = PARTS[name]
            print(f"{name:14}{limit:5} s{'+' if fills else ' '} {function.__doc__}")
        return 0
    unknown = [name for name in o.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    o.quern, o.end = os.path.abspath(o.quern), time.monotonic() + o.limit
    os.makedirs(o.out, exist_ok=True)
    there = subprocess.run([o.quern, *GPU, "-e", "[1]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if there.returncode != 0:
        print(f"there is no GPU:\n{there.stdout}")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = []
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(o.out, "log.txt"), "w", encoding="utf-8") as o.log:
        o.folder = folder
        os.environ["QUERN_CACHE"] = os.path.join(folder, "cache")
        try:
            names = in_order(o.parts or PARTS)
            for at, name in enumerate(names):
                run_part(o, name, names[at + 1:], rows)
                kept = [k for k in ("differential", "products") if glob.glob(os.path.join(folder, k, "*"))]
                if kept:
                    with tarfile.open(os.path.join(o.out, "failures.tar.gz"), "w:gz") as archive:
                        for k in kept:
                            archive.add(os.path.join(folder, k), k)
        finally:
            print("\n" + table(o, rows), flush=True)
    bad = [p.name for p, _ in rows if p.failed]
    print("failed: " + ", ".join(bad) if bad else "nothing failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
