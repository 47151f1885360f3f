"""The parts of the chat screen that need nobody else: scrolling and searching what was said."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from tui.widgets.editor import Editor
from tui.widgets.find import FindBar
from tui.widgets.transcript import Transcript


class Talk(Screen[None]):
    """A scrollback, a search bar and an editor, whoever answers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "Scroll up", priority=True, show=False),
        Binding("pagedown", "scroll(1)", "Scroll down", priority=True, show=False),
        Binding("ctrl+home", "scroll_top", "To the top", priority=True, show=False),
        Binding("ctrl+end", "scroll_bottom", "To the end", priority=True, show=False),
    ]
    transcript: Transcript
    editor: Editor

    def find_parts(self) -> None:
        """Know the widgets, once they are there."""
        self.transcript = self.query_one(Transcript)
        self.editor = self.query_one(Editor)

    def on_find_bar_changed(self, message: FindBar.Changed) -> None:
        """Search as one types."""
        total = self.transcript.find(message.text)
        self.query_one(FindBar).count(total, total)

    def on_find_bar_stepped(self, message: FindBar.Stepped) -> None:
        """To another place."""
        self.query_one(FindBar).count(*self.transcript.find_next(message.step))

    def on_find_bar_closed(self, message: FindBar.Closed) -> None:
        """Back to the editor."""
        self.transcript.end_find()
        self.editor.focus()

    def action_scroll(self, pages: int) -> None:
        """Scroll the conversation by pages."""
        self.transcript.scroll_relative(y=pages * max(1, self.transcript.size.height - 2), animate=False)

    def action_scroll_top(self) -> None:
        """To the first message."""
        self.transcript.scroll_home(animate=False)

    def action_scroll_bottom(self) -> None:
        """To the last."""
        self.transcript.scroll_end(animate=False)
