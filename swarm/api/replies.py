"""The replies to one wish while they are made: what their runs do, as what a client is told, in order.

    with Replies(…) as replies:
        replies.add(run, transcript)
        async for event in replies: …

Leaving the block, in whatever way, frees the slots at once.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeAlias

import trio

from engine.engine import Engine
from engine.scores import Score
from swarm.api.errors import falsified
from swarm.api.metrics import Metrics
from swarm.api.post import Post
from swarm.api.scheduler import Advanced, Broken, Ended, Grown, Run, RunEvent, Scheduler, TakenBack
from swarm.api.transcript import Chance, Delta, Finish, Transcript


@dataclass(slots=True)
class Usage:
    """Tokens counted so far."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """`done` of `total` tokens of a prompt are read; nothing is told yet."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Told:
    """What choice number `choice` told next."""

    choice: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Anew:
    """What choice number `choice` told so far is void; it is told again from its beginning."""

    choice: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Choice number `choice` is told to its end."""

    choice: int
    finish: Finish


ReplyEvent: TypeAlias = Reading | Told | Anew | Finished


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
    """The choices of one wish, which end with the block."""

    model: str
    engine: Engine
    prompts: Sequence[str]
    scheduler: Scheduler
    metrics: Metrics
    post: Post
    streaming: bool = False
    """Whether what was told cannot be taken back."""
    scored: list[list[Score]] = field(default_factory=list)
    """How probable the tokens of each prompt are, if that is wanted."""
    usage: Usage = field(default_factory=Usage)
    created_s: int = field(default_factory=lambda: int(time.time()))
    _began_s: float = field(default_factory=time.monotonic)
    _choices: list[_Choice] = field(default_factory=list)
    _closed: bool = False
    _open_choices: set[int] = field(default_factory=set)
    _pending: deque[ReplyEvent] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[int, RunEvent]](1 << 24)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all runs; nothing is told any more."""
        self._closed = True
        self._send.close()
        self._receive.close()
        for choice in self._choices:
            self.scheduler.cancel(choice.run)
        self.metrics.done(self.model, self.usage.prompt, self.usage.completion)

    def add(
        self, run: Callable[[Callable[[RunEvent], None]], Run], transcript: Callable[[], Transcript]
    ) -> None:
        """Adds a choice, and queues its run."""
        number = len(self._choices)
        made = run(partial(self.post.put, self._deliver, number))
        self._choices.append(_Choice(made, transcript, transcript()))
        self.scheduler.submit(made)

    def _deliver(self, number: int, event: RunEvent) -> None:
        # The channel holds more events than a context has tokens, so it is never full.
        if not self._closed:
            self._send.send_nowait((number, event))

    def __aiter__(self) -> Self:
        """What the choices tell, as it comes. Not a generator: leaving in the middle leaves nothing to close."""
        self._open_choices = set(range(len(self._choices)))
        return self

    async def __anext__(self) -> ReplyEvent:
        """The next that is told. Raises what broke a run."""
        while not self._pending:
            if not self._open_choices:
                raise StopAsyncIteration
            number, event = await self._receive.receive()
            if number in self._open_choices:
                self._take(number, event)
        return self._pending.popleft()

    def _take(self, number: int, event: RunEvent) -> None:
        """Appends what one event of a run is to the client to what is pending."""
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
                deltas = self._take_back(number, kept, reason)
            case Ended():
                self.usage.cached += event.stats.cached_tokens
                deltas = list(choice.transcript.end(event))
        self._pending.extend(Told(number, delta) for delta in deltas)
        self.usage.completion = sum(one.transcript.tokens for one in self._choices)
        self.usage.reasoning = sum(one.thoughts for one in self._choices)
        if choice.transcript.finish is None:
            return
        self.scheduler.complete(choice.run)
        if isinstance(event, Ended):
            self._open_choices.discard(number)
            self._pending.append(Finished(number, choice.transcript.finish))

    def _take_back(self, number: int, kept: int, reason: str) -> list[Delta]:
        """Forgets all but the first tokens of a choice; what they tell, if it must be told again. ApiError when it
        cannot be."""
        choice = self._choices[number]
        before = choice.again(len(choice.tokens))
        after = choice.again(kept)
        if _sum(before) == _sum(after):
            return []
        if self.streaming:
            raise falsified(reason)
        self._pending.append(Anew(number))
        return after


def _sum(deltas: Sequence[Delta]) -> tuple[str, str, int, list[Chance], list[int]]:
    """All that some deltas tell; calls are only counted, for each has an id of its own."""
    return (
        "".join(delta.text for delta in deltas),
        "".join(delta.thought for delta in deltas),
        sum(delta.call is not None for delta in deltas),
        [chance for delta in deltas for chance in delta.chances],
        [token for delta in deltas for token in delta.tokens],
    )
