"""Untrusted text to text that cannot command a terminal: from models, peers, file names and errors.

A terminal obeys control characters (C0, C1), the sequences they introduce (CSI, OSC, DCS …) and, where it
implements them, bidirectional overrides. Nothing is parsed here: every character is judged alone, so there is
no state that a sequence split between two pieces could confuse. A sequence whose introducer is gone is text.

* C0 controls and DEL become their visible pictures (ESC is ␛): the user sees that something was there.
* C1 controls, lone surrogates and noncharacters become U+FFFD.
* Bidirectional controls, invisible format characters and tags are dropped; joiners and variation selectors,
  which scripts and emoji need, stay.
* CR LF, CR, NEL, line and paragraph separators are newlines. Newline and tab stay.
* More than eight combining marks on one character are dropped: they would climb over the lines above.
"""

from __future__ import annotations

import re

_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_MAX_MARKS = 8
_MARK_RUN = re.compile(f"[{_MARKS}]{{{_MAX_MARKS + 1},}}")
_TRAILING_MARKS = re.compile(f"[{_MARKS}]*\\Z")
_LEADING_MARKS = re.compile(f"[{_MARKS}]*")
_DROPPED = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x061C, 0x061C),  # Arabic letter mark
    (0x180E, 0x180E),
    (0x200B, 0x200B),  # zero width space
    (0x200E, 0x200F),  # left-to-right and right-to-left mark
    (0x202A, 0x202E),  # embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates, deprecated controls
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),  # interlinear annotation
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE007F),  # tags
)


def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "\u2421"
    table.update(dict.fromkeys(range(128, 160), "�"))
    table.update(dict.fromkeys(range(55296, 57344), "�"))
    table.update({plane << 16 | low: "\ufffd" for plane in range(17) for low in (0xFFFE, 0xFFFF)})
    for first, last in _DROPPED:
        table.update(dict.fromkeys(range(first, last + 1)))
    del table[0x09], table[0x0A]
    table.update({0x0D: "\n", 0x85: "\n", 0x2028: "\n", 0x2029: "\n"})
    return table


_TABLE = _table()
_PLAIN = re.compile("[\\n\\t -~]*")


class Cleaner:
    """Cleans a text that arrives in pieces; how it was cut makes no difference to the joined results."""

    def __init__(self) -> None:
        self._after_return = False
        self._marks = 0

    def feed(self, piece: str) -> str:
        """The clean form of the next piece; possibly empty, never held back."""
        if not piece:
            return ""
        if self._after_return and piece[0] == "\n":
            piece = piece[1:]
            if not piece:
                self._after_return = False
                return ""
        self._after_return = piece[-1] == "\r"
        if _PLAIN.fullmatch(piece):
            self._marks = 0
            return piece
        return self._limit_marks(piece.replace("\r\n", "\n").translate(_TABLE))

    def _limit_marks(self, text: str) -> str:
        if not text:
            return ""
        leading = _LEADING_MARKS.match(text)
        run = leading.end() if leading else 0
        kept = min(run, max(0, _MAX_MARKS - self._marks))
        rest = text[run:]
        if rest:
            trailing = _TRAILING_MARKS.search(rest)
            self._marks = len(trailing.group()) if trailing else 0
        else:
            self._marks += run
        return text[:kept] + _MARK_RUN.sub(lambda found: found.group()[:_MAX_MARKS], rest)


def clean(text: str) -> str:
    """A whole text, cleaned."""
    return Cleaner().feed(text)


def clean_line(text: str, limit: int = 400) -> str:
    """A whole text as one line of at most `limit` characters, for names, paths and errors."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
