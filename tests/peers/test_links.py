"""Connections that are opened once, used by all, opened again when lost, and not tried too often."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from swarm.errors import SwarmError
from swarm.peers.links import FIRST_PAUSE_S, LONGEST_PAUSE_S, Links, NotTriedAgain
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair

OURS, THEIRS = KeyPair(b"\1" * 32), KeyPair(b"\2" * 32)


class Server:
    """Counts who comes in."""

    def __init__(self) -> None:
        self.peers: list[rpc.Peer] = []

    async def peer(self, peer: rpc.Peer) -> None:
        self.peers.append(peer)
        await trio.sleep_forever()


@asynccontextmanager
async def listening(server: Server, port: int = 0) -> AsyncIterator[Address]:
    listeners = await rpc.listen("127.0.0.1", port)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(rpc.serve, on_peer=server.peer), listeners, THEIRS, {})
        yield address
        nursery.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()


async def test_all_who_ask_at_once_share_one_connection() -> None:
    server = Server()
    async with listening(server) as address, trio.open_nursery() as nursery:
        links = Links(nursery, OURS)
        found: list[rpc.Peer] = []

        async def ask() -> None:
            found.append(await links.peer(address, THEIRS.key))

        async with trio.open_nursery() as asking:
            for _ in range(10):
                asking.start_soon(ask)
        assert len(set(map(id, found))) == 1
        assert len(server.peers) == 1
        nursery.cancel_scope.cancel()


async def test_a_lost_connection_is_opened_again() -> None:
    server = Server()
    async with listening(server) as address, trio.open_nursery() as nursery:
        links = Links(nursery, OURS)
        first = await links.peer(address, THEIRS.key)
        await first.aclose()
        await first.wait_closed()
        second = await links.peer(address, THEIRS.key)
        assert second is not first
        assert second.is_open
        nursery.cancel_scope.cancel()


async def test_who_could_not_be_reached_is_left_alone_for_a_while(autojump_clock: trio.abc.Clock) -> None:
    nobody = Address("127.0.0.1", 1)
    async with trio.open_nursery() as nursery:
        links = Links(nursery, OURS)
        pauses = []
        for _ in range(9):
            started = trio.current_time()
            with pytest.raises(rpc.Unreachable):
                await patiently(links, nobody)
            pauses.append(trio.current_time() - started)
            with pytest.raises(NotTriedAgain, match="could not be reached a moment ago"):
                await links.peer(nobody)
        assert pauses[0] == 0
        assert pauses[1] >= FIRST_PAUSE_S
        assert pauses == sorted(pauses)
        assert LONGEST_PAUSE_S <= pauses[-1] <= LONGEST_PAUSE_S + 1
        with pytest.raises(rpc.Unreachable):
            await links.peer(nobody, patient=True)
        nursery.cancel_scope.cancel()


async def test_an_outage_of_any_length_is_outlasted() -> None:
    nobody = Address("127.0.0.1", 1)
    async with trio.open_nursery() as nursery:
        links = Links(nursery, OURS)
        for _ in range(1100):
            with pytest.raises(rpc.Unreachable):
                await links.peer(nobody, patient=True)
        nursery.cancel_scope.cancel()


async def patiently(links: Links, address: Address) -> None:
    while True:
        try:
            await links.peer(address)
        except NotTriedAgain:
            await trio.sleep(0.5)


async def test_somebody_else_at_the_address_is_refused() -> None:
    async with listening(Server()) as address, trio.open_nursery() as nursery:
        links = Links(nursery, OURS)
        with pytest.raises(SwarmError, match="key"):
            await links.peer(address, KeyPair(b"\3" * 32).key)
        nursery.cancel_scope.cancel()
