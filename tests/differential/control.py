#!/usr/bin/env python3
"""Random programs of control flow (flow.py): the interpreter alone, and everything captured in several ways.

  control.py [--quern build/quern] [--seed N | --seed random] [--count N] [--seconds S] [--kind plain] [--set NAME=VALUE] [--mode NAME]
             [--every-mode] [--failures FOLDER]

Program i has the seed N + i, so `--seed N+i --count 1 --kind KIND` makes it again. Each runs with `--jit off`, with --jit sync where
loops become loops of a graph, and in one more of MODES. Required:

  all            the same output and the same report of an error, letter by letter (values are printed so that they read back)
  grad           the gradient along a direction against central differences, in f64
  vmap           the results of the lanes are those of a loop over them, bit for bit; where the loop fails the lanes do

A program that fails is made smaller as long as it fails alike, shown, and kept with the command that runs it, below --failures. Programs run
in one process, which `many_scripts` (tests/language/many.c) beside the binary is.
"""
import argparse
import os
import random
import re
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "language"))
from flow import Program, smaller  # noqa: E402
from run import Many, status_text  # noqa: E402

KINDS = ("plain", "plain", "grad", "plain", "vmap")
MORE_KINDS = ("twice",)  # made if asked for: derivatives of derivatives
HOT, LOOPS, VM = ["--set", "jit.hot=2"], ["--set", "jit.unroll=8"], ["--set", "jit.cc=0", "--threads", "1"]
SHORT = ["--set", "jit.cc_longest=1000"]  # kernels of derivatives have up to 3,000 instructions, and for some of these the compiler takes 10 s
MODES = {
    "loops": ["--jit", "sync", *HOT, *LOOPS, *VM],
    "unrolled": ["--jit", "sync", *HOT, *VM],
    "no_unrolling": ["--jit", "sync", *HOT, "--set", "jit.unroll=0", *VM],
    "verify": ["--jit", "verify", *HOT, *LOOPS, *VM],
    "verify_unrolled": ["--jit", "verify", *HOT, *VM],
    "on": ["--jit", "on", *HOT, *LOOPS, *VM],
    "compiled": ["--jit", "sync", *HOT, *LOOPS, *SHORT, "--threads", "2"],
    "no_regions": ["--jit", "sync", *HOT, *VM, "--set", "jit.regions=0"],
    # Recordings that come to their limit, anywhere in the program.
    "few_nodes": ["--jit", "sync", *HOT, *LOOPS, *VM, "--set", "jit.nodes=60"],
    "few_flat_nodes": ["--jit", "sync", *HOT, *VM, "--set", "jit.regions=0", "--set", "jit.nodes=25"],
}
# Which mode a program runs in besides "loops", in turn.
TURNS = ("unrolled", "verify", "on", "no_unrolling", "few_flat_nodes", "verify_unrolled", "on", "compiled", "verify", "no_unrolling", "few_nodes", "no_regions")
LIMIT = 20  # seconds for one run; the slowest takes one
CC_LIMIT = 60  # in mode compiled, which waits for the C compiler: derivatives of derivatives have hundreds of kernels


class Result:
    def __init__(self, status, out, err):
        self.status, self.out = status, out
        self.breaks = err.count("[breaks]")
        # Without the log, and without what a report shows of the source: work that has waited knows its place, but not its operands.
        self.err = "\n".join(line for line in err.splitlines() if not line.startswith("[") and not re.match(r" *\d* \|", line))
        self.log = err


def trouble(result, mode):
    """What no program may do, or None."""
    if result.status is None:
        return "no end in time"
    if result.status not in (0, 1):
        return f"{status_text(result.status)}\n{result.log[-3000:]}"
    log = "\n".join(line for line in result.log.splitlines() if not line.endswith("have too many terms"))  # (sizes: a limit that is told)
    for text in ("AddressSanitizer", "LeakSanitizer", "runtime error:", "the compiler gave up", "C compiler failed", "E802", "E803"):
        if text in log or (text[0] == "E" and f'"{text}"' in result.out):
            line = next(line for line in (log + result.out).splitlines() if text in line)
            return f"{text}: {line[:300]}"
    return None


def first_difference(want, got):
    a, b = want.splitlines(), got.splitlines()
    for i in range(max(len(a), len(b))):
        x, y = (lines[i] if i < len(lines) else "(nothing)" for lines in (a, b))
        if x != y:
            return f"line {i + 1} of it is\n    {x[:600]}\n  and\n    {y[:600]}"
    return "ends of lines"


def unsigned(text):
    """Without the signs of zeros: in derivatives they tell whether an arm was recorded that did not depend on the variable."""
    return re.sub(r"-0\.0\b", "0.0", text)


def difference(want, got, kind):
    """What is wrong with a run, by its kind and in words; or None."""
    bad = trouble(got, "")
    if bad:
        return bad.split(":")[0].split("\n")[0], bad
    if want.out != got.out:
        if kind == "vmap" and "lanes E406" in want.out + got.out:  # what has data takes fewer ways
            return None
        if kind == "vmap" and "total E207" in want.out + got.out:  # host floats of lanes become inf in place of it
            return None
        return "output", "other output: " + first_difference(want.out, got.out)
    if want.err != got.err or want.status != got.status:
        return "report", "another report: " + first_difference(want.err, got.err)
    return None


NUMBER = r"(-?[\d.e+-]+|nan|-?inf)"


def slopes(out, text):
    """Of the lines about slopes: (compared, a complaint or None)."""
    compared = 0
    for found in re.finditer(rf"^slopes{f' {NUMBER}' * 5}$", out, re.M):
        slope, wide, close, up, value = map(float, found.groups())
        scale = max(1.0, abs(slope), abs(close))
        # In a large value differences drown: the last place of 1e8 is 1e-8, which is 1e-3 of the closer width.
        if not abs(value) < 1e5 * scale:
            continue
        # Products have no strong zeros (lang/REFERENCE.md), so that a number that has become inf on the way makes them nan.
        if slope != slope and "@" in text:
            continue
        # Within the last place of a narrow dtype nothing differs.
        if wide == close == 0 and re.search(r"\bb?f16\(", text):
            continue
        # Where two widths or the two sides disagree the function has a kink or a jump nearby, or is too steep for differences.
        if not scale < 1e6 or not abs(wide - close) <= 1e-6 * scale or not abs(up - close) <= 1e-3 * scale:
            continue
        compared += 1
        if not abs(slope - close) <= 1e-4 * scale:
            return compared, f"slope by gradient {slope!r}, by differences {close!r}"
    return compared, None


def lanes(out, text):
    """Of lanes and loops over them: (compared, a complaint or None)."""
    want, compared = None, 0
    # Errors of operations on data in single lanes do not reach handlers; those of error(...) and assert(...) do.
    catches = "try {\n" in text or "catch _e" in text
    for found in re.finditer(r"^(looped|lanes) (.*)$", unsigned(out) if re.search(r"\b(grad\(f|jvp\(fn|vjp\(fn|jacobian\(fn)", text) else out, re.M):
        what, text = found.groups()
        if what == "looped":
            want = text
            continue
        if want in (None, "E207") or text in ("E406", "E405") or (text.startswith("E") and (catches and text not in ("E701", "E702") or want.startswith("E"))):
            continue
        if "nan" in text or "nan" in want:  # whose sign is not told
            continue
        compared += 1
        if text != want:
            return compared, f"the loop gives\n    {want[:600]}\n  and lanes\n    {text[:600]}"
    return compared, None


class Suite:
    """What is made and how it runs: a class of programs, made of a seed and a kind; the kinds, in turn; modes by name, of which each program
    runs in the first one and in one of `turns`; whether all programs end without an error."""

    def __init__(self, program, kinds, modes, turns, ends=False, more=()):
        self.more = more  # kinds that are made if they are asked for
        self.program, self.kinds, self.modes, self.turns, self.ends, self.first = program, kinds, modes, turns, ends, next(iter(modes))


class Runner:
    """Runs programs in one process."""

    def __init__(self, o):
        self.o = o
        self.many = Many(os.path.join(os.path.dirname(o.quern), "tests", "many_scripts"), False)
        self.folder = tempfile.mkdtemp(prefix="quern-control-")
        self.path = os.path.join(self.folder, "program.qn")
        self.compared = 0  # slopes and lanes of the last program
        self.cache = {"compared": 0, "captured": 0, "known": 0}

    def flags(self, mode):
        return ["--jit", "off"] if mode == "off" else [text for s in self.o.set for text in ("--set", s)] + self.o.suite.modes[mode]

    def run(self, text, mode):
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text)
        return Result(*self.many.run(self.path, self.flags(mode), [], "", CC_LIMIT if mode == "compiled" else LIMIT))

    def wrong(self, text, kind, mode):
        """The kind and the text of what is wrong in a mode, or None."""
        want = self.run(text, "off")
        bad = trouble(want, "off")
        if bad:
            return "off " + bad.split(":")[0].split("\n")[0], bad
        if mode == "off":
            compared, bad = {"grad": slopes, "vmap": lanes}.get(kind, lambda *_: (0, None))(want.out, text)
            self.compared = compared
            if bad and kind == "grad" and (self.drowned(text) or self.tied(text) or self.rounded(text, want.out)):
                bad = None
            return ("values", bad) if bad else None
        return difference(want, self.run(text, mode), kind)

    def drowned(self, text):
        """Are slopes by gradients made of rounding? Backwards through repeated subtraction of equal numbers, cotangents can grow without bound
        and cancel only in exact arithmetic. Tangents are made by the same rules (jit/trace/differentiate.c), but in the other direction: where
        they agree with the differences, no rule is wrong."""
        forward = re.sub(r"let slope = sum\(grad\(nojit\(s\), wrt: \d\)\((.*?\b(p[a-z]\w*)\b.*)\) \* direction\)",
                         r"let slope = jvp(fn(\2) nojit(s)(\1), \2, direction)[1]", text)
        compared, bad = slopes(self.run(forward, "off").out, text)
        return forward != text and compared > 0 and not bad

    def tied(self, text):
        """Do the slopes differ only where the program stands? At ties of max, maximum, clip and the like gradients are shares by convention,
        also of what moves no result: of max(clip([1.0, 2.5], 0.0, 1.0)) the first number has one. A little aside of there, on both sides,
        gradients must be what the differences are."""
        for aside in ("2e-4", "-2e-4"):
            moved = re.sub(r"^( *)let direction = .*$", rf"\g<0>\n\1p@ = p@ + {aside} * (1.0 + 0.3 * cos(direction * 37.0))", text, flags=re.M)
            names = iter(re.findall(r"\blet slope = .*?\bwrt: \d\)\(.*?\b(p[a-z]\w*)\b", text))
            moved = re.sub(r"p@ = p@", lambda _: "{0} = {0}".format(next(names, "p")), moved)
            compared, bad = slopes(self.run(moved, "off").out, text)
            if bad or compared == 0:
                return False
        return True

    def rounded(self, text, out):
        """Do the differences go wrong only because numbers are rounded to fewer bits on the way? Without the casts gradients must be what the differences
        are, and what they are with them."""
        whole = re.sub(r"\b(f32|f16|bf16)\(", "f64(", text)
        if whole == text:
            return False
        also = self.run(whole, "off").out
        compared, bad = slopes(also, whole)
        a, b = ([float(x) for x in re.findall(rf"^slopes {NUMBER}", o, re.M)] for o in (out, also))
        part = 1e-4 if not re.search(r"\bb?f16\(", text) else 5e-2
        alike = len(a) == len(b) and all(abs(x - y) <= part * max(1.0, abs(y)) for x, y in zip(a, b))
        return compared > 0 and not bad and alike

    def check(self, seed, kind, modes):
        """The report of what fails, or None."""
        text = self.o.suite.program(seed, kind).text()
        want = self.run(text, "off")
        bad = trouble(want, "off") or (f"it does not run: {want.log[-400:]}" if self.o.suite.ends and want.status != 0 else None)
        if bad == "no end in time":
            return None if self.o.no_end else f"FAILED {kind} seed {seed} off: {bad}"
        if bad:
            return f"FAILED {kind} seed {seed} off: {bad}"
        for mode in ["off", *modes]:
            if mode == "off":
                found = self.wrong(text, kind, mode)
                self.cache["compared"] += self.compared
            else:
                got = self.run(text, mode)
                if mode == self.o.suite.first:
                    self.cache["captured"] += got.breaks == 0
                found = difference(want, got, kind)
            if found and any(text in found[1] for text in self.o.known):
                self.cache["known"] += 1
            elif found:
                return self.report(seed, kind, mode, found)
        return None

    def report(self, seed, kind, mode, found):
        program = self.o.suite.program(seed, kind)
        text, end = program.text(), time.monotonic() + self.o.shrink
        best = [text, found[1]]

        def fails(shorter):
            if time.monotonic() > end:
                return False
            for _ in range(3 if mode == "on" else 1):
                now = self.wrong(shorter, kind, mode)
                if now and now[0] == found[0]:
                    best[:] = [shorter, now[1]]
                    return True
            return False
        if fails(text):
            smaller(program.top, fails)
        else:
            best[1] += "\n(not again, when it ran a second time)"
        flags = " ".join(self.flags(mode))
        out = f"FAILED {kind} seed {seed} {mode} ({flags}): {best[1]}"
        if self.o.failures:
            name = os.path.join(self.o.failures, f"{kind}-{seed}-{mode}.qn")
            with open(name, "w", encoding="utf-8") as f:
                f.write(best[0])
            with open(name + ".txt", "w", encoding="utf-8") as f:
                f.write(f"{out}\n\n{self.o.quern} {flags} {name}\n")
            out += f"\n  {name}"
        return out + "\n" + "".join(f"    {line}\n" for line in best[0].splitlines())


runner = None


def begin(o):
    global runner
    runner = Runner(o)


def check(jobs):
    before = dict(runner.cache)
    bad = [runner.check(*job) for job in jobs]
    return [text for text in bad if text], {k: v - before[k] for k, v in runner.cache.items()}


def main(suite, about):
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--count", type=int, default=1000000, help="programs at most")
    parser.add_argument("--seconds", type=float, default=60, help="time at most")
    parser.add_argument("--kind", choices=sorted({*suite.kinds, *suite.more}), help="only programs of this kind")
    parser.add_argument("--mode", action="append", choices=list(suite.modes), default=[], help="instead of the usual ones")
    parser.add_argument("--every-mode", action="store_true", help="all of them for each program")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a tunable of what is captured")
    parser.add_argument("--failures", metavar="FOLDER", help="keep programs that fail there, made smaller")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for making one smaller")
    parser.add_argument("--most", type=int, default=10, help="failures after which it ends")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-end", action="store_true", help="programs that take too long with --jit off are left out")
    parser.add_argument("--known", action="append", default=[], metavar="TEXT", help="failures whose report has this text are only counted")
    parser.add_argument("--show", action="store_true", help="print the program of the seed")
    o = parser.parse_args()
    o.suite = suite
    seed = random.SystemRandom().randrange(1 << 30) if o.seed == "random" else int(o.seed)
    if o.show:
        print(suite.program(seed, o.kind or suite.kinds[seed % len(suite.kinds)]).text(), end="")
        return 0
    o.quern = os.path.abspath(o.quern)
    if o.failures:
        os.makedirs(o.failures, exist_ok=True)
    print(f"seed {seed}", flush=True)
    end, started, done, failed, running, counts = time.monotonic() + o.seconds, 0, 0, 0, {}, {}
    with ProcessPoolExecutor(o.jobs, initializer=begin, initargs=(o,)) as pool:
        while True:
            while len(running) < 2 * o.jobs and started < o.count and time.monotonic() < end and failed < o.most:
                jobs = []
                for i in range(seed + started, seed + min(started + 10, o.count)):
                    modes = o.mode or (list(suite.modes) if o.every_mode else [suite.first, suite.turns[i % len(suite.turns)]])
                    jobs.append((i, o.kind or suite.kinds[i % len(suite.kinds)], modes))
                running[pool.submit(check, jobs)] = len(jobs)
                started += len(jobs)
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done += running.pop(future)
                failures, more = future.result()
                for k, v in more.items():
                    counts[k] = counts.get(k, 0) + v
                for text in failures:
                    failed += 1
                    print(text, flush=True)
    print(f"{counts.get('captured', 0)} without a break, {counts.get('compared', 0)} slopes and lanes compared, {counts.get('known', 0)} known failures")
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Suite(Program, KINDS, MODES, TURNS, more=MORE_KINDS), __doc__))
