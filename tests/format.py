#!/usr/bin/env python3
"""The layout of C sources: format.py ROOT [--fix]

Every .c and .h file that git knows looks as clang-format leaves it with the project's .clang-format (--fix makes it so). Releases of
clang-format differ from each other, so only VERSION counts: the one that Debian 12 has. Where there is none, the exit status is 77.
Tables (.def) and CUDA texts are laid out by hand; so are macros between `clang-format off` and `on`.
"""
import re
import shutil
import subprocess
import sys

VERSION = 14


def find():
    """The command, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout if path else ""
        if re.search(rf"version {VERSION}\.", text):
            return path
    return None


def main():
    root, fix = sys.argv[1], "--fix" in sys.argv[2:]
    tool = find()
    if not tool:
        print(f"format.py: there is no clang-format {VERSION}")
        return 77
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "*.c", "*.h"], capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name]
    how = ["-i"] if fix else ["--dry-run", "--Werror"]
    done = subprocess.run([tool, *how, *files], cwd=root, capture_output=True, text=True)
    wrong = sorted(set(re.findall(r"^(.+?):\d+:\d+: error: code should be clang-formatted", done.stderr, re.M)))
    if wrong:
        print(done.stderr[:4000])
        print(f"not laid out as .clang-format says: {' '.join(wrong)}\n./dev format mends it")
    return 1 if wrong else done.returncode


if __name__ == "__main__":
    sys.exit(main())
