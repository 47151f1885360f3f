"""What the controller asks of a user interface: the application and the line mode each do it in their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tui.backend import Ask, Backend
from tui.report import Table

T = TypeVar("T")


class View(Protocol):
    """What a user interface can do for a command."""

    def say(self, text: str, kind: str = "note") -> None:
        """Tell the user something; kind is note, warning or error."""

    def said(self, text: str) -> None:
        """Show what the user sent."""

    def show(self, table: Table) -> None:
        """Show a table in the flow of the conversation."""

    def background(self, work: Callable[[Backend], T], then: Callable[[T], None]) -> None:
        """Do something that blocks, then go on; errors are said."""

    def reply(self, request: Ask) -> None:
        """Let the model answer; ends in `Controller.take_reply`."""

    def open_model(self, name: str) -> None:
        """Switch to a model."""

    def show_swarm(self) -> None:
        """The network, live where that is possible."""

    def show_models(self) -> None:
        """All models, to choose from where that is possible."""

    def show_conversations(self, names: Sequence[str]) -> None:
        """Saved conversations, to choose from where that is possible."""

    def show_help(self, topic: str) -> None:
        """Commands and keys."""

    def replay(self) -> None:
        """The conversation is another one, or ends earlier: show it anew."""

    def edit(self, text: str) -> None:
        """Put a text where the user writes."""

    def find(self, text: str) -> None:
        """Search what was said."""

    def copy(self, text: str) -> bool:
        """Put a text on the clipboard; False: there is none."""

    def changed(self, setting: str, value: str) -> None:
        """A display setting has another value."""

    def quit(self) -> None:
        """Leave."""
