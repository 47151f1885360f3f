"""A relay between connections in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from swarm.wire import rpc
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    GetProof,
    PeerRegistered,
    Proof,
    RegisterPeer,
    RelayData,
)
from swarm.wire.rpc import Buffer, Peer
from swarm.wire.server import Server
from tests.tracker.kit import keys
from tracker.clock import SystemClock
from tracker.relay import RelayLimits
from tracker.relayed import RelayEnd, RelayStream, serve_relayed
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

TRACKER, HIDDEN, ASKER = keys(0), keys(1), keys(2)


SECRET = b"nobody but the two of us may read this. "


@dataclass
class World:
    """A tracker and connections to it in memory; `tapped` is everything the relay passed on."""

    tracker: Tracker
    nursery: trio.Nursery
    tapped: bytearray = field(default_factory=bytearray)
    callers: dict[PeerKey, Peer] = field(default_factory=dict)
    """The connections as the tracker sees them."""

    async def connect(
        self, identity: KeyPair, handlers: dict[type[Message], rpc.Handler] | None = None
    ) -> Peer:
        near, far = trio.testing.memory_stream_pair()

        async def tap(caller: Peer, message: RelayData, payload: Buffer) -> None:
            self.tapped += payload
            await self.tracker.relay.data(caller, message, payload)

        offered = {**self.tracker.handlers(), RelayData: tap}

        async def welcome() -> None:
            caller = await rpc.open_peer(self.nursery, far, TRACKER, initiator=False, handlers=offered)
            self.callers[caller.key] = caller

        self.nursery.start_soon(welcome)
        return await rpc.open_peer(
            self.nursery, near, identity, initiator=True, expected_key=TRACKER.key, handlers=handlers
        )

    async def end(self, identity: KeyPair) -> RelayEnd:
        """A connection to the tracker that can open streams."""
        end = RelayEnd()
        end.attach(await self.connect(identity, end.handlers()))
        self.nursery.start_soon(end.run)
        return end

    async def hidden(self, identity: KeyPair = HIDDEN) -> RelayEnd:
        """A registered peer that is reached through the relay only."""
        end = await self.end(identity)
        reply = await end.peer.request(RegisterPeer("hidden", (), 0))
        assert isinstance(reply.message, PeerRegistered)
        assert reply.message.address == ""
        await end.listen(reply.message.generation)
        return end

    async def pair(self, far: RelayEnd, near: RelayEnd) -> tuple[RelayStream, RelayStream]:
        """Both ends of a new stream."""
        stream = await near.open(HIDDEN.key)
        source, other = await far.accept()
        assert source in (ASKER.key, keys(3).key)
        return stream, other

    async def until_streams(self, count: int) -> None:
        """Waits until the relay has forgotten all but so many streams."""
        while self.tracker.relay.streams > count:  # noqa: ASYNC110 - the relay has no event to wait for
            await trio.sleep(0.01)

    async def serve_echo(self, end: RelayEnd, identity: KeyPair = HIDDEN) -> None:
        """Answers every proof asked for with a secret, over streams that come through the relay."""

        async def answer(caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
            return Proof(), SECRET * 1000 + message.digest

        await serve_relayed(end, Server(identity, {GetProof: answer}))


@asynccontextmanager
async def world(limits: RelayLimits | None = None) -> AsyncIterator[World]:
    async def dial_back(address: object, key: PeerKey) -> None:
        raise OSError("nobody can be reached here")

    options = Options(relay=limits or RelayLimits())
    async with (
        open_tracker(
            TRACKER, MemoryStore(), options=options, dial_back=dial_back, clock=SystemClock()
        ) as tracker,
        trio.open_nursery() as nursery,
    ):
        with trio.fail_after(20):
            yield World(tracker, nursery)
        nursery.cancel_scope.cancel()


async def read_all(stream: RelayStream, received: bytearray) -> None:
    """Adds what a stream brings, to its end."""
    async for data in stream:
        received += data
