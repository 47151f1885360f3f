"""From a wish to its replies: a place, the model, the prompts and the runs, put together in order.

async with service.chat(wish) as replies:
    async for event in replies: …
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from engine.engine import Engine
from engine.sampling import MASK64, preferred
from engine.scores import Score, Scores
from swarm.api.admission import Admission
from swarm.api.constraint import Followed, compile_schema
from swarm.api.errors import bad
from swarm.api.metrics import Metrics
from swarm.api.post import Post
from swarm.api.prompts import chat_prompt, text_prompts
from swarm.api.readings import Reading
from swarm.api.replies import Replies
from swarm.api.scheduler import Run, Scheduler
from swarm.api.shelf import Loaded, Shelf
from swarm.api.toolchoice import call_schema
from swarm.api.toolformats import schemas
from swarm.api.transcript import CallRules, Transcript
from swarm.api.wishes import ChatWish, TextWish, Wish


class Service:
    """Answers wishes, with `most_waiting` replies beyond those that have slots."""

    def __init__(self, shelf: Shelf, scheduler: Scheduler, metrics: Metrics, most_waiting: int) -> None:
        self.shelf = shelf
        self.scheduler = scheduler
        self.metrics = metrics
        self._admission = Admission(scheduler.slots, most_waiting)
        self._post = Post()

    @asynccontextmanager
    async def chat(self, wish: ChatWish) -> AsyncIterator[Replies]:
        """The replies to a conversation. ApiError, EngineError, SwarmError, OSError: it cannot be answered."""
        async with self._admitted(wish.common, wish.common.choices) as model:
            engine = model.engine
            if wish.tools and not engine.template.takes_tools:
                raise bad(f"{model.name} was not made to call tools; leave tools out.", "tools")
            prompt = await trio.to_thread.run_sync(chat_prompt, engine, wish)
            rules = _call_rules(wish)

            def transcript() -> Transcript:
                return Transcript(engine, wish.common.stop, prompt=prompt.text, rules=rules)

            grammar = await trio.to_thread.run_sync(_grammar, wish)
            follow = (
                None if grammar is None else partial(model.grammar.follow, grammar, prompt.text, _asker(wish))
            )
            with self._replies(model, [prompt.text], wish.common) as replies:
                await self._begin(replies, wish.common, prompt.ids, "messages", transcript, follow)
                yield replies

    @asynccontextmanager
    async def text(self, wish: TextWish) -> AsyncIterator[Replies]:
        """The continuations of texts. ApiError, EngineError, SwarmError, OSError: it cannot be answered."""
        async with self._admitted(wish.common, len(wish.prompts) * wish.common.choices) as model:
            prompts = await trio.to_thread.run_sync(text_prompts, model.engine, wish)

            def transcript() -> Transcript:
                return Transcript(model.engine, wish.common.stop)

            with self._replies(model, [prompt.text for prompt in prompts], wish.common) as replies:
                for prompt in prompts:
                    if wish.echo and wish.common.logprobs is not None:
                        replies.scored.append(
                            await self._scored(model.engine, prompt.ids, wish.common.logprobs)
                        )
                    await self._begin(replies, wish.common, prompt.ids, "prompt", transcript)
                yield replies

    @asynccontextmanager
    async def _admitted(self, wish: Wish, replies: int) -> AsyncIterator[Loaded]:
        """Places for so many replies and the model, for the length of a block."""
        listed = await self.shelf.find(wish.model)
        with self._admission.places(replies):
            async with self.shelf.use(listed) as model:
                yield model

    async def _scored(self, engine: Engine, ids: Sequence[int], top: int) -> list[Score]:
        """How probable the tokens of a prompt are."""
        _refuse_long(engine, ids, "prompt")
        found: list[list[Score] | Exception] = []
        read = trio.Event()

        def told(result: list[Score] | Exception) -> None:
            found.append(result)
            read.set()

        def tell(result: list[Score] | Exception) -> None:
            self._post.put(told, result)
            self._post.send()

        reading = Reading(engine, Scores(engine.model, engine.experts, ids, top), tell)
        self.scheduler.read(reading)
        try:
            await read.wait()
        finally:
            self.scheduler.cancel(reading)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _replies(self, model: Loaded, texts: Sequence[str], wish: Wish) -> Replies:
        return Replies(model.name, model.engine, texts, self.scheduler, self.metrics, self._post, wish.stream)

    async def _begin(
        self,
        replies: Replies,
        wish: Wish,
        ids: Sequence[int],
        param: str,
        transcript: Callable[[], Transcript],
        follow: Callable[[], Followed] | None = None,
    ) -> None:
        """Queues the choices of one prompt, which stands in the field `param`. `follow` makes what each must follow."""
        engine = replies.engine
        _refuse_long(engine, ids, param)
        replies.usage.prompt += len(ids)
        first = preferred(engine.generation, wish.sampling)
        for number in range(wish.choices if wish.max_tokens != 0 else 0):
            said = {**wish.sampling, "seed": (first.seed + number) & MASK64}
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


def _refuse_long(engine: Engine, ids: Sequence[int], param: str) -> None:
    """ApiError when a prompt, which stands in the field `param`, is longer than the context."""
    room = engine.model.context_length
    if len(ids) > room:
        raise bad(
            f"The prompt has {len(ids):,} tokens, the model's context {room:,}; shorten it.",
            param,
            "context_length_exceeded",
        )


def _grammar(wish: ChatWish) -> str | None:
    """The grammar that replies must follow, if any."""
    if wish.must_call:
        return compile_schema(call_schema(wish.tools, wish.must_call), _asker(wish))
    return None if wish.schema is None else compile_schema(wish.schema, _asker(wish))


def _asker(wish: ChatWish) -> str:
    """The field that says what replies must follow."""
    return "tools" if wish.must_call else "response_format"


def _call_rules(wish: ChatWish) -> CallRules | None:
    if not wish.tools:
        return None
    return CallRules(schemas(wish.tools), bool(wish.must_call), wish.parallel_calls)
