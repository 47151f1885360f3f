"""What answers to chat and to text completions have in common, whole or as a stream of chunks."""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from swarm.api.http import Client, EventStream, send_json, until_left
from swarm.api.replies import Replies
from swarm.api.wishes import Wish
from swarm.wire.race import plain_errors

Document: TypeAlias = dict[str, Any]
"""A JSON object."""


async def answer(
    client: Client,
    wish: Wish,
    making: AbstractAsyncContextManager[Replies],
    whole: Callable[[Replies], Awaitable[Document]],
    stream: Callable[[Replies, EventStream], Awaitable[list[Document]]],
) -> None:
    """Answers a wish with what `whole` makes of its replies or, if it asked for a stream, with the events that `stream`
    sends and the last ones, which it gives. Raises Left, or why there is no answer, before or after the stream began.
    """
    # What ends the answer is sent when nobody watches for the client any more: hypercorn says that it has left as soon
    # as the answer is whole, and must not be cancelled while it closes the connection or gets it ready for the next.
    if wish.stream:
        async with until_left(client.receive), plain_errors() as nursery:
            nursery.start_soon(client.events.keep_alive)
            async with making as replies:
                last = await stream(replies, client.events)
            nursery.cancel_scope.cancel()
        await client.events.end(*last)
    else:
        async with until_left(client.receive), making as replies:
            document = await whole(replies)
        await send_json(client.send, document)


def head(replies: Replies, ident: str, kind: str) -> Document:
    """What a document or every chunk of a stream begins with; the id begins with `ident`."""
    return {
        "id": f"{ident}-{secrets.token_hex(12)}",
        "object": kind,
        "created": replies.created_s,
        "model": replies.model,
    }


class Chunks:
    """Makes the chunks of one stream."""

    def __init__(self, replies: Replies, wish: Wish, ident: str, kind: str) -> None:
        self._replies = replies
        self._head = head(replies, ident, kind)
        self._counts_tokens = wish.include_usage

    def of(self, choice: Document) -> Document:
        """The chunk that says something of one choice."""
        if self._counts_tokens:
            return {**self._head, "choices": [choice], "usage": None}
        return {**self._head, "choices": [choice]}

    def last(self) -> list[Document]:
        """What follows the choices."""
        if self._counts_tokens:
            return [{**self._head, "choices": [], "usage": usage(self._replies)}]
        return []


def usage(replies: Replies) -> Document:
    """Token counts."""
    counts = replies.usage
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }
