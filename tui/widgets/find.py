"""The search bar: looks through the conversation as one types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class FindBar(Horizontal):
    """A field and a count; hidden until it is needed."""

    DEFAULT_CSS = """
    FindBar {
        height: 1; display: none; background: $panel; padding: 0 1;
        & > Static { width: auto; color: $text-muted; }
        & > #find-count { width: 14; text-align: right; }
        & > Input, & > Input:focus {
            width: 1fr; border: none; height: 1; padding: 0 1; background: $panel;
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", show=False),
        Binding("up,shift+enter", "step(-1)", "Before", show=False),
        Binding("down", "step(1)", "Next", show=False),
    ]

    @dataclass
    class Changed(Message):
        """Look for another text."""

        text: str

    @dataclass
    class Stepped(Message):
        """Go to the next place (1) or the one before (-1)."""

        step: int

    class Closed(Message):
        """The search is over."""

    def __init__(self) -> None:
        super().__init__(id="find")

    def compose(self) -> ComposeResult:
        """The field and the count."""
        yield Static("find", markup=False)
        yield Input(id="find-text", select_on_focus=True)
        yield Static("", id="find-count", markup=False)

    def open(self, text: str = "") -> None:
        """Show the bar and take the keys."""
        self.display = True
        field = self.query_one(Input)
        if text:
            field.value = text
        field.focus()

    def count(self, at: int, total: int) -> None:
        """Say where we are."""
        text = f"{at} of {total}" if total else "not found"
        self.query_one("#find-count", Static).update(text if self.query_one(Input).value else "")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look while the user types."""
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes up to the place before, where older text is."""
        event.stop()
        self.post_message(self.Stepped(-1))

    def action_step(self, step: int) -> None:
        """To another place."""
        self.post_message(self.Stepped(step))

    def action_close(self) -> None:
        """Hide the bar."""
        self.display = False
        self.post_message(self.Closed())
