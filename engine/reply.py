"""A reply in the making, and what is told of it."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.arrays import F32
from engine.cache import State
from engine.doubts import Flaw
from engine.drafts import Drafter
from engine.errors import SettingsError
from engine.sampling import Constraint, Sampler, Sampling, log_probabilities, top_tokens

Reason: TypeAlias = Literal["stop", "length", "context", "cancelled"]


@dataclass(slots=True)
class Stats:
    """What a reply took. Seconds are wall time of the steps the sequence took part in."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, already in the state
    reply_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    guessed_tokens: int = 0  # read before they were drawn, …
    guessed_right: int = 0  # … and then drawn


@dataclass(slots=True, eq=False)
class Reply:
    """A sequence in the making: `ids` is the prompt and then what was generated.

    `state` may already hold a beginning of `ids`, at most all but the last. `stop_ids` end the reply and
    are not part of it. `max_tokens` None: as many as the context allows. `logprobs`: how many alternatives
    to report, None for no probabilities. `drafter`: who guesses tokens, where that pays (None: nobody).
    """

    ids: list[int]
    state: State
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    logprobs: int | None = None
    constraint: Constraint | None = None
    drafter: Drafter | None = None
    prompt_length: int = field(init=False)
    finished: Reason | None = field(init=False, default=None)
    stats: Stats = field(init=False)
    sampler: Sampler = field(init=False)
    ending: Reason | None = field(init=False, default=None)
    """Why it will be finished once its passes are checked."""
    said: list["Token"] = field(init=False, default_factory=list)
    """The tokens as they were told, if with probabilities."""
    flaw: Flaw | None = field(init=False, default=None)
    """The last that was found."""
    redos: int = field(init=False, default=0)
    """How often it was cut back for flaws."""
    last_pass: int = field(init=False, default=0)
    ended_s: float = field(init=False, default=0.0)

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

    @property
    def settled(self) -> int:
        """How many of `ids` are given or drawn from rows that were not withdrawn."""
        return min(self.prompt_length + self.sampler.drawn, len(self.ids))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done but to wait for checks."""
        return self.ending is not None and self.settled == len(self.ids)

    def take_back(self, index: int) -> "Retracted":
        """Takes `ids[index]` back, and what came after it; the token before it is the last to stand."""
        assert self.flaw is not None
        kept = index - self.prompt_length
        del self.ids[index:], self.said[kept:]
        if self.drafter is not None:
            self.drafter.forget(index)
        if self.state.length > index:
            self.state.truncate(self.state.floor(index))
        self.ending, self.stats.reply_tokens = None, kept
        return Retracted(self, kept, self.flaw.reason)

    def leave_out(self, count: int) -> None:
        """Takes the last `count` tokens back, which nobody wants."""
        self.stats.reply_tokens -= count
        del self.ids[len(self.ids) - count :], self.said[self.stats.reply_tokens :]
        self.sampler.rewind(self.stats.reply_tokens)
        if self.state.length > len(self.ids):
            self.state.read_again(len(self.ids))

    def as_told(self, token: int, logits: F32) -> "Token":
        """The event for a token that was drawn from logits [V]."""
        if self.logprobs is None:
            return Token(self, token)
        values = log_probabilities(logits)
        return Token(self, token, float(values[token]), tuple(top_tokens(values, self.logprobs)))


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
class Retracted:
    """All but the first `kept` tokens of a reply were due to answers found wrong since; others follow."""

    reply: Reply
    kept: int
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """A reply came to its end and left the batch."""

    reply: Reply
    reason: Reason


BatchEvent: TypeAlias = Prefilled | Token | Retracted | Done
