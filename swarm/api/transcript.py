"""A reply's tokens as what a client is told: text, thoughts, tool calls, probabilities, why it ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.engine import Engine
from engine.generate import StopTexts
from engine.thinking import Thinking, thinking
from swarm.api.scheduler import Ended, Grown
from swarm.api.toolcalls import TOKENS, ToolCall, ToolCalls

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Chance:
    """How probable a token was, and others in its place: natural logarithms."""

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What came next."""

    text: str = ""
    thought: str = ""
    call: ToolCall | None = None
    chances: tuple[Chance, ...] = ()


class Transcript:
    """One choice. `prompt` is given for a chat, whose replies have thoughts and, with tools, calls."""

    def __init__(
        self, engine: Engine, stops: Sequence[str], *, prompt: str | None = None, with_tools: bool = False
    ) -> None:
        self._stream = engine.tokenizer.stream()
        self._sorter: Thinking | None = None if prompt is None else thinking(engine.tokenizer, prompt)
        self._stops = StopTexts(stops)
        self._calls = ToolCalls() if with_tools else None
        self._marks = special_marks(engine) if with_tools else {}
        self._chances: list[Chance] = []
        self.tokens = 0
        self.finish: Finish | None = None

    def push(self, event: Grown) -> Iterator[Delta]:
        """What one more token tells; nothing after the end."""
        if self.finish is not None:
            return
        self.tokens += 1
        if event.logprob is not None:
            self._chances.append(Chance(event.token, event.logprob, event.alternatives))
        text = self._marks.get(event.token) or self._stream.push(event.token)
        pieces = [(text, False)] if self._sorter is None else self._sorter.push(event.token, text)
        for piece, aside in pieces:
            yield from self._told(piece, aside)
        if self._stops.found is not None:
            yield from self._close("stop")

    def end(self, event: Ended) -> Iterator[Delta]:
        """What was held back."""
        if self.finish is None:
            yield from self._close("stop" if event.reason == "stop" else "length")

    def _told(self, text: str, aside: bool) -> Iterator[Delta]:
        if aside:
            if text:
                yield self._delta(thought=text)
            return
        yield from self._shown(self._stops.push(text))

    def _shown(self, text: str) -> Iterator[Delta]:
        if self._calls is None:
            if text:
                yield self._delta(text=text)
            return
        for piece in self._calls.push(text):
            yield self._piece(piece)

    def _piece(self, piece: str | ToolCall) -> Delta:
        return self._delta(text=piece) if isinstance(piece, str) else self._delta(call=piece)

    def _close(self, finish: Finish) -> Iterator[Delta]:
        if self._sorter is not None:
            for piece, aside in self._sorter.end():
                yield from self._told(piece, aside)
        yield from self._shown(self._stops.end())
        if self._calls is not None:
            for last in self._calls.end():
                yield self._piece(last)
        if self._chances:
            yield self._delta()
        called = self._calls is not None and self._calls.found
        self.finish = "tool_calls" if called and finish == "stop" else finish

    def _delta(self, text: str = "", thought: str = "", call: ToolCall | None = None) -> Delta:
        chances, self._chances = tuple(self._chances), []
        return Delta(text, thought, call, chances)


def special_marks(engine: Engine) -> Mapping[int, str]:
    """Marks of tool calls that are special tokens, by id."""
    tokenizer = engine.tokenizer
    return {
        ident: mark
        for mark in TOKENS
        if (ident := tokenizer.id_of(mark)) is not None and tokenizer.is_special(ident)
    }


def token_text(engine: Engine, token: int) -> tuple[str, list[int]]:
    """A token as text and as UTF-8 bytes."""
    text = engine.tokenizer.text_of(token)
    return text, list(text.encode())


def chat_chances(engine: Engine, chances: Sequence[Chance]) -> list[dict[str, Any]]:
    """Probabilities in the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, octets = token_text(engine, token)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": octets}

    return [
        {
            **entry(chance.token, chance.logprob),
            "top_logprobs": [entry(token, logprob) for token, logprob in chance.alternatives],
        }
        for chance in chances
    ]


def text_chances(engine: Engine, chances: Sequence[Chance], offset: int) -> dict[str, Any]:
    """Probabilities in the form of text completions; the first token begins at character `offset`."""
    tokens = [token_text(engine, chance.token)[0] for chance in chances]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [max(chance.logprob, -9999.0) for chance in chances],
        "top_logprobs": [
            {token_text(engine, token)[0]: max(logprob, -9999.0) for token, logprob in chance.alternatives}
            for chance in chances
        ],
        "text_offset": offsets,
    }
