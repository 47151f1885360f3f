"""Streams to peers that nobody can dial, through the tracker."""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import Bounds, Message, register
from swarm.wire.messages.tracker.fields import Count, Key, Number

RELAY_PIECE_BYTES = 1 << 15
RELAY_WINDOW_BYTES = 1 << 18
"""How much of a relayed stream may be sent before the first RelayCredit, and ahead of the receiver at all."""


@register("relay-listen")
@dataclass(frozen=True, slots=True)
class RelayListen(Message):
    """A registered peer asks that streams for it come over this connection. It ends with the connection."""

    generation: Number


@register("relay-ready")
@dataclass(frozen=True, slots=True)
class RelayReady(Message):
    """Answers RelayListen, RelayOpen and RelayIncoming."""


@register("relay-open")
@dataclass(frozen=True, slots=True)
class RelayOpen(Message):
    """Asks for a stream to a relayed peer. The asker chooses an odd number for it, new on this connection."""

    stream: Count
    target: Key


@register("relay-incoming")
@dataclass(frozen=True, slots=True)
class RelayIncoming(Message):
    """The tracker tells a relayed peer of a stream; its number on this connection is even."""

    stream: Count
    source: Key


@register("relay-data", payload=RELAY_PIECE_BYTES)
@dataclass(frozen=True, slots=True)
class RelayData(Message):
    """The next bytes of a stream. Notified, never answered, in order."""

    stream: Count


@register("relay-credit")
@dataclass(frozen=True, slots=True)
class RelayCredit(Message):
    """The receiver takes the bytes of a stream up to `limit`, counted from its beginning. Notified."""

    stream: Count
    limit: Number


@register("relay-close")
@dataclass(frozen=True, slots=True)
class RelayClose(Message):
    """The sender sends no more; with `reset` the stream is gone both ways, at once, and `reason` says why.
    Notified."""

    stream: Count
    reset: bool
    reason: Annotated[str, Bounds(0, 200)] = ""
