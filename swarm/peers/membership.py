"""What every donor is: a member of the swarm that listens, is reachable somehow, and is known at the tracker.

The tracker dials back when the donor registers, and again now and then where that failed. The donor also keeps a
connection to the tracker's relay and answers what comes through it: an address that leads here from the tracker
may lead nowhere from elsewhere.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from swarm.errors import SwarmError
from swarm.peers.announce import Announcer, Reach, Standing
from swarm.peers.doors import Doors
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
                on_change=swarming.on_standing,
            )
            await nursery.start(announcer.run)
            server = Server(swarming.identity, handlers, psk=swarming.psk)
            nursery.start_soon(keep_line, swarming.session.doors, announcer, server)
            yield announcer, seen
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()


async def keep_line(doors: Doors, announcer: Announcer, server: Server) -> None:
    """Answers through the tracker's relay, too, until cancelled: where the tracker gets through, others may not."""
    while True:
        generation = await announcer.registered()
        try:
            end = await doors.relay()
            await end.listen(generation)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_registered_anew, announcer, generation, nursery.cancel_scope)
                await serve_relayed(end, server)
                nursery.cancel_scope.cancel()
        except SwarmError:
            pass  # the tracker is away or does not relay; it is asked again
        await trio.sleep(RELAY_AGAIN_S)


async def _until_registered_anew(announcer: Announcer, generation: int, scope: trio.CancelScope) -> None:
    await announcer.registered(but=generation)
    scope.cancel()
