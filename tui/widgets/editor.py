"""Where the user writes: many lines, history, completion, and pastes that never send themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from tui.cleaner import clean
from tui.commands import Candidate, complete
from tui.preferences import History

_MOST_LINES = 8


class Editor(TextArea):
    """A text area that sends with Enter."""

    DEFAULT_CSS = """
    Editor {
        height: auto; max-height: 10; min-height: 3; padding: 0 1; margin: 0;
        border: round $border-blurred; background: $background;
        scrollbar-size-vertical: 1;
        &:focus { border: round $border; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", show=False),
        Binding("ctrl+underscore,ctrl+shift+z", "undo", "Undo", show=False),
        Binding("ctrl+d", "end_or_delete", "Leave", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """The user pressed Enter."""

        text: str

    @dataclass
    class Forgotten(Message):
        """What was sent could not be added to the history."""

        reason: OSError

    @dataclass
    class Completing(Message):
        """Other completions are possible now."""

        candidates: Sequence[Candidate]

    def __init__(self, history: History) -> None:
        super().__init__(
            id="editor",
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
            compact=False,
            placeholder="Ask anything, or / for commands",
        )
        self._history = history
        self._known: Mapping[str, Sequence[str]] = {}
        self._candidates: Sequence[Candidate] = ()
        self._recalling = False

    def know(self, known: Mapping[str, Sequence[str]]) -> None:
        """The lists that commands are completed from."""
        self._known = known

    def put(self, text: str) -> None:
        """Replace what is written; the cursor goes to the end."""
        self.text = text
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            self._take(event)
            self._submit()
        elif event.key == "tab":
            self._take(event)
            self._complete()
        elif event.key == "up" and self.cursor_at_first_line and self._at_top():
            if self._recall(self._history.back(self.text)):
                self._take(event)
        elif event.key == "down" and self.cursor_at_last_line and self._at_bottom():
            if self._recall(self._history.forward()):
                self._take(event)
        else:
            await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """Insert what was pasted, without what could command a terminal; it is never sent by itself."""
        if not self.read_only:
            event.prevent_default()
            event.stop()
            result = self._replace_via_keyboard(clean(event.text), *self.selection)
            if result:
                self.move_cursor(result.end_location)

    def action_newline(self) -> None:
        """Begin another line."""
        self.insert("\n")

    async def action_end_or_delete(self) -> None:
        """Ctrl-D, as in a shell: leave with nothing written, else delete to the right."""
        if self.text:
            self.action_delete_right()
        else:
            await self.app.action_quit()

    def on_text_area_changed(self) -> None:
        """Say what could complete the line."""
        candidates = [] if self._recalling else complete(self.text, self._known)
        self._recalling = False
        if candidates or self._candidates:
            self._candidates = candidates
            self.post_message(self.Completing(candidates))

    def _submit(self) -> None:
        text = self.text
        if text.strip():
            try:
                self._history.add(text)
            except OSError as error:
                self.post_message(self.Forgotten(error))
            self.put("")
            self.post_message(self.Submitted(text))

    def _complete(self) -> None:
        if not self._candidates:
            return
        lines = [candidate.line for candidate in self._candidates]
        common = _common(lines)
        self.put(common if len(common) > len(self.text) else lines[0])

    def _recall(self, text: str | None) -> bool:
        if text is None:
            return False
        self._recalling = True
        self.put(text)
        return True

    def _at_top(self) -> bool:
        row, column = self.cursor_location
        return row == 0 and self.wrapped_document.location_to_offset((row, column)).y == 0

    def _at_bottom(self) -> bool:
        last = self.wrapped_document.location_to_offset(self.document.end).y
        return self.wrapped_document.location_to_offset(self.cursor_location).y == last

    @staticmethod
    def _take(event: events.Key) -> None:
        event.stop()
        event.prevent_default()


def _common(lines: Sequence[str]) -> str:
    """The longest beginning that all lines share."""
    first, last = min(lines), max(lines)
    for at, letter in enumerate(first):
        if at >= len(last) or last[at] != letter:
            return first[:at]
    return first
