"""POST /v1/chat/completions: OpenAI's chat completions, whole or as a stream of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swarm.api.answers import Chunks, Document, answer, head, usage
from swarm.api.http import Client, EventStream
from swarm.api.replies import Anew, Finished, Replies, Told
from swarm.api.service import Service
from swarm.api.transcript import Chance, Delta, chat_chances
from swarm.api.wishes import ChatWish


async def answer_chat(service: Service, wish: ChatWish, client: Client) -> None:
    """Answers a conversation; see `answer`."""
    making = service.chat(wish)
    await answer(client, wish.common, making, partial(_whole, wish), partial(_stream, wish))


@dataclass
class _Message:
    """A choice as far as it was told."""

    text: str = ""
    thought: str = ""
    calls: list[Document] = field(default_factory=list)
    chances: list[Chance] = field(default_factory=list)
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.thought += delta.thought
        if delta.call is not None:
            self.calls.append(_call(delta))
        self.chances += delta.chances


async def _whole(wish: ChatWish, replies: Replies) -> Document:
    choices = [_Message() for _ in range(wish.common.choices)]
    async for event in replies:
        match event:
            case Told(number, delta):
                choices[number].add(delta)
            case Anew(number):
                choices[number] = _Message()
            case Finished(number, finish):
                choices[number].finish = finish
    return {
        **head(replies, "chatcmpl", "chat.completion"),
        "choices": [_choice(replies, wish, number, choice) for number, choice in enumerate(choices)],
        "usage": usage(replies),
    }


def _choice(replies: Replies, wish: ChatWish, number: int, choice: _Message) -> Document:
    message: Document = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.calls else None,
        "refusal": None,
    }
    if choice.thought:
        message["reasoning_content"] = choice.thought
    if choice.calls:
        message["tool_calls"] = choice.calls
    return {
        "index": number,
        "message": message,
        "logprobs": _logprobs(replies, wish, choice.chances),
        "finish_reason": choice.finish,
    }


async def _stream(wish: ChatWish, replies: Replies, stream: EventStream) -> list[Document]:
    """Sends all but the last events, which it gives."""
    chunks = Chunks(replies, wish.common, "chatcmpl", "chat.completion.chunk")

    def chunk(number: int, delta: Document, finish: str | None = None, logprobs: Any = None) -> Document:
        return chunks.of({"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish})

    calls = [0] * wish.common.choices
    begin = [
        chunk(number, {"role": "assistant", "content": "", "refusal": None})
        for number in range(wish.common.choices)
    ]
    async for event in replies:
        if begin:
            await stream.send(*begin)
            begin = []
        match event:
            case Told(number, delta):
                logprobs = _logprobs(replies, wish, delta.chances)
                await stream.send(chunk(number, _delta(delta, calls[number]), None, logprobs))
                calls[number] += delta.call is not None
            case Finished(number, finish):
                await stream.send(chunk(number, {}, finish))
    return chunks.last()


def _logprobs(replies: Replies, wish: ChatWish, chances: Sequence[Chance]) -> Document | None:
    if wish.common.logprobs is None:
        return None
    return {"content": chat_chances(replies.engine, chances), "refusal": None}


def _delta(delta: Delta, calls: int) -> Document:
    if delta.call is not None:
        return {"tool_calls": [{"index": calls, **_call(delta)}]}
    if delta.thought:
        return {"reasoning_content": delta.thought}
    return {"content": delta.text}


def _call(delta: Delta) -> Document:
    assert delta.call is not None
    return {
        "id": delta.call.ident,
        "type": "function",
        "function": {"name": delta.call.name, "arguments": delta.call.arguments},
    }
