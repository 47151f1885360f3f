"""A conversation with a model: messages in, a stream of events out, nothing computed twice.

The tokens of the conversation and the state that belongs to them are kept. For each reply the whole
conversation is rendered anew by the model's template; as far as its tokens are those already in the state,
they are not read again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.batch import Done, Prefilled, Reason, Reply, Stats, Token
from engine.engine import Engine
from engine.errors import ContextFull
from engine.generate import StopTexts, generate, never
from engine.sampling import Sampling
from engine.template import Message
from engine.thinking import thinking


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How replies are made. `template`: further variables for the model's template (`enable_thinking` …)."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` tokens of the prompt are read."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Text:
    """More of the reply: whole characters only. `thinking`: what the model says to itself before it
    answers."""

    text: str
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete; `text` and `thinking` are all of it."""

    reason: Reason
    stats: Stats
    text: str
    thinking: str


ChatEvent: TypeAlias = Progress | Text | Finished


class Conversation:
    """The messages so far, and the model's memory of them. One thread at a time."""

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self.engine = engine
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._state = engine.model.new_state()
        self._ids: list[int] = []  # the tokens in the state, and perhaps one more

    @property
    def tokens(self) -> int:
        """Tokens in the state."""
        return self._state.length

    @property
    def state_bytes(self) -> int:
        """Memory of the state."""
        return self._state.nbytes

    def say(
        self,
        text: str,
        settings: ChatSettings | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> Iterator[ChatEvent]:
        """Adds what the user says and streams the reply, which is then part of the conversation.

        A cancelled reply is kept as far as it was shown. If anything raises, the user's message is taken
        back.
        """
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            yield from self.reply(settings, cancelled)
        except BaseException:
            self.messages = before
            raise

    def reply(
        self, settings: ChatSettings | None = None, cancelled: Callable[[], bool] = never
    ) -> Iterator[ChatEvent]:
        """Streams a reply to the messages as they stand, and adds it to them."""
        settings = settings or ChatSettings()
        prompt = self.engine.template.prompt(self.messages, tools=settings.tools, **settings.template)
        reply = self._prepared(prompt.ids, settings)
        sorter = thinking(self.engine.tokenizer, prompt.text)
        stream = self.engine.tokenizer.stream()
        stops = StopTexts(settings.stop)
        shown = {False: "", True: ""}
        reason: Reason = "cancelled"

        def show(text: str, aside: bool) -> Iterator[Text]:
            if text:
                shown[aside] += text
                yield Text(text, aside)

        self._ids = reply.ids
        for event in generate(
            self.engine.model, self.engine.experts, reply, lambda: cancelled() or stops.found is not None
        ):
            match event:
                case Prefilled(_, done, total):
                    yield Progress(done, total)
                    if done == total:
                        self._state.mark()
                case Token(_, token):
                    for text, aside in sorter.push(token, stream.push(token)):
                        yield from show(text if aside else stops.push(text), aside)
                case Done(_, why):
                    reason = why
        for text, aside in sorter.end():
            yield from show(text if aside else stops.push(text), aside)
        yield from show(stops.end(), False)
        if stops.found is not None:
            reason = "stop"
        message = {"role": "assistant", "content": shown[False]}
        if shown[True]:
            message["reasoning_content"] = shown[True]
        self.messages.append(message)
        yield Finished(reason, reply.stats, shown[False], shown[True])

    def clear(self) -> None:
        """Forgets everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]

    def _prepared(self, ids: list[int], settings: ChatSettings) -> Reply:
        """The reply to make, its state cut back to what `ids` and the tokens in the state have in common."""
        room = self.engine.model.context_length
        if len(ids) > room:
            raise ContextFull(
                f"the conversation has {len(ids):,} tokens, the model's context {room:,}; "
                "start a new conversation"
            )
        common = 0
        for ours, theirs in zip(self._ids[: self._state.length], ids[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        self._state.truncate(self._state.floor(common))
        return Reply(
            list(ids), self._state, settings.sampling, self.engine.stop_ids, max_tokens=settings.max_tokens
        )
