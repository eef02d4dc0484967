#!/usr/bin/env python3
"""What newcomers get wrong: mistakes.py [--quern build/quern]

Every mistake of mistakes.txt, as a script of its own, ends with the error and the message given there, and with exit status 1.
Then all of them are typed, one after the other, at one prompt, which must still be there in the end.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

REPORT = re.compile(r"^error\[(E\d+)\]: (.*)$", re.M)


def mistakes(path):
    """(code, id, message)"""
    code = []
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            found = re.match(r"  (E\d+) (.*)$", line)
            if found:
                yield "\n".join(code), found.group(1), found.group(2)
                code = []
            elif code or not line.startswith("# "):
                code.append(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/quern")
    quern = os.path.abspath(parser.parse_args().quern)
    bad, count, typed = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="quern-mistakes-") as folder:
        for code, want, message in mistakes(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mistakes.txt")):
            count += 1
            with open(os.path.join(folder, "mistake.qn"), "w", encoding="utf-8") as f:
                f.write(code + "\n")
            done = subprocess.run([quern, "mistake.qn"], cwd=folder, capture_output=True, text=True, timeout=60)
            found = REPORT.findall(done.stderr)
            if done.returncode != 1 or not found or found[-1][0] != want or not found[-1][1].startswith(message):
                bad += 1
                print(f"FAILED, expected {want} {message}\n{code}\n{done.stderr}")
            # What is not closed waits for more at the prompt, which some words end.
            if (not found or "never closed" not in found[-1][1]) and code not in ("exit()", "quit"):
                typed.append(code)
        done = subprocess.run([quern], input="\n".join(typed) + "\n\nprint(\"still here\")\n", cwd=folder, capture_output=True, text=True,
                              timeout=120)
        if done.returncode != 0 or not done.stdout.endswith("still here\n"):
            bad += 1
            print(f"FAILED at the prompt: status {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        elif len(REPORT.findall(done.stderr)) < count // 2:
            bad += 1
            print("FAILED: few reports at the prompt")
    print(f"{count} mistakes, {bad} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
