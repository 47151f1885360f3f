"""Tables of `tui.report` as lines of styled text."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tui.palette import Palette
from tui.report import Table
from tui.tables import choose, layout


def table_lines(table: Table) -> Callable[[int, Palette], list[Text]]:
    """A way to render a table at a width."""

    def render(width: int, palette: Palette) -> list[Text]:
        title = [Text(table.title, palette.heading)] if table.title else []
        if not table.rows:
            return [*title, Text(table.empty, palette.muted)]
        kept = choose(table.columns, table.rows, width)
        columns = [table.columns[at] for at in kept]
        named = any(column.name for column in columns)
        rows = [[_cell(row[at], at, named, palette) for at in kept] for row in table.rows]
        lines = layout(columns, [Text(column.name) for column in columns], rows, width, palette)
        return title + (lines if named else lines[2:])

    return render


def _cell(text: str, column: int, named: bool, palette: Palette) -> Text:
    return Text(text, palette.accent if column == 0 and not named else palette.text)
