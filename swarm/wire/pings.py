"""Signs of life of a connection: the pings sent on it, and the pongs that those of the other side are worth."""

from collections import deque
from collections.abc import Callable

import trio

from swarm.wire.messages import Message, Ping, Pong
from swarm.wire.outbox import Outbox

MOST_PONGS_WAITING = 16
"""Who pings faster than it takes the pongs gets no more than so many of them at a time."""


class Pings:
    """See the module. ``tell`` sends a short notice with an id, by ``outbox``."""

    def __init__(self, tell: Callable[[int, Message], None], outbox: Outbox) -> None:
        self._tell = tell
        self._outbox = outbox
        self._open: dict[int, trio.Event] = {}
        self._pongs_end: deque[int] = deque()
        """For each pong that may still wait to leave: how many bytes will have been sent when it has left."""

    async def ask(self, id: int) -> float:
        """Waits for the answer to a ping, or for `end`; gives the seconds it took."""
        answered = self._open[id] = trio.Event()
        started = trio.current_time()
        try:
            self._tell(id, Ping())
            await answered.wait()
        finally:
            del self._open[id]
        return trio.current_time() - started

    def answered(self, id: int) -> None:
        """The other side answered a ping; others than those asked do no harm."""
        if id in self._open:
            self._open[id].set()

    def answer(self, id: int) -> None:
        """Answers a ping of the other side, unless too many of its pongs wait to leave."""
        while self._pongs_end and self._pongs_end[0] <= self._outbox.sent_bytes:
            self._pongs_end.popleft()
        if len(self._pongs_end) < MOST_PONGS_WAITING:
            self._tell(id, Pong())
            self._pongs_end.append(self._outbox.sent_bytes + self._outbox.waiting_bytes)

    def end(self) -> None:
        """The connection ended: who waits goes on."""
        for answered in self._open.values():
            answered.set()
