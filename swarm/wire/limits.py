"""What one connection, one source and one process may take, and how it is kept.

`Pace` is pure; `Budget` waits in trio. Both know nothing of sockets.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    connections: int = 16384
    """A donor keeps two to its tracker."""
    connections_per_source: int = 4096
    """Connections from one address (of IPv6: one /64); large, since many peers may stand behind one router. None may
    have more than are left free for all others, so that no few of them can take everything."""
    handshakes: int = 1024
    """Handshakes under way; one more ends the oldest of the source that has most of them."""
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

    @property
    def source(self) -> str:
        """Where it comes from; those who wait are served by turns of their sources."""

    def drop(self, reason: str) -> None:
        """Ends it."""


H = TypeVar("H", bound=Holder)


@dataclass(eq=False, slots=True)
class _Turn:
    """Somebody who waits for memory."""

    source: str
    count: int
    parked: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)


class Budget(Generic[H]):
    """Bytes that may be held at the same time.

    Next is who comes from the source that holds least, and of those who came first. While that one waits, holders
    who stalled lose their share, the longest stalled of the source that holds most first, and no more of them than
    give enough. ``stalled_s`` says for how many seconds a holder has made no use of what it holds.
    """

    STALLED_S = 1.0
    """After so long a holder may be dropped."""
    _LEAST_WAIT_S = 0.01

    def __init__(self, limit: int, stalled_s: Callable[[H, float], float]) -> None:
        self.limit = limit
        self.used = 0
        self._stalled_s = stalled_s
        self._holders: Counter[H] = Counter()
        self._sources: Counter[str] = Counter()
        self._dropped: set[H] = set()
        self._waiting: dict[_Turn, None] = {}

    def try_take(self, count: int, holder: H) -> bool:
        """Takes memory if there is enough and nobody waits."""
        if self._waiting or not self._fits(count):
            return False
        self._take(count, holder)
        return True

    async def take(self, count: int, holder: H) -> None:
        """Takes memory, waiting for it; a request larger than everything is granted when nothing is held."""
        if self.try_take(count, holder):
            return
        turn = _Turn(holder.source, count)
        self._waiting[turn] = None
        try:
            await self._wait(turn)
            self._take(count, holder)
        finally:
            del self._waiting[turn]
            self._wake()

    def give_back(self, count: int, holder: H) -> None:
        """Returns memory."""
        self.used -= count
        self._sources[holder.source] -= count
        self._holders[holder] -= count
        if self._holders[holder] <= 0:
            del self._holders[holder]
            self._dropped.discard(holder)
        if self._sources[holder.source] <= 0:
            del self._sources[holder.source]
        self._wake()

    def _fits(self, count: int) -> bool:
        return self.used + count <= self.limit or self.used == 0

    def _take(self, count: int, holder: H) -> None:
        self.used += count
        self._holders[holder] += count
        self._sources[holder.source] += count

    def _next(self) -> _Turn:
        return min(self._waiting, key=lambda turn: self._sources[turn.source])

    def _wake(self) -> None:
        if self._waiting:
            self._next().parked.unpark_all()

    async def _wait(self, turn: _Turn) -> None:
        while True:
            first = self._next() is turn
            if first and not self._fits(turn.count):
                self._make_room(turn.count)
            if first and self._fits(turn.count):
                return
            with trio.move_on_after(self._next_stalls_in_s() if first else math.inf):
                await turn.parked.park()

    def _make_room(self, count: int) -> None:
        """Drops as many of those who stalled as it takes; their memory comes when their tasks have ended."""
        stalled_s = self._all_stalled_s()
        coming = sum(self._holders[holder] for holder in self._dropped)
        missing = min(self.used + count - self.limit, self.used) - coming
        for holder in sorted(stalled_s, key=lambda h: (self._sources[h.source], stalled_s[h]), reverse=True):
            if missing > 0 and stalled_s[holder] >= self.STALLED_S:
                missing -= self._holders[holder]
                self._dropped.add(holder)
                holder.drop("it stalled while others waited for its memory")

    def _next_stalls_in_s(self) -> float:
        """When the next holder may have stalled long enough to be dropped."""
        return max(self.STALLED_S - max(self._all_stalled_s().values(), default=0.0), self._LEAST_WAIT_S)

    def _all_stalled_s(self) -> dict[H, float]:
        now = trio.current_time()
        return {h: self._stalled_s(h, now) for h in self._holders if h not in self._dropped}


class Sources:
    """Counts connections by where they come from, see `Address.source`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def admit(self, source: str) -> Iterator[bool]:
        """Counts a connection while the block runs; False when there are too many already, or too many of that source
        for as few as are left free."""
        limits = self._limits
        admitted = self._counts[source] < min(limits.connections_per_source, limits.connections - self._total)
        if not admitted:
            yield False
            return
        self._total += 1
        self._counts[source] += 1
        try:
            yield True
        finally:
            self._total -= 1
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]
