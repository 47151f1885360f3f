"""What a model says to itself, told apart from what it says to the user.

Two conventions: thoughts between <think> and </think> (the template may have opened them already), and the
channels of gpt-oss's "harmony" format, where each message of a reply names the channel it is for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from engine.generate import overlap
from engine.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_NAMED = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_ADDRESSED = re.compile(r"\bto=([^\s<]+)")


class Thinking(Protocol):
    """Sorts the pieces of a reply: push(token, its text) -> (text, whether it is an aside) …"""

    def push(self, token: int, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that one more token, which completes `text`, lets go."""
        ...

    def end(self) -> Iterator[tuple[str, bool]]:
        """What was held back."""
        ...

    @property
    def aside(self) -> bool:
        """Whether what comes next is not for the user."""
        ...


def thinking(tokenizer: Tokenizer, prompt: str) -> Thinking:
    """The convention that a tokenizer's control tokens tell of, for a reply after `prompt`."""
    if tokenizer.id_of(CHANNEL) is not None and tokenizer.id_of(MESSAGE) is not None:
        return Channels(tokenizer, opened=prompt.endswith(f"{START}assistant"))
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

    @property
    def aside(self) -> bool:
        return self._aside

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


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a message, empty where the message begins. `recipient`: the tool that it is for, if any."""

    text: str
    message: int
    channel: str
    recipient: str | None


class Channels:
    """Harmony: `<|channel|>NAME to=TOOL<|message|>TEXT<|end|>`; the channel "final" is for the user, others are
    asides. `opened`: the prompt has begun the header of the first message, which may name a tool, too."""

    def __init__(self, tokenizer: Tokenizer, *, opened: bool = False) -> None:
        marks = (CHANNEL, MESSAGE, START, END, CALL, RETURN)
        self._marks = {ident: mark for mark in marks if (ident := tokenizer.id_of(mark)) is not None}
        self._header: str | None = (
            "" if opened else None
        )  # what names the next message; None within a message
        self._said = Said("", 0, "final", None)
        self.called = False
        """Whether the mark came that ends a reply which calls a tool."""

    def read(self, token: int, text: str) -> Iterator[Said]:
        """Like `push`, with what a message's header says."""
        match self._marks.get(token):
            case mark if mark == MESSAGE:
                header = self._header or ""
                channel, recipient = _NAMED.search(header), _ADDRESSED.search(header)
                self._said = Said(
                    "",
                    self._said.message + 1,
                    channel[1] if channel else "",
                    recipient[1] if recipient else None,
                )
                self._header = None
                yield self._said
            case mark if mark == CHANNEL:
                self._header = (self._header or "") + CHANNEL
            case mark if mark is not None:
                self._header = ""
                self.called = mark == CALL
            case _ if self._header is not None:
                self._header += text
            case _:
                if text:
                    yield Said(text, self._said.message, self._said.channel, self._said.recipient)

    @property
    def aside(self) -> bool:
        return self._header is not None or self._said.channel != "final"

    def rest(self) -> str:
        """What would have named a message if one had come; where none ever came, it is the reply."""
        header = self._header or ""
        return "" if self._said.message or CHANNEL in header else header

    def push(self, token: int, text: str) -> Iterator[tuple[str, bool]]:
        for said in self.read(token, text):
            if said.text:
                yield said.text, said.channel != "final"

    def end(self) -> Iterator[tuple[str, bool]]:
        if rest := self.rest():
            yield rest, False
