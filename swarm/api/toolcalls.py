"""Tool calls parsed back from a reply's text as it comes, whatever pieces it comes in."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from engine.generate import overlap
from swarm.api.toolformats import MARKS, WRAPPERS, Schemas, ToolCall, json_call

Piece: TypeAlias = str | ToolCall


class Calls(Protocol):
    """Passes text on, except tool calls, which come out whole."""

    def push(self, text: str) -> Iterator[Piece]:
        """What more text lets go."""

    def end(self) -> Iterator[Piece]:
        """What was held back."""


class ToolCalls:
    """Calls between the marks that families use. What stands there and cannot be parsed stays text; a call that was
    not closed counts when it can be parsed."""

    def __init__(self, known: Schemas | None = None) -> None:
        self._known = known or {}
        self._held = ""
        self._open: str | None = None
        self._found = 0

    def push(self, text: str) -> Iterator[Piece]:
        self._held += text
        yield from self._release(final=False)

    def end(self) -> Iterator[Piece]:
        yield from self._release(final=True)
        if self._open is not None:
            yield from self._closed(self._open, self._held, "")
        elif self._held:
            yield self._held
        self._open, self._held = None, ""

    def _release(self, *, final: bool) -> Iterator[Piece]:
        """Whatever is certain by now."""
        while True:
            if self._open is None:
                yield from self._up_to_mark()
            if self._open is None:
                yield from self._plain(final=final)
                return
            mark, close = self._open, MARKS[self._open][0]
            if close is None or close not in self._held:
                return
            body, _, self._held = self._held.partition(close)
            self._open = None
            yield from self._closed(mark, body, close)

    def _up_to_mark(self) -> Iterator[str]:
        """The text before the next mark that opens a call, if there is one, which is then open."""
        for wrapper in WRAPPERS:
            self._held = self._held.replace(wrapper, "")
        places = [(place, mark) for mark in MARKS if (place := self._held.find(mark)) >= 0]
        if not places:
            return
        _, self._open = min(places)
        before, _, self._held = self._held.partition(self._open)
        # White space before a call, or after one, belongs to the marks.
        if before.strip():
            yield before.rstrip()

    def _plain(self, *, final: bool) -> Iterator[str]:
        """What is held, but for what may turn out to belong to a mark."""
        keep = 0 if final else max(overlap(self._held, mark) for mark in (*MARKS, *WRAPPERS))
        solid = len(self._held) - keep
        if not final or self._found:
            solid = len(self._held[:solid].rstrip())
        text, self._held = self._held[:solid], self._held[solid:]
        if self._found and final:
            self._held = ""
        if text:
            yield text

    def _closed(self, mark: str, body: str, close: str) -> Iterator[Piece]:
        calls = MARKS[mark][1](body, self._known)
        self._found += len(calls)
        if calls:
            yield from calls
        else:
            yield mark + body + close


class ForcedCall:
    """A reply that was made to be one call, in JSON. What was cut off before it was whole is text."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> Iterator[Piece]:
        self._held += text
        yield from ()

    def end(self) -> Iterator[Piece]:
        calls = json_call(self._held)
        if calls:
            yield from calls
        elif self._held:
            yield self._held
        self._held = ""
