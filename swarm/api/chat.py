"""POST /v1/chat/completions: OpenAI's chat completions, whole or as a stream of chunks."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from swarm.api.asgi import Receive, Send
from swarm.api.http import EventStream, send_json, until_left
from swarm.api.service import Anew, Piece, Replies, Service, Usage
from swarm.api.transcript import Chance, Delta, chat_chances
from swarm.api.wishes import ChatWish
from swarm.wire.race import plain_errors


async def answer_chat(
    service: Service, wish: ChatWish, receive: Receive, stream: EventStream, send: Send
) -> None:
    """Answers a conversation. Raises Left, or why it cannot be answered, before or after the stream began."""
    # What ends the answer is sent when nobody watches for the client any more: hypercorn says that it has left as soon
    # as the answer is whole, and must not be cancelled while it closes the connection or gets it ready for the next.
    async with until_left(receive):
        if wish.common.stream:
            async with plain_errors() as nursery:
                nursery.start_soon(stream.keep_alive)
                async with service.chat(wish) as replies:
                    last = await _stream(replies, wish, stream)
                nursery.cancel_scope.cancel()
        else:
            async with service.chat(wish) as replies:
                answer = await _whole(replies, wish)
    if wish.common.stream:
        await stream.end(*last)
    else:
        await send_json(send, answer)


@dataclass
class _Message:
    """A choice as far as it was told."""

    text: str = ""
    thought: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    chances: list[Chance] = field(default_factory=list)
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.thought += delta.thought
        if delta.call is not None:
            self.calls.append(_call(delta))
        self.chances += delta.chances


async def _whole(replies: Replies, wish: ChatWish) -> dict[str, Any]:
    choices = [_Message() for _ in range(wish.common.choices)]
    async for piece in replies:
        match piece:
            case Anew(number):
                choices[number] = _Message()
            case Piece(number, None, finish):
                choices[number].finish = finish
            case Piece(number, delta, _) if delta is not None:
                choices[number].add(delta)
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": replies.created_s,
        "model": replies.model,
        "choices": [_choice(replies, wish, number, choice) for number, choice in enumerate(choices)],
        "usage": usage_json(replies.usage),
    }


def _choice(replies: Replies, wish: ChatWish, number: int, choice: _Message) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.calls else None,
        "refusal": None,
    }
    if choice.thought:
        message["reasoning_content"] = choice.thought
    if choice.calls:
        message["tool_calls"] = choice.calls
    chances = None
    if wish.common.logprobs is not None:
        chances = {"content": chat_chances(replies.engine, choice.chances), "refusal": None}
    return {"index": number, "message": message, "logprobs": chances, "finish_reason": choice.finish}


async def _stream(replies: Replies, wish: ChatWish, stream: EventStream) -> list[dict[str, Any]]:
    """Sends all but the last events, which it gives."""
    head = {
        "id": new_id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": replies.created_s,
        "model": replies.model,
    }
    extra = {"usage": None} if wish.common.include_usage else {}

    def chunk(
        number: int, delta: dict[str, Any], finish: str | None = None, chances: Any = None
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": chances, "finish_reason": finish}
        return {**head, "choices": [choice], **extra}

    calls = [0] * wish.common.choices
    first = [
        chunk(number, {"role": "assistant", "content": "", "refusal": None})
        for number in range(wish.common.choices)
    ]
    begun = False
    async for piece in replies:
        if not begun:
            begun = True
            await stream.send(*first)
        match piece:
            case Piece(number, None, finish):
                await stream.send(chunk(number, {}, finish))
            case Piece(number, delta, _) if delta is not None:
                chances = None
                if wish.common.logprobs is not None:
                    chances = {"content": chat_chances(replies.engine, delta.chances), "refusal": None}
                await stream.send(chunk(number, _delta(delta, calls[number]), None, chances))
                calls[number] += delta.call is not None
    return [{**head, "choices": [], "usage": usage_json(replies.usage)}] if wish.common.include_usage else []


def _delta(delta: Delta, calls: int) -> dict[str, Any]:
    if delta.call is not None:
        return {"tool_calls": [{"index": calls, **_call(delta)}]}
    if delta.thought:
        return {"reasoning_content": delta.thought}
    return {"content": delta.text}


def _call(delta: Delta) -> dict[str, Any]:
    assert delta.call is not None
    return {
        "id": delta.call.ident,
        "type": "function",
        "function": {"name": delta.call.name, "arguments": delta.call.arguments},
    }


def usage_json(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def new_id(kind: str) -> str:
    """An id for an answer."""
    return f"{kind}-{secrets.token_hex(12)}"
