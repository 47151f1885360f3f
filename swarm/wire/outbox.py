"""The bytes that wait to leave a connection, in the order of their nonces.

A short frame leaves at once when nothing waits. What cannot leave is written by one task, which lives only
as long as there is something to write; whoever put it there may be cancelled without cutting it.
"""

from collections import deque
from collections.abc import Callable

import trio

from swarm.wire.frames import Buffer
from swarm.wire.limits import Limits, Pace
from swarm.wire.stream import GONE, Link

HIGH_WATER_BYTES = 4 << 20
HIGH_WATER_PIECES = 1024
"""Of short frames many would take more memory than their bytes."""
_PARTS_AT_ONCE = 16


class Piece:
    """Bytes in their place in the queue; a long payload's are filled in once they are enciphered."""

    __slots__ = ("data", "ready", "size", "written")

    def __init__(self, size: int, data: memoryview | None = None) -> None:
        self.size = size
        self.data = data
        self.ready = trio.Event()
        self.written = trio.Event()

    def fill(self, data: memoryview) -> None:
        """Says what the bytes are."""
        self.data = data
        self.ready.set()


class TooSlow(Exception):
    """The other side takes its bytes more slowly than is allowed."""


class Outbox:
    """See the module. ``start`` starts a task; ``lost`` is told of the error that ended it."""

    def __init__(
        self, link: Link, limits: Limits, start: Callable[[], None], lost: Callable[[Exception], None]
    ) -> None:
        self._link = link
        self._limits = limits
        self._start = start
        self._lost = lost
        self._queue: deque[Piece] = deque()
        self._drained = trio.Event()
        self._drained.set()
        self._writing = False
        self._progressed_at = 0.0
        self.waiting_bytes = 0
        self.sent_bytes = 0

    def put(self, data: Buffer) -> None:
        """Sends bytes now or as soon as those before them have left. Never waits."""
        size = len(data)
        if not self._queue and not self._writing:
            try:
                written = self._link.write_now(data)
            except GONE as error:
                self._lost(error)
                return
            self.sent_bytes += written
            if written == size:
                return
            data = memoryview(data)[written:]
        piece = self.reserve(len(data))
        piece.fill(memoryview(data))

    def reserve(self, size: int) -> Piece:
        """A place in the queue for bytes that come later, by `Piece.fill`."""
        piece = Piece(size)
        self._queue.append(piece)
        self.waiting_bytes += size
        is_full = self.waiting_bytes > HIGH_WATER_BYTES or len(self._queue) > HIGH_WATER_PIECES
        if is_full and self._drained.is_set():
            self._drained = trio.Event()
        if not self._writing:
            self._writing = True
            self._progressed_at = trio.current_time()
            self._start()
        return piece

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, so that what is put now leaves at once."""
        return not self._queue and not self._writing

    @property
    def has_room(self) -> bool:
        """Whether not too much waits to leave."""
        return self._drained.is_set()

    async def wait_room(self) -> None:
        """Waits until not too much waits to leave; returns at once (without a checkpoint) if so."""
        while not self.has_room:
            await self._drained.wait()

    async def flush(self) -> None:
        """Waits until everything that waits now has left."""
        if self._queue:
            await self._queue[-1].written.wait()

    def discard(self) -> None:
        """Lets go of all that waits, for a connection that has ended, and wakes who waits for room."""
        self._queue.clear()
        self.waiting_bytes = 0
        self._drained.set()

    def stalled_s(self, now: float) -> float:
        """For how long bytes have waited without any of them leaving."""
        return now - self._progressed_at if self._writing else 0.0

    async def run(self) -> None:
        """Writes until nothing is left."""
        pace = Pace(self._limits)
        try:
            while self._queue:
                first = self._queue[0]
                if first.data is None:
                    await first.ready.wait()
                pace.start(trio.current_time())
                await self._write_ready(pace)
            self._writing = False
        except (*GONE, TooSlow) as error:
            self._lost(error)

    async def _write_ready(self, pace: Pace) -> None:
        """Writes the pieces that are filled in, as long as the other side keeps taking them."""
        while self._queue and self._queue[0].data is not None:
            parts: list[memoryview] = []
            for piece in self._queue:
                if piece.data is None or len(parts) == _PARTS_AT_ONCE:
                    break
                parts.append(piece.data)
            with trio.CancelScope(deadline=pace.deadline) as scope:
                written = await self._link.write_some(parts)
            if scope.cancelled_caught:
                raise TooSlow
            self._progressed_at = trio.current_time()
            pace.progress(written, self._progressed_at)
            self._count(written)

    def _count(self, written: int) -> None:
        self.sent_bytes += written
        self.waiting_bytes -= written
        while written or (self._queue and self._queue[0].data is not None and not len(self._queue[0].data)):
            piece = self._queue[0]
            assert piece.data is not None
            if written < len(piece.data):
                piece.data = piece.data[written:]
                break
            written -= len(piece.data)
            self._queue.popleft().written.set()
        if self.waiting_bytes <= HIGH_WATER_BYTES // 2 and len(self._queue) <= HIGH_WATER_PIECES // 2:
            self._drained.set()
