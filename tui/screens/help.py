"""Commands and keys."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui import report
from tui.screens.panel import Panel, lines_of
from tui.widgets.tables import table_lines


class HelpScreen(Panel[None]):
    """All of them on one page."""

    TITLE_TEXT = "Help"

    def body(self) -> ComposeResult:
        """A page to scroll."""
        with VerticalScroll(id="page"):
            yield Static(id="help")

    def on_mount(self) -> None:
        """Show the page."""
        self._draw()

    def on_resize(self) -> None:
        """Fit it."""
        self._draw()

    def _draw(self) -> None:
        width = min(self.size.width, 112) - 6
        lines = []
        for table in report.help_tables():
            lines += table_lines(table)(max(20, width), self.palette)
            lines.append(lines_of([]))
        self.query_one("#help", Static).update(lines_of(lines[:-1]))
