#!/usr/bin/env python3
"""Lets allocations of scripts fail, one in each run, and checks that nothing worse than an error happens.

  memfail.py [--quern build/quern] [--seed N|random] [--seconds 50] script.qn ...

`quern --fail-alloc N` makes the N-th allocation fail (`--fail-alloc 0` counts them). What may happen then:

  off, sync   The script does as its expectations say, because the failure met work that is optional (a recording, a plan,
              a compile: the interpreter goes on with the right result) or was made up for; or it ends with error E601 and
              its place, with exit status 1, after printing a beginning of the right output.
  prompt      The script's lines are typed at the prompt. Whatever fails, the prompt goes on to the end: exit status 0.

A script that catches errors may see the failure and go on in any way of its own. One that prints what was recorded anew
may differ in what one statement prints, or print reasons where none are expected, since memory ended one recording; its
other lines are as expected. One that asks for a whole graph may be refused with fewer notes or, where memory ended the
recording, be served by the interpreter. A script without expectations (an example) is compared with its run without a
failure. In no case may there be a crash, a hang, a sanitizer's report, E802 or E803.

The start of an interpreter alone (an empty script) goes through every N. Each script begins where the start ended; its Ns
are tried in random order (the seed is printed), the scripts taking turns, until the time is up.
"""
import argparse
import os
import random
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run as scripts  # noqa: E402

FLAGS = {"off": ["--jit", "off"], "sync": scripts.MODES["sync"], "prompt": ["--jit", "off"]}
EXAMPLE_ARGS = {"digits.qn": ["1", "1"], "convnet.qn": ["1", "1"], "heat.qn": ["12"], "mandelbrot.qn": ["20", "8"], "tinyops.qn": ["32"], "ode.qn": ["1"], "vae.qn": ["1"]}  # small ones
MOST_NUMBERS = 100_000  # of one script in one mode
TEXT_STORED = 8  # allocations until the script's text is stored; before that no error can show a place in it
DEFECTS = re.compile(r"AddressSanitizer|LeakSanitizer|runtime error:|error\[E80[23]\]")


class Case:
    """One script in one mode."""

    def __init__(self, quern, path, mode, device=None):
        self.quern, self.path, self.mode = quern, path, mode
        self.want = scripts.Expectation(path)
        if device:
            self.want.out = [scripts.NAMED_CPU.sub("gpu(0)", line) for line in self.want.out]
            self.want.flags += ["--device", device]
        self.args = self.want.args or EXAMPLE_ARGS.get(os.path.basename(path), [])
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.free = mode == "prompt" or "catch" in self.text
        self.recompiles = "recompiles" in self.text
        self.whole = "fullgraph" in self.text
        self.queue = None

    def command(self, n):
        flags = [*FLAGS[self.mode], "--threads", "1", *self.want.flags, "--fail-alloc", str(n)]
        return flags if self.mode == "prompt" else [*flags, self.path, *self.args]

    def run(self, n):
        stdin = self.text if self.mode == "prompt" else self.want.stdin
        command = self.command(n)
        if self.mode == "prompt":
            return scripts.run(self.quern, command[0], [], command[1:], stdin, 60)
        return scripts.run(self.quern, self.path, command[: -1 - len(self.args)], self.args, stdin, 60)

    def prepare(self, order, start):
        """Runs the script as it is and makes the queue of Ns; a complaint, or None."""
        status, out, err = self.run(0)
        count = re.search(r"^allocations: (\d+)$", err, re.M)
        self.queue = []
        if self.mode != "prompt":
            if not self.want.out and not self.want.error and status == 0:  # an example
                self.want.out = [line.rstrip() for line in out.splitlines()]
            bad = scripts.compare(self.want, self.path, status, out, err)
            if bad:
                return "as it is: " + "; ".join(bad)
        self.want.err = []  # a note that finds no memory is left out
        if not count or DEFECTS.search(err):
            return f"as it is: {scripts.status_text(status) if status is not None else 'no end'}\n{err[-2000:]}"
        last = int(count.group(1)) + 2
        numbers = range(1 if start is None else min(start, last), last + 1)
        self.queue = order.sample(numbers, min(len(numbers), MOST_NUMBERS))
        return None

    def misses_recording(self, lines):
        """Is the output as expected but for one place: a line there was printed or expected, or reasons for recordings were printed?"""
        got, want = list(lines), list(self.want.out)
        for end in (0, -1):
            while got and want and got[end] == want[end]:
                del got[end], want[end]
        return min(len(got), len(want)) == 1 or (not want and any("reason:" in line for line in got))

    def judge(self, n):
        """What was wrong with the run whose n-th allocation failed, or None."""
        status, out, err = self.run(n)
        what = None
        if status is None or status < 0 or status > 1:
            what = "no end in time" if status is None else scripts.status_text(status)
        elif DEFECTS.search(err):
            what = "a defect is reported"
        elif self.mode == "prompt":
            what = None if status == 0 else scripts.status_text(status)
        elif not self.free and (bad := scripts.compare(self.want, self.path, status, out, err)):
            lines = [line.rstrip() for line in out.splitlines()]
            reports = list(scripts.REPORT.finditer(err))
            if len(bad) == 1 and self.recompiles and self.misses_recording(lines):  # it ends as it should
                what = None
            elif self.whole and lines == self.want.out and (status == 0 or (reports and reports[-1].group(1) == "E801")):
                what = None
            elif status != 1:
                what = scripts.status_text(status)
            elif not reports or reports[-1].group(1) != "E601":
                what = f"error {reports[-1].group(1)}" if reports else "status 1 without an error"
            elif n > TEXT_STORED and not scripts.PLACE.search(err[reports[-1].start():]):
                what = "an error without a place"
            elif lines != self.want.out[: len(lines)]:
                what = "other output:\n" + scripts.diff(self.want.out, lines, "printed")
        if what is None:
            return None
        typed = " < " + self.path if self.mode == "prompt" else ""
        return f"{' '.join([self.quern, *self.command(n)])}{typed}\n  {what}\n" + "\n".join(
            "    " + line for line in err.splitlines()[-30:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--mode", action="append", choices=list(FLAGS))
    parser.add_argument("--device", help="run on this device")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    end = time.monotonic() + options.seconds
    seed = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(1 << 32)
    order = random.Random(seed)
    failed, runs = [], 0
    print(f"seed {seed}")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        empty = os.path.join(folder, "empty.qn")
        with open(empty, "w", encoding="utf-8") as f:
            f.write("print(1)  # => 1\n")
        start = Case(quern, empty, "off", options.device)
        complaint = start.prepare(order, None)
        if complaint:
            sys.exit(f"FAILED {empty} {complaint}")
        bound = max(start.queue) - 8
        cases = [Case(quern, path, mode, options.device) for path in options.scripts for mode in options.mode or FLAGS]
        order.shuffle(cases)
        cases.insert(0, start)

        def turn(case):
            """A few runs of one case: (how many, complaints)."""
            if time.monotonic() >= end:
                return 0, []
            if case.queue is None:
                complaint = case.prepare(order, bound)
                if complaint:
                    return 1, [f"{case.path} [{case.mode}] {complaint}"]
            bad, done = [], 0
            while case.queue and done < (100 if case is start else 4) and time.monotonic() < end:
                complaint = case.judge(case.queue.pop())
                bad += [complaint] if complaint else []
                done += 1
            return done, bad

        reached = set()
        while any(case.queue != [] for case in cases) and time.monotonic() < end and len(failed) < 10:
            for case, (done, bad) in zip(cases, pool.map(turn, cases)):
                runs += done
                failed += bad
                if done and case.queue is not None:
                    reached.add(case)
        left = sum(len(case.queue or []) for case in reached)
    for complaint in failed[:10]:
        print("FAILED " + complaint)
    print(f"{len(reached)} of {len(cases)} scripts and modes reached, {left} places left of {left + runs}")
    print(f"{runs - len(failed)} passed, {len(failed)} failed (seed {seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
