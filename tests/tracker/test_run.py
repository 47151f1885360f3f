"""A tracker on a real port: dialling back, private swarms, restarts, and the relay over sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import trio

from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import (
    ChunkHolders,
    Contact,
    FindChunks,
    GetProof,
    HoldChunks,
    ListModels,
    Models,
    PeerRegistered,
    Proof,
    PublishManifest,
    RegisterPeer,
)
from swarm.wire.rpc import Buffer, Peer
from swarm.wire.server import Server
from tests.tracker.kit import keys, manifest, published
from tracker.relayed import RelayEnd, dial_relayed, serve_relayed
from tracker.server import open_tracker
from tracker.store import SqliteStore

TRACKER = keys(0)
TOKEN = b"t" * 32
FAR_FUTURE_S = (1 << 40) - 1


@asynccontextmanager
async def running(path: Path, token: bytes | None = None) -> AsyncIterator[Address]:
    with closing(SqliteStore(path)) as store:
        async with open_tracker(TRACKER, store, psk=token) as tracker, trio.open_nursery() as nursery:
            listeners = await rpc.listen("127.0.0.1", 0)
            serve = partial(rpc.serve, listeners, TRACKER, tracker.handlers(), psk=token)
            addresses = await nursery.start(serve)
            with trio.fail_after(20):
                yield addresses[0]
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def echo_server(identity: KeyPair, token: bytes | None = None) -> AsyncIterator[Address]:
    async def answer(caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
        return Proof(), message.digest

    async with trio.open_nursery() as nursery:
        listeners = await rpc.listen("127.0.0.1", 0)
        serve = partial(rpc.serve, listeners, identity, {GetProof: answer}, psk=token)
        yield (await nursery.start(serve))[0]
        nursery.cancel_scope.cancel()


async def register(peer: Peer, port: int) -> PeerRegistered:
    reply = await peer.request(RegisterPeer("test", (), port))
    assert isinstance(reply.message, PeerRegistered)
    return reply.message


async def test_a_private_tracker_dials_back_publishes_and_remembers(tmp_path: Path) -> None:
    store = tmp_path / "tracker.sqlite"
    new = published(manifest(expires=FAR_FUTURE_S))
    held = IndexSet.full(100).encode()
    async with (
        running(store, TOKEN) as address,
        echo_server(keys(1), TOKEN) as served,
        rpc.connect(address, keys(1), psk=TOKEN, expected_key=TRACKER.key) as peer,
        rpc.connect(address, keys(2), psk=TOKEN) as asker,
    ):
        registered = await register(peer, served.port)
        assert registered.address == str(served)
        message = PublishManifest(0, len(new.encoded), new.layout, new.layout_signature)
        await peer.request(message, new.encoded)
        await peer.request(HoldChunks(registered.generation, 1, 0, new.root, (len(held),)), held)
        found = (await asker.request(FindChunks(new.root))).message
        assert isinstance(found, ChunkHolders)
        contact = Contact(keys(1).key, served.host, served.port, relay=False)
        assert [holder.contact for holder in found.holders] == [contact]
    async with running(store, TOKEN) as address, rpc.connect(address, keys(2), psk=TOKEN) as asker:
        models = (await asker.request(ListModels())).message
        assert isinstance(models, Models)
        assert [(model.name, model.holders) for model in models.models] == [("model", 0)]


async def test_who_answers_with_another_key_is_not_published(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "tracker.sqlite") as address,
        echo_server(keys(1)) as served,
        rpc.connect(address, keys(2)) as peer,
    ):
        registered = await register(peer, served.port)
        assert registered.address == ""
        assert "key" in registered.obstacle


async def test_a_peer_that_listens_nowhere_is_reached_through_the_relay(tmp_path: Path) -> None:
    async def answer(caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
        assert caller.key == keys(2).key
        return Proof(), message.digest * 20_000

    async with running(tmp_path / "tracker.sqlite", TOKEN) as address, trio.open_nursery() as nursery:
        hidden, asking = RelayEnd(), RelayEnd()
        for end, identity in ((hidden, keys(1)), (asking, keys(2))):
            dial = rpc.dial(nursery, address, identity, psk=TOKEN, handlers=end.handlers())
            end.attach(await dial)
            nursery.start_soon(end.run)
        registered = await register(hidden.peer, 0)
        await hidden.listen(registered.generation)
        nursery.start_soon(serve_relayed, hidden, Server(keys(1), {GetProof: answer}, psk=TOKEN))
        peer = await dial_relayed(nursery, asking, keys(1).key, keys(2), psk=TOKEN)
        async with trio.open_nursery() as requests:
            for number in range(6):

                async def ask(number: int = number) -> None:
                    reply = await peer.request(GetProof(bytes([number]) * 32))
                    assert reply.payload == bytes([number]) * 640_000

                requests.start_soon(ask)
        await peer.aclose()
        nursery.cancel_scope.cancel()
