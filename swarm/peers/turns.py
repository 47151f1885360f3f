"""Whose call is next: one at a time, clients in turn, a bounded queue, and BUSY with a hint when it is full."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarm.wire.keys import PeerKey
from swarm.wire.rpc import Busy

MOST_WAITING = 64
MOST_A_CLIENT = 16
SHARE_OF_NEW = 0.1
LEAST_HINT_S = 0.005


class Turns:
    """Serialises work among clients: a client with many calls in the queue gets no more than its turn.

    Whoever stops waiting (its client took the call back, or is gone) leaves the queue without a trace.
    """

    def __init__(self, most_waiting: int = MOST_WAITING, most_a_client: int = MOST_A_CLIENT) -> None:
        self._most_waiting = most_waiting
        self._most_a_client = most_a_client
        self._clients: dict[PeerKey, deque[trio.Event]] = {}
        """In the order in which they are served next."""
        self.busy = False
        """Whether somebody has the turn."""
        self.waiting = 0
        """Calls in the queue, without the one that runs."""
        self.service_s = 0.0
        """Moving average of what a turn takes."""
        self.turned_away = 0
        self._idle = trio.Event()

    async def idle(self) -> None:
        """Waits until nobody has the turn and nobody waits for it."""
        while self.busy:
            await self._idle.wait()

    @asynccontextmanager
    async def turn(self, client: PeerKey) -> AsyncIterator[None]:
        """Waits for a turn and holds it for the length of a block. Busy when the queue is full."""
        if self.busy:
            await self._wait(client)
        self.busy = True
        started = trio.current_time()
        try:
            yield
        finally:
            self.took(trio.current_time() - started)
            self._pass_on()

    def took(self, turn_s: float) -> None:
        """Notes what a turn took."""
        self.service_s += (turn_s - self.service_s) * (SHARE_OF_NEW if self.service_s else 1.0)

    async def _wait(self, client: PeerKey) -> None:
        own = self._clients.get(client)
        if self.waiting >= self._most_waiting or (own is not None and len(own) >= self._most_a_client):
            self.turned_away += 1
            hint_s = max(LEAST_HINT_S, self.service_s * (self.waiting + 1))
            raise Busy(what="This executor", retry_after_s=round(hint_s, 3))
        mine = trio.Event()
        self._clients.setdefault(client, deque()).append(mine)
        self.waiting += 1
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():  # it was this one's turn at the same moment
                self._pass_on()
            else:
                self._forget(client, mine)
            raise

    def _pass_on(self) -> None:
        """Gives the turn to the oldest call of the next client, or to whoever comes."""
        if not self._clients:
            self.busy = False
            self._idle.set()
            self._idle = trio.Event()
            return
        client = next(iter(self._clients))
        queue = self._clients.pop(client)
        mine = queue.popleft()
        if queue:
            self._clients[client] = queue  # behind the others
        self.waiting -= 1
        mine.set()

    def _forget(self, client: PeerKey, mine: trio.Event) -> None:
        queue = self._clients[client]
        queue.remove(mine)
        self.waiting -= 1
        if not queue:
            del self._clients[client]
