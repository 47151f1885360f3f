"""One-line widgets: the status line, and the completions above the editor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from tui.commands import Candidate
from tui.palette import Palette
from tui.status import Status
from tui.theme import palette_of


class Line(Widget):
    """A line, or a few, of styled text that fit themselves to the width."""

    DEFAULT_CSS = """
    Line { height: 1; background: $background; }
    """

    @property
    def palette(self) -> Palette:
        """The palette of the application's theme."""
        return palette_of(self.app.theme)

    @abstractmethod
    def lines(self, width: int) -> list[Text]:
        """What to show at this width."""

    def render_line(self, y: int) -> Strip:
        """One line, with a margin of one cell on both sides."""
        width = self.size.width
        lines = self.lines(max(1, width - 2))
        text = Text.assemble(" ", lines[y]) if y < len(lines) else Text()
        strip = Strip(text.render(self.app.console), text.cell_len)
        return strip.crop_extend(0, width, None).apply_style(self.rich_style)


class StatusLine(Line):
    """The status line."""

    def __init__(self, status: Status) -> None:
        super().__init__(id="status")
        self._status = status

    def lines(self, width: int) -> list[Text]:
        """The status at this width."""
        return [self._status.line(width, self.palette)]


class Completions(Line):
    """What could complete the command that is being written; hidden when there is nothing."""

    DEFAULT_CSS = """
    Completions { height: auto; max-height: 8; padding: 0; display: none; }
    """
    _MOST = 7

    def __init__(self) -> None:
        super().__init__(id="completions")
        self._candidates: Sequence[Candidate] = ()

    def offer(self, candidates: Sequence[Candidate]) -> None:
        """Show these."""
        self._candidates = candidates
        self.display = bool(candidates)
        self.styles.height = min(len(candidates), self._MOST)
        self.refresh(layout=True)

    def lines(self, width: int) -> list[Text]:
        """Names, and what they mean."""
        palette = self.palette
        shown = self._candidates[: self._MOST]
        room = max((len(candidate.label) for candidate in shown), default=0) + 2
        lines = []
        for at, candidate in enumerate(shown):
            label = Text(candidate.label.ljust(room), palette.accent)
            more = len(self._candidates) - self._MOST
            rest = f"   … {more} more" if at == self._MOST - 1 and more > 0 else ""
            line = Text.assemble("  ", label, (candidate.summary + rest, palette.muted))
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
        return lines
