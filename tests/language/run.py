#!/usr/bin/env python3
"""Runs language scripts and compares what they do with the expectations written in their comments.

  run.py [--quern build/quern] [--mode off] script.qn ...

Expectations, anywhere in a script:

  print(1 + 1)            # => 2            the next line of stdout is exactly `2` (blanks at the end do not count)
  x + zeros(3)            # error: E203     the script ends with this error on this line, and with exit status 1
  f(2)                    # error: E208 b is 3 and 5      ... and its report contains this text
  # error: E503                             an error without a line (the comment stands alone: the line is not checked)
  # stderr: compiled in                     stderr contains this text
  # no stderr: warning                      ... and does not contain this one
  # args: a "b c"                           arguments of the script
  # exit: 2                                 the exit status (without it: 0, or 1 if an error is expected)
  # flags: --threads 2                      more flags of the command line; `--jit` here runs the script once only
  # stdin: text\\n                           what the script may read
  # device: cpu                             with --device the script is left out

A `# =>` with more lines than one statement prints is written as comment lines below it. Each script runs in four
modes, in which it must do the same: `--jit off`, `--jit sync --set jit.hot=1` (compiled at the first call) and
`--jit on` (compiled beside execution) and `--jit verify` (each call both ways). What differs is shown as a diff, and a
graph that the compiler gave up is a failure. A script may write below the folder named by the environment variable
QUERN_TEST_TMP, which is fresh for each run.

With --many PROGRAM (tests/language/many.c) the scripts of a mode run in one process, one after another; with --device they share an engine,
and a script that made no array in the first mode has shown all that it does there.
"""
import argparse
import collections
import difflib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

MODES = {
    "off": ["--jit", "off"],
    "sync": ["--jit", "sync", "--set", "jit.hot=1"],
    "on": ["--jit", "on"],
    "verify": ["--jit", "verify", "--set", "jit.hot=2"],
}
DIRECTIVE = re.compile(r"(?:^|\s)#\s*(=>|error:|stderr:|no stderr:|args:|exit:|flags:|stdin:|device:)(.*)$")
NAMED_CPU = re.compile(r"\bcpu\b")  # with --device arrays say where they are
REPORT = re.compile(r"^error\[(E\d+)\](.*)$", re.M)
PLACE = re.compile(r"^\s*--> (.*?):(\d+)(?::(\d+))?", re.M)


class Expectation:
    """What the comments of one script ask for."""

    def __init__(self, path):
        self.out, self.err, self.no_err, self.args, self.flags = [], [], [], [], []
        self.error = self.exit = self.line = self.device = None
        self.error_text = self.stdin = ""
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                self.read(number, line.rstrip("\n"))

    def read(self, number, line):
        found = DIRECTIVE.search(line)
        if not found:
            return
        kind, text = found.group(1), found.group(2)
        if kind == "=>":
            self.out.append(text[1:].rstrip() if text.startswith(" ") else text.rstrip())
            return
        text = text.strip()
        if kind == "error:":
            if self.error:
                raise SystemExit(f"line {number}: a script can end with one error only")
            self.error, _, self.error_text = text.partition(" ")
            self.line = number if line[:found.start()].strip() else None
        elif kind == "stderr:":
            self.err.append(text)
        elif kind == "no stderr:":
            self.no_err.append(text)
        elif kind == "args:":
            self.args += shlex.split(text)
        elif kind == "device:":
            self.device = text
        elif kind == "flags:":
            self.flags += shlex.split(text)
        elif kind == "exit:":
            self.exit = int(text)
        elif kind == "stdin:":
            self.stdin += text.encode().decode("unicode_escape")

    @property
    def status(self):
        return self.exit if self.exit is not None else 1 if self.error else 0


def status_text(code):
    """An exit status, or the signal that ended the process, in words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def run(quern, path, flags, args, stdin="", timeout=300, env=None):
    """Runs one script; gives (status, stdout, stderr). A process that hangs is ended: status None."""
    scratch = tempfile.mkdtemp(prefix="quern-test-")
    full = dict(os.environ, **{"QUERN_TEST_TMP": scratch, "QUERN_LOG": "breaks", "COLUMNS": "80", **(env or {})})
    try:
        done = subprocess.run([quern, *flags, path, *args], input=stdin.encode(), capture_output=True, timeout=timeout,
                              env=full)
    except subprocess.TimeoutExpired as e:
        return None, (e.stdout or b"").decode(errors="replace"), (e.stderr or b"").decode(errors="replace")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Many:
    """Scripts in one process, each with a VM of its own: the program that many.c makes, begun anew when it has ended."""

    def __init__(self, program, share):
        self.command = [program] + (["share"] if share else [])
        self.process = self.folder = None
        self.arrays = 0  # made by the last script

    def begin(self):
        self.folder = tempfile.mkdtemp(prefix="quern-many-")
        env = dict(os.environ, QUERN_LOG="breaks", COLUMNS="80")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=open(os.path.join(self.folder, "own"), "wb"), env=env)

    def file(self, name):
        with open(os.path.join(self.folder, name), "rb") as f:
            return f.read().decode(errors="replace")

    def run(self, path, flags, args, stdin, timeout):
        """As the function `run`."""
        if not self.process:
            self.begin()
        scratch = os.path.join(self.folder, "scratch")
        os.mkdir(scratch)
        names = [os.path.join(self.folder, name) for name in ("out", "err", "in")]
        with open(names[2], "wb") as f:
            f.write(stdin.encode())
        words = [*names, scratch, *flags, path, *args]
        answer, late = b"", False
        try:
            self.process.stdin.write(f"{len(words)}\n".encode() + b"".join(word.encode() + b"\0" for word in words))
            self.process.stdin.flush()
            if select.select([self.process.stdout], [], [], timeout)[0]:
                answer = self.process.stdout.readline()
            else:
                late = True
                self.process.kill()
        except BrokenPipeError:
            pass
        out, err = self.file("out"), self.file("err")
        shutil.rmtree(scratch, ignore_errors=True)
        if answer:
            status, self.arrays = map(int, answer.split())
        else:
            status = self.process.wait()  # below 0: the signal that ended it
            status = None if late else status
            err += self.file("own")
            self.drop()
        return status, out, err

    def seconds(self):
        """Of processors that it and the compilers it started have used."""
        if not self.process:
            return 0.0
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def drop(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process = None

    def end(self):
        """Ends the process; a complaint if that went wrong (leaks are told there), or None."""
        if not self.process:
            return None
        self.process.stdin.close()
        status, err = self.process.wait(), self.file("own")
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return f"{status_text(status)}\n{err}" if status or err.strip() else None


def diff(want, got, name):
    lines = difflib.unified_diff(want, got, "expected", name, lineterm="", n=3)
    return "\n".join("    " + line for line in lines)


def compare(want, path, status, out, err):
    """The list of complaints about one run, empty if it did as expected."""
    bad = []
    got = [line.rstrip() for line in out.splitlines()]
    if got != want.out:
        bad.append("stdout differs:\n" + diff(want.out, got, "printed"))
    if status is None:
        return bad + ["it did not end in time"]
    if status != want.status:
        bad.append(f"{status_text(status)}, expected exit status {want.status}")
    reports = list(REPORT.finditer(err))
    if want.error:
        if not reports or reports[-1].group(1) != want.error:
            bad.append(f"expected error {want.error}, got {reports[-1].group(1) if reports else 'none'}")
        else:
            rest = err[reports[-1].start():]
            if want.error_text and want.error_text not in rest:
                bad.append(f"the error report lacks: {want.error_text}")
            place = PLACE.search(rest)
            if want.line and (not place or int(place.group(2)) != want.line):
                bad.append(f"the error is expected on line {want.line}, reported on {place.group(2) if place else 'none'}")
    elif reports:
        bad.append(f"unexpected error {reports[-1].group(1)}")
    for text in want.err:
        if text not in err:
            bad.append(f"stderr lacks: {text}")
    for text in want.no_err:
        if text in err:
            bad.append(f"stderr has: {text}")
    if "the compiler gave up" in err:
        bad.append("the compiler gave up")
    if re.search(r"C compiler failed|NVRTC failed", err):
        bad.append("emitted code does not compile")
    if re.search(r"AddressSanitizer|LeakSanitizer|runtime error:", err):
        bad.append("a sanitizer reported")
    return bad


def modes_of(want, chosen):
    if "--jit" in want.flags:
        return {" ".join(want.flags): []}
    return {name: MODES[name] for name in chosen}


def test(quern, path, chosen, timeout, device, costs, many=None):
    """Runs one script in all modes; True if all is well. What it costs with `many`, the processes of the modes, is added to costs[path]."""
    want = Expectation(path)
    if device:
        if want.device and want.device != device:
            return True
        want.flags += ["--device", device]
        want.out = [NAMED_CPU.sub(f"{device}(0)", line) for line in want.out]
    good = True
    for name, flags in modes_of(want, chosen).items():
        if many:
            process = many.get(name) or many.setdefault(name, Many(many["program"], device is not None))
            before = process.seconds()
            status, out, err = process.run(path, flags + want.flags, want.args, want.stdin, timeout)
            costs[path] += process.seconds() - before
        else:
            status, out, err = run(quern, path, flags + want.flags, want.args, want.stdin, timeout)
        if device:
            out = NAMED_CPU.sub(f"{device}(0)", out)
        bad = compare(want, path, status, out, err)
        if bad:
            good = False
            print(f"FAILED {path} [{name}]")
            for complaint in bad:
                print("  " + complaint)
            if err.strip():
                print("  stderr:\n" + "\n".join("    " + line for line in err.splitlines()[-60:]))
        elif many and device and not process.arrays:
            break
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--quern", default="build/quern", help="the binary")
    parser.add_argument("--mode", action="append", choices=list(MODES), help="only this mode (repeatable)")
    parser.add_argument("--device", help="run on this device: cpu and its name in what is printed count as one")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one run")
    parser.add_argument("--many", metavar="PROGRAM", help="one process a mode: what tests/language/many.c makes")
    parser.add_argument("--costs", action="store_true", help="with --many: seconds of processors that the dearest scripts use")
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    many = {"program": os.path.abspath(options.many)} if options.many else None
    costs = collections.Counter()
    good = [test(quern, path, options.mode or list(MODES), options.timeout, options.device, costs, many)
            for path in options.scripts]
    for name, process in (many or {}).items():
        complaint = process.end() if name != "program" else None
        if complaint:
            good.append(False)
            print(f"FAILED the process of {name}: {complaint}")
    for path, seconds in costs.most_common(40 if options.costs else 0):
        print(f"{seconds:7.2f} {path}")
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
