"""What one connection, one source and one process may take, and how it is kept.

`Pace` is pure; `Budget` waits in trio. Both know nothing of sockets.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import trio


@dataclass(frozen=True)
class Limits:
    """The bounds of a server or of a single connection. Times in seconds."""

    handshake_s: float = 10.0
    """Time to finish a handshake."""
    idle_s: float = 60.0
    """Silence after which a peer counts as gone; it is pinged after half of it."""
    least_bytes_per_s: int = 8 << 10
    """The least progress of a frame under way, in either direction, taken over `pace_s`."""
    pace_s: float = 10.0
    requests_per_connection: int = 64
    requests: int = 2048
    """Requests that are answered at the same time, all connections together."""
    connections: int = 8192
    connections_per_source: int = 4096
    """Connections from one address; large, since many peers may stand behind one router."""
    handshakes: int = 256
    """Handshakes under way; one more ends the oldest of them."""
    bytes_in_flight: int = 64 << 20
    """Memory for payloads, in each direction, all connections together."""


class Pace:
    """Whether something makes at least a given progress, window by window, while it is under way."""

    __slots__ = ("_done", "_least", "_window_s", "deadline")

    def __init__(self, limits: Limits) -> None:
        self._least = limits.least_bytes_per_s * limits.pace_s
        self._window_s = limits.pace_s
        self._done = 0
        self.deadline = math.inf
        """When it will have been too slow; never while nothing is under way."""

    def start(self, now: float) -> None:
        """Begins a window."""
        self._done = 0
        self.deadline = now + self._window_s

    def keep_on(self, now: float) -> None:
        """Begins a window unless one has begun."""
        if self.deadline == math.inf:
            self.start(now)

    def stop(self) -> None:
        """Nothing is under way now."""
        self.deadline = math.inf

    def progress(self, count: int, now: float) -> None:
        """Counts bytes; enough of them begin a new window."""
        self._done += count
        if self._done >= self._least and self.deadline != math.inf:
            self.start(now)


class Holder(Protocol):
    """Who holds memory of a budget, and can be made to give it back."""

    def drop(self, reason: str) -> None:
        """Ends it."""


H = TypeVar("H", bound=Holder)


class Budget(Generic[H]):
    """Bytes that may be held at the same time. Who waits is served in order; who stalls loses its share.

    ``stalled_s`` says for how many seconds a holder has made no use of what it holds.
    """

    _LOOK_AGAIN_S = 0.25
    _STALLED_S = 1.0

    def __init__(self, limit: int, stalled_s: Callable[[H, float], float]) -> None:
        self.limit = limit
        self.used = 0
        self._stalled_s = stalled_s
        self._holders: Counter[H] = Counter()
        self._queue: list[trio.lowlevel.ParkingLot] = []

    def try_take(self, count: int, holder: H) -> bool:
        """Takes memory if there is enough and nobody waits."""
        if self._queue or not self._fits(count):
            return False
        self._take(count, holder)
        return True

    async def take(self, count: int, holder: H) -> None:
        """Takes memory, waiting for it; a request larger than everything is granted when nothing is held."""
        if self.try_take(count, holder):
            return
        turn = trio.lowlevel.ParkingLot()
        self._queue.append(turn)
        try:
            while self._queue[0] is not turn or not self._fits(count):
                first = self._queue[0] is turn
                if first:
                    self._drop_stalled()
                with trio.move_on_after(self._LOOK_AGAIN_S if first else math.inf):
                    await turn.park()
            self._take(count, holder)
        finally:
            self._queue.remove(turn)
            self._wake()

    def give_back(self, count: int, holder: H) -> None:
        """Returns memory."""
        self.used -= count
        self._holders[holder] -= count
        if self._holders[holder] <= 0:
            del self._holders[holder]
        self._wake()

    def _fits(self, count: int) -> bool:
        return self.used + count <= self.limit or self.used == 0

    def _take(self, count: int, holder: H) -> None:
        self.used += count
        self._holders[holder] += count

    def _wake(self) -> None:
        if self._queue:
            self._queue[0].unpark_all()

    def _drop_stalled(self) -> None:
        now = trio.current_time()
        for holder in [h for h in self._holders if self._stalled_s(h, now) > self._STALLED_S]:
            holder.drop("it stalled while others waited for its memory")


class Sources:
    """Counts connections by the address they come from."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def admit(self, host: str) -> Iterator[bool]:
        """Counts a connection while the block runs; False when there are too many already."""
        admitted = (
            self._total < self._limits.connections
            and self._counts[host] < self._limits.connections_per_source
        )
        if not admitted:
            yield False
            return
        self._total += 1
        self._counts[host] += 1
        try:
            yield True
        finally:
            self._total -= 1
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]
