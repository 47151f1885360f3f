"""What a model says to itself, told apart from what it says to the user.

Two conventions: thoughts between <think> and </think> (the template may have opened them already), and the
channels of gpt-oss's "harmony" format, where each message of a reply names the channel it is for.
"""

from collections.abc import Iterator
from typing import Protocol

from engine.generate import overlap
from engine.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"


class Thinking(Protocol):
    """Sorts the pieces of a reply: push(token, its text) -> (text, whether it is an aside) …"""

    def push(self, token: int, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that one more token, which completes `text`, lets go."""
        ...

    def end(self) -> Iterator[tuple[str, bool]]:
        """What was held back."""
        ...


def thinking(tokenizer: Tokenizer, prompt: str) -> Thinking:
    """The convention that a tokenizer's control tokens tell of, for a reply after `prompt`."""
    if tokenizer.id_of(CHANNEL) is not None and tokenizer.id_of(MESSAGE) is not None:
        return Channels(tokenizer)
    return Tags(tokenizer, aside=prompt.rstrip().endswith(OPEN))


class Tags:
    """<think> … </think> at the beginning of a reply, as tokens of their own or as ordinary text."""

    def __init__(self, tokenizer: Tokenizer, aside: bool) -> None:
        self._marks = {
            ident: mark
            for mark in (OPEN, CLOSE)
            if (ident := tokenizer.id_of(mark)) is not None and tokenizer.is_special(ident)
        }  # tokens that leave no text by themselves
        self._aside = aside
        self._undecided = not aside  # only white space has come so far
        self._trim = aside  # newlines after a mark belong to the mark
        self._held = ""

    def push(self, token: int, text: str) -> Iterator[tuple[str, bool]]:
        self._held += self._marks.get(token, text)
        yield from self._release(final=False)

    def end(self) -> Iterator[tuple[str, bool]]:
        yield from self._release(final=True)

    def _release(self, *, final: bool) -> Iterator[tuple[str, bool]]:
        if self._undecided:
            start = self._held.lstrip()
            if OPEN.startswith(start) and start != OPEN and not final:
                return
            self._undecided = False
            if start.startswith(OPEN):
                self._aside, self._trim, self._held = True, True, start[len(OPEN) :]
        if self._aside:
            place = self._held.find(CLOSE)
            if place < 0:
                yield from self._give(len(self._held) - (0 if final else overlap(self._held, CLOSE)))
                return
            yield from self._give(place)
            self._held = self._held[len(CLOSE) :]
            self._aside, self._trim = False, True
        yield from self._give(len(self._held))

    def _give(self, count: int) -> Iterator[tuple[str, bool]]:
        text, self._held = self._held[:count], self._held[count:]
        if self._trim:
            text = text.lstrip("\n")
        if text:
            self._trim = False
            yield text, self._aside


class Channels:
    """Harmony: `<|channel|>NAME<|message|>TEXT<|end|>`; the channel "final" is for the user, others are
    asides."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._marks = {tokenizer.id_of(mark): mark for mark in (CHANNEL, MESSAGE, START, END)}
        self._header: str | None = None  # what names the next message; None within a message
        self._aside = False

    def push(self, token: int, text: str) -> Iterator[tuple[str, bool]]:
        match self._marks.get(token):
            case mark if mark in (CHANNEL, START, END):
                self._header = ""
            case mark if mark == MESSAGE:
                self._aside = (self._header or "").split("<", 1)[0].strip() != "final"
                self._header = None
            case _ if self._header is not None:
                self._header += text
            case _:
                if text:
                    yield text, self._aside

    def end(self) -> Iterator[tuple[str, bool]]:
        yield from ()
