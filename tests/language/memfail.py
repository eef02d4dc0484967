#!/usr/bin/env python3
"""Lets allocations of language scripts fail, one in each run, and checks that nothing worse than an error happens.

  memfail.py [--quern build/quern] [--seconds 60] [--seed 0] script.qn ...

`quern --fail-alloc N` makes the N-th allocation fail. A run must then end either as the script's expectations say (the
failure was made up for, or N lies beyond the last allocation), or with error E601 and exit status 1 after printing a
beginning of the right output. A crash, another error, other output or a hang is a defect; its command is printed.

First the start of an interpreter alone (an empty script) goes through every N, up to the last allocation it makes. Then each
script begins where the start ended. Every N up to 2,000 beyond is tried, then ever sparser ones. If time does not allow
that, the scripts take turns over a random order of their Ns, so that each gets its share; the seed chooses the order.
Scripts that catch errors are left out, since they may see the failure.
"""
import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run as scripts  # noqa: E402

FLAGS = {"off": ["--jit", "off", "--threads", "1"], "sync": scripts.MODES["sync"] + ["--threads", "1"]}
DENSE = 2000


class Case:
    """One script in one mode."""

    def __init__(self, quern, path, mode):
        self.quern, self.path, self.mode = quern, path, mode
        self.want = scripts.Expectation(path)

    def command(self, n):
        return [*FLAGS[self.mode], *self.want.flags, *(["--fail-alloc", str(n)] if n else [])]

    def run(self, n):
        return scripts.run(self.quern, self.path, self.command(n), self.want.args, self.want.stdin, 120)

    def judge(self, n):
        """(met, complaint): did the failure end the script with E601, and what was wrong if anything."""
        status, out, err = self.run(n)
        if not scripts.compare(self.want, self.path, status, out, err):
            return False, None
        lines = [line.rstrip() for line in out.splitlines()]
        reports = scripts.REPORT.findall(err)
        what = None
        if status != 1:
            what = "no end in time" if status is None else scripts.status_text(status)
        elif not reports or reports[-1][0] != "E601":
            what = f"error {reports[-1][0]}" if reports else "status 1 without an error"
        elif lines != self.want.out[: len(lines)]:
            what = "other output:\n" + scripts.diff(self.want.out, lines, "printed")
        elif "Sanitizer" in err or "runtime error:" in err:
            what = "a sanitizer reported"
        if what is None:
            return True, None
        return True, f"{' '.join([self.quern, *self.command(n), self.path, *self.want.args])}\n  {what}\n" + "\n".join(
            "    " + line for line in err.splitlines()[-30:])

    def last(self, start):
        """An N beyond the last allocation whose failure shows, by doubling."""
        n, quiet = max(start, 1), 0
        while quiet < 3 and n < 1 << 30:
            met, _ = self.judge(n)
            quiet = 0 if met else quiet + 1
            n *= 2
        return n // 8 * 2 if quiet == 3 else n


def steps(first, last, dense):
    """first, first + 1, ... for `dense` numbers, then ever larger steps up to `last`."""
    n, step = first, 1
    while n <= last:
        yield n
        if n - first >= dense:
            step = max(1, (n - first) // 200)
        n += step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    end = time.monotonic() + options.seconds
    order = random.Random(options.seed)
    failed, runs = [], 0
    print(f"seed {options.seed}")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        empty = os.path.join(folder, "empty.qn")
        with open(empty, "w", encoding="utf-8") as f:
            f.write("print(1)  # => 1\n")
        start = Case(quern, empty, "off")
        bound = start.last(1)
        queues = [(start, list(range(1, bound + 1)))]
        for path in options.scripts:
            with open(path, encoding="utf-8") as f:
                if "catch" in f.read():
                    continue
            for mode in FLAGS:
                case = Case(quern, path, mode)
                bad = scripts.compare(case.want, path, *case.run(0))
                if bad:
                    print(f"left out, fails as it is: {path} [{mode}]")
                    continue
                queues.append((case, list(steps(bound // 2, case.last(bound // 2), DENSE))))
        for _, queue in queues:
            order.shuffle(queue)
        total = sum(len(queue) for _, queue in queues)
        while any(queue for _, queue in queues) and time.monotonic() < end:
            turn = [(case, queue.pop()) for case, queue in queues if queue for _ in range(min(4, len(queue)))]
            for _, complaint in pool.map(lambda job: job[0].judge(job[1]), turn):
                runs += 1
                if complaint:
                    failed.append(complaint)
            if len(failed) >= 10:
                break
    for complaint in failed:
        print("FAILED " + complaint)
    print(f"{runs} of {total} places tried over {len(queues)} scripts")
    print(f"{runs - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
