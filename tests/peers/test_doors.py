"""Ways to a peer that the tracker reaches and others do not: the relay, until the direct way works."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from swarm.errors import SwarmError
from swarm.peers.announce import Announcer, Reach
from swarm.peers.doors import Doors, NoWay
from swarm.peers.links import Links
from swarm.peers.membership import keep_line
from swarm.peers.tracking import TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.tracker import Contact, GetProof, Proof
from swarm.wire.rpc import Buffer, Peer
from swarm.wire.server import Server
from tracker.registry import Limits
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

TRACKER, DONOR, ASKER = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))


async def answer(caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
    return Proof(), b"answer"


class Wall:
    """An address at which nothing is ever answered, until the wall falls and the donor is behind it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._socket.getsockname()[1])

    async def fall(self, nursery: trio.Nursery) -> None:
        self._socket.close()
        listeners = await rpc.listen(self.address.host, self.address.port)
        await nursery.start(partial(rpc.serve), listeners, DONOR, {GetProof: answer})

    def close(self) -> None:
        self._socket.close()


@dataclass
class Here:
    """A tracker that reaches a donor, and an asker's doors, from which a wall stands before that donor."""

    nursery: trio.Nursery
    tracker: Tracker
    wall: Wall
    doors: Doors

    async def line(self) -> Contact:
        """What the tracker says of the donor once its line is there."""
        while True:
            contact = self.tracker.registry.contact(DONOR.key, True, self.tracker.relay.reaches(DONOR.key))
            if contact is not None and contact.relay:
                return contact
            await trio.sleep(0.01)


@asynccontextmanager
async def behind_a_wall() -> AsyncIterator[Here]:
    async def dial_back(address: Address, key: PeerKey) -> None:
        assert key == DONOR.key

    wall, options = Wall(), Options(limits=Limits(heartbeat_s=0.05))
    listeners = await rpc.listen("127.0.0.1", 0)
    async with (
        trio.open_nursery() as nursery,
        open_tracker(TRACKER, MemoryStore(), options=options, dial_back=dial_back) as tracker,
    ):
        (address,) = await nursery.start(partial(rpc.serve), listeners, TRACKER, tracker.handlers())
        theirs = TrackerClient(Links(nursery, DONOR), address, TRACKER.key)
        announcer = Announcer(theirs, Reach(0, (str(wall.address),)))
        await nursery.start(announcer.run)
        line = Server(DONOR, {GetProof: answer})
        nursery.start_soon(keep_line, Doors(nursery, DONOR, theirs), announcer, line)
        ours = TrackerClient(Links(nursery, ASKER), address, TRACKER.key)
        with trio.fail_after(30):
            yield Here(nursery, tracker, wall, Doors(nursery, ASKER, ours))
        nursery.cancel_scope.cancel()
    wall.close()
    for listener in listeners:
        await listener.aclose()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peers.doors.DIRECT_S", 0.2)
    monkeypatch.setattr("swarm.peers.doors.ONLY_WAY_S", 0.2)


async def asked(peer: Peer) -> bytes:
    return bytes((await peer.request(GetProof(bytes(32)))).payload)


async def test_a_peer_that_only_the_tracker_reaches_is_relayed_and_the_way_is_remembered() -> None:
    async with behind_a_wall() as here:
        contact = await here.line()
        assert contact.port == here.wall.address.port
        peer, relayed = await here.doors.open(contact)
        assert relayed
        assert await asked(peer) == b"answer"
        with trio.fail_after(0.15):  # less than a direct try takes
            assert await here.doors.open(contact) == (peer, True)


async def test_all_who_ask_at_once_share_one_relayed_connection() -> None:
    async with behind_a_wall() as here:
        contact = await here.line()
        found: list[Peer] = []

        async def ask() -> None:
            found.append((await here.doors.open(contact))[0])

        async with trio.open_nursery() as asking:
            for _ in range(8):
                asking.start_soon(ask)
        assert len(set(map(id, found))) == 1
        assert here.tracker.relay.streams == 1


async def test_the_direct_way_is_tried_again_and_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peers.links.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("swarm.peers.doors.LINGER_S", 0.01)
    async with behind_a_wall() as here:
        contact = await here.line()
        first, _ = await here.doors.open(contact)
        await here.wall.fall(here.nursery)
        relayed = True
        while relayed:
            peer, relayed = await here.doors.open(contact)
            assert await asked(peer) == b"answer"
            await trio.sleep(0.01)
        assert peer is not first
        assert here.doors.direct(contact) is peer
        await first.wait_closed()


async def test_without_a_line_the_address_is_the_only_way() -> None:
    async with behind_a_wall() as here:
        alone = Contact(DONOR.key, here.wall.address.host, here.wall.address.port, relay=False)
        with pytest.raises(SwarmError, match=r"no answer within 0\.2 s"):
            await here.doors.open(alone)
        with pytest.raises(NoWay):
            await here.doors.open(Contact(DONOR.key, "", 0, relay=False))


async def test_a_line_is_taken_anew_after_a_new_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peers.membership.RELAY_AGAIN_S", 0.01)
    async with behind_a_wall() as here:
        first = (await here.doors.open(await here.line()))[0]
        here.tracker.forget(DONOR.key)
        await first.wait_closed()
        again, relayed = await here.doors.open(await here.line())
        assert relayed
        assert await asked(again) == b"answer"
