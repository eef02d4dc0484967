#!/usr/bin/env python3
"""The prompt as a person sees it: keys go in through a pseudo-terminal, what the screen then shows is compared.

  run.py [--quern build/quern] CASE ...       (each function case_NAME below is a case; `all` runs them all)

Each case gets a fresh home folder. CTest lists the cases by name. session.py types and waits, screen.py is the terminal.
"""
import argparse
import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from screen import Screen  # noqa: E402
from session import (BACKTAB, DELETE, DOWN, END, ESC, HOME, LEFT, RIGHT, SLOW, UP, Prompt, ctrl, keys_are_read, paste,  # noqa: E402
                     seconds_of, state_of, waits_for_keys)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Place:
    def __init__(self, quern, folder, seed=1, count=1, seconds=1):
        self.quern, self.folder = quern, folder
        self.seed, self.count, self.seconds = seed, count, seconds  # of random sessions
        self.env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "XDG_STATE_HOME", "QUERN_LOG", "QUERN_SET")}
        self.env.update(HOME=folder, QUERN_CACHE=os.path.join(folder, "cache"), LC_ALL="C.UTF-8")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())

    def history(self):
        try:
            with open(self.path(".local/state/quern/history"), encoding="utf-8") as f:
                return [re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], line[:-1]) for line in f]
        except FileNotFoundError:
            return []


def need(condition, what):
    if not condition:
        raise AssertionError(what)


def ends_well(p):
    status = p.end()
    need(status == 0, f"status {status}\n{p.show()}")


# ---- editing a line ------------------------------------------------------------------------------------------------------
def case_typing(place):
    p = Prompt(place)
    p.type("1 + 1")
    p.expect("qn> 1 + 1", cursor=9)
    p.answer("", "2")
    p.answer("_ * 3", "6")
    p.answer("let a = 5;")
    p.answer("a + 1;")
    p.answer("_", "6")
    p.answer("nil")
    p.answer('"text"', '"text"')
    ends_well(p)
    lines = p.screen.logical()
    need(lines[1:4] == ["qn> 1 + 1", "2", "qn> _ * 3"], f"what stays on the screen: {lines}")


def case_insert_in_the_middle(place):
    p = Prompt(place)
    p.type("sum(3)")
    p.type(LEFT + "1, ")
    p.expect("qn> sum(31, )", cursor=12)
    p.type(HOME + "x")
    p.expect("qn> xsum(31, )", cursor=5)
    p.type(END + "y" + LEFT * 3 + "\x7f\x7f")
    p.expect("qn> xsum(3 )y", cursor=10)
    p.type(ctrl("u"))
    p.type(ctrl("k"))
    p.expect("qn>")
    p.type("abcdef" + LEFT * 3 + DELETE + ctrl("d"))
    p.expect("qn> abcf", cursor=7)
    p.type(ctrl("b") + ctrl("f") + ctrl("t"))
    p.expect("qn> abfc", cursor=8)
    p.type(ctrl("c"))
    p.expect("qn> abfc", "qn>")


def case_words_and_kills(place):
    p = Prompt(place)
    p.type("alpha beta.gamma delta")
    p.type("\x1bb\x1bb")
    p.expect("qn> alpha beta.gamma delta", cursor=15)
    p.type("\x1bf")
    p.expect("qn> alpha beta.gamma delta", cursor=20)
    p.type("\x1b\x7f")
    p.expect("qn> alpha beta. delta", cursor=15)
    p.type(ctrl("y"))
    p.expect("qn> alpha beta.gamma delta", cursor=20)
    p.type(ctrl("e") + ctrl("w") + ctrl("w"))
    p.expect("qn> alpha", cursor=10)
    p.type(ctrl("y"))
    p.expect("qn> alpha beta.gamma delta", cursor=26)
    p.type("\x1by")
    p.expect("qn> alpha gamma", cursor=15)
    p.type(ctrl("a") + "\x1b[1;5C" + ctrl("k"))
    p.expect("qn> alpha", cursor=9)
    p.type(ctrl("_"))
    p.expect("qn> alpha gamma")
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.type(ctrl("_"))
    p.expect("qn>")
    p.type(ctrl("_") + "\x1by" + ctrl("t") + DELETE + "\x7f" + ctrl("w"))
    p.expect("qn>")
    ends_well(p)


def case_wide_characters(place):
    p = Prompt(place)
    p.type('"日本語e\u0301é"')
    p.expect('qn> "日本語e\u0301é"', cursor=14)
    p.type(LEFT * 3)
    p.expect('qn> "日本語e\u0301é"', cursor=11)
    p.type(DELETE)
    p.expect('qn> "日本語é"', cursor=11)
    p.type("\x7fx")
    p.expect('qn> "日本xé"', cursor=10)
    p.answer("", '"日本xé"')
    p.type(b'"a\xff\xc3(b"')
    p.expect('qn> "a(b"')
    p.answer("", '"a(b"')
    # A wide character that does not fit goes to the next row as a whole.
    q = Prompt(place, columns=20)
    q.type('"' + "日" * 12)
    q.expect('qn> "日日日日日日日', "日日日日日", cursor=10)
    q.type(HOME + "x")
    q.expect('qn> x"日日日日日日日', "日日日日日")
    q.type(END + LEFT * 5 + '"')
    q.expect('qn> x"日日日日日日日', '"日日日日日', cursor=1)


def case_wrapped_line(place):
    """Lines longer than the terminal, with the last column filled exactly, too."""
    p = Prompt(place)
    text = "1" + " + 1" * 30
    p.type(text)
    whole = "qn> " + text
    p.expect(whole[:80].rstrip(), whole[80:])
    p.type(HOME + "2 + ")
    whole = "qn> 2 + " + text
    p.expect(whole[:80].rstrip(), whole[80:])
    p.type(END + ctrl("w"))
    p.type(ctrl("w"))
    p.type(ctrl("u"))
    p.expect("qn>", cursor=4)
    p.type("a" * 75)
    p.expect("qn> " + "a" * 75, cursor=79)
    p.type("a")
    lines = p.screen.lines()
    need(lines[-2:] == ["qn> " + "a" * 76, ""] and p.screen.x == 0, f"a full row: the cursor is below it\n{p.show()}")
    p.type("b")
    p.expect("qn> " + "a" * 76, "b", cursor=1)
    p.type("\x7f\x7f")
    p.expect("qn> " + "a" * 75, cursor=79)
    p.type(ctrl("a") + "x")
    lines = p.screen.lines()
    need([r for r in lines if r][-1] == "qn> x" + "a" * 75 and p.screen.x == 5, p.show())
    p.type(ctrl("e") + ctrl("c"))
    p.expect("qn> x" + "a" * 75, "qn>")
    # What the terminal wrapped belongs together: the program did not break it.
    need("qn> " + "1" not in p.screen.logical(), "")
    p.answer("0" + " + 1" * 40, "40")
    need("qn> 0" + " + 1" * 40 in p.screen.logical(), f"one line for the terminal: {p.screen.logical()}")
    ends_well(p)


# ---- several lines -------------------------------------------------------------------------------------------------------
def case_multi_line(place):
    p = Prompt(place)
    p.type("fn f(x) {\r")
    p.expect("qn> fn f(x) {", "...", cursor=6)
    p.type("let y = x\rif y > 1 {\ry\r} else {\r0\r")
    p.expect("qn> fn f(x) {", "...   let y = x", "...   if y > 1 {", "...     y", "...   } else {", "...     0", "...", cursor=8)
    p.type("}\r}")
    p.expect("...   }", "... }", cursor=5)
    # Up into the text, a change there, and Enter makes a line there.
    p.type(UP * 6 + END + " * 2")
    p.expect("qn> fn f(x) {", "...   let y = x * 2", "...   if y > 1 {", "...     y", "...   } else {", "...     0", "...   }", "... }", cursor=19)
    p.type("\r")
    p.type("y += 1")
    p.type("\x1b>")
    p.type("\r")
    p.expect("qn> fn f(x) {", "...   let y = x * 2", "...   y += 1", "...   if y > 1 {", "...     y", "...   } else {", "...     0", "...   }", "... }", "qn>")
    p.answer("f(4)", "9")
    # Up brings the whole function back.
    p.type("fn" + UP)
    p.expect("... }", cursor=5)
    need(p.screen.lines()[-9:][0] == "qn> fn f(x) {", p.show())
    p.type(ctrl("c"))
    p.type('let s = """a\rb"""\r')
    p.answer("s", '"a\\nb"')
    p.type("1 +\r")
    p.answer("2", "3")
    p.type("x = = {\r")
    p.wait(lambda: "error[E102]" in "\n".join(p.screen.lines()), "an error, though a bracket is open")
    p.type("(1, 2]\r")
    p.wait(lambda: p.line() == "qn>" and p.screen.lines().count("qn> (1, 2]") == 1, "a bracket that does not fit is an error at once")
    p.type("3\x1b\r")
    p.expect("qn> 3", "...", cursor=4)
    p.answer("4", "4")
    ends_well(p)


def case_taller_than_the_terminal(place):
    p = Prompt(place, columns=40, rows=8)
    lines = [f"let v{i} = {i}" for i in range(20)]
    p.type(paste("\n".join(lines)))
    p.expect(*[f"... {line}" for line in lines[-8:]], cursor=16)
    p.type("\x1b<")
    need(p.screen.lines()[:8] == ["qn> let v0 = 0"] + [f"... {line}" for line in lines[1:8]] and p.screen.cursor() == (0, 4), p.show())
    p.type(DOWN * 10 + END + "0")
    need(p.screen.lines()[p.screen.cursor()[0]] == "... let v10 = 100", p.show())
    p.type("\x1b>\r")
    p.answer("v10 + v19", "119")
    stays = [r for r in p.screen.logical() if "let v" in r][-20:]
    need(stays == ["qn> let v0 = 0"] + [f"... let v{i} = {100 if i == 10 else i}" for i in range(1, 20)], f"all of it stays: {stays}")
    ends_well(p)


# ---- history -------------------------------------------------------------------------------------------------------------
def case_history(place):
    p = Prompt(place)
    for text in ("alpha = 1", "beta = 2", "alpha + beta", "alpha + beta"):
        p.type(text + "\r")
    p.expect("qn>")
    p.type(UP)
    p.expect("qn> alpha + beta", cursor=16)
    p.type(UP)
    p.expect("qn> beta = 2")
    p.type(UP + UP + UP)
    p.expect("qn> alpha = 1")
    p.type(DOWN + DOWN)
    p.expect("qn> alpha + beta")
    p.type(DOWN)
    p.expect("qn>")
    p.type("be" + UP)
    p.expect("qn> beta = 2")
    p.type(DOWN)
    p.expect("qn> be", cursor=6)
    p.type(ctrl("c"))
    ends_well(p)
    need(place.history() == ["alpha = 1", "beta = 2", "alpha + beta"], place.history())
    # Another run, and two at once: nobody's lines are lost.
    a, b = Prompt(place), Prompt(place)
    a.type(UP)
    a.expect("qn> alpha + beta")
    a.type(ctrl("c"))
    a.answer("11", "11")
    b.answer("22", "22")
    a.type("fn f(x) {\rx\r}\r")
    b.answer('"\\\\n"', '"\\\\n"')
    a.type(UP)
    a.expect("qn> fn f(x) {", "...   x", "... }")
    a.type(ctrl("c"))
    ends_well(a)
    ends_well(b)
    need(place.history()[3:] == ["11", "22", "fn f(x) {\n  x\n}", '"\\\\n"'], place.history())


def case_history_search(place):
    p = Prompt(place)
    for text in ("let apple = 1", "let banana = 2", "let cherry = 3", "apple + banana"):
        p.answer(text, *(["3"] if "+" in text else []))
    p.type("draft" + ctrl("r"))
    p.expect("qn> draft", "history:")
    p.type("let")
    p.expect("qn> let cherry = 3", "history: let", )
    p.type(ctrl("r"))
    p.expect("qn> let banana = 2", "history: let")
    p.type(ctrl("r") + ctrl("r"))
    p.expect("qn> let apple = 1", "history: let")
    p.type(ctrl("s"))
    p.expect("qn> let banana = 2", "history: let")
    p.type(" ch")
    p.expect("qn> let cherry = 3", "history: let ch")
    p.type("zzz")
    p.expect("qn> let cherry = 3", "history, not found: let chzzz")
    p.type("\x7f" * 3 + ESC)
    p.expect("qn> draft", cursor=9)
    p.type(ctrl("u") + ctrl("r") + "ban")
    p.expect("qn> apple + banana", "history: ban")
    p.type("\r")
    p.expect("qn> apple + banana", cursor=12)
    p.answer("", "3")
    p.type(ctrl("r") + "cherry" + ctrl("e") + "0")
    p.expect("qn> let cherry = 30", cursor=19)
    p.answer("")
    p.answer("cherry", "30")
    p.type(ctrl("r") + "x" + ctrl("c"))
    p.wait(lambda: p.line() == "qn>", "the prompt")
    ends_well(p)


def case_history_file(place):
    """A file that is damaged, very long, or cannot be written; entries of odd kinds."""
    place.write(".local/state/quern/history", b"good one\n\xff\xfe broken\n\x00\x01\n" + b"last without end")
    p = Prompt(place)
    p.type(UP)
    p.expect("qn> last without end")
    p.type(UP)
    p.expect("qn> good one")
    p.type(ctrl("c"))
    p.answer("5", "5")
    ends_well(p)
    with open(place.path(".local/state/quern/history"), "rb") as f:
        need(f.read().endswith(b"last without end\n5\n"), "an entry of its own")
    place.write(".local/state/quern/history", "".join(f"let v = {i}\n" for i in range(12000)))
    p = Prompt(place)
    p.type(UP)
    p.expect("qn> let v = 11999")
    p.type(ctrl("c"))
    ends_well(p)
    need(place.history() == [f"let v = {i}" for i in range(7000, 12000)], f"{len(place.history())} entries")
    os.chmod(place.path(".local/state/quern"), 0o700)
    q = Prompt(place, XDG_STATE_HOME=place.path("state"))
    q.answer("7", "7")
    ends_well(q)
    with open(place.path("state/quern/history"), encoding="utf-8") as f:
        need(f.read() == "7\n", "the folder of XDG_STATE_HOME")
    place.write("file", "")
    r = Prompt(place, XDG_STATE_HOME=place.path("file"))
    r.answer("8", "8")
    r.type(UP)
    r.expect("qn> 8")
    r.type(ctrl("c"))
    ends_well(r)


# ---- pasting -------------------------------------------------------------------------------------------------------------
def case_paste(place):
    p = Prompt(place)
    p.type(paste("let a = 1\r\nlet b = {\tx: 2}\n\na + \x07b.x\n"))
    p.expect("qn> let a = 1", "... let b = {   x: 2}", "...", "... a + b.x", cursor=11)
    p.type(ctrl("c"))
    p.type(paste("let a = 1\r\nlet b = {x: 2}\na + b.x\n"))
    p.expect("qn> let a = 1", "... let b = {x: 2}", "... a + b.x", cursor=11)
    p.answer("", "3")
    p.type("(" + paste("1,\n2") + ")")
    p.expect("qn> (1,", "... 2)")
    p.answer("", "(1, 2)")
    p.type(paste("fn g(x) {\n    let y = x\n    y + 1\n}"))
    p.expect("qn> fn g(x) {", "...     let y = x", "...     y + 1", "... }")
    p.answer("")
    p.answer("g(1)", "2")
    # Without brackets around it: what comes at once is one text.
    p.type("let c = 4\nlet d = 5\nc * d\n")
    p.wait(lambda: "20" in p.screen.lines(), "the value")
    need(place.history()[-1] == "let c = 4\nlet d = 5\nc * d", place.history())
    big = "\n".join(f"let w{i} = {i}" for i in range(3000))
    p.type(paste(big))
    p.expect("... let w2999 = 2999")
    p.answer("", seconds=60)
    p.answer("w2999", "2999")
    ends_well(p)


def case_transcript(place):
    p = Prompt(place)
    p.type(paste("qn> let a = 1\nqn> a + 1\n2\nqn> fn f(x) {\n...   x * 2\n... }\nqn> f(a)\n2\n... not this\nqn> if a > 1 { 1 }\n"
                 "... else { 7 }\nqn> nowhere\nerror[E401]: 'nowhere' is not defined\n  --> <prompt 3>:1:1\nqn> a + 10\nqn>"))
    p.type("\x7f" if p.screen.x == 4 else "")
    p.expect("qn> let a = 1", "... a + 1", "... fn f(x) {", "...   x * 2", "... }", "... f(a)", "... if a > 1 { 1 }", "... else { 7 }",
             "... nowhere", "... a + 10")
    p.type("\r")
    p.wait(lambda: [r for r in p.screen.lines() if r][-9:-6] == ["2", "2", "7"] and p.screen.lines()[-2:] == ["11", "qn>"] and
           any("E401" in r for r in p.screen.lines()), "every answer")
    for text in ("> let b = 3\n> b\n3\n", ">> let b = 3\n>> print(b)\n3\n", "qn> let b = 3\n", "let b = 3\nqn> print(b)\n3\nqn> \n"):
        p.type(paste(text))
        shown = [r for r in p.screen.lines() if r]
        need("qn> let b = 3" in shown[-2:] and "... 3" not in shown, p.show())
        p.type("\r")
        p.type(ctrl("c"))
    # Not a transcript: lines that merely begin so.
    p.type(paste("(1\n> 0)"))
    p.expect("qn> (1", "... > 0)")
    p.answer("", "true")
    ends_well(p)


# ---- completion ----------------------------------------------------------------------------------------------------------
def case_complete_names(place):
    p = Prompt(place)
    p.answer("let momentum_rate = 0.5")
    p.type("mom\t")
    p.expect("qn> momentum_rate", cursor=17)
    p.answer(" * 2", "1.0")
    p.type("whi\t")
    p.expect("qn> while")
    p.type(ctrl("u") + "fn f(long_parameter) = lon\t")
    p.expect("qn> fn f(long_parameter) = long_parameter")
    p.type(ctrl("u") + "soft\t")
    lines = p.screen.lines()
    need(any("softmax" in r for r in lines) and any("softplus" in r for r in lines), f"a menu\n{p.show()}")
    p.type("\t")
    need([r for r in p.screen.lines() if r.startswith("qn> soft")] and any(">soft" in r for r in p.screen.lines()), p.show())
    chosen = [r for r in p.screen.lines() if r.startswith("qn> soft")][0]
    p.type("\r")
    need(p.line() == chosen, f"Enter takes the choice and nothing more\n{p.show()}")
    p.type(ctrl("u") + "soft\t\t")
    p.type(ESC)
    p.wait(lambda: p.line() == "qn> soft", "what was typed")
    p.type(ctrl("u") + "softm\t")
    p.expect("qn> softmax")
    p.type(ctrl("u") + "zzzz\t")
    p.expect("qn> zzzz")
    p.type(ctrl("u") + "# soft\t")
    p.expect("qn> # soft")
    p.type(ctrl("u") + "\t")
    p.expect("qn>", cursor=6)
    p.type(ctrl("c"))
    ends_well(p)


def case_complete_fields(place):
    p = Prompt(place)
    p.answer("let r = {weights: ones(2), bias: {inner_value: 3}}")
    p.type("r.w\t")
    p.expect("qn> r.weights")
    p.type(".sha\t")
    p.expect("qn> r.weights.shape")
    p.type(ctrl("u") + "r.bias.\t")
    p.expect("qn> r.bias.inner_value")
    p.answer("", "3")
    p.answer("let l = (1, r)")
    p.type("l[1].bi\t")
    p.expect("qn> l[1].bias")
    p.type(ctrl("u") + 'l[-1]["bias"].i\t')
    p.expect('qn> l[-1]["bias"].inner_value')
    p.type(ctrl("u"))
    p.answer("import optim")
    p.type("optim.adam_i\t")
    p.expect("qn> optim.adam_init")
    p.type(ctrl("u") + "import opt\t")
    p.expect("qn> import optim")
    p.type(ctrl("u") + "ones(3).cums\t")
    p.expect("qn> ones(3).cumsum")
    p.type(ctrl("u"))
    p.answer("let x = ones(3);")
    p.type("x.\t")
    menu = [r.split() for r in p.screen.lines() if r]
    menu = [r for row in menu[menu.index(["qn>", "x."]) + 1:] for r in row]
    need("T" in menu and "abs" in menu and menu.index("shape") < menu.index("abs") and menu.index("T") < menu.index("rank"),
         f"fields come before functions\n{p.show()}")
    p.type(ctrl("c"))
    ends_well(p)


def case_complete_files(place):
    place.write("data/first.npy", b"")
    place.write("data/second.csv", "")
    place.write("data/日本.csv", "")
    place.write("module_of_mine.qn", "let x = 1\n")
    p = Prompt(place)
    p.type('load("da\t')
    p.wait(lambda: 'qn> load("data/' in p.screen.lines(), 'the name of a file')
    p.type("fi\t")
    p.wait(lambda: 'qn> load("data/first.npy' in p.screen.lines(), 'the name of a file')
    p.type(ctrl("u") + 'load("data/日\t')
    p.wait(lambda: 'qn> load("data/日本.csv' in p.screen.lines(), 'the name of a file')
    p.type(ctrl("u") + "import mod\t")
    p.expect("qn> import module_of_mine")
    p.type(ctrl("u") + ":load mod\t")
    p.expect("qn> :load module_of_mine.qn")
    p.answer("")
    p.answer("x", "1")
    p.type('"abc" + da\t')
    p.type(ctrl("c"))
    ends_well(p)


def case_complete_parameters(place):
    p = Prompt(place)
    p.answer("let x = ones(2, 3)")
    p.type("softmax(x, ax\t")
    need(p.screen.lines()[-2] == "qn> softmax(x, axis:" and p.line().startswith("softmax(x: [...], axis: ints = -1)"), p.show())
    p.type("1)")
    p.wait(lambda: p.line() == "qn> softmax(x, axis: 1)", "the hint goes with the call")
    p.type(ctrl("u") + "x.sum(keep\t")
    need(p.screen.lines()[-2] == "qn> x.sum(keepdims:", p.show())
    p.type(ctrl("u"))
    p.answer("fn scale(v, factor = 2.0, offset = 0.0) = v * factor + offset")
    p.type("scale(1, \t")
    lines = p.screen.lines()
    need("qn> scale(1," in lines and any("factor:" in r and "offset:" in r for r in lines) and
         any(r.startswith("scale(v, factor = 2.0, offset = 0.0)") for r in lines), p.show())
    p.type("\t\t")
    p.wait(lambda: any(r.startswith("qn> scale(1, offset:") for r in p.screen.lines()), "the second choice")
    p.type("1.0)")
    p.answer("", "3.0")
    ends_well(p)


def case_menu_grows_and_shrinks(place):
    """A menu with many choices, at the bottom of a small terminal; it leaves nothing behind."""
    p = Prompt(place, columns=40, rows=10)
    for i in range(8):
        p.answer(str(i), str(i))
    p.type("e\t")
    need(len([r for r in p.screen.lines() if r]) <= 10, p.show())
    for _ in range(30):
        p.type("\t", patience=0)
    for _ in range(5):
        p.type(BACKTAB, patience=0)
    p.type(DOWN + UP + RIGHT + LEFT)
    p.type(ESC)
    p.expect("7", "qn> e", cursor=5)
    p.type("\x7f")
    p.answer("8", "8")
    ends_well(p)


# ---- colours -------------------------------------------------------------------------------------------------------------
def case_colors(place):
    p = Prompt(place, color=True, start=False)
    p.wait(lambda: p.line() == "qn>", "the prompt")
    p.type('let a = sum(12, "s{a}") # c')
    style = p.screen.style_of
    need(style("qn>") == "1;32", f"the prompt: {style('qn>')}")
    for text, want in (("let", "1;35"), ("sum", "34"), ("12", "36"), ('"s{', "32"), ("# c", "2"), ("a =", "")):
        need(style(text) == want, f"{text}: {style(text)!r} instead of {want!r}")
    p.type(ctrl("u") + "(1)")
    need(style("(") == "1;4" and style(")") == "1;4", "brackets that belong together")
    p.type(ctrl("u") + '"abc')
    need(style("abc") == "32", "a string that is still open")
    p.type(ctrl("u") + "2.")
    need(style("2.") == "", "the beginning of a number")
    p.type(ctrl("u") + "$ + 1")
    need(style("$") == "4;31", "what is no token")
    p.type(ctrl("u") + "ones(2) + ones(3)\r")
    p.wait(lambda: "E203" in "\n".join(p.screen.lines()), "the error")
    row = [r for r in p.screen.rows if r.text().endswith("| ones(2) + ones(3)")][-1]
    at = row.text().index("ones")
    need(row.cells[at].style == "34" and row.cells[at + 5].style == "36", "colours in the excerpt")
    q = Prompt(place)
    q.type("let a = 1")
    need(all(c.style == "" for r in q.screen.rows for c in r.cells), "NO_COLOR: no colours")
    q.type("\r")
    q.type("ones(2) + ones(3)\r")
    q.wait(lambda: "E203" in "\n".join(q.screen.lines()), "the error")
    need(all(c.style == "" for r in q.screen.rows for c in r.cells), "NO_COLOR: no colours in errors")


def case_plots(place):
    p = Prompt(place, columns=60, rows=20, color=True, start=False, COLORTERM="truecolor")
    p.wait(lambda: p.line() == "qn>", "the prompt")
    p.type("plot({sin: sin(arange(100) / 10)})\r")
    p.wait(lambda: any("━━ sin" in r for r in p.screen.lines()) and p.line() == "qn>", "the plot")
    lines = p.screen.lines()
    need(any(0x2800 < ord(c) < 0x2900 for r in lines for c in r), f"dots of Braille\n{p.show()}")
    need(not any("figure" in r for r in lines), f"what was drawn is not shown as a record\n{p.show()}")
    need(not any(r.wrapped for r in p.screen.rows[2:]) and max(map(len, lines)) == 60, f"as wide as the terminal\n{p.show()}")
    need(sum(1 for r in lines if r) <= 20, f"not higher than the terminal\n{p.show()}")
    row = next(r for r in p.screen.rows if r.text().endswith("━━ sin"))
    need(row.cells[row.text().index("━")].style == "38;2;47;126;216", f"a colour: {row.cells[row.text().index('━')].style}")
    p.type("show([[0, 1], [2, 3]])\r")
    p.wait(lambda: any("▀▀" in r for r in p.screen.lines()) and p.line() == "qn>", "the image")
    p.type("hist([1, 2, 2, 3]);\r")
    p.wait(lambda: any("█" in r and "│" in r for r in p.screen.lines()) and p.line() == "qn>", "the bars")
    p.type("let f = plot((1, 2))\r")
    p.wait(lambda: p.line() == "qn>", "the plot")
    p.type("f\r")
    p.wait(lambda: any('figure: "plot"' in r for r in p.screen.lines()), "the figure as a record")
    ends_well(p)
    q = Prompt(place, columns=60, rows=20)
    q.type("show(arange(6).reshape(2, 3))\r")
    q.wait(lambda: any("5" in r and "[ .:-=+*#%@]" in r for r in q.screen.lines()) and q.line() == "qn>", "the image, plain")
    need(all(ord(c) < 128 for r in q.screen.lines() for c in r), f"plain characters\n{q.show()}")
    ends_well(q)


def case_dumb_terminal(place):
    place.env["TERM"] = "dumb"
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(place.quern, [place.quern], dict(place.env, TERM="dumb"))
    seen = b""

    def until(text):
        nonlocal seen
        end = time.monotonic() + 20 * SLOW
        while text not in seen:
            need(time.monotonic() < end, f"expected {text} in {seen}")
            if select.select([fd], [], [], 0.2)[0]:
                seen += os.read(fd, 4096)
    until(b"qn> ")
    seen = b""
    os.write(fd, b"6 * 7\n")
    until(b"42")
    until(b"qn> ")
    os.write(fd, b"fn f(x) {\n")
    until(b"... ")
    seen = b""
    for n in range(100):  # each is seen at once, also between two reads
        os.write(fd, b"\x03")
        until(b"qn> ")
        seen = b""
        os.write(fd, b"fn f(x) {\n")
        until(b"... ")
        seen = b""
    os.write(fd, b"\x03")
    until(b"qn> ")
    os.write(fd, b"ones(2) + ones(3)\n")
    until(b"E203")
    until(b"qn> ")
    need(b"\x1b" not in seen, f"no escapes: {seen}")
    os.write(fd, b"\x04")
    need(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a good end")


# ---- signals and sizes ---------------------------------------------------------------------------------------------------
def case_interrupt(place):
    p = Prompt(place)
    p.answer("let a = 35")
    p.type("some text" + ctrl("c"))
    p.expect("qn> some text", "qn>")
    p.type("(1,\r2" + ctrl("c"))
    p.expect("qn> (1,", "...   2", "qn>")
    busy = ("while true {}", "let x = zeros(1000, 1000)\nwhile true { x = x + 1 }",
            "fn f(n) = if n > 0 { f(n - 1) + f(n - 1) } else { 0 }\nf(60)")
    for text in busy:
        for _ in range(2):
            p.type(paste(text) + "\r", patience=0)
            p.computes()
            p.type("\x03")
            p.wait(lambda: "E603" in "\n".join(p.screen.lines()) and p.line() == "qn>", f"the end of: {text}")
            p.answer("a", "35")
            p.type(ctrl("l"))
    # Pressed more often than needed it does no harm.
    p.type("while true {}\r", patience=0)
    p.computes()
    for _ in range(4):
        p.type("\x03", patience=0)
    p.type(ctrl("l"))
    os.kill(p.pid, signal.SIGINT)
    p.type("")
    p.answer("a + 1", "36")
    p.type("typed")
    os.kill(p.pid, signal.SIGINT)
    p.wait(lambda: p.line() == "qn>", "the line is given up")
    p.answer("a + 2", "37")
    ends_well(p)


def case_interrupt_kernels(place):
    """Ctrl-C within a long operation: it ends soon."""
    p = Prompt(place, "--jit", os.environ.get("QUERN_TEST_JIT", "on"))
    p.answer("let n = 4000; let m = rand(n, n); let v = rand(4_000_000); let s = join(list(map(range(0, 300_000), fn(i) \"ab\")), \" \");", seconds=60)
    for text in ("m @ m @ m @ m @ m @ m @ m @ m @ m @ m @ m @ m", "sort(concat((v, v, v, v, v)))", "let r = rand(2, 20_000_000)\nargsort(r)",
                 "sum(exp(sin(v.reshape(-1, 1) + rand(1, 64))))", "list(concat((v, v, v)))", "while true { let _w = v[v > 0.5] }",
                 "fn g(x) = exp(sin(x)) * 2 + tanh(x)\nfor _ in 0..100000 { g(v) }", "permutation(20_000_000)",
                 "while true { let _r = split(replace(s, \"a\", \"c\"), \"b\") }"):
        p.type(paste(text) + "\r", patience=0)
        p.wait(lambda: p.screen.cursor()[1] == 0, f"the beginning of: {text}", 30)
        p.computes(0.2)
        start = time.monotonic()
        p.type("\x03", patience=0)
        p.wait(lambda: "E603" in "\n".join(p.screen.lines()[-12:]) and p.line() == "qn>", f"the end of: {text}", 30)
        need(time.monotonic() - start < 5 * SLOW, f"{time.monotonic() - start:.1f} s until it ended: {text}")
        p.type(ctrl("l"))
        p.answer("n", "4000")
    ends_well(p)


def case_closed(place):
    p = Prompt(place)
    p.type("abc" + ctrl("d"))
    p.expect("qn> abc")
    p.type(HOME + ctrl("d"))
    p.expect("qn> bc")
    p.type(ctrl("u"))
    p.type(ctrl("k"))
    ends_well(p)
    for word in ("exit", "quit", "exit()", ":quit", " quit "):
        q = Prompt(place)
        q.type(word + "\r")
        q.wait(lambda: q.status is not None, f"the end by {word}")
        need(q.status == 0, f"{word}: status {q.status}")
    r = Prompt(place)
    r.answer("let exit = 3")
    r.answer("exit", "3")
    os.close(r.fd)
    need(r.reap() is not None, "a terminal that goes away ends it")
    # A signal that ends it leaves a terminal that works.
    t = Prompt(place)
    before = termios.tcgetattr(t.fd)[3]
    need(not before & termios.ICANON, "its own editing is off")
    os.kill(t.pid, signal.SIGTERM)
    t.wait(lambda: t.status is not None, "the end by a signal")
    after = termios.tcgetattr(t.fd)[3]
    need(after & termios.ICANON and after & termios.ECHO, "its own editing is on again")


def resize(p, columns, rows=24):
    p.screen.resize(columns, rows)
    fcntl.ioctl(p.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.kill(p.pid, signal.SIGWINCH)
    p.settle()


def case_resize(place):
    p = Prompt(place, columns=60)
    p.answer("1", "1")
    text = "1" + " + 1" * 20
    p.type(text)
    whole = "qn> " + text
    for columns in (40, 30, 50, 100, 25, 60):
        resize(p, columns)
        lines = [r for r in p.screen.lines() if r]
        want = [whole[i:i + columns].rstrip() for i in range(0, len(whole), columns)]
        need(lines[-len(want) - 3:] == ["qn> 1", "1", *want][-len(lines):] or lines[-len(want):] == want, f"at {columns}:\n{p.show()}")
        need(lines[-len(want) - 1] == "1", f"nothing is left behind, nothing is lost at {columns}:\n{p.show()}")
    p.type(HOME + "2")
    p.answer("", "41")
    p.type(paste("(1,\n2,\n3)"))
    resize(p, 80, 10)
    p.expect("qn> (1,", "... 2,", "... 3)", cursor=6)
    p.type(ctrl("c"))
    for columns in (3, 1, 80):
        resize(p, columns)
    p.type(ctrl("c") + ctrl("l"))
    p.answer("5", "5")
    os.kill(p.pid, signal.SIGWINCH)
    os.kill(p.pid, signal.SIGCONT)
    p.type("6")
    p.expect("qn> 6", cursor=5)
    p.type(ctrl("u"))
    ends_well(p)


def case_clear(place):
    p = Prompt(place)
    p.answer("1", "1")
    p.type("abc" + ctrl("l"))
    need(p.screen.lines() == ["qn> abc"] and p.screen.cursor() == (0, 7), p.show())


def case_stop_and_go_on(place):
    """Ctrl-Z stops it, with the terminal as it was; a shell's fg shows the line again."""
    p = Prompt(place, start=False)
    p.wait(lambda: p.line() == "qn>", "the prompt")
    p.type("abc")
    os.kill(p.pid, signal.SIGSTOP)
    p.wait(lambda: state_of(p.pid) == ["T"], "a process that is stopped")
    mode = termios.tcgetattr(p.fd)
    mode[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(p.fd, termios.TCSANOW, mode)
    os.kill(p.pid, signal.SIGCONT)
    p.wait(p.own_editing, "its own editing")
    p.settle()
    p.type("d")
    p.expect("qn> abcd", cursor=8)
    p.type(ctrl("z"))  # of a group without a shell: goes on at once
    p.type("e")
    p.expect("qn> abcde", cursor=9)
    p.type(ctrl("u"))
    ends_well(p)


def case_job_control(place):
    """Ctrl-Z and fg in a shell, while typing and while something runs."""
    shell = "/bin/bash"
    if not os.path.exists(shell):
        return
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(shell, [shell, "--norc", "--noprofile", "--noediting", "-i"],
                  dict(place.env, TERM="xterm", PS1="shell$ ", NO_COLOR="1"))

    def answer(keys, *wanted):
        os.write(fd, keys.encode())
        seen, end = "", time.monotonic() + 20 * SLOW
        while not all(w in seen for w in wanted):
            need(time.monotonic() < end, f"expected {wanted} after {keys!r}, seen {seen!r}")
            if select.select([fd], [], [], 0.1)[0]:
                seen += os.read(fd, 65536).decode(errors="replace")
        # Whoever has the terminal waits for keys, or code runs.
        begin, running = os.tcgetpgrp(fd), seconds_of(os.tcgetpgrp(fd))
        while not (waits_for_keys(os.tcgetpgrp(fd)) and keys_are_read(fd)):
            need(time.monotonic() < end, f"nobody waits for keys after {keys!r}, seen {seen!r}")
            if os.tcgetpgrp(fd) != begin:
                begin, running = os.tcgetpgrp(fd), seconds_of(os.tcgetpgrp(fd))
            if seconds_of(begin) > running + 0.1:
                break
            select.select([fd], [], [], 0.002)
    answer("", "shell$ ")
    answer(place.quern + "\n", "qn> ")
    answer("(1,\r", "... ")
    answer("2", "2")
    answer("\x1a", "Stopped", "shell$ ")
    answer("echo from the sh''ell\n", "from the shell")
    answer("fg\n", "qn> (1,", "2")
    answer(")\r", "(1, 2)", "qn> ")
    answer("while true {}\r", "\r\n")
    answer("\x1a", "Stopped", "shell$ ")
    answer("fg\n", "quern")
    answer("\x03", "E603", "qn> ")
    answer("6 * 7\r", "42")
    answer("\x04", "shell$ ")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)


# ---- commands ------------------------------------------------------------------------------------------------------------
def case_commands(place):
    place.write("lib/script.qn", "let loaded = 11\nprint(\"ran\")\n")
    place.write("bad.qn", "let before = 1\nno_such_name\n")
    p = Prompt(place, rows=60)
    p.answer(":load lib/script.qn", "ran")
    p.answer("loaded", "11")
    p.type(":load bad.qn\r")
    p.wait(lambda: "E401" in "\n".join(p.screen.lines()), "the error of the file")
    p.answer(":load /dev/zero", "quern: cannot read /dev/zero: File too large")
    p.answer(":load -", ":load takes a file")
    p.answer(":load nowhere.qn", "quern: cannot read nowhere.qn: No such file or directory")
    p.answer("# scales", )
    p.type(paste("# twice the value\nfn twice(x, by = 2) = x * by") + "\r")
    for text in ("?twice", ":doc twice", "help twice", ":help twice", "help(twice)", 'help("twice")'):
        p.answer(text, "twice(x, by = 2)", "twice the value")
    for text in ("?softmax", "help softmax", ":doc softmax"):
        p.type(text + "\r")
        p.wait(lambda: "softmax(x: [...], axis: ints = -1)" in p.screen.lines(), text)
        p.type(ctrl("l"))
    p.answer("?loaded", "loaded: int 11")
    p.type("?E203\r")
    p.wait(lambda: any(r.startswith("E203: ") for r in p.screen.lines()), "the page of an error")
    p.type("?sofmax\r")
    p.wait(lambda: any("nearest: softmax" in r for r in p.screen.lines()), "the nearest name")
    p.type("?\r")
    p.wait(lambda: any(r.startswith("  :explain") for r in p.screen.lines()), "help")
    p.type(ctrl("l") + "help\r")
    p.wait(lambda: any(r.startswith("  :explain") for r in p.screen.lines()), "help")
    p.answer(":nothing", "there is no command :nothing; :help lists them")
    p.answer(":tim 1", "there is no command :tim; nearest: :time; :help lists them")
    p.answer("let x = ones(1000, 10)")
    p.type(":vars\r")
    p.wait(lambda: any(re.match(r"x +f32\[1000, 10\] +40\.\d kB$", r) for r in p.screen.lines()) and
           any(re.match(r"twice +twice\(x, by = 2\)", r) for r in p.screen.lines()) and
           any(re.search(r"variables, the session uses .*B", r) for r in p.screen.lines()), "the variables")
    p.type(":time sum(x)\r")
    p.wait(lambda: any(r == "10000.0" for r in p.screen.lines()) and any(re.match(r"[\d.]+ (µs|ms|s)", r) for r in p.screen.lines()), "a value and the time")
    p.answer("fn step(x) = sum(tanh(x) * 2)")
    p.type(ctrl("l") + ":explain step(x)\r")
    p.wait(lambda: any("one graph, 1 kernel" in r for r in p.screen.lines()), "the report", 60)
    p.type(ctrl("l") + ":explain step\r")
    p.wait(lambda: any("one graph, 1 kernel" in r for r in p.screen.lines()), "the report of the last call", 60)
    p.type(ctrl("l") + ":graph step(x)\r")
    p.wait(lambda: any("tanh" in r and "%" in r for r in p.screen.lines()), "the graph")
    p.type(ctrl("l") + ":code step(x)\r")
    p.wait(lambda: any("{" in r for r in p.screen.lines()), "the code", 60)
    p.type(ctrl("l") + ":explain x.tanh() * 2\r")
    p.wait(lambda: any("one graph, 1 kernel" in r for r in p.screen.lines()), "the report of other code", 60)
    p.type(ctrl("l") + "let (steps, grown) = (0, x)\r")
    p.type(":explain for i in 0..100 { grown = grown * 1.01 + i; steps += 1 }\r")
    p.wait(lambda: any(r.startswith("  grown: f32[1000, 10]") for r in p.screen.lines()) and any("loop" in r and "line 1" in r for r in p.screen.lines()),
           "the report of a loop that assigns variables", 60)
    p.answer("(steps, sum(grown) == sum(x))", "(0, true)")
    p.type(ctrl("l") + ":explain let (a, b) = (x * 2, sum(x))\r")
    p.wait(lambda: any("one graph, 2 kernels" in r for r in p.screen.lines()) and not any("warning" in r for r in p.screen.lines()), "the report of a let", 60)
    p.type(ctrl("l"))
    p.answer("let y = x")
    p.answer("y[0] = 2")
    p.type(":copies\r")
    p.wait(lambda: "1 copy, 40.0 kB" in p.screen.lines() and
           any(re.match(r" +1  40\.0 kB  <prompt \d+>:1:1  y\[0\]", r) for r in p.screen.lines()), "the copy and its place")
    p.type(ctrl("l"))
    p.type(":copies for i in 0..3 { let z = x; z[i] = 1; let w = x; w[0] = 2 }\r")
    p.wait(lambda: "6 copies, 240 kB" in p.screen.lines() and
           len([r for r in p.screen.lines() if re.match(r" +3  120 kB  <prompt \d+>:1:\d+  [zw]\[", r)]) == 2, "copies and their places")
    p.answer(":copies y[1] = 3", "0 copies")
    p.answer(":reset x", "it is used so: :reset")
    p.type(ctrl("l"))
    p.answer("let größe = (1, 2)")
    p.type(":vars\r")
    p.wait(lambda: any(re.match(r"größe   list of 2 ", r) for r in p.screen.lines()) and
           any(re.match(r"x       f32\[1000, 10\] ", r) for r in p.screen.lines()), "columns for names of any letters")
    p.answer(":graph sum(", "this is not complete: sum(")
    for text in (":doc +", ":doc **=", "?@"):
        p.type(ctrl("l") + text + "\r")
        p.wait(lambda: any(r.startswith("from the loosest to the tightest") for r in p.screen.lines()), text)
    p.type(ctrl("l") + ":doc jit.hot\r")
    p.wait(lambda: any(r.startswith("jit.hot ") for r in p.screen.lines()), "a tunable")
    p.answer(":reset")
    p.type("x\r")
    p.wait(lambda: any("'x' is not defined" in r for r in p.screen.lines()), "nothing is left")
    p.answer("softmax([1.0])[0]", "1.0")
    p.answer("let x = 5; x", "5")
    ends_well(p)


def case_reset_ends_compilers(place):
    """:reset kills compilers that run for what it forgets; what waits behind them is never started; then all goes on."""
    log = place.path("compilers")
    place.write("bin/cc", f"#!/bin/sh\necho $$ >>{log}\nexec sleep 300\n")
    os.chmod(place.path("bin/cc"), 0o755)
    place.env["PATH"] = f"{place.path('bin')}:{os.environ['PATH']}"
    p = Prompt(place, "--jit", "on", "--set", "jit.workers=1", "--set", "jit.hot=1")

    def compilers():
        if not os.path.exists(log):
            return []
        with open(log, encoding="utf-8") as f:
            return [int(line) for line in f if line.endswith("\n")]

    def gone(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    def compiles(name):
        before = len(compilers())
        p.answer(f"fn {name}(x) = tanh(x * 2) + {before}")
        p.answer(f"for _ in 0..3 {{ {name}(ones(100)) }}")
        p.wait(lambda: len(compilers()) > before, "a compiler", 60)

    compiles("f")
    p.answer("fn g(x) = sin(x * 3)")
    p.answer("for _ in 0..3 { g(ones(100)) }")  # its compiler waits, or is the reserve's
    need(not gone(compilers()[0]), "it runs until then")
    p.answer(":reset")
    p.wait(lambda: all(gone(pid) for pid in compilers()), f"the end of {compilers()}", 30)
    compiles("f")
    need(not gone(compilers()[-1]), "the next one runs")
    p.answer("sum(f(ones(100))) > 0", "true")
    ends_well(p)
    need(all(gone(pid) for pid in compilers()), "none is left")


def case_command_completion(place):
    p = Prompt(place)
    p.answer("let velocity = 1")
    for typed, shown in ((":exp\t", ":explain"), (":doc velo\t", ":doc velocity"), ("?velo\t", "?velocity"), ("help velo\t", "help velocity"),
                         (":time velo\t", ":time velocity"), (":res\t", ":reset"), ("?opt\t", "?optim"), ("?tunab\t", "?tunables")):
        p.type(typed)
        p.expect("qn> " + shown)
        p.type(ctrl("u"))
    p.type(":\t")
    need(any("vars" in r and "time" in r for r in p.screen.lines()), p.show())
    p.type(ctrl("c"))
    # Highlighting and completeness do not look at commands as code.
    p.answer(":doc (", "there is no help on '('")
    ends_well(p)


def case_help_fits_the_terminal(place):
    """Long lines break between words; code stays as it is. A builtin's help has its example."""
    p = Prompt(place, columns=40, rows=30)
    p.answer("?softmax", "qn> ?softmax", "softmax(x: [...], axis: ints = -1)", "exp(x) over its sum along an axis.", "Example:",
             "    print(softmax([0.0, 0.0]))")
    p.type(ctrl("l"))
    p.answer("?tree_leaves", "qn> ?tree_leaves", "tree_leaves(tree)", "list of the arrays and numbers, in field", "  order", "Example:",
             "    print(tree_leaves({w: 1, b: (2, 3)})", ")")
    p.type(ctrl("l"))
    p.answer("?dot", "there is no help on 'dot'; write x @ y")
    p.answer("softmax?", "error[E105]: at the prompt ?name", "  explains a name; a choice is written", "  if c { a } else { b }",
             "  --> <prompt 1>:1:8", "    1 | softmax?", "      |        ~")
    ends_well(p)


def case_help_of_own_functions(place):
    """?f shows the comment above, ??f the source; words that are no name are searched for; texts are shown in quotes."""
    p = Prompt(place, columns=80, rows=40)
    p.answer("# Twice as much.")
    p.answer("fn double(x) = x * 2")
    p.answer("?double", "qn> ?double", "double(x)", "Twice as much.")
    p.answer("??double", "qn> ??double", "fn double(x) = x * 2")
    p.answer("??sum", "There is no source: it is no function written in Quern.")
    p.type("?random numbers\r")
    p.wait(lambda: "  seed             starts the random numbers anew" in p.screen.lines() and p.line() == "qn>", "random numbers")
    p.answer('"5"', 'qn> "5"', '"5"')
    p.answer("5", "qn> 5", "5")
    ends_well(p)


def case_questions_find_what_they_mean(place):
    """?some words: filler and plurals do not matter; what has all of the words comes first, then what has fewer, at most 12 in all."""
    p = Prompt(place, columns=120, rows=40)
    for asked, first, *others in (
            ("read csv", "load", "read_text"), ("read a csv file", "load", "save"), ("how do I sort a list", "sort", "lists"),
            ("matrix inverse", "linalg", "matmul"), ("files", "load", "save", "read_text"), ("gradient of a function", "grad"),
            ("Gradients", "grad", "value_and_grad", "optim.adam"), ("moving average", "mean", "windows"), ("dropping units", "nn.dropout")):
        p.type(ctrl("l") + "?" + asked + "\r")
        p.wait(lambda: p.line() == "qn>" and any(r.startswith("nothing is called") for r in p.screen.lines()), "an answer to " + asked)
        lines = p.screen.lines()
        names = [r.split()[0] for r in lines[lines.index(f"nothing is called '{asked}'; this mentions it:") + 1:] if r.startswith("  ")]
        need(first in names[:3] and all(name in names for name in others) and len(names) <= 14, f"{asked}: {names}")
        need(all(len(r) < 110 for r in lines), p.show())
    for asked, line in (("modules", "import nn"), ("loops", "for pattern in"), ("closures", "fn name("), ("inverse", "Products are")):
        p.type(ctrl("l") + "?" + asked + "\r")
        p.wait(lambda: any(r.startswith(line) for r in p.screen.lines()), "the page of " + asked)
        p.type("q" + ctrl("u") + ctrl("l"))
    p.answer("?how do the", "there is no help on 'how do the'")
    ends_well(p)


def case_texts_are_quoted(place):
    """Every text that is a value is told from a number and from what is printed; a long one of lines keeps its lines."""
    p = Prompt(place, columns=40, rows=30)
    p.answer('let long = repeat("x", 30) + "\\n\\{say \\"hi\\"\\}\\n"')
    lines = ('"""' + "x" * 30, '\\{say "hi"\\}')
    for text, *shown in (('"5\\n"', '"5\\n"'), ('"a\\nb"', '"a\\nb"'), ('"\\n"', '"\\n"'), ('""', '""'), ("long", *lines, '"""'),
                         ('long + "\\"\\"\\""', *lines, '\\"\\"\\""""'), ('repeat("y", 41)', '"' + "y" * 39, "yy\"")):
        p.answer(text, "qn> " + text, *shown)
    ends_well(p)


def case_code_begins_with_its_kernels(place):
    """:code shows the kernels; one line says what stands before them, and code(...) has it."""
    p = Prompt(place, columns=100, rows=60)
    p.answer("fn step(x) = tanh(x) * 2")
    p.type(ctrl("l") + ":code step(ones(1000))\r")
    p.wait(lambda: any("tanh_f32(" in r for r in p.screen.lines()) and p.line() == "qn>", "the code", 60)
    lines = p.screen.lines()
    need(re.match(r"\(The \d+ lines before this, of what kernels use, are in code\(\.\.\.\) of the call\.\)", lines[1]) and
         lines[2].startswith("/* tanh_mul_f32") and not any("#define" in r for r in lines), p.show())
    p.answer('contains(code(step, ones(1000)), "#define FN")', "true")
    ends_well(p)


def case_wide_terminals_show_what_texts_have(place):
    """A value's echo, its print and its place in a text are laid out alike, however wide the terminal is."""
    p = Prompt(place, columns=160, rows=40)
    p.answer('let r = {first: "a text of some length", m: (arange(9).reshape(3, 3) / 7), second: 2};')
    want = ["{", '  first: "a text of some length"',
            "  m: f32[3, 3] cpu [[0.0000, 0.1429, 0.2857], [0.4286, 0.5714, 0.7143], [0.8571, 1.0000, 1.1429]]", "  second: 2", "}"]
    for text in ("r", "print(r)", 'print("{r}")'):
        p.answer(text, "qn> " + text, *want)
    ends_well(p)


STATUS = re.compile(r"-- more \((\d+) %\): Space goes on, q ends --")


def pages(p, text, key, most=60):
    """Types a line whose answer is long, and `key` at the end of each page; the pages, without the status lines."""
    p.type(text)
    p.type("\r")
    shown, part = [], 0
    for _ in range(most):
        p.wait(lambda: STATUS.fullmatch(p.line()) or p.line() == "qn>", "the end of a page, or the prompt")
        found = STATUS.fullmatch(p.line())
        if not found:
            return shown
        need(part < int(found[1]) < 100, f"the part that has been shown grows\n{p.show()}")
        part = int(found[1])
        shown.append(p.screen.lines()[:-1])
        need(len(p.screen.lines()) == p.screen.height, f"a page fills the screen\n{p.show()}")
        p.type(key)
    raise AssertionError(f"it never ends\n{p.show()}")


def answer_to(p, text):
    """What was answered to the line typed last, however many screens ago."""
    rows = p.screen.logical()
    at = max(i for i, row in enumerate(rows) if row == "qn> " + text)
    return rows[at + 1:-1]


def case_long_help_in_pages(place):
    """What is longer than the screen stops at its end: Space and Enter go on, q ends. Nothing of it is lost, no status line stays."""
    source = "fn long(x) {\n" + "".join(f"  let v{i} = x + {i}\n" for i in range(40)) + "  x\n}"
    texts = ("?", "?linalg", "help E203", "?functions", "?array", ":vars", "??long")
    tall = Prompt(place, columns=100, rows=1000)
    tall.type(paste(source) + "\r")
    whole = {}
    for text in texts:
        tall.answer(text)
        whole[text] = answer_to(tall, text)
    ends_well(tall)
    p = Prompt(place, columns=100, rows=12)
    p.type(paste(source) + "\r")
    for text in texts:
        for key in (" ", "\r", "\x1b[6~") if text == "??long" else (" ",):
            shown = pages(p, text, key)
            need(len(whole[text]) < 12 or len(shown) == (len(whole[text]) - 1) // 11, f"{text}: {len(shown)} pages of {len(whole[text])} lines")
            if text != ":vars":  # the memory in use
                need(answer_to(p, text) == whole[text], f"{text}, all of it:\n{answer_to(p, text)}\n{whole[text]}")
    need(len(whole["?"]) > 24 and len(whole["??long"]) == 43 and len(whole["?linalg"]) > 60, "texts that are long")
    for key in ("q", "Q", "\x03", "\x04", "\x1b"):
        need(len(pages(p, "??long", "x" + key)) == 1, f"{key!r} ends it")
        need(len(answer_to(p, "??long")) == 11, f"{key!r} ends it after a page, and x does nothing\n{p.show()}")
    p.answer("1 + 1", "2")
    ends_well(p)


def case_long_help_and_sizes(place):
    """The pager in a terminal that changes: what follows is set for its new size, and the status line does not stay."""
    p = Prompt(place, columns=70, rows=12)
    p.type("?functions\r")
    p.wait(lambda: STATUS.fullmatch(p.line()), "the end of a page")
    for columns, rows in ((30, 8), (100, 20), (70, 6)):
        resize(p, columns, rows)
        p.wait(lambda: "".join(p.screen.logical()[-1:]).startswith("-- more"), f"the status line at {columns}")
        before = len(p.screen.logical())
        p.type(" ")
        p.wait(lambda: "".join(p.screen.logical()[-1:]).startswith("-- more"), f"the next page at {columns}")
        status = sum(row.startswith("-- more") for row in p.screen.logical())
        need(status == 1, f"one status line at {columns}\n{p.show()}")
        high = (len("-- more (10 %): Space goes on, q ends --") - 1) // columns + 1
        need(len(p.screen.logical()) - before == rows - 1, f"{len(p.screen.logical()) - before} rows more, {high}\n{p.show()}")
    p.type("q")
    p.wait(lambda: p.line() == "qn>", "the prompt")
    names = [row for row in p.screen.logical() if row and not row.startswith(("qn>", "Quern"))]
    need(len(names) == len(set(names)) and names == sorted(names, key=names.index), f"no line twice\n{names}")
    # Very small, and a hangup while it waits.
    resize(p, 4, 2)
    p.type("?functions\r")
    p.type("  ")
    need(p.status is None, "it lives")
    os.kill(p.pid, signal.SIGHUP)
    p.wait(lambda: p.status is not None, "the end")


def case_long_help_without_an_editor(place):
    """Pages are for people at a terminal: not in pipes, scripts, -e, pasted transcripts, terminals that can do nothing."""
    env = dict(place.env, TERM="xterm")
    for args, text in ((["help", "functions"], ""), ([], "?functions\nhelp functions\n:help\n"), (["-e", "1"], "")):
        done = subprocess.run([place.quern, *args], input=text, capture_output=True, text=True, env=env, cwd=place.folder, timeout=120)
        need(done.returncode == 0 and "-- more" not in done.stdout + done.stderr, f"{args}: {done.stdout[-500:]}")
    p = Prompt(place, "help", "functions", rows=8, start=False)
    p.wait(lambda: p.status is not None, "the end of quern help on a terminal")
    need(p.status == 0 and "-- more" not in "\n".join(p.screen.logical()), p.show())
    p = Prompt(place, rows=8)
    p.type(paste("qn> ?functions\nqn> 1 + 1\n") + "\r")
    p.wait(lambda: p.screen.lines()[-2:] == ["2", "qn>"], "a transcript goes through")
    ends_well(p)


def case_errors_go_on(place):
    p = Prompt(place, rows=50)
    p.answer("let a = 1")
    for text in ("1 / ", "error(\"mine\")", "[1, 2", "x y z", "zeros(-1)", "(" * 500, "\"open", "load(\"nowhere.npy\")", "fn f(x) = f(x)\nf(1)", "let", "}"):
        p.type(paste(text) + "\r")
        p.type(ctrl("c"))
        p.wait(lambda: p.line() == "qn>", "the prompt")
        p.type(ctrl("l"))
        p.answer("a", "1")
    p.type('let never = a + "x"\r')
    p.type("never\r")
    p.wait(lambda: any("'never' is not defined" in r for r in p.screen.lines()), "what failed defined nothing")
    ends_well(p)


def case_echo(place):
    """Values that are huge are shown in part."""
    p = Prompt(place, rows=30)
    p.type('let s = "line\\n"; for _ in 0..16 { s = s + s }; s\r')
    p.wait(lambda: p.screen.lines()[-3:] == ["line", "... 325683 bytes more; print(_) shows all", "qn>"], "a cut")
    p.answer("ones(1000, 1000).shape", "(1000, 1000)")
    ends_well(p)


def case_redefinition(place):
    """A function that is defined anew leaves calls that run on the old code."""
    p = Prompt(place)
    p.answer("fn f(n) = if n == 0 { \"old\" } else { f(n - 1) }")
    p.answer("let g = f")
    p.answer("fn f(n) = \"new\"")
    p.answer("g(0)", '"old"')
    p.answer("g(3)", '"new"')
    p.answer("fn h(x) = x * 2")
    p.answer("for i in 0..50 { h(ones(4)) }", )
    p.answer("fn h(x) = x * 3")
    p.answer("float(sum(h(ones(4))))", "12.0")
    ends_well(p)


def case_own_functions_of_builtin_names(place):
    """A function may call, for its effect, one that the program defines later on, though a builtin has its name by now."""
    p = Prompt(place, rows=40)
    p.answer("fn f(xs) { sort(xs); (2, 1).sort(); xs.sort(); let y = sort(xs) }", "warning: 'y' is never used; the name _y says that this is meant",
             "  --> <prompt 1>:1:52")
    p.answer("let id = try { f((3, 1)) } catch e { e.id }")
    p.answer("id", '"E107"')
    p.answer("fn sort(x) { print(x) }")
    p.answer("f((3, 1))", "(3, 1)", "(2, 1)", "(3, 1)", "(3, 1)")
    ends_well(p)


def case_import_of_a_changed_file(place):
    """A file that has changed since it was imported is loaded again; what has its old values keeps them."""
    def write(text):
        with open(os.path.join(place.folder, "lib_changes.qn"), "w", encoding="utf-8") as f:
            f.write(text)
    write("fn f(x) = x + 1\n")
    p = Prompt(place)
    p.answer("import lib_changes", )
    p.answer("let old = lib_changes.f")
    p.answer("lib_changes.f(1)", "2")
    p.answer("import lib_changes", )
    write("fn f(x) = x + 10\n")
    p.answer("import lib_changes", "lib_changes.qn has changed: it is loaded again")
    p.answer("lib_changes.f(1)", "11")
    p.answer("old(1)", "2")
    write("fn f(x) = x +* 10\n")
    p.type("import lib_changes\r")
    p.wait(lambda: any("error[E1" in line for line in p.screen.lines()), "the error of the new text")
    p.answer("lib_changes.f(1)", "11")
    write("fn f(x) = x + 100\n")
    p.answer("import lib_changes", "lib_changes.qn has changed: it is loaded again")
    p.answer("lib_changes.f(1)", "101")
    ends_well(p)


def case_import_of_what_a_changed_file_is_imported_by(place):
    """A module is loaded again when anything that it imports has changed, at any depth and however it came to be known."""
    place.write("deep/inner.qn", "fn w() = 1\n")
    place.write("deep/middle.qn", "import inner\nfn v() = inner.w() * 10\n")
    place.write("outer.qn", 'import "deep/middle.qn" as middle\nfn u() = middle.v() + 1\n')
    place.write("other.qn", 'import "deep/inner.qn" as inner\nfn t() = inner.w()\n')
    changed = "deep/inner.qn has changed: it is loaded again"
    needs = [f"{name}.qn is loaded again: deep/inner.qn, which it needs, has changed" for name in ("deep/middle", "outer", "other")]
    p = Prompt(place, columns=120)
    p.answer("import outer; import other")
    p.answer("outer.u()", "11")
    p.answer("import outer", "qn> import outer")
    place.write("deep/inner.qn", "fn w() = 2\n")
    p.answer("import outer", "qn> import outer", changed, *needs[:2])
    p.answer("outer.u()", "21")
    p.answer("import other", "qn> import other", needs[2])
    p.answer("other.t()", "2")
    place.write("deep/inner.qn", "fn w() = 3\n")
    p.answer('import "deep/inner.qn" as i', 'qn> import "deep/inner.qn" as i', changed)
    p.answer("import outer", "qn> import outer", *needs[:2])
    p.answer("outer.u()", "31")
    place.write("deep/inner.qn", "fn w() = 3 +\n* 2")
    p.type("import outer\r")
    p.wait(lambda: any("error[E1" in line for line in p.screen.lines()), "the error of the new text")
    p.answer("outer.u()", "31")
    place.write("deep/inner.qn", "fn w() = 4\n")
    p.answer("import outer", "qn> import outer", changed, *needs[:2])
    p.answer("outer.u()", "41")
    ends_well(p)


def case_type_ahead(place):
    """What is typed while something runs comes to the prompt."""
    p = Prompt(place)
    p.type("let i = 0; while i < 3000000 { i += 1 }\r", patience=0)
    p.type("i + 1\r")
    p.wait(lambda: "3000001" in p.screen.lines(), "the value")
    ends_well(p)


# ---- the tour ------------------------------------------------------------------------------------------------------------
def tour():
    """The inputs of each block of lang/TOUR.md with their answers: lists of lines."""
    with open(os.path.join(ROOT, "lang", "TOUR.md"), encoding="utf-8") as f:
        blocks = re.findall(r"^```prompt\n(.*?)^```", f.read(), re.M | re.S)
    for block in blocks:
        inputs = []
        for line in block.splitlines():
            if line.startswith("qn> "):
                inputs.append(([line], []))
            elif line.startswith("... ") and not inputs[-1][1]:
                inputs[-1][0].append(line)
            else:
                inputs[-1][1].append(line.rstrip())
        yield block, inputs


def anonymous(lines):
    """Without the numbers of prompts: the tour leaves some out."""
    return [re.sub(r"<prompt \d+>", "<prompt>", line) for line in lines]


def case_tour(place):
    """The tour, typed as it stands; lines are indented by the editor."""
    p = Prompt(place, columns=120, rows=60)
    for _, inputs in tour():
        for lines, answer in inputs:
            for line in lines:
                p.type(line[4:].lstrip() + "\r", patience=0)
            want = [*lines, *answer, "qn>"]
            p.wait(lambda: anonymous(p.screen.logical()[-len(want):]) == anonymous(want), "\n".join(want), 60)
    ends_well(p)


def case_tour_pasted(place):
    """The tour, copied with prompts and answers."""
    p = Prompt(place, columns=120, rows=100)
    for block, inputs in tour():
        p.type(paste(block))
        p.type("\r")
        want = [line for _, answer in inputs for line in answer] + ["qn>"]
        p.wait(lambda: anonymous(p.screen.logical()[-len(want):]) == anonymous(want), "\n".join(want), 60)
    ends_well(p)


# ---- fuzzing -------------------------------------------------------------------------------------------------------------
PIECES = ["a", "b1", " ", "(", ")", "[", "]", "{", "}", '"', "\\", "+", "# ", ".", ":", "let x = ", "fn f(y) ", "日", "e\u0301", "👍", "\t", "\t\t", UP, DOWN,
          LEFT, RIGHT, HOME, END, DELETE, "\x7f", ctrl("a"), ctrl("e"), ctrl("b"), ctrl("f"), ctrl("k"), ctrl("u"), ctrl("w"), ctrl("y"), "\x1by",
          ctrl("t"), ctrl("_"), "\x1bb", "\x1bf", "\x1bd", "\x1b\x7f", "\x1b<", "\x1b>", "\x1b\r", ctrl("r"), ctrl("s"), ctrl("g"), ctrl("l"), BACKTAB,
          "\x1b[5~", "\x1b[6~", "\x1b[1;5C", "\x1b[99;99x", "\x1bO", "\x1b[", paste("p\nq\tr\n"), paste("qn> s\n"), "softm", "import ", "x" * 30, "?", "help "]


def case_fuzz(place):
    """Random keys: it never ends, what is shown is what is submitted, and the screen is that of a fresh drawing."""
    end, rounds, compared = time.monotonic() + place.seconds, 0, 0
    while rounds < place.count and (not rounds or time.monotonic() < end):
        seed = place.seed + rounds
        rng = random.Random(seed)
        p = Prompt(place, columns=rng.choice([20, 33, 80]), rows=rng.choice([6, 24]), ahead=True)
        for _ in range(6):
            keys, done = [rng.choice(PIECES) for _ in range(rng.randrange(1, 60))], []
            try:
                while keys:
                    n = rng.randrange(1, 12)
                    some, keys = keys[:n], keys[n:]
                    done += some
                    p.type("".join(some), patience=0)
                if rng.random() < 0.2:
                    p.type(bytes(rng.choice([rng.randrange(256), 27, 91, 0x41 + rng.randrange(20)]) for _ in range(30))
                           .translate(None, b"\x03\x04\x0a\x0d\x1a"))
                p.type(ctrl("g"), patience=0)  # ends a search or menu
                p.type(ctrl("g"), patience=20)  # code that a key has started may take its time on a busy machine
                need(p.status is None, f"it ended with status {p.status}")
                compared += int(check_shown(p, rng) or 0)
            except AssertionError as e:
                raise AssertionError(f"--seed {seed}, keys {done!r}: {e}\n{p.show()}") from None
        ends_well(p)
        os.close(p.fd)
        rounds += 1
    print(f"{rounds} sessions, seeds from {place.seed}, {compared} pictures and texts compared")
    need(rounds < 6 or compared >= 2 * rounds, "most should be comparable")


def content(rows, cursor_row):
    """The rows of the text that is edited, from the prompt that the cursor's row belongs to."""
    begin = cursor_row
    while begin > 0 and not rows[begin].startswith("qn>"):
        begin -= 1
    rows = rows[begin:]
    while rows and not rows[-1]:
        rows.pop()
    return rows, cursor_row - begin


def check_shown(p, rng):
    """What is shown is what a fresh drawing shows; submitted as a comment, it is what the history has."""
    at = p.screen.cursor()
    before = content(p.screen.lines(), at[0])
    p.type(ctrl("l"))
    now = p.screen.cursor()
    fresh = content(p.screen.lines(), now[0])
    compared = len(fresh[0]) < p.screen.height and before[0] and before[0][0].startswith("qn>")
    if compared:
        need(before == fresh and at[1] == now[1], f"drawn afresh it differs: {before} {at}, {fresh} {now}")
    # A comment has one line, so all lines but the first are joined to it: Ctrl-K at their ends.
    p.type("\x1b<" + (ctrl("e") + ctrl("k")) * 200)
    p.type("\x1b<# " + ctrl("e"))
    rows = p.screen.logical()
    # A text higher than the screen is shown without its first rows, prompt and all: then there is no line to compare.
    first = max((i for i, r in enumerate(rows) if r.startswith("qn>")), default=len(rows))
    while len(rows) > first + 1 and not rows[-1]:
        rows.pop()
    shown = rows[first:]
    p.type("\r")
    p.wait(lambda: p.line() == "qn>" or p.status is not None, "the next prompt", 10)
    if len(shown) == 1 and "\t" not in p.place.history()[-1]:
        need("qn> " + p.place.history()[-1] == shown[0], f"{p.place.history()[-1]!r} was submitted, {shown[0]!r} shown")
        compared += 1
    if rng.random() < 0.3:
        p.type(ctrl("l"))
    return compared


def main():
    cases = {name[5:]: f for name, f in globals().items() if name.startswith("case_")}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", choices=[*cases, "all"], metavar="CASE")
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="of the first session of random keys, or random")
    parser.add_argument("--count", type=int, default=1000000, help="sessions of random keys at most")
    parser.add_argument("--seconds", type=float, default=15, help="time for them at most")
    options = parser.parse_args()
    seed = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(1 << 30)
    failed = 0
    for name in cases if "all" in options.cases else options.cases:
        with tempfile.TemporaryDirectory(prefix="quern-prompt-", ignore_cleanup_errors=True) as folder:
            try:
                cases[name](Place(os.path.abspath(options.quern), folder, seed, options.count, options.seconds))
                print(f"ok {name}")
            except AssertionError as e:
                failed += 1
                print(f"FAILED {name}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
