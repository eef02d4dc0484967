#!/usr/bin/env python3
"""The random tests: from fixed seeds for CTest, from fresh ones for as long as one likes.

  soak.py fixed NAME [--quern build/quern]                         the seeds that every run of the tests tries
  soak.py corpus [--quern build/quern]                             the seeds that once failed: corpus.txt
  soak.py for MINUTES [NAME...] [--quern ...] [--seed N] [--keep FOLDER]
                                                                   fresh seeds, the tests taking turns (./dev soak)

`TESTS` below is the one list of tests that take a seed. Each takes --seed N, --count N (programs at most) and --seconds S, and its
program i has the seed N + i, so `--seed SEED --count 1` makes one again. NAME may be the beginning of a name: `damage` are all of them.

`for` draws the seeds from one of its own, which is printed and taken back with --seed. A run that fails leaves a folder with its output, the
command that makes it again, and whatever the test kept, and the exit status is 1 at the end. When a failure is understood, its
seed belongs into corpus.txt, as a line `NAME SEED [OPTIONS OF THE TEST]`.
"""
import argparse
import glob
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DAMAGED = ("npy", "npz", "safetensors", "csv", "png", "qnx", "cache")


class Test:
    """A script of this folder with its options, or a case of a unit test; `seconds` of a turn among the others. In each run of the tests
    `count` from seed 1 on are tried, which take a processor about ten seconds, and no more than `limit` seconds."""

    def __init__(self, seconds, count, script=None, *options, unit=None, limit=None, driver=None):
        self.seconds, self.count, self.script, self.options, self.unit = seconds, count, script, list(options), unit
        self.limit, self.driver = limit or 200, driver

    def start(self, quern, seed, count, seconds, more=()):
        """The command and what it needs in its environment."""
        build, env = os.path.dirname(quern), {}
        if self.driver:
            env["QUERN_CUDA"] = os.path.join(os.environ.get("QUERN_TEST_FAKE") or os.path.join(build, "tests", "fake"), self.driver)
        if self.unit:
            program, case = self.unit
            env.update(QN_TEST_FIRST=str(seed), QN_TEST_COUNT=str(count), CK_RUN_CASE=case, CK_TIMEOUT_MULTIPLIER="10")
            return [os.path.join(build, "tests", program)], env
        options = [text for option in self.options for text in (scripts() if option == "SCRIPTS" else [option])]
        return [sys.executable, os.path.join(HERE, self.script), "--quern", quern, "--seed", str(seed), "--seconds", str(seconds),
                *(["--count", str(count)] if count else []), *options, *more], env


def scripts():
    """The language scripts and the examples."""
    found = glob.glob(os.path.join(HERE, "language", "**", "*.qn"), recursive=True)
    return sorted(path for path in found if not re.search(r"/(_[^/]*|lib/.*)$", path)) + sorted(glob.glob(os.path.join(ROOT, "examples", "*.qn")))


GPU = ("--device", "gpu", "--batch", "1", "--set", "gpu.portable=1")
TESTS = {
    "differential.random_programs": Test(60, 65, "differential/run.py"),
    "differential.lanes": Test(40, 80, "differential/lanes.py"),
    "differential.control": Test(60, 400, "differential/control.py"),
    "differential.control_twice": Test(20, 150, "differential/control.py", "--kind", "twice"),
    "differential.draws": Test(20, 130, "differential/draws.py"),
    "differential.infinite": Test(20, 120, "differential/infinite.py"),
    "differential.recursion": Test(20, 300, "differential/recursion.py"),
    "differential.data_sizes": Test(20, 200, "differential/data_sizes.py"),
    "differential.guards": Test(40, 400, "differential/guards.py"),
    "differential.aliasing": Test(15, 1300, "differential/aliasing.py"),
    "differential.sizes": Test(15, 150, "differential/sizes.py"),
    "differential.sizes_ints": Test(10, 100, "differential/sizes.py", "--ints"),
    "differential.sizes_named": Test(10, 100, "differential/sizes.py", "--named"),
    "differential.sizes_arms": Test(10, 80, "differential/sizes.py", "--arms"),
    "differential.lists": Test(10, 100, "differential/sizes.py", "--lists"),
    "differential.lists_made": Test(10, 100, "differential/sizes.py", "--lists", "--made", "--long"),
    "differential.lists_in_records": Test(10, 100, "differential/sizes.py", "--records"),
    "differential.sorting": Test(10, 12, "differential/sorting.py"),
    "differential.sorting_threads": Test(10, 8, "differential/sorting.py", "--threads", "5", "--set", "par.grain=1"),
    "gpu.random_programs": Test(20, 8, "differential/run.py", *GPU, driver="compiling"),
    "gpu.sorting": Test(10, 1, "differential/sorting.py", "--edges", "--longest", "5000", "--device", "gpu", "--jit", "sync", driver="compiling"),
    "ref.random_programs": Test(20, 10, "differential/run.py", "--device", "ref", "--batch", "1", "--eager-there"),
    "damage.programs": Test(15, 800, "fuzz/programs.py"),
    **{f"damage.{kind}": Test(6, {"cache": 12, "qnx": 3000}.get(kind, 8000), "fuzz/damage.py", kind) for kind in DAMAGED},
    "memfail.scripts": Test(45, None, "language/memfail.py", "SCRIPTS", limit=10),
    "prompt.fuzz": Test(20, 60, "prompt/run.py", "fuzz"),
    **{f"files.{kind}": Test(3, 4, "files.py", kind) for kind in ("npy", "safetensors", "csv", "png")},
    "strings": Test(4, 1, "strings.py"),
    # These count programs alone; their own counts from seed 1 on stand in the unit tests.
    "unit.block_vm_random": Test(0, 100, unit=("test_block_vm_random", "random_programs")),
    "unit.emit": Test(0, 64, unit=("test_emit", "random_programs")),
    "unit.gpu_vm": Test(0, 60, unit=("test_gpu_vm", "random"), driver="compiling"),
    "unit.gpu_vm_compiled": Test(0, 8, unit=("test_gpu_vm", "compiled"), driver="compiling"),
    "unit.graph_simplify": Test(0, 1500, unit=("test_graph_simplify", "random_graphs_keep_their_bits")),
    "unit.schedules": Test(0, 250, unit=("test_kernel_schedules", "random_schedules_keep_bits")),
    "unit.plans": Test(0, 300, unit=("test_plan_run", "plans_give_the_same_bits")),
    "unit.plans_at_other_sizes": Test(0, 600, unit=("test_plan_run", "symbolic_plans_run_at_other_sizes")),
}


def corpus():
    """(name, seed, options of the test) for each line."""
    with open(os.path.join(HERE, "corpus.txt"), encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if words:
                yield words[0], int(words[1]), words[2:]


def tried(output):
    """How many programs (files, rounds, ...) there were, by the last line that begins with a number."""
    lines = re.findall(r"^\d+ \w+.*$", output, re.M)
    if not lines:
        return 0
    counts = re.findall(r"(\d+) (?:passed|raised|refused|failed|FAILED)\b", lines[-1])
    return sum(map(int, counts)) if "passed" in lines[-1] else int(re.match(r"\d+", lines[-1]).group(0))


class Turn:
    """One run in a folder of its own, which stays when it fails."""

    def __init__(self, name, quern, seed, seconds, keep, count=None, more=()):
        test = TESTS[name]
        self.count = count or (test.count if test.unit else None)
        self.name, self.seed, self.folder = name, seed, os.path.join(keep, f"{name}-{seed}")
        self.command, self.env = test.start(quern, seed, self.count, max(1, round(seconds)), more)
        self.limit = 6 * seconds + 300

    def run(self):
        os.makedirs(os.path.join(self.folder, "tmp"), exist_ok=True)
        path = os.path.join(self.folder, "output")
        env = dict(os.environ, TMPDIR=os.path.join(self.folder, "tmp"), LC_ALL="C.UTF-8", QUERN_LOG="", **self.env)
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:allocator_may_return_null=1")
        if "QUERN_CUDA" not in self.env:
            env["QUERN_CACHE"] = os.path.join(self.folder, "tmp", "cache")
        with open(path, "wb") as out:
            p = subprocess.Popen(self.command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                 start_new_session=True)
            try:
                status = p.wait(self.limit)
            except BaseException as e:  # also Ctrl-C: nothing goes on without us
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
                if not isinstance(e, subprocess.TimeoutExpired):
                    shutil.rmtree(self.folder, ignore_errors=True)
                    raise
                status = f"no end within {self.limit:.0f} s"
        with open(path, encoding="utf-8", errors="replace") as f:
            output = f.read()
        if status == 0 and "Checks: 0," in output:
            status = "no such case"
        if status == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            with open(os.path.join(self.folder, "command"), "w", encoding="utf-8") as f:
                f.write(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env.items()), shlex.join(self.command)]) + "\n")
        return status, self.count or tried(output), output


def soak(minutes, names, quern, seed, keep):
    order, end = random.Random(seed), time.monotonic() + 60 * minutes
    total = sum(TESTS[name].seconds or 10 for name in names)
    share = min(1.0, 60 * minutes / total)  # of the usual length of turns, so that a short run has all of them
    print(f"soak: {minutes:g} minutes of {len(names)} tests, --seed {seed}", flush=True)
    counts, turns, failed = dict.fromkeys(names, 0), dict.fromkeys(names, 0), []
    try:
        while time.monotonic() < end:
            for name in order.sample(names, len(names)):
                left = end - time.monotonic()
                if left <= 0:
                    break
                turn = Turn(name, quern, order.randrange(1, 10**9), min(TESTS[name].seconds * share, left), keep)
                begin = time.monotonic()
                status, n, output = turn.run()
                counts[name] += n
                turns[name] += 1
                print(f"{name}  seed {turn.seed}  {n} tried  {time.monotonic() - begin:.0f} s" + ("" if status == 0 else "  FAILED"), flush=True)
                if status != 0:
                    failed.append(turn)
                    print(f"  status {status}; kept in {turn.folder}\n" + "\n".join("  | " + line for line in output.splitlines()[-12:]), flush=True)
    except KeyboardInterrupt:
        print("ended by Ctrl-C")
    for name in names:
        bad = [str(turn.seed) for turn in failed if turn.name == name]
        print(f"{name}: {turns[name]} turns, {counts[name]} tried" + (f", FAILED from {', '.join(bad)}" if bad else ""))
    print(f"{sum(counts.values())} tried, {len(failed)} turns failed (--seed {seed})")
    return 1 if failed else 0


def chosen(beginnings):
    """The names that begin so; all without any."""
    for text in beginnings:
        if not any(name.startswith(text) for name in TESTS):
            sys.exit(f"no random test is called {text}; there are {', '.join(TESTS)}")
    return [name for name in TESTS if not beginnings or any(name.startswith(text) for text in beginnings)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fixed", "corpus", "for"))
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT")
    parser.add_argument("--quern", default=os.path.join(ROOT, "build", "quern"))
    parser.add_argument("--seed", type=int, help="what fresh seeds are drawn from")
    parser.add_argument("--keep", metavar="FOLDER", default=os.path.join(ROOT, "build", "soak"), help="where failures are kept")
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    if options.what == "fixed":
        (name,) = options.arguments
        test = TESTS[name]
        command, env = test.start(quern, 1, test.count, test.limit)
        return subprocess.run(command, env=dict(os.environ, **env), stdin=subprocess.DEVNULL).returncode
    if options.what == "corpus":
        bad = 0
        for name, seed, more in corpus():
            status, _, output = Turn(name, quern, seed, 120, os.path.abspath(options.keep), 1, more).run()
            print(f"{name} {seed} {' '.join(more)}: " + ("passed" if status == 0 else f"FAILED, status {status}\n{output}"), flush=True)
            bad += status != 0
        return 1 if bad else 0
    minutes, *beginnings = options.arguments or ["10"]
    try:
        minutes = float(minutes)
    except ValueError:
        minutes, beginnings = 10.0, [minutes, *beginnings]
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1, 1 << 30)
    return soak(minutes, chosen(beginnings), quern, seed, os.path.abspath(options.keep))


if __name__ == "__main__":
    sys.exit(main())
