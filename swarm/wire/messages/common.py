"""Messages that every conversation needs: failures, cancelling, and signs of life."""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import U32, Bounds, Message, register


@register("failure")
@dataclass(frozen=True, slots=True)
class Failure(Message):
    """The reply to a request that failed: an error's code, its cleaned text, and when to ask again."""

    code: Annotated[str, Bounds(1, 80)]
    text: Annotated[str, Bounds(0, 1000)]
    retry_after_ms: Annotated[int, Bounds(0, U32)] | None = None


@register("cancel")
@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """Takes back a request: no reply is wanted any more. The frame's id says which."""


@register("ping")
@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Asks for a Pong, to learn whether the other side lives and how far away it is."""


@register("pong")
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers a Ping."""


@register("goodbye")
@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """The sender closes the connection, and says why."""

    reason: Annotated[str, Bounds(0, 200)]
