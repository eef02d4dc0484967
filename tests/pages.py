#!/usr/bin/env python3
"""The pages of `quern help`: pages.py [--quern build/quern] errors|topics

errors   The example on the page of every error id ends with that error, and the script under "Hint" runs without a word on
         stderr; each runs in an empty folder. Where no script can make it happen, a function below does, or a unit test
         that is named.
topics   The example of every topic and of every function runs, and every name that help lists has a page.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile

# What a host, not a script, makes happen: states the test that does it. The last two are defects; how they are reported is
# tested where they are raised on purpose.
ELSEWHERE = {"E406": "unit.graph_batch", "E505": "unit.interp", "E604": "unit.interp", "E802": "unit.lang_array", "E803": "cli.verify_names_node"}


class Pages:
    def __init__(self, quern):
        self.quern = os.path.abspath(quern)
        self.bad = []

    def help(self, name):
        done = subprocess.run([self.quern, "help", name], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            self.bad.append(f"no help on {name}")
        return done.stdout

    def run(self, text, **more):
        with tempfile.TemporaryDirectory(prefix="quern-page-") as folder:
            with open(os.path.join(folder, "page.qn"), "w", encoding="utf-8") as f:
                f.write(text)
            done = subprocess.run([self.quern, "page.qn"], cwd=folder, capture_output=True, text=True, timeout=120, **more)
        found = re.findall(r"^error\[(E\d+)\]", done.stderr, re.M)
        return done, found[-1] if found else None

    def expect(self, name, text, error, **more):
        done, got = self.run(text, **more)
        if got != error:
            self.bad.append(f"{name}: {got or 'no error'}, expected {error or 'none'}\n{text}\n{done.stdout}{done.stderr}")
        elif not error and (done.returncode != 0 or done.stderr):
            self.bad.append(f"{name}: status {done.returncode}\n{text}\n{done.stdout}{done.stderr}")


def script_below(page, title):
    """The indented lines below a title."""
    found = re.search(rf"^{title}[^\n]*\n\n((?:    [^\n]*\n|\n)+)", page, re.M)
    return re.sub(r"^    ", "", found.group(1), flags=re.M).strip() + "\n" if found else None


def interrupted(p):
    with tempfile.TemporaryDirectory(prefix="quern-page-") as folder:
        path = os.path.join(folder, "page.qn")
        with open(path, "w", encoding="utf-8") as f:
            f.write('print("ready", to: "stderr")\nwhile true { }\n')
        running = subprocess.Popen([p.quern, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.stderr.readline()
        for _ in range(2):  # the third would end the process at once
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                try:
                    running.wait(10)
                except subprocess.TimeoutExpired:
                    pass
        err = running.communicate(timeout=30)[1]
    if "error[E603]" not in err:
        p.bad.append(f"E603: {err}")


def nested(p):
    p.expect("E106", "print(" + "(" * 5000 + "1" + ")" * 5000 + ")\n", "E106")


def devices(p):
    fake = os.environ.get("QUERN_TEST_FAKE")
    if fake:
        p.expect("E210", "print(ones(2) + ones(2).to(gpu))\n", "E210", env=dict(os.environ, QUERN_CUDA=fake + "/good"))


BY_HOST = {"E106": nested, "E210": devices, "E603": interrupted}


def errors(p):
    ids = re.findall(r"^(E\d+)  ", p.help("errors"), re.M)
    if len(ids) < 50:
        p.bad.append(f"{len(ids)} ids listed")
    for name in ids:
        page = p.help(name)
        example, hint = script_below(page, "Example"), script_below(page, "Hint")
        if example and hint:
            p.expect(name + ", example", example, name)
            p.expect(name + ", hint", hint, None)
        elif "It happens so: " not in page:
            p.bad.append(f"{name}: a page without an example")
        elif name in BY_HOST:
            BY_HOST[name](p)
        elif name not in ELSEWHERE:
            p.bad.append(f"{name}: nothing makes it happen")


def topics(p):
    lines = p.help("topics").splitlines()
    for name in " ".join(line for line in lines[2:] if line.startswith("  ")).split("functions, and each")[0].split():
        example = script_below(p.help(name), "Example")
        if not example:
            p.bad.append(f"{name}: no example")
            continue
        p.expect(name, example, None)
    listed = p.help("functions")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lang", "REFERENCE.md"), encoding="utf-8") as f:
        part = re.search(r"<!-- generated: functions -->(.*?)<!-- end -->", f.read(), re.S).group(1)
    want = re.findall(r"^### (.*)$|^\*\*`(\w+)", part, re.M)
    found = [(title, "") if title else ("", name) for title, names in re.findall(r"^(?! )(\S.*)\n(?=  )|^  (.*)$", listed, re.M)
             for name in (names.split() or [""])]
    if found != want:
        p.bad.append("help functions: not the headings and names of the reference")
    if any(len(line) > 100 for line in listed.splitlines()):
        p.bad.append("help functions: a long line")
    for name in " ".join(re.findall(r"^  (.*)$", listed, re.M)).split():
        example = script_below(p.help(name), "Example")
        if example:
            p.expect(name, example, None)
        else:
            p.bad.append(f"{name}: no example in stdlib/examples.def")
    for name in ("softmax", "sum", "exp", "f32", "nn", "optim", "optim.adam", "tunables"):
        if len(p.help(name).split()) < 5:
            p.bad.append(f"{name}: a short page")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["errors", "topics"])
    parser.add_argument("--quern", default="build/quern")
    options = parser.parse_args()
    p = Pages(options.quern)
    {"errors": errors, "topics": topics}[options.part](p)
    for complaint in p.bad:
        print("FAILED " + complaint)
    return 1 if p.bad else 0


if __name__ == "__main__":
    sys.exit(main())
