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
        while True:
            if self._open is not None:
                close = MARKS[self._open][0]
                place = -1 if close is None else self._held.find(close)
                if close is None or place < 0:
                    return
                mark, body = self._open, self._held[:place]
                self._held = self._held[place + len(close) :]
                self._open = None
                yield from self._closed(mark, body, close)
                continue
            for wrapper in WRAPPERS:
                self._held = self._held.replace(wrapper, "")
            places = [(place, mark) for mark in MARKS if (place := self._held.find(mark)) >= 0]
            if not places:
                break
            place, self._open = min(places)
            before, self._held = self._held[:place], self._held[place + len(self._open) :]
            if before.strip():
                yield before.rstrip()
        keep = 0 if final else max(overlap(self._held, mark) for mark in (*MARKS, *WRAPPERS))
        # White space before a call, or after one, belongs to the marks.
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
