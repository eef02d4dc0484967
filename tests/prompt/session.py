"""The binary on a pseudo-terminal: keys go in, its screen is what comes out.

Nothing here waits for a time. That keys have been dealt with is an event: the program has read them all, and sleeps in a call that
waits for the next one (/proc tells both). Times are only how long that may take until the test fails.
"""
import array
import fcntl
import os
import pty
import select
import struct
import termios
import time

from screen import Screen

UP, DOWN, RIGHT, LEFT = (f"\x1b[{c}" for c in "ABCD")
HOME, END, DELETE, BACKTAB, ESC = "\x1b[H", "\x1b[F", "\x1b[3~", "\x1b[Z", "\x1b"
SLOW = float(os.environ.get("QUERN_TEST_SLOW", "1"))
READ, POLL, SELECT, PSELECT, PPOLL = 0, 7, 23, 270, 271  # system calls of x86-64
RESTARTED = 219  # goes on with a poll that a signal disturbed, a child's end for instance; the arguments are those of the poll
if os.uname().machine == "aarch64":
    READ, POLL, SELECT, PSELECT, PPOLL, RESTARTED = 63, -1, -1, 72, 73, -1
TIOCGPTN = 0x80045430  # the number of a terminal's slave
TICKS = os.sysconf("SC_CLK_TCK")


def ctrl(c):
    return chr(ord(c) & 31)


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


def proc(pid, name):
    """A file of /proc about a process; empty if that has ended."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as f:
            return f.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def state_of(pid):
    """The letter that says what a process does: R, S, T for stopped, Z."""
    return proc(pid, "stat").rpartition(")")[2].split()[:1]


def seconds_of(pid):
    """The processor time that a process has taken, all threads together."""
    fields = proc(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


def bytes_read(pid):
    for line in proc(pid, "io").splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def waits_for_keys(pid):
    """Does the main thread of a process sleep until something comes in, however long that takes?"""
    call = proc(pid, "syscall").split()
    if len(call) < 4 or not call[0].lstrip("-").isdigit():
        return False
    number, first, third = int(call[0]), int(call[1], 16), int(call[3], 16)
    if number == READ:
        return first == 0
    if number in (POLL, RESTARTED):
        return third & 0xffffffff == 0xffffffff
    if number == PPOLL:
        return third == 0
    return number in (SELECT, PSELECT) and int(call[5], 16) == 0


def keys_are_read(terminal):
    """Has all that was typed been taken out of the terminal's queue? `terminal` is the master's descriptor."""
    number, left = array.array("I", [0]), array.array("i", [0])
    fcntl.ioctl(terminal, TIOCGPTN, number)
    slave = os.open(f"/dev/pts/{number[0]}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(slave, termios.FIONREAD, left)
        return left[0] == 0
    finally:
        os.close(slave)


class Prompt:
    """The binary on a terminal of its own."""

    def __init__(self, place, *args, columns=80, rows=24, color=False, start=True, ahead=False, **env):
        """`ahead`: keys may come while code runs; then the terminal neither shows them nor takes Ctrl-S for itself."""
        self.screen = Screen(columns, rows)
        self.place, self.status = place, None
        environment = dict(place.env, TERM="xterm-256color", **env)
        if not color:
            environment["NO_COLOR"] = "1"
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(place.folder)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                if ahead:
                    how = termios.tcgetattr(0)
                    how[0] &= ~termios.IXON
                    how[3] &= ~termios.ECHO
                    termios.tcsetattr(0, termios.TCSANOW, how)
                os.execve(place.quern, [place.quern, *args], environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if start:
            self.wait(lambda: self.line() == "qn>" and self.screen.paste, "the first prompt")

    def read(self, seconds):
        """Takes what comes within the time; False if nothing did."""
        try:
            if not select.select([self.fd], [], [], seconds)[0]:
                return False
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        if not data:
            self.status = self.status if self.status is not None else self.reap()
            return False
        self.screen.feed(data)
        return True

    def reap(self):
        """The exit status of a process that ends; None if it does not."""
        ended = os.pidfd_open(self.pid)
        try:
            if not select.select([ended], [], [], 10 * SLOW)[0]:
                return None
        finally:
            os.close(ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def wait(self, condition, what, seconds=20):
        end = time.monotonic() + seconds * SLOW
        while not condition():
            if time.monotonic() > end or self.status is not None:
                raise AssertionError(f"expected {what}; the screen:\n{self.show()}")
            self.read(0.02)

    def own_editing(self):
        """Does the program read single keys? It does not while code runs, nor on a terminal that can do nothing."""
        return not termios.tcgetattr(self.fd)[3] & termios.ICANON

    def settle(self, read=0, patience=0.7):
        """Until the program has read so many bytes in all, its picture is drawn, and it waits for keys; or until code has run for so
        many seconds."""
        begin = time.monotonic()
        while self.status is None and time.monotonic() < begin + 20 * SLOW:
            if self.read(0):
                continue
            spent = time.monotonic() - begin
            # Keys are passed on by a thread of the kernel, and some are signals, which nobody reads.
            passed = bytes_read(self.pid) >= read or spent > 0.5 * SLOW
            if passed and waits_for_keys(self.pid) and keys_are_read(self.fd):
                if not self.read(0):
                    return
            elif spent >= patience * SLOW and not self.own_editing():
                return
            else:
                self.read(0.002)

    def type(self, keys, patience=0.7):
        """Types, and settles. Keys behind Enter come later: what comes at once counts as pasted."""
        data = keys.encode() if isinstance(keys, str) else keys
        enter = data.find(b"\r")
        while enter >= 0 and enter + 1 < len(data) and not data.startswith(b"\x1b[200~"):
            self.type(data[:enter + 1], patience)
            data = data[enter + 1:]
            enter = data.find(b"\r")
        read = bytes_read(self.pid) + len(data)
        while data:
            select.select([], [self.fd], [], 10)
            data = data[os.write(self.fd, data[:512]):]
            while self.read(0):
                pass
        self.settle(read, patience)

    def computes(self, seconds=0.1):
        """Waits until code has run for so long since now, in processor time."""
        begin = seconds_of(self.pid)
        self.wait(lambda: seconds_of(self.pid) >= begin + seconds, "code that runs", 60)

    def line(self):
        """The last line that is not blank."""
        lines = [r for r in self.screen.lines() if r]
        return lines[-1] if lines else ""

    def show(self):
        lines = self.screen.lines()
        return "\n".join(f"  |{line}" for line in lines) + f"\n  cursor {self.screen.cursor()}, status {self.status}"

    def expect(self, *lines, cursor=None):
        """The screen ends with these lines, and the cursor stands in this column of the last of them (or on row, column from there)."""
        def good():
            shown = self.screen.lines()
            while shown and not shown[-1]:
                shown.pop()
            return shown[-len(lines):] == list(lines) and (cursor is None or self.screen.x == cursor)
        self.wait(good, "\n".join(lines) + ("" if cursor is None else f"\nwith the cursor in column {cursor}"), 10)

    def answer(self, text, *lines, seconds=20):
        """Types a line; these lines come, then the prompt."""
        self.type(text)
        self.type("\r")
        want = [*lines, "qn>"]
        self.wait(lambda: [r for r in self.screen.lines() if r][-len(want):] == want and self.screen.paste, "\n".join(want), seconds)

    def end(self):
        self.type("\x04")
        self.wait(lambda: self.status is not None, "the end", 20) if self.status is None else None
        return self.status
