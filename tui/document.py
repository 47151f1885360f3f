"""The scrollback as a list of pieces that render themselves to lines at a width. Pure; knows no widgets.

A piece's lines are kept until the width, the palette or the piece changes, so a growing reply costs only its
last piece. After a resize pieces have an estimated height until they are rendered: what is looked at first,
the rest in idle moments (`settle`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rich.text import Text

from tui.blocks import Block
from tui.markdown import render_block, wrap
from tui.palette import Palette

Render = Callable[[int, Palette], list[Text]]
_WIDEST_TEXT = 100
_MARGIN = 2


@dataclass(eq=False)
class Piece:
    """Something in the scrollback: how it renders, and the reply or message it belongs to."""

    render: Render
    group: int = 0
    """Pieces of one message share a number."""
    fold: Callable[[bool | None], None] | None = None
    """Folds it (True), unfolds it (False) or the other way (None); the caller says that it changed."""
    lines: list[Text] = field(default_factory=list)
    height: int = 1
    fresh: bool = False


@dataclass(frozen=True)
class Hit:
    """A place where a search found its text."""

    line: int
    start: int
    end: int


class Document:
    """All pieces, top to bottom, at one width."""

    def __init__(self, palette: Palette, width: int = 80) -> None:
        self._pieces: list[Piece] = []
        self._palette = palette
        self._width = width
        self._tops: list[int] | None = None

    @property
    def width(self) -> int:
        """Cells a line."""
        return self._width

    @property
    def pieces(self) -> Sequence[Piece]:
        """The pieces, top to bottom."""
        return self._pieces

    def restyle(self, width: int, palette: Palette) -> None:
        """Another width or palette: everything is stale, heights are estimates."""
        if width == self._width and palette is self._palette:
            return
        for piece in self._pieces:
            piece.height = max(1, round(piece.height * self._width / max(1, width)))
            piece.fresh = False
        self._width, self._palette = width, palette
        self._tops = None

    def append(self, piece: Piece) -> None:
        """Add a piece at the end."""
        self._pieces.append(piece)
        self._refresh(piece)
        self._tops = None

    def replace_tail(self, start: int, pieces: Sequence[Piece]) -> None:
        """Put these pieces in the place of all from `start` on."""
        del self._pieces[start:]
        for piece in pieces:
            self._pieces.append(piece)
            self._refresh(piece)
        self._tops = None

    def change(self, piece: Piece, render: Render | None = None) -> None:
        """A piece looks different from now on."""
        if render is not None:
            piece.render = render
        self._refresh(piece)
        self._tops = None

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._tops = None

    @property
    def height(self) -> int:
        """Lines in all; an estimate while not settled."""
        tops = self._all_tops()
        return tops[-1]

    def locate(self, line: int) -> tuple[int, int]:
        """The index of the piece at a line, and the line within it. IndexError: beyond the end."""
        if not 0 <= line < self.height:
            raise IndexError(line)
        tops = self._all_tops()
        index = bisect_right(tops, line) - 1
        return index, line - tops[index]

    def top(self, index: int) -> int:
        """The first line of a piece."""
        return self._all_tops()[index]

    def line(self, line: int) -> Text:
        """The text of a line, empty beyond the end. Renders its piece if that is stale."""
        if not 0 <= line < self.height:
            return Text()
        index, within = self.locate(line)
        piece = self._pieces[index]
        if not piece.fresh:
            self._refresh(piece)
            self._tops = None
        return piece.lines[within] if within < len(piece.lines) else Text()

    def render_around(self, first: int, count: int) -> bool:
        """Render what lies on some lines; whether any height changed (then lines have moved)."""
        moved = False
        for index, piece in enumerate(self._pieces):
            if piece.fresh or self.top(index) >= first + count:
                continue
            if self.top(index) + piece.height > first:
                before = piece.height
                self._refresh(piece)
                moved |= before != piece.height
                self._tops = None
        return moved

    def settle(self, budget_s: float) -> bool:
        """Render stale pieces, the last first, for about so long; whether all are fresh now."""
        until = time.perf_counter() + budget_s
        for piece in reversed(self._pieces):
            if not piece.fresh:
                self._refresh(piece)
                self._tops = None
                if time.perf_counter() > until:
                    return all(item.fresh for item in self._pieces)
        return True

    def find(self, text: str) -> list[Hit]:
        """Where a text stands, whatever its case. Renders everything that is stale."""
        self.settle(float("inf"))
        wanted = _folded(text)
        hits: list[Hit] = []
        if not wanted:
            return hits
        for index, piece in enumerate(self._pieces):
            for within, line in enumerate(piece.lines):
                folded = _folded(line.plain)
                start = folded.find(wanted)
                while start >= 0:
                    hits.append(Hit(self.top(index) + within, start, start + len(wanted)))
                    start = folded.find(wanted, start + len(wanted))
        return hits

    def text(self) -> str:
        """All lines as plain text."""
        self.settle(float("inf"))
        return "\n".join(line.plain.rstrip() for piece in self._pieces for line in piece.lines)

    def _refresh(self, piece: Piece) -> None:
        piece.lines = piece.render(self._width, self._palette)
        piece.height = len(piece.lines)
        piece.fresh = True

    def _all_tops(self) -> list[int]:
        if self._tops is None:
            self._tops = list(accumulate((piece.height for piece in self._pieces), initial=0))
        return self._tops


def _folded(text: str) -> str:
    """The text without case, every character still in its place."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := letter.casefold()) == 1 else letter for letter in text)


def text_width(width: int) -> int:
    """Cells for running text in a view of this width: a margin on both sides, and not too wide to read."""
    return max(1, min(width - 2 * _MARGIN, _WIDEST_TEXT))


def _indented(lines: list[Text], margin: int = _MARGIN) -> list[Text]:
    return [Text.assemble(" " * margin, line) if line.plain else line for line in lines]


def message(text: str) -> Render:
    """What the user said, beside a bar."""

    def render(width: int, palette: Palette) -> list[Text]:
        lines = wrap(Text(text, palette.text), text_width(width) - 2)
        return [Text(), *(Text.assemble("  ", ("▍ ", palette.bar), line) for line in lines), Text()]

    return render


def block(item: Block) -> Render:
    """A block of a reply."""

    def render(width: int, palette: Palette) -> list[Text]:
        return _indented(render_block(item, text_width(width), palette))

    return render


def reasoning(text: str, *, folded: bool, running: bool, summary: str) -> Render:
    """The model's thinking: one line when folded, dim text under it when not."""

    def render(width: int, palette: Palette) -> list[Text]:
        mark = "▸" if folded else "▾"
        heading = Text.assemble((f"{mark} ", palette.accent), (summary, palette.muted))
        heading.truncate(text_width(width), overflow="ellipsis")
        lines = [heading]
        if not folded and text.strip():
            style = palette.muted + palette.emphasis
            body = wrap(Text(text.strip("\n"), style), text_width(width) - 2)
            lines += [Text.assemble(("│ ", palette.rule), line) for line in body]
        return _indented([*lines, Text()] if not running else lines)

    return render


def footer(text: str) -> Render:
    """A quiet line under a reply."""

    def render(width: int, palette: Palette) -> list[Text]:
        line = Text(text, palette.muted)
        line.truncate(text_width(width), overflow="ellipsis")
        return [Text(), *_indented([line])]

    return render


def note(text: str, kind: str = "note", *, opens: bool = False) -> Render:
    """Something the program says: kind is note, warning or error; `opens`: at the head of a reply that grows."""

    def render(width: int, palette: Palette) -> list[Text]:
        mark, style = {"error": ("✗ ", palette.error), "warning": ("! ", palette.warning)}.get(
            kind, ("· ", palette.muted)
        )
        lines = wrap(Text(text, style if kind != "note" else palette.muted), text_width(width) - 2)
        marked = [Text.assemble((mark if at == 0 else "  ", style), line) for at, line in enumerate(lines)]
        return [*_indented(marked), Text()] if opens else [Text(), *_indented(marked)]

    return render


def rows(make: Render) -> Render:
    """Lines made elsewhere (a table), with a blank line before."""

    def render(width: int, palette: Palette) -> list[Text]:
        return [Text(), *_indented(make(text_width(width), palette))]

    return render
