"""One direction of a relayed stream: order and credit, without any IO.

Pieces carry their offset and may overtake each other; the receiver puts them in order and lets the sender be
at most a window ahead of what its reader has taken, so nobody on the way ever stores more than that.
"""

from collections import deque

from swarm.errors import SwarmError
from swarm.wire.messages.tracker import RELAY_WINDOW_BYTES


class FlowViolation(SwarmError):
    """The other side of a relayed stream broke its rules: {reason}. The stream was reset."""


class Outgoing:
    """What the sender knows: how far it is, and how far it may go."""

    def __init__(self) -> None:
        self.sent = 0
        self.limit = RELAY_WINDOW_BYTES

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        return self.limit - self.sent

    def advance(self, length: int) -> int:
        """Counts bytes as sent; returns the offset of the first of them."""
        if length > self.room:
            raise ValueError(f"{length} bytes where {self.room} may be sent")
        self.sent += length
        return self.sent - length

    def credit(self, limit: int) -> None:
        """Notes how far the receiver lets us go; an older, lower limit changes nothing."""
        self.limit = max(self.limit, limit)


class Incoming:
    """What the receiver knows: pieces ahead of their turn, those in order, and the end if it is known."""

    def __init__(self) -> None:
        self.length: int | None = None
        """The length of the whole stream, once the sender has said it."""
        self.reached = 0
        """How far the bytes have come without a gap."""
        self.taken = 0
        self._limit = RELAY_WINDOW_BYTES
        self._early: dict[int, bytes] = {}
        self._ready: deque[bytes] = deque()

    @property
    def finished(self) -> bool:
        """Whether every byte was taken and none follows."""
        return self.taken == self.length

    @property
    def readable(self) -> bool:
        """Whether `take` would return bytes."""
        return bool(self._ready)

    def receive(self, offset: int, data: bytes) -> None:
        """Takes in a piece. FlowViolation when it overlaps another, or lies beyond the credit or the end."""
        end = offset + len(data)
        if end > self._limit:
            raise FlowViolation(reason="it sent more than it may")
        if self.length is not None and end > self.length:
            raise FlowViolation(reason="it sent bytes after the end")
        if not data or offset < self.reached or offset in self._early:
            raise FlowViolation(reason="it sent an empty piece or the same bytes twice")
        self._early[offset] = data
        while (piece := self._early.pop(self.reached, None)) is not None:
            self._ready.append(piece)
            self.reached += len(piece)
        if self._early and min(self._early) < self.reached:
            raise FlowViolation(reason="its pieces overlap")

    def end(self, length: int) -> None:
        """Notes the length of the whole stream. FlowViolation when it cannot be."""
        reach = max((offset + len(data) for offset, data in self._early.items()), default=self.reached)
        if length < reach or (self.length is not None and length != self.length):
            raise FlowViolation(reason="its end lies before what it sent, or in two places")
        self.length = length

    def take(self, most: int) -> bytes:
        """At most so many bytes, in order; empty when none are there."""
        if not self._ready:
            return b""
        piece = self._ready.popleft()
        if len(piece) > most:
            self._ready.appendleft(piece[most:])
            piece = piece[:most]
        self.taken += len(piece)
        return piece

    def new_credit(self) -> int | None:
        """The limit to tell the sender, when it is worth a message."""
        limit = self.taken + RELAY_WINDOW_BYTES
        if limit - self._limit < RELAY_WINDOW_BYTES // 2 or self.length is not None:
            return None
        self._limit = limit
        return limit
