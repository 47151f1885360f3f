"""Saved conversations, to reopen one: a list that narrows as one types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from tui.conversation import Shelf
from tui.screens.panel import Panel, paragraph


class ConversationsScreen(Panel[str]):
    """Choose a conversation; the result is its name."""

    TITLE_TEXT = "Conversations"
    KEYS_TEXT = "Enter opens · Esc closes"
    DEFAULT_CSS = """
    ConversationsScreen {
        & Input, & Input:focus { border: none; height: 1; margin: 0 0 1 0; background: $panel; }
        & OptionList { height: auto; max-height: 100%; }
    }
    """
    AUTO_FOCUS: ClassVar[str] = "Input"

    def __init__(self, shelf: Shelf, names: Sequence[str]) -> None:
        super().__init__()
        self._shelf = shelf
        self._names = list(names)

    def body(self) -> ComposeResult:
        """A filter and the list, or why there is none."""
        if not self._names:
            yield paragraph("No conversation was saved yet. Each one is, from its first message on.")
            return
        yield Input(placeholder="type to narrow the list")
        yield OptionList(id="conversations")

    def on_mount(self) -> None:
        """Fill the list."""
        self._fill("")

    def _fill(self, wanted: str) -> None:
        if not self._names:
            return
        options = self.query_one(OptionList)
        options.clear_options()
        shown = [name for name in self._names if wanted.casefold() in name.casefold()]
        options.add_options([Option(Text(name), id=str(self._names.index(name))) for name in shown])
        options.highlighted = 0 if shown else None

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list."""
        self._fill(event.value.strip())

    def on_input_submitted(self) -> None:
        """Open what is highlighted."""
        self.query_one(OptionList).action_select()

    def on_key(self, event: events.Key) -> None:
        """Up and down move in the list while the filter has the keys."""
        if self._names and event.key in ("up", "down"):
            options = self.query_one(OptionList)
            (options.action_cursor_up if event.key == "up" else options.action_cursor_down)()
            event.stop()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(self._names[int(event.option.id or 0)])
