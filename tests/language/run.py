#!/usr/bin/env python3
"""Runs language scripts and compares what they do with the expectations written in their comments.

  run.py [--quern build/quern] [--mode off] script.qn ...

Expectations, anywhere in a script:

  print(1 + 1)            # => 2            the next line of stdout is exactly `2` (blanks at the end do not count)
  x + zeros(3)            # error: E203     the script ends with this error on this line, and with exit status 1
  f(2)                    # error: E208 b is 3 and 5      ... and its report contains this text
  # error: E503                             an error without a line (the comment stands alone: the line is not checked)
  # stderr: compiled in                     stderr contains this text
  # args: a "b c"                           arguments of the script
  # exit: 2                                 the exit status (without it: 0, or 1 if an error is expected)
  # flags: --threads 2                      more flags of the command line; `--jit` here runs the script once only
  # stdin: text\\n                           what the script may read

A `# =>` with more lines than one statement prints is written as comment lines below it. Each script runs in four
modes, in which it must do the same: `--jit off`, `--jit sync --set jit.hot=1` (compiled at the first call) and
`--jit on` (compiled beside execution) and `--jit verify` (each call both ways). What differs is shown as a diff, and a
graph that the compiler gave up is a failure. A script may write below the folder named by the environment variable
QUERN_TEST_TMP, which is fresh for each run.
"""
import argparse
import difflib
import os
import re
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
DIRECTIVE = re.compile(r"(?:^|\s)#\s*(=>|error:|stderr:|args:|exit:|flags:|stdin:)(.*)$")
NAMED_CPU = re.compile(r"\bcpu\b")  # with --device gpu arrays say where they are
REPORT = re.compile(r"^error\[(E\d+)\](.*)$", re.M)
PLACE = re.compile(r"^\s*--> (.*?):(\d+)(?::(\d+))?", re.M)


class Expectation:
    """What the comments of one script ask for."""

    def __init__(self, path):
        self.out, self.err, self.args, self.flags = [], [], [], []
        self.error = self.exit = self.line = None
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
        elif kind == "args:":
            self.args += shlex.split(text)
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


def test(quern, path, chosen, timeout, device):
    """Runs one script in all modes; True if all is well."""
    want = Expectation(path)
    if device:
        want.flags += ["--device", device]
        want.out = [NAMED_CPU.sub("gpu(0)", line) for line in want.out]
    good = True
    for name, flags in modes_of(want, chosen).items():
        status, out, err = run(quern, path, flags + want.flags, want.args, want.stdin, timeout)
        if device:
            out = NAMED_CPU.sub("gpu(0)", out)
        bad = compare(want, path, status, out, err)
        if bad:
            good = False
            print(f"FAILED {path} [{name}]")
            for complaint in bad:
                print("  " + complaint)
            if err.strip():
                print("  stderr:\n" + "\n".join("    " + line for line in err.splitlines()[-60:]))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--quern", default="build/quern", help="the binary")
    parser.add_argument("--mode", action="append", choices=list(MODES), help="only this mode (repeatable)")
    parser.add_argument("--device", help="run on this device: cpu and gpu(0) in what is printed count as one")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one run")
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    good = [test(quern, path, options.mode or list(MODES), options.timeout, options.device) for path in options.scripts]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
