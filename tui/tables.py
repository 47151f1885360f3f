"""Tables that fit: columns as wide as their cells, narrowed and wrapped when the width is short. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tui.palette import Palette

_CONSOLE = Console(file=StringIO(), width=80, color_system=None, force_terminal=False)
_GAP = 2
_NARROWEST = 4


@dataclass(frozen=True)
class Column:
    """A column's heading, the side its cells lean to, and whether it can be left out."""

    name: str
    align: Literal["left", "right"] = "left"
    spare: int = 0
    """Where room is short, columns with the largest numbers go first; 0 stays."""


def layout(
    columns: Sequence[Column],
    heading: Sequence[Text],
    rows: Sequence[Sequence[Text]],
    width: int,
    palette: Palette,
) -> list[Text]:
    """A table of styled cells as lines of at most `width` cells (more only when columns are very many)."""
    count = len(columns)
    every = [list(row[:count]) + [Text()] * (count - len(row)) for row in (heading, *rows)]
    wanted = [max(max(map(cell_len, row[at].plain.split("\n"))) for row in every) for at in range(count)]
    widths = fit(wanted, width - _GAP * (count - 1))
    for cell in every[0]:
        cell.stylize_before(palette.muted)
    lines = _row(every[0], widths, columns)
    lines.append(Text("  ".join("─" * size for size in widths), palette.rule))
    for row in every[1:]:
        lines += _row(row, widths, columns)
    return lines


def choose(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that fit without wrapping, after leaving out spare ones."""
    widths = [
        max(cell_len(row[at]) for row in ([c.name for c in columns], *rows)) for at in range(len(columns))
    ]
    kept = list(range(len(columns)))
    while sum(widths[at] for at in kept) + _GAP * (len(kept) - 1) > width:
        spare = max(kept, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        kept.remove(spare)
    return kept


def plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of plain text for the line mode, nothing wrapped, no trailing spaces."""
    every = [[column.name for column in columns], *map(list, rows)]
    widths = [max(cell_len(row[at]) for row in every) for at in range(len(columns))]
    return [
        "  ".join(
            _pad(cell, size, column.align) for cell, size, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in every
    ]


def fit(wanted: Sequence[int], room: int) -> list[int]:
    """Widths that add up to at most `room`, taken from the widest columns first."""
    widths = [max(1, size) for size in wanted]
    excess = sum(widths) - room
    while excess > 0:
        widest = max(widths)
        if widest <= _NARROWEST:
            break
        next_widest = max([size for size in widths if size < widest], default=_NARROWEST)
        at_top = [at for at, size in enumerate(widths) if size == widest]
        cut = min(widest - max(next_widest, _NARROWEST), -(-excess // len(at_top)))
        for at in at_top:
            taken = min(cut, excess)
            widths[at] -= taken
            excess -= taken
    return widths


def _pad(cell: str, size: int, align: str) -> str:
    space = " " * max(0, size - cell_len(cell))
    return space + cell if align == "right" else cell + space


def _row(cells: Sequence[Text], widths: Sequence[int], columns: Sequence[Column]) -> list[Text]:
    wrapped = [cell.wrap(_CONSOLE, size, overflow="fold") for cell, size in zip(cells, widths, strict=True)]
    lines: list[Text] = []
    for at in range(max(map(len, wrapped))):
        line = Text()
        for number, (cell, size, column) in enumerate(zip(wrapped, widths, columns, strict=True)):
            part = cell[at] if at < len(cell) else Text()
            part.rstrip()
            space = Text(" " * max(0, size - part.cell_len))
            line.append_text(space + part if column.align == "right" else part + space)
            if number < len(columns) - 1:
                line.append(" " * _GAP)
        lines.append(line)
    return lines
