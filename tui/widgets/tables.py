"""Tables of `tui.report` as lines of styled text."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tui.palette import Palette
from tui.report import Table
from tui.tables import layout


def table_lines(table: Table) -> Callable[[int, Palette], list[Text]]:
    """A way to render a table at a width."""

    def render(width: int, palette: Palette) -> list[Text]:
        title = [Text(table.title, palette.heading)] if table.title else []
        if not table.rows:
            return [*title, Text(table.empty, palette.muted)]
        heading = [Text(column.name) for column in table.columns]
        named = any(column.name for column in table.columns)
        rows = [[_cell(cell, at, named, palette) for at, cell in enumerate(row)] for row in table.rows]
        lines = layout(table.columns, heading, rows, width, palette)
        return title + (lines if named else lines[2:])

    return render


def _cell(text: str, column: int, named: bool, palette: Palette) -> Text:
    return Text(text, palette.accent if column == 0 and not named else palette.text)
