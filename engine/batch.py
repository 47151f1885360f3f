"""Several replies made together: sequences join and leave between any two steps, each as if it were alone.

A step is one forward pass. Every reply under way gives its newest token; replies whose prompt is not read
yet share a bounded number of further rows, so that a long prompt does not stop the others. As a row of the
model does not depend on the batch it is in, and luck depends only on a sequence's own seed and count, no
token depends on the company.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.arrays import F32
from engine.cache import State
from engine.errors import ContextFull, EngineError, SettingsError
from engine.experts import Experts
from engine.models import Model, Segment
from engine.sampling import Constraint, Sampler, Sampling, log_probabilities, top_tokens

PREFILL_ROWS = 512  # rows of prompts a step when nobody waits for a token
PREFILL_ROWS_SHARED = 64  # … and when somebody does

Reason: TypeAlias = Literal["stop", "length", "context", "cancelled"]


@dataclass(slots=True)
class Stats:
    """What a reply took. Seconds are wall time of the steps the sequence took part in."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, already in the state
    reply_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return max(self.reply_tokens - 1, 0) / self.decode_s if self.decode_s else 0.0


@dataclass(slots=True, eq=False)
class Reply:
    """A sequence in the making: `ids` is the prompt and then what was generated.

    `state` may already hold a beginning of `ids`, at most all but the last. `stop_ids` end the reply and
    are not part of it. `max_tokens` None: as many as the context allows. `logprobs`: how many alternatives
    to report, None for no probabilities.
    """

    ids: list[int]
    state: State
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    logprobs: int | None = None
    constraint: Constraint | None = None
    prompt_length: int = field(init=False)
    finished: Reason | None = field(init=False, default=None)
    stats: Stats = field(init=False)
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        if not self.ids:
            raise SettingsError("the prompt is empty; give at least one token")
        if self.state.length >= len(self.ids):
            raise SettingsError("the state already holds the whole prompt; cut it back by one token")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise SettingsError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        self.prompt_length = len(self.ids)
        self.stats = Stats(prompt_tokens=len(self.ids), cached_tokens=self.state.length)
        self.sampler = Sampler(self.sampling, self.ids, self.constraint)

    @property
    def generated(self) -> list[int]:
        """The tokens of the reply so far."""
        return self.ids[self.prompt_length :]

    @property
    def waits_for_prompt(self) -> bool:
        """Whether rows of the prompt have still to be read before the first token."""
        return self.state.length < self.prompt_length


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` prompt tokens are read."""

    reply: Reply
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply, with natural log probabilities if they were asked for."""

    reply: Reply
    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A reply came to its end and left the batch."""

    reply: Reply
    reason: Reason


BatchEvent: TypeAlias = Prefilled | Token | Done


class ReplyBatch:
    """The replies that one model makes together. One thread at a time."""

    def __init__(
        self, model: Model, experts: Experts, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model = model
        self.experts = experts
        self._clock = clock
        self._replies: list[Reply] = []

    def __len__(self) -> int:
        return len(self._replies)

    def add(self, reply: Reply) -> None:
        """Lets a reply take part from the next step on. ContextFull when its prompt leaves no room for a
        token."""
        if len(reply.ids) > self.model.context_length:
            raise ContextFull(
                f"the prompt has {len(reply.ids):,} tokens, the model's context "
                f"{self.model.context_length:,}; shorten the conversation or start a new one"
            )
        self._replies.append(reply)

    def remove(self, reply: Reply) -> None:
        """Takes a reply out at once; its state stays valid up to `state.length`."""
        if reply in self._replies:
            self._replies.remove(reply)
            reply.finished = "cancelled"

    def step(self) -> list[BatchEvent]:
        """One forward pass. On an error all replies and states are as before it, and it can be tried
        again."""
        segments, taking = self._segments()
        if not segments:
            return []
        started = self._clock()
        logits = self.model.forward(segments, self.experts)
        elapsed = self._clock() - started
        events: list[BatchEvent] = []
        row = 0
        for segment, reply in zip(segments, taking, strict=True):
            reading = reply.state.length <= reply.prompt_length
            if reading:
                reply.stats.prefill_s += elapsed
                events.append(Prefilled(reply, reply.state.length, reply.prompt_length))
            else:
                reply.stats.decode_s += elapsed
            if segment.logits == "last":
                events.extend(self._advance(reply, logits[row]))
                row += 1
        return events

    def _segments(self) -> tuple[list[Segment], list[Reply]]:
        waiting = any(not reply.waits_for_prompt for reply in self._replies)
        rows = PREFILL_ROWS_SHARED if waiting else PREFILL_ROWS
        segments: list[Segment] = []
        taking: list[Reply] = []
        for reply in self._replies:
            missing = len(reply.ids) - reply.state.length
            count = min(missing, rows) if reply.waits_for_prompt else missing
            if count == 0:
                continue
            if reply.waits_for_prompt:
                rows -= count
            start = reply.state.length
            segments.append(
                Segment(reply.state, reply.ids[start : start + count], "last" if count == missing else "none")
            )
            taking.append(reply)
        return segments, taking

    def _advance(self, reply: Reply, logits: F32) -> list[BatchEvent]:
        token = reply.sampler.choose(logits)
        if logits[token] != logits[token]:
            self._replies.remove(reply)
            raise EngineError("the model computed no number for the next token; its weights are damaged")
        if token in reply.stop_ids:
            return [self._finish(reply, "stop")]
        reply.ids.append(token)
        reply.stats.reply_tokens += 1
        events: list[BatchEvent] = [_token_event(reply, token, logits)]
        if reply.max_tokens is not None and reply.stats.reply_tokens >= reply.max_tokens:
            events.append(self._finish(reply, "length"))
        elif len(reply.ids) > self.model.context_length:
            events.append(self._finish(reply, "context"))
        return events

    def _finish(self, reply: Reply, reason: Reason) -> Done:
        self._replies.remove(reply)
        reply.finished = reason
        return Done(reply, reason)


def _token_event(reply: Reply, token: int, logits: F32) -> Token:
    if reply.logprobs is None:
        return Token(reply, token)
    values = log_probabilities(logits)
    return Token(reply, token, float(values[token]), tuple(top_tokens(values, reply.logprobs)))
