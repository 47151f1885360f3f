"""From a wish to its replies: the model, the prompts, the runs, and what they tell, in order.

    async with service.chat(wish) as replies:
        async for piece in replies: …

Leaving the block, in whatever way, frees the slots at once.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from engine.engine import Engine
from engine.errors import ContextFull, TemplateError
from engine.sampling import Constraint, preferred
from engine.template import Prompt
from swarm.api.constraint import compile_schema
from swarm.api.errors import bad, busy, falsified
from swarm.api.messages import with_text_arguments
from swarm.api.metrics import Metrics
from swarm.api.post import Post
from swarm.api.scheduler import Advanced, Broken, Ended, Grown, Run, RunEvent, Scheduler, TakenBack
from swarm.api.shelf import Loaded, Shelf
from swarm.api.toolchoice import call_schema
from swarm.api.toolformats import schemas
from swarm.api.transcript import CallRules, Chance, Delta, Finish, Transcript
from swarm.api.wishes import ChatWish, TextWish, Wish

_SEED_SPAN = 1 << 64


@dataclass(slots=True)
class Usage:
    """Tokens counted so far."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What choice number `choice` told next: a delta, or, as its last, how it ended."""

    choice: int
    delta: Delta | None = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`done` of `total` tokens of a prompt are read; nothing is told yet."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Anew:
    """What choice number `choice` told so far is void; it is told again from its beginning."""

    choice: int


@dataclass(slots=True)
class _Choice:
    """A run, and what is told of it. `thoughts`: how many of its tokens were some."""

    run: Run
    begin: Callable[[], Transcript]
    transcript: Transcript
    tokens: list[Grown] = field(default_factory=list)
    thoughts: int = 0

    def grow(self, event: Grown) -> list[Delta]:
        """What one more token tells."""
        deltas = list(self.transcript.push(event))
        self.tokens.append(event)
        self.thoughts += any(delta.thought for delta in deltas)
        return deltas

    def again(self, kept: int) -> list[Delta]:
        """Begins anew with the first tokens; all that they tell."""
        tokens, self.tokens, self.thoughts, self.transcript = self.tokens[:kept], [], 0, self.begin()
        return [delta for event in tokens for delta in self.grow(event)]


@dataclass(eq=False)
class Replies:
    """The replies to one wish, while they are made."""

    model: str
    engine: Engine
    prompts: Sequence[str]
    scheduler: Scheduler
    metrics: Metrics
    post: Post
    streaming: bool = False
    """Whether what was told cannot be taken back."""
    usage: Usage = field(default_factory=Usage)
    created_s: int = field(default_factory=lambda: int(time.time()))
    _began_s: float = field(default_factory=time.monotonic)
    _choices: list[_Choice] = field(default_factory=list)
    _closed: bool = False
    _open_choices: set[int] = field(default_factory=set)
    _pending: deque[Piece | Reading | Anew] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[int, RunEvent]](1 << 24)

    def add(
        self, run: Callable[[Callable[[RunEvent], None]], Run], transcript: Callable[[], Transcript]
    ) -> None:
        """Adds a choice, and queues its run."""
        number = len(self._choices)

        made = run(partial(self.post.put, self._told, number))
        self._choices.append(_Choice(made, transcript, transcript()))
        self.scheduler.submit(made)

    def _told(self, number: int, event: RunEvent) -> None:
        # The channel holds more events than a context has tokens, so it is never full.
        if not self._closed:
            self._send.send_nowait((number, event))

    def __aiter__(self) -> "Replies":
        """What the choices tell, as it comes. Not a generator: leaving in the middle leaves nothing to close."""
        self._open_choices = set(range(len(self._choices)))
        return self

    async def __anext__(self) -> Piece | Reading | Anew:
        """The next that is told. Raises what broke a run."""
        while not self._pending:
            if not self._open_choices:
                raise StopAsyncIteration
            number, event = await self._receive.receive()
            if number in self._open_choices:
                self._take(number, event)
        return self._pending.popleft()

    def _take(self, number: int, event: RunEvent) -> None:
        """What one event of a run is to the client, appended to what is pending."""
        choice = self._choices[number]
        match event:
            case Advanced(done, total):
                self._pending.append(Reading(done, total))
                return
            case Broken(error):
                raise error
            case Grown():
                if not self.usage.completion:
                    self.metrics.first_token(time.monotonic() - self._began_s)
                deltas = choice.grow(event)
            case TakenBack(kept, reason):
                before = choice.again(len(choice.tokens))
                deltas = choice.again(kept)
                if _sum(before) == _sum(deltas):
                    deltas = []
                elif self.streaming:
                    raise falsified(reason)
                else:
                    self._pending.append(Anew(number))
            case Ended():
                self.usage.cached += event.stats.cached_tokens
                deltas = list(choice.transcript.end(event))
        self._pending.extend(Piece(number, delta) for delta in deltas)
        self.usage.completion = sum(one.transcript.tokens for one in self._choices)
        self.usage.reasoning = sum(one.thoughts for one in self._choices)
        if choice.transcript.finish is None:
            return
        self.scheduler.complete(choice.run)
        if isinstance(event, Ended):
            self._open_choices.discard(number)
            self._pending.append(Piece(number, finish=choice.transcript.finish))

    def close(self) -> None:
        """Ends all runs; nothing is told any more."""
        self._closed = True
        self._send.close()
        self._receive.close()
        for choice in self._choices:
            self.scheduler.cancel(choice.run)


def _sum(deltas: Sequence[Delta]) -> tuple[str, str, int, list[Chance]]:
    """All that some deltas tell; calls are only counted, for each has an id of its own."""
    return (
        "".join(delta.text for delta in deltas),
        "".join(delta.thought for delta in deltas),
        sum(delta.call is not None for delta in deltas),
        [chance for delta in deltas for chance in delta.chances],
    )


class Service:
    """Answers wishes, `most_waiting` beyond those that have slots."""

    def __init__(self, shelf: Shelf, scheduler: Scheduler, metrics: Metrics, most_waiting: int) -> None:
        self.shelf = shelf
        self.scheduler = scheduler
        self.metrics = metrics
        self._most_waiting = most_waiting
        self._post = Post()
        self.active = 0
        self._mean_s = 1.0

    @asynccontextmanager
    async def chat(self, wish: ChatWish) -> AsyncIterator[Replies]:
        """The replies to a conversation. ApiError, EngineError, SwarmError, OSError: it cannot be answered."""
        async with self._admitted(wish.common) as model:
            engine = model.engine
            if wish.tools and not engine.template.takes_tools:
                raise bad(f"{model.name} was not made to call tools; leave tools out.", "tools")
            prompt = await trio.to_thread.run_sync(_prompt, engine, wish)
            rules = _rules(wish)

            def transcript() -> Transcript:
                return Transcript(engine, wish.common.stop, prompt=prompt.text, rules=rules)

            grammar = None
            if wish.must_call:
                grammar = compile_schema(call_schema(wish.tools, wish.must_call), "tools")
            elif wish.schema is not None:
                grammar = compile_schema(wish.schema)
            follow = None if grammar is None else partial(model.grammar.follow, grammar, prompt.text)
            with self._replies(model, [prompt.text], wish.common) as replies:
                await self._begin(replies, engine, wish.common, prompt.ids, transcript, follow)
                yield replies

    @asynccontextmanager
    async def text(self, wish: TextWish) -> AsyncIterator[Replies]:
        """The continuations of texts. ApiError, EngineError, SwarmError, OSError: it cannot be answered."""
        async with self._admitted(wish.common) as model:
            engine = model.engine
            found = [_ids(engine, prompt) for prompt in wish.prompts]
            texts = [
                prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt)
                for prompt in wish.prompts
            ]
            with self._replies(model, texts, wish.common) as replies:
                for ids in found:
                    await self._begin(
                        replies, engine, wish.common, ids, lambda: Transcript(engine, wish.common.stop), None
                    )
                yield replies

    @asynccontextmanager
    async def _admitted(self, wish: Wish) -> AsyncIterator[Loaded]:
        """A place in the queue and the model, for the length of a block."""
        listed = await self.shelf.find(wish.model)
        if self.active >= self.scheduler.slots + self._most_waiting:
            raise busy(max(1, min(60, round(self._mean_s * self._most_waiting / self.scheduler.slots))))
        self.active += 1
        began_s = time.monotonic()
        try:
            async with self.shelf.use(listed) as model:
                yield model
        finally:
            self.active -= 1
            self._mean_s += 0.2 * (time.monotonic() - began_s - self._mean_s)

    def _replies(self, model: Loaded, texts: Sequence[str], wish: Wish) -> "_Cancelling":
        return _Cancelling(
            Replies(model.name, model.engine, texts, self.scheduler, self.metrics, self._post, wish.stream)
        )

    async def _begin(
        self,
        replies: Replies,
        engine: Engine,
        wish: Wish,
        ids: Sequence[int],
        transcript: Callable[[], Transcript],
        follow: Callable[[], Constraint] | None,
    ) -> None:
        room = engine.model.context_length
        if len(ids) > room:
            raise ContextFull(
                f"The prompt has {len(ids):,} tokens, the model's context {room:,}; shorten it."
            )
        replies.usage.prompt += len(ids)
        first = preferred(engine.generation, wish.sampling)
        for number in range(wish.choices):
            said = {**wish.sampling, "seed": (first.seed + number) % _SEED_SPAN}
            constraint = None if follow is None else await trio.to_thread.run_sync(follow)
            run = partial(
                Run,
                engine,
                ids,
                wake=self._post.send,
                sampling=preferred(engine.generation, said),
                max_tokens=wish.max_tokens,
                logprobs=wish.logprobs,
                constraint=constraint,
            )
            replies.add(run, transcript)


class _Cancelling:
    """Replies whose runs end with a block."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def __enter__(self) -> Replies:
        return self._replies

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._replies.metrics.done(
            self._replies.model, self._replies.usage.prompt, self._replies.usage.completion
        )


def _prompt(engine: Engine, wish: ChatWish) -> Prompt:
    """The conversation as the model reads it."""

    def render(messages: Sequence[Mapping[str, Any]]) -> Prompt:
        return engine.template.prompt(messages, tools=wish.tools or None, **wish.template)

    try:
        return render(wish.messages)
    except TemplateError:
        if not any("tool_calls" in message for message in wish.messages):
            raise
        # DeepSeek's templates want the arguments of calls as text, most others as objects.
        return render([with_text_arguments(message) for message in wish.messages])


def _rules(wish: ChatWish) -> CallRules | None:
    if not wish.tools:
        return None
    return CallRules(schemas(wish.tools), bool(wish.must_call), wish.parallel_calls)


def _ids(engine: Engine, prompt: str | tuple[int, ...]) -> list[int]:
    if isinstance(prompt, str):
        ids = engine.tokenizer.encode(prompt, add_special=True)
        if not ids:
            raise bad("The prompt is empty; give at least one token.", "prompt")
        return ids
    wrong = next((ident for ident in prompt if ident >= engine.model.vocab_size), None)
    if wrong is not None:
        raise bad(f"{wrong} is no token of this model; it has {engine.model.vocab_size:,}.", "prompt")
    return list(prompt)
