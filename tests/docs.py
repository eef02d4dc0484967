#!/usr/bin/env python3
"""The code in the documents: docs.py [--quern build/quern] FILE.md

Blocks of code are told apart by the word behind their fence:

  ```quern          a script, with its output and errors as comments, as in tests/language/run.py
  ```output         what the script above prints, exactly
  ```prompt         lines typed at the prompt behind `qn> ` and `... `, and what it answers; all of a file are one session
  ```c ```sh ```text   not run

Scripts run in one folder for each document, in order, so that a later one may read a file that an earlier one wrote.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "language"))
import run  # noqa: E402  the expectations of scripts

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SEPARATOR = "----- next input -----"


def blocks_of(path):
    """(line, word, text) of every block."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count("\n```") % 2 and not text.startswith("```"):
        sys.exit(f"FAILED {path}: a block is not closed")
    return [(text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)) for m in FENCE.finditer(text)]


def check_script(quern, folder, text, output):
    path = os.path.join(folder, "block.qn")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    want = run.Expectation(path)
    if output is not None:
        want.out += [line.rstrip() for line in output.splitlines()]
    done = subprocess.run([quern, *want.flags, "block.qn", *want.args], cwd=folder, capture_output=True, text=True, timeout=300)
    bad = run.compare(want, path, done.returncode, done.stdout, done.stderr)
    if not want.error and not want.err and done.stderr:
        bad.append("stderr: " + done.stderr)
    return bad


def check_session(quern, folder, inputs):
    """Feeds (line, typed, answer) to one prompt, with a marker printed between them."""
    fed = "".join(typed + f'\nprint("{SEPARATOR}"); print("{SEPARATOR}", to: "stderr")\n' for _, typed, _ in inputs)
    done = subprocess.run([quern], input=fed, cwd=folder, capture_output=True, text=True, timeout=300)
    out, err = done.stdout.split(SEPARATOR + "\n"), done.stderr.split(SEPARATOR + "\n")
    bad = []
    for i, (line, typed, answer) in enumerate(inputs):
        got = (out[i] if i < len(out) else "(nothing)") + (err[i] if i < len(err) else "")
        # Places differ: a session's texts have numbers.
        got = re.sub(r"<prompt \d+>", "<prompt>", got)
        if [x.rstrip() for x in got.splitlines()] != [x.rstrip() for x in re.sub(r"<prompt \d+>", "<prompt>", answer).splitlines()]:
            bad.append((line, f"{typed}\n  answers\n{got}  expected\n{answer}"))
    return bad


def session_inputs(line, text):
    inputs = []
    for i, row in enumerate(text.splitlines()):
        if row.startswith("qn> "):
            inputs.append([line + i + 1, row[4:], ""])
        elif row.startswith("... ") and inputs:
            inputs[-1][1] += "\n" + row[4:]
        elif inputs:
            inputs[-1][2] += row + "\n"
    return inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--quern", default="build/quern")
    options = parser.parse_args()
    quern = os.path.abspath(options.quern)
    blocks = blocks_of(options.file)
    failed, count, inputs = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="quern-docs-") as folder:
        for i, (line, word, text) in enumerate(blocks):
            if word == "quern":
                count += 1
                following = blocks[i + 1] if i + 1 < len(blocks) else (0, "", "")
                for complaint in check_script(quern, folder, text, following[2] if following[1] == "output" else None):
                    failed += 1
                    print(f"FAILED {options.file}:{line}: {complaint}")
            elif word == "prompt":
                count += 1
                inputs += session_inputs(line, text)
            elif word not in ("output", "c", "sh", "text"):
                failed += 1
                print(f"FAILED {options.file}:{line}: a block says what it is: quern, output, prompt, c, sh or text")
        for line, complaint in check_session(quern, folder, inputs) if inputs else []:
            failed += 1
            print(f"FAILED {options.file}:{line}: {complaint}")
    print(f"{count} blocks, {failed} complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
