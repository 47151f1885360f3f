"""One direction of a relayed stream: credit, without any IO.

The receiver lets the sender be at most a window ahead of what its reader has taken, so nobody on the way ever
stores more than that. Limits count from the beginning of the stream, so a late one takes nothing back.
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

    def advance(self, length: int) -> None:
        """Counts bytes as sent. ValueError when there is no room for them."""
        if length > self.room:
            raise ValueError(f"{length} bytes where {self.room} may be sent")
        self.sent += length

    def credit(self, limit: int) -> None:
        """Notes how far the receiver lets us go; an older, lower limit changes nothing."""
        self.limit = max(self.limit, limit)


class Incoming:
    """What the receiver knows: the bytes that wait for the reader, and whether others follow."""

    def __init__(self) -> None:
        self.ended = False
        self._received = 0
        self._taken = 0
        self._limit = RELAY_WINDOW_BYTES
        self._ready: deque[bytes] = deque()

    @property
    def finished(self) -> bool:
        """Whether every byte was taken and none follows."""
        return self.ended and not self._ready

    @property
    def readable(self) -> bool:
        """Whether `take` would return bytes."""
        return bool(self._ready)

    def receive(self, data: bytes) -> None:
        """Takes in the next bytes. FlowViolation for more than was granted, for none, or after the end."""
        if self.ended or not data:
            raise FlowViolation(reason="it sent bytes after the end, or none")
        if self._received + len(data) > self._limit:
            raise FlowViolation(reason="it sent more than it may")
        self._received += len(data)
        self._ready.append(data)

    def take(self, most: int) -> bytes:
        """At most so many bytes, in order; empty when none are there."""
        if not self._ready:
            return b""
        piece = self._ready.popleft()
        if len(piece) > most:
            self._ready.appendleft(piece[most:])
            piece = piece[:most]
        self._taken += len(piece)
        return piece

    def new_credit(self) -> int | None:
        """The limit to tell the sender, when it is worth a message."""
        limit = self._taken + RELAY_WINDOW_BYTES
        if limit - self._limit < RELAY_WINDOW_BYTES // 2 or self.ended:
            return None
        self._limit = limit
        return limit
