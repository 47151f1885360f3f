"""What every donor is: a member of the swarm that listens, is reachable somehow, and is known at the tracker.

The tracker dials back when the donor registers. Where that fails, the donor keeps a connection to the
tracker's relay and answers what comes through it, for as long as the tracker gives it no address.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from swarm.errors import SwarmError
from swarm.peers.announce import Announcer, Reach, Standing
from swarm.peers.executor import Executor
from swarm.peers.session import Session
from swarm.trust.identity import Identity
from swarm.wire import rpc
from swarm.wire.messages.tracker import HeartbeatSeen
from swarm.wire.rpc import Handlers
from swarm.wire.server import Server
from tracker.relayed import serve_relayed

RELAY_AGAIN_S = 2.0


@dataclass(frozen=True)
class Listening:
    """Where a donor listens. `advertise`: addresses that the user knows to lead here."""

    host: str | None = None
    port: int = 0
    advertise: tuple[str, ...] = ()
    local: bool = False
    relay_only: bool = False
    """Offer no address, even if there is one."""


@dataclass(frozen=True)
class Swarming:
    """A session, who we are in it, and whom to tell of changes."""

    session: Session
    identity: Identity
    psk: bytes | None
    on_standing: Callable[[Standing], None] = lambda _: None


@asynccontextmanager
async def member(
    swarming: Swarming, where: Listening, handlers: Handlers, executor: Executor | None = None
) -> AsyncIterator[tuple[Announcer, trio.MemoryReceiveChannel[HeartbeatSeen]]]:
    """Listens and stays registered for the length of a block, then leaves.

    Gives the announcer, and a channel of what the tracker answers to heartbeats, the latest only.
    """
    told, seen = trio.open_memory_channel[HeartbeatSeen](1)

    def on_seen(answer: HeartbeatSeen) -> None:
        try:
            told.send_nowait(answer)
        except trio.WouldBlock:
            return  # whoever listens is busy, and hears of the next one

    standing = _Standing(swarming.on_standing)
    listeners = await rpc.listen(where.host, where.port)
    try:
        async with trio.open_nursery() as nursery:
            serve = partial(rpc.serve, psk=swarming.psk)
            addresses = await nursery.start(serve, listeners, swarming.identity, handlers)
            port = 0 if where.relay_only else addresses[0].port
            announcer = Announcer(
                swarming.session.tracker,
                Reach(port, where.advertise, where.local),
                executor=executor,
                on_seen=on_seen,
                on_change=standing.take,
            )
            await nursery.start(announcer.run)
            nursery.start_soon(_be_relayed, swarming, announcer, standing, handlers)
            yield announcer, seen
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()


class _Standing:
    """The standing, and an event when it changes."""

    def __init__(self, tell: Callable[[Standing], None]) -> None:
        self._tell = tell
        self.changed = trio.Event()

    def take(self, standing: Standing) -> None:
        self._tell(standing)
        self.changed.set()
        self.changed = trio.Event()


async def _be_relayed(
    swarming: Swarming, announcer: Announcer, standing: _Standing, handlers: Handlers
) -> None:
    """Answers through the relay while no address leads here."""
    server = Server(swarming.identity, handlers, psk=swarming.psk)
    while True:
        if not announcer.standing.registered or announcer.standing.address:
            await standing.changed.wait()
            continue
        try:
            end = await swarming.session.doors.relay()
            await end.listen(announcer.generation)
            await serve_relayed(end, server)
        except SwarmError:
            pass  # the tracker is away or does not relay; it is asked again
        await trio.sleep(RELAY_AGAIN_S)
