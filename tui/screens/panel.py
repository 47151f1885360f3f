"""A panel over the chat: a title, something to scroll, a line of keys. Escape closes it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from tui.palette import Palette
from tui.theme import palette_of

T = TypeVar("T")


class Panel(ModalScreen[T]):
    """What all panels share."""

    DEFAULT_CSS = """
    Panel {
        align: center middle; background: $background 60%;
        & > #panel {
            width: 100%; max-width: 112; height: auto; max-height: 100%;
            border: round $border; background: $background; padding: 0 1;
            overflow-y: auto;
            border-title-color: $accent; border-subtitle-color: $text-muted;
        }
        &.full > #panel { height: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "Close", show=False)]
    TITLE_TEXT: ClassVar[str] = ""
    KEYS_TEXT: ClassVar[str] = "Esc closes"

    @property
    def palette(self) -> Palette:
        """The palette of the application's theme."""
        return palette_of(self.app.theme)

    def compose(self) -> ComposeResult:
        """The frame; subclasses fill it."""
        with Vertical(id="panel") as panel:
            panel.border_title = self.TITLE_TEXT
            panel.border_subtitle = self.KEYS_TEXT
            yield from self.body()

    @abstractmethod
    def body(self) -> ComposeResult:
        """What is in the frame."""

    def action_close(self) -> None:
        """Back, with nothing chosen."""
        self.dismiss(None)


def lines_of(lines: list[Text]) -> Text:
    """Lines as one text for a Static, which never takes it for markup."""
    return Text("\n").join(lines)


def paragraph(text: str, **kwargs: str) -> Widget:
    """Plain text."""
    return Static(text, markup=False, **kwargs)  # type: ignore[arg-type]
