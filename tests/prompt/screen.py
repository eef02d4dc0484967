"""A terminal's screen: what a person sees after a program has written bytes to it.

Knows what the prompt uses: printing with wrapping (a full row waits for the next character before it wraps), wide and combining
characters, carriage return, line feed, backspace, the cursor's moves, erasing, colours, and bracketed paste. Rows that
were wrapped belong together when the width changes, as terminals of today do it. Anything else is an error.
"""
import re
import unicodedata

SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


def width(c):
    if unicodedata.combining(c) or c in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


class Cell:
    __slots__ = ("text", "style", "wide")

    def __init__(self, text=" ", style="", wide=False):
        self.text, self.style, self.wide = text, style, wide


class Row:
    def __init__(self):
        self.cells, self.wrapped = [], False  # wrapped: goes on with the row above

    def text(self):
        return "".join(c.text for c in self.cells).rstrip()


class Screen:
    def __init__(self, columns=80, rows=24):
        self.columns, self.height = columns, rows
        self.rows, self.top = [Row()], 0  # all rows ever; the screen shows `height` of them from `top` on
        self.y = self.x = 0  # y counts in self.rows
        self.full = False  # the row is full and waits
        self.style, self.paste = "", False
        self.pending = b""

    # ---- writing ----
    def feed(self, data):
        data = self.pending + data
        self.pending = b""
        try:
            text = data.decode()
        except UnicodeDecodeError as e:
            if e.start < len(data) - 4:
                raise
            text, self.pending = data[:e.start].decode(), data[e.start:]
        cut = text.rfind("\x1b")
        if cut >= 0 and not SEQUENCE.match(text, cut):
            self.pending = text[cut:].encode() + self.pending
            text = text[:cut]
        at = 0
        while at < len(text):
            c = text[at]
            if c == "\x1b":
                found = SEQUENCE.match(text, at)
                self.sequence(*found.groups())
                at = found.end()
                continue
            at += 1
            if c == "\r":
                self.x, self.full = 0, False
            elif c == "\n":
                self.line_feed()
            elif c == "\b":
                self.x, self.full = max(self.x - 1, 0), False
            elif c == "\x07":
                pass
            elif c < " " or c == "\x7f":
                raise AssertionError(f"control character {c!r}")
            else:
                self.put(c)

    def line_feed(self, wrapped=False):
        self.full = False
        self.y += 1
        if self.y == len(self.rows):
            self.rows.append(Row())
            self.rows[self.y].wrapped = wrapped
        elif wrapped:
            self.rows[self.y].wrapped = True
        if self.y >= self.top + self.height:
            self.top = self.y - self.height + 1

    def put(self, c):
        n = width(c)
        row = self.rows[self.y]
        if n == 0:
            at = self.x - 1 if not self.full else self.columns - 1
            while at > 0 and not row.cells[at].text:
                at -= 1
            row.cells[at].text += c
            return
        if self.full or self.x + n > self.columns:
            self.line_feed(True)
            self.x = 0
            row = self.rows[self.y]
        while len(row.cells) < self.x + n:
            row.cells.append(Cell())
        row.cells[self.x] = Cell(c, self.style, n == 2)
        if n == 2:
            row.cells[self.x + 1] = Cell("", self.style)
        self.x += n
        if self.x >= self.columns:
            self.x, self.full = self.columns - 1, True

    def erase_row(self):
        del self.rows[self.y].cells[self.x:]
        if self.x == 0:
            self.rows[self.y].wrapped = False

    def sequence(self, private, numbers, last):
        first = int(numbers.split(";")[0] or 0) if numbers else 0
        if private:
            assert (numbers, last) in (("2004", "h"), ("2004", "l")), f"mode {numbers}{last}"
            self.paste = last == "h"
        elif last == "m":
            self.style = "" if numbers in ("", "0") else numbers
        elif last in "ABCD":
            n = max(first, 1)
            self.full = False
            if last == "A":
                self.y = max(self.y - n, self.top)
            elif last == "B":
                self.y = min(self.y + n, self.top + self.height - 1, len(self.rows) - 1)
            elif last == "C":
                self.x = min(self.x + n, self.columns - 1)
            else:
                self.x = max(self.x - n, 0)
        elif last == "H":
            assert not numbers
            self.y, self.x, self.full = self.top, 0, False
        elif last == "K":
            assert first == 0
            self.erase_row()
        elif last == "J":
            if first == 2:
                self.top = len(self.rows)
                self.rows += [Row()]
                self.y = self.top
            else:
                self.erase_row()
                del self.rows[self.y + 1:]
        else:
            raise AssertionError(f"sequence {private}{numbers}{last}")

    # ---- looking ----
    def lines(self):
        """The rows on the screen, without blanks at their ends."""
        return [r.text() for r in self.rows[self.top:]]

    def logical(self):
        """All lines, those before the screen's first row, too; what was wrapped is one."""
        out = []
        for r in self.rows:
            text = "".join(c.text for c in r.cells)
            if r.wrapped and out:
                out[-1] += text
            else:
                out.append(text)
        return [line.rstrip() for line in out]

    def style_of(self, text):
        """The style in which `text` stands where it stands last; None if it is nowhere."""
        for row in reversed(self.rows):
            whole = "".join(c.text for c in row.cells)
            at = whole.rfind(text)
            if at >= 0:
                cells = [c for c in row.cells if c.text]
                return cells[at].style
        return None

    def cursor(self):
        """Row on the screen and column."""
        return self.y - self.top, self.x

    def resize(self, columns, rows):
        """Wraps everything anew."""
        old, at = self.rows, (self.y, self.x + (1 if self.full else 0))
        self.rows, self.columns, self.height = [], columns, rows
        place = None
        for i, row in enumerate(old):
            if not row.wrapped or not self.rows:
                new = Row()
                self.rows.append(new)
            cells = row.cells
            if i == at[0]:
                cells = cells + [Cell() for _ in range(at[1] - len(cells))]
            for k, cell in enumerate(cells):
                if i == at[0] and k == at[1]:
                    place = len(self.rows) - 1, len(self.rows[-1].cells)
                if not cell.text and cell.wide is False and k and cells[k - 1].wide:
                    self.rows[-1].cells.append(cell)
                    continue
                n = 2 if cell.wide else 1
                if len(self.rows[-1].cells) + n > columns:
                    self.rows.append(Row())
                    self.rows[-1].wrapped = True
                    if place and i == at[0] and k == at[1]:
                        place = len(self.rows) - 1, 0
                self.rows[-1].cells.append(cell)
            if i == at[0] and place is None:
                place = len(self.rows) - 1, len(self.rows[-1].cells)
        self.y, self.x = place
        if self.x >= columns:
            self.y, self.x = self.y + self.x // columns, self.x % columns
            while len(self.rows) <= self.y:
                self.rows.append(Row())
                self.rows[-1].wrapped = True
        self.full = False
        self.top = max(len(self.rows) - rows, 0)
        self.top = min(self.top, self.y)
