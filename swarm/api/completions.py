"""POST /v1/completions: OpenAI's text completions, whole or as a stream of chunks."""

from typing import Any

from swarm.api.asgi import Receive, Send
from swarm.api.chat import new_id, usage_json
from swarm.api.http import EventStream, send_json, until_left
from swarm.api.service import Anew, Piece, Replies, Service
from swarm.api.transcript import Chance, text_chances
from swarm.api.wishes import TextWish
from swarm.wire.race import plain_errors


async def answer_text(
    service: Service, wish: TextWish, receive: Receive, stream: EventStream, send: Send
) -> None:
    """Continues texts. Raises Left, or why it cannot be answered, before or after the stream began."""
    # What ends the answer is sent when nobody watches for the client any more: hypercorn says that it has left as soon
    # as the answer is whole, and must not be cancelled while it closes the connection or gets it ready for the next.
    async with until_left(receive):
        if wish.common.stream:
            async with plain_errors() as nursery:
                nursery.start_soon(stream.keep_alive)
                async with service.text(wish) as replies:
                    last = await _stream(replies, wish, stream)
                nursery.cancel_scope.cancel()
        else:
            async with service.text(wish) as replies:
                answer = await _whole(replies, wish)
    if wish.common.stream:
        await stream.end(*last)
    else:
        await send_json(send, answer)


def _head(replies: Replies) -> dict[str, Any]:
    return {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": replies.created_s,
        "model": replies.model,
    }


def _echoed(replies: Replies, wish: TextWish, number: int) -> str:
    return replies.prompts[number // wish.common.choices] if wish.echo else ""


async def _whole(replies: Replies, wish: TextWish) -> dict[str, Any]:
    count = len(wish.prompts) * wish.common.choices
    texts = [_echoed(replies, wish, number) for number in range(count)]
    begins = [len(text) for text in texts]
    chances: list[list[Chance]] = [[] for _ in range(count)]
    finishes: list[str | None] = [None] * count
    async for piece in replies:
        match piece:
            case Anew(number):
                texts[number], chances[number] = _echoed(replies, wish, number), []
            case Piece(number, None, finish):
                finishes[number] = finish
            case Piece(number, delta, _) if delta is not None:
                texts[number] += delta.text
                chances[number] += delta.chances
    wanted = wish.common.logprobs is not None
    return {
        **_head(replies),
        "choices": [
            {
                "index": number,
                "text": texts[number],
                "logprobs": text_chances(replies.engine, chances[number], begins[number]) if wanted else None,
                "finish_reason": finishes[number],
            }
            for number in range(count)
        ],
        "usage": usage_json(replies.usage),
    }


async def _stream(replies: Replies, wish: TextWish, stream: EventStream) -> list[dict[str, Any]]:
    """Sends all but the last events, which it gives."""
    head = _head(replies)
    extra = {"usage": None} if wish.common.include_usage else {}
    count = len(wish.prompts) * wish.common.choices
    offsets = [0] * count

    def chunk(number: int, text: str, finish: str | None = None, chances: Any = None) -> dict[str, Any]:
        choice = {"index": number, "text": text, "logprobs": chances, "finish_reason": finish}
        return {**head, "choices": [choice], **extra}

    if wish.echo:
        echoes = [_echoed(replies, wish, number) for number in range(count)]
        offsets = [len(text) for text in echoes]
        await stream.send(*(chunk(number, text) for number, text in enumerate(echoes)))
    async for piece in replies:
        match piece:
            case Piece(number, None, finish):
                await stream.send(chunk(number, "", finish))
            case Piece(number, delta, _) if delta is not None:
                chances = None
                if wish.common.logprobs is not None:
                    chances = text_chances(replies.engine, delta.chances, offsets[number])
                offsets[number] += len(delta.text)
                await stream.send(chunk(number, delta.text, None, chances))
    return [{**head, "choices": [], "usage": usage_json(replies.usage)}] if wish.common.include_usage else []
