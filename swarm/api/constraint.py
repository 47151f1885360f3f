"""Replies that follow a JSON schema: which tokens may come next, by llguidance."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from engine.arrays import Array
from engine.engine import Engine
from engine.sampling import Constraint
from engine.thinking import OPEN, Tags, Thinking, thinking
from swarm.api.endless import can_end
from swarm.api.errors import ApiError, bad

LARGEST_SCHEMA_BYTES = 1 << 18
LIMITS = LLParserLimits(
    max_items_in_row=20_000, step_max_items=200_000, step_lexer_fuel=1_000_000, verbose_errors=False
)
"""What one token of a reply may take: a union of 1,000 objects takes 0.2 seconds at its worst token."""
WHITE_SPACE = r"[ \n\t]{0,24}"
"""Between the parts of a reply: room to indent, and an end for a model that would go on for ever."""


def compile_schema(schema: Mapping[str, Any], param: str = "response_format") -> str:
    """The grammar of a JSON schema. ApiError: it is none, or uses what is not supported; `param` is at fault."""
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        raise bad(f"{param} holds a schema that is no JSON.", param) from None
    if len(text) > LARGEST_SCHEMA_BYTES:
        raise bad(f"The JSON schema is larger than {LARGEST_SCHEMA_BYTES} bytes.", param)
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITE_SPACE})
        wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    except ValueError as error:
        raise bad(f"The JSON schema cannot be used: {error}", param) from None
    if wrong:
        raise bad(f"The JSON schema cannot be used: {messages[0]}", param)
    if not can_end(schema):
        raise bad("The JSON schema cannot be used: whatever it asks for never ends.", param)
    return grammar


class Grammar:
    """Makes constraints for one model; its token table is built on first use, in any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._table: LLTokenizer | None = None

    def follow(self, grammar: str, prompt: str, param: str = "response_format") -> "Afterwards":
        """A constraint for one reply to a prompt; thoughts that the prompt asks for come first, and are free.
        ApiError: nothing can follow the grammar; `param` is at fault."""
        engine = self._engine
        with self._lock:
            if self._table is None:
                self._table = _table(engine)
        constraint = JsonConstraint(self._table, grammar, engine.model.vocab_size, engine.stop_ids, param)
        return Afterwards(constraint, partial(thinking, engine.tokenizer, prompt), engine)


class Followed(Constraint, Protocol):
    """A constraint that knows where the reply must end."""

    @property
    def over(self) -> bool:
        """Whether no token may come any more."""

    @property
    def failure(self) -> Exception | None:
        """Why the reply is not what the constraint asks for, although it is over."""


class JsonConstraint:
    """See `Followed`. Once the text is complete, only a token that ends the reply may come; where
    the model has none, anything may."""

    def __init__(
        self, table: LLTokenizer, grammar: str, vocabulary: int, stops: frozenset[int], param: str
    ) -> None:
        self._first = LLMatcher(table, grammar, log_level=0, limits=LIMITS)
        self._mask = allocate_token_bitmask(1, vocabulary)
        self._vocabulary = vocabulary
        self._stops = np.array(sorted(stop for stop in stops if stop < vocabulary), np.intp)
        self._param = param
        self.restart()
        self.allowed()
        if self.failure is not None:
            raise bad(f"The JSON schema cannot be used: {self._problem}.", param)
        self.restart()

    @property
    def over(self) -> bool:
        """Whether no text may come any more."""
        return self._stuck or self._matcher.is_stopped()

    @property
    def failure(self) -> ApiError | None:
        """Why the text that is over is not complete; None when it is."""
        if not self._problem:
            return None
        return bad(
            f"The reply broke off in the middle, as the JSON schema could not be followed: {self._problem}. "
            "Make the schema simpler.",
            self._param,
            "schema_too_complex",
        )

    def allowed(self) -> Array | None:
        """bool [vocabulary]."""
        if self.over:
            return self._only_stops()
        fill_next_token_bitmask(self._matcher, self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8)[0], bitorder="little")
        allowed = bits[: self._vocabulary].astype(bool)
        allowed[self._stops] = self._matcher.is_accepting()
        self._stuck = self._matcher.is_error() or not allowed.any()
        return self._only_stops() if self._stuck else allowed

    def accept(self, token: int) -> None:
        """The token was taken."""
        if token not in self._stops and not self.over:
            self._matcher.consume_token(token)

    def restart(self) -> None:
        """No token was taken."""
        self._matcher = self._first.deep_copy()  # one that met an error stays with it
        self._stuck = False

    @property
    def _problem(self) -> str:
        """What keeps a text that is over from being complete; empty: nothing."""
        if self._matcher.is_error():
            return self._matcher.get_error().partition("\n")[0] or "nothing fits it"
        if self.over and not self._matcher.is_accepting():
            return "no token of this model can come next"
        return ""

    def _only_stops(self) -> Array | None:
        if not len(self._stops):
            return None
        allowed = np.zeros(self._vocabulary, bool)
        allowed[self._stops] = True
        return allowed


class Afterwards:
    """A constraint that begins where the model turns to the user. Thoughts before that are free but for the end of
    the reply: those that the prompt has begun, and those that a model begins with a token of its own."""

    def __init__(self, constraint: JsonConstraint, sorter: Callable[[], Thinking], engine: Engine) -> None:
        vocabulary = engine.model.vocab_size
        self._constraint = constraint
        self._new_sorter = sorter
        self._tokenizer = engine.tokenizer
        self._free = np.ones(vocabulary, bool)
        self._free[[stop for stop in engine.stop_ids if stop < vocabulary]] = False
        opens = engine.tokenizer.id_of(OPEN)
        self._opens = opens if opens is not None and opens < vocabulary else None
        self._fresh = False
        self.restart()

    @property
    def over(self) -> bool:
        """See `JsonConstraint`."""
        return not self._sorter.aside and self._constraint.over

    @property
    def failure(self) -> ApiError | None:
        """See `JsonConstraint`."""
        return self._constraint.failure

    def allowed(self) -> Array | None:
        """bool [vocabulary]."""
        if self._sorter.aside:
            return self._free
        allowed = self._constraint.allowed()
        if self._fresh and self._opens is not None and allowed is not None:
            allowed = allowed.copy()
            allowed[self._opens] = True
        return allowed

    def accept(self, token: int) -> None:
        """The token was taken."""
        if self._sorter.aside or (self._fresh and token == self._opens):
            for _ in self._sorter.push(token, self._stream.push(token)):
                pass
        else:
            self._constraint.accept(token)
        self._fresh = False

    def restart(self) -> None:
        """No token was taken."""
        self._constraint.restart()
        self._sorter: Thinking = self._new_sorter()
        self._stream = self._tokenizer.stream()
        self._fresh = isinstance(self._sorter, Tags) and not self._sorter.aside


def _table(engine: Engine) -> LLTokenizer:
    """The library's view of a tokenizer: ends of text as its end, everything else by its bytes."""
    tokenizer = engine.tokenizer
    stops = sorted(stop for stop in engine.stop_ids if stop < tokenizer.size)
    try:
        return LLTokenizer(tokenizer.definition, tokenizer.size, stops or None)
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise bad(f"This model's tokenizer cannot follow a schema: {error}", "response_format") from None
