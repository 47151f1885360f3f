"""A reply's tokens as what a client is told: text, thoughts, tool calls, probabilities, why it ended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.engine import Engine
from engine.generate import StopTexts
from engine.scores import Score
from engine.thinking import Channels, Thinking, thinking
from swarm.api.harmony import Harmony
from swarm.api.scheduler import Ended, Grown
from swarm.api.spelling import spelling, token_name
from swarm.api.toolcalls import Calls, ForcedCall, Piece, ToolCalls
from swarm.api.toolformats import TOKENS, Schemas, ToolCall

LEAST = -9999.0  # of the logarithms that are told: JSON has no infinity
Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Chance:
    """How probable a token was, and others in its place: natural logarithms."""

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What came next. `tokens`: those that read as nothing, as the model has no tokenizer."""

    text: str = ""
    thought: str = ""
    call: ToolCall | None = None
    chances: tuple[Chance, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallRules:
    """How a reply may call tools. `forced`: it is one call and nothing else; else it has one at most unless
    `several`."""

    known: Schemas
    forced: bool = False
    several: bool = True


class Transcript:
    """One choice. `prompt` is given for a chat, whose replies have thoughts and, where there are `rules`, calls."""

    def __init__(
        self,
        engine: Engine,
        stops: Sequence[str],
        *,
        prompt: str | None = None,
        rules: CallRules | None = None,
    ) -> None:
        self._stream = spelling(engine).stream()
        self._readable = engine.has_tokenizer
        self._sorter: Thinking | Harmony | None = None
        self._stops = StopTexts(stops)
        self._calls: Calls | None = None
        self._marks: Mapping[int, str] = {}
        self._several = True
        if prompt is not None:
            self._sorter = thinking(engine.tokenizer, prompt)
        if rules is not None:
            self._several = rules.several
            if rules.forced:
                self._calls = ForcedCall()
            elif isinstance(self._sorter, Channels):
                self._sorter = Harmony(self._sorter)
            else:
                self._calls, self._marks = ToolCalls(rules.known), special_marks(engine)
        self._called = 0
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
        if not self._readable:
            yield self._delta(tokens=(event.token,))
            return
        text = self._marks.get(event.token) or self._stream.push(event.token)
        pieces: Iterable[tuple[Piece, bool]] = [(text, False)]
        if self._sorter is not None:
            pieces = self._sorter.push(event.token, text)
        for piece, aside in pieces:
            yield from self._told(piece, aside)
        waits = isinstance(self._sorter, Harmony) and self._sorter.called
        if self._stops.found is not None or waits or self._has_all_calls:
            yield from self._close("stop")

    def end(self, event: Ended) -> Iterator[Delta]:
        """What was held back."""
        if self.finish is None:
            yield from self._close("stop" if event.reason == "stop" else "length")

    @property
    def _has_all_calls(self) -> bool:
        return bool(self._called) and not self._several

    def _told(self, piece: Piece, aside: bool) -> Iterator[Delta]:
        if isinstance(piece, ToolCall):
            yield from self._piece(piece)
        elif not aside:
            yield from self._shown(self._stops.push(piece))
        elif piece:
            yield self._delta(thought=piece)

    def _shown(self, text: str) -> Iterator[Delta]:
        if self._calls is None:
            if text:
                yield self._delta(text=text)
            return
        for piece in self._calls.push(text):
            yield from self._piece(piece)

    def _piece(self, piece: Piece) -> Iterator[Delta]:
        if self._has_all_calls:
            return
        if isinstance(piece, str):
            yield self._delta(text=piece)
        else:
            self._called += 1
            yield self._delta(call=piece)

    def _close(self, finish: Finish) -> Iterator[Delta]:
        if self._sorter is not None:
            for piece, aside in self._sorter.end():
                yield from self._told(piece, aside)
        yield from self._shown(self._stops.end())
        if self._calls is not None:
            for last in self._calls.end():
                yield from self._piece(last)
        if self._chances:
            yield self._delta()
        self.finish = "tool_calls" if self._called and finish == "stop" else finish

    def _delta(
        self,
        text: str = "",
        thought: str = "",
        call: ToolCall | None = None,
        tokens: tuple[int, ...] = (),
    ) -> Delta:
        chances, self._chances = tuple(self._chances), []
        return Delta(text, thought, call, chances, tokens)


def special_marks(engine: Engine) -> Mapping[int, str]:
    """Marks of tool calls that are special tokens, by id."""
    tokenizer = engine.tokenizer
    return {
        ident: mark
        for mark in TOKENS
        if (ident := tokenizer.id_of(mark)) is not None and tokenizer.is_special(ident)
    }


class Places:
    """At which characters the tokens of a text begin, which is told in pieces and begins at `start`; of a prompt
    control tokens are part where it spells them."""

    def __init__(self, engine: Engine, start: int, prompt: str = "") -> None:
        self._spelling = spelling(engine)
        self._stream = self._spelling.stream()
        self._next = start
        self._prompt = prompt

    def next(self, token: int) -> int:
        """Where one more token begins."""
        place = self._next
        self._next += len(self._stream.push(token))
        if self._spelling.is_special(token):
            mark = self._spelling.text_of(token)
            self._next += len(mark) if self._prompt.startswith(mark, place) else 0
        return place


def chat_chances(engine: Engine, chances: Sequence[Chance]) -> list[dict[str, Any]]:
    """Probabilities in the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        octets = engine.tokenizer.bytes_of(token)
        text = octets.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(octets)}

    return [
        {
            **entry(chance.token, chance.logprob),
            "top_logprobs": [entry(token, logprob) for token, logprob in chance.alternatives],
        }
        for chance in chances
    ]


def text_chances(engine: Engine, chances: Sequence[Chance | Score], places: Places) -> dict[str, Any]:
    """Probabilities in the form of text completions."""
    return {
        "tokens": [token_name(engine, chance.token) for chance in chances],
        "token_logprobs": [
            None if chance.logprob is None else max(chance.logprob, LEAST) for chance in chances
        ],
        "top_logprobs": [
            None if chance.logprob is None else _alternatives(engine, chance) for chance in chances
        ],
        "text_offset": [places.next(chance.token) for chance in chances],
    }


def _alternatives(engine: Engine, chance: Chance | Score) -> dict[str, float]:
    """The tokens in the place of another; of those that read alike the most probable."""
    found: dict[str, float] = {}
    for token, logprob in chance.alternatives:
        found.setdefault(token_name(engine, token), max(logprob, LEAST))
    return found
