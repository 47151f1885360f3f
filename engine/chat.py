"""A conversation with a model: messages in, a stream of events out, nothing computed twice.

The tokens of the conversation and the state that belongs to them are kept. For each reply the whole
conversation is rendered anew by the model's template; as far as its tokens are those already in the state,
they are not read again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.drafts import Drafter, Pace
from engine.engine import Engine
from engine.errors import ContextFull
from engine.generate import StopTexts, generate, never
from engine.reply import Done, Prefilled, Reason, Reply, Retracted, Stats, Token
from engine.sampling import Sampling
from engine.template import Message
from engine.thinking import thinking
from engine.tokenizer import Tokenizer


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
class Restarted:
    """Only this much of what was shown stands: the rest was due to answers that were found wrong since."""

    reason: str
    text: str
    thinking: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete; `text` and `thinking` are all of it."""

    reason: Reason
    stats: Stats
    text: str
    thinking: str


ChatEvent: TypeAlias = Progress | Text | Restarted | Finished


class _Voice:
    """Turns tokens into what is shown of a reply."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, stops: Sequence[str]) -> None:
        self._tokenizer, self._prompt, self._texts = tokenizer, prompt, stops
        self.restart(())

    def restart(self, tokens: Iterable[int]) -> None:
        """Forgets what was shown; only these tokens were said."""
        self._sorter = thinking(self._tokenizer, self._prompt)
        self._stream = self._tokenizer.stream()
        self._stops = StopTexts(self._texts)
        self._shown = {False: "", True: ""}
        for token in tokens:
            self.push(token)

    @property
    def text(self) -> str:
        return self._shown[False]

    @property
    def thinking(self) -> str:
        return self._shown[True]

    def stopped(self) -> bool:
        """Whether a stop text came."""
        return self._stops.found is not None

    def push(self, token: int) -> list[Text]:
        """What one more token shows."""
        return self._told(self._sorter.push(token, self._stream.push(token)))

    def end(self) -> list[Text]:
        """What was held back."""
        return [*self._told(self._sorter.end()), *self._show(self._stops.end(), aside=False)]

    def _told(self, pieces: Iterable[tuple[str, bool]]) -> list[Text]:
        return [
            shown
            for text, aside in pieces
            for shown in self._show(text if aside else self._stops.push(text), aside=aside)
        ]

    def _show(self, text: str, *, aside: bool) -> list[Text]:
        self._shown[aside] += text
        return [Text(text, aside)] if text else []


class Conversation:
    """The messages so far, and the model's memory of them. One thread at a time."""

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        self.engine = engine
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._state = engine.model.new_state()
        self._ids: list[int] = []  # the tokens in the state, and perhaps one more
        self._pace = Pace()

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
        voice = _Voice(self.engine.tokenizer, prompt.text, settings.stop)
        reason: Reason = "cancelled"
        self._ids = reply.ids
        for event in generate(self.engine.model, self.engine.experts, reply, cancelled, voice.stopped):
            match event:
                case Prefilled(_, done, total):
                    yield Progress(done, total)
                    if done == total:
                        self._state.mark()
                case Token(_, token):
                    yield from voice.push(token)
                case Retracted(_, kept, why):
                    voice.restart(reply.generated[:kept])
                    yield Restarted(why, voice.text, voice.thinking)
                case Done(_, end):
                    reason = end
        yield from voice.end()
        if voice.stopped():
            reason = "stop"
        message = {"role": "assistant", "content": voice.text}
        if voice.thinking:
            message["reasoning_content"] = voice.thinking
        self.messages.append(message)
        yield Finished(reason, reply.stats, voice.text, voice.thinking)

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
        flaw = self.engine.experts.doubts.flaw(self._state)
        if flaw is not None:
            self._state.truncate(self._state.floor(flaw.position))
        common = 0
        for ours, theirs in zip(self._ids[: self._state.length], ids[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        self._state.truncate(self._state.floor(common))
        return Reply(
            list(ids),
            self._state,
            settings.sampling,
            self.engine.stop_ids,
            max_tokens=settings.max_tokens,
            drafter=Drafter(self._pace),
        )
