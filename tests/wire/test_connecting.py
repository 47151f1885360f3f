"""The ways in: sockets, names, ports, tokens and keys, and who is turned away."""

import logging
import os
import socket
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire.address import Address
from swarm.wire.handshake import HandshakeFailed, KeyChanged, Mode, TokenNeeded, TokenNotUsed, WrongToken
from swarm.wire.keys import KeyPair
from swarm.wire.race import plain_errors
from swarm.wire.rpc import (
    CannotListen,
    ConnectionLost,
    Peer,
    Unreachable,
    connect,
    listen,
    open_peer,
    serve,
)
from swarm.wire.server import Server
from tests.wire.servers import NoSuchThing, start_server
from tests.wire.support import CALLER, ECHO, SERVER, STRANGER, TOKEN, Answer, Ask


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("psk", [None, TOKEN])
@pytest.mark.parametrize("expected", [None, SERVER.key])
async def test_over_sockets(host: str, psk: Any, expected: Any) -> None:
    payload = os.urandom(1 << 20)
    async with plain_errors() as nursery:
        address = await start_server(nursery, host=host, psk=psk)
        async with connect(address, CALLER, psk=psk, expected_key=expected) as peer:
            assert peer.key == SERVER.key
            assert peer.session.mode is Mode(int(expected is not None) + (2 if psk else 0))
            assert peer.round_trip_s is not None
            assert bytes((await peer.request(Ask(1), payload)).payload) == payload
            assert (await peer.request(Ask(2))).message == Answer(2)
            assert peer.sent_bytes > len(payload) < peer.received_bytes
            assert await peer.ping() > 0
        assert not peer.is_open
        nursery.cancel_scope.cancel()


async def test_nagle_is_off_at_both_ends() -> None:
    seen: list[bool | None] = []

    async def look(peer: Peer) -> None:
        seen.append(peer.no_delay)

    async with plain_errors() as nursery:
        address = await start_server(nursery, on_peer=look)
        async with connect(address, CALLER) as peer:
            await look(peer)
            await peer.request(Ask(1))
        nursery.cancel_scope.cancel()
    assert len(seen) == 2
    assert all(seen)


async def test_the_keyword_errors_of_connecting() -> None:
    async with plain_errors() as nursery:
        open_server = await start_server(nursery)
        private = await start_server(nursery, psk=TOKEN)
        for address, options, error in (
            (private, {"psk": b"w" * 32}, WrongToken),
            (private, {"psk": b"w" * 32, "expected_key": SERVER.key}, WrongToken),
            (private, {}, TokenNeeded),
            (private, {"expected_key": SERVER.key}, TokenNeeded),
            (open_server, {"psk": TOKEN}, TokenNotUsed),
            (open_server, {"expected_key": STRANGER.key}, KeyChanged),
            (private, {"psk": TOKEN, "expected_key": STRANGER.key}, KeyChanged),
        ):
            with pytest.raises(error, match=str(address.port)):
                async with connect(address, CALLER, **options):
                    raise AssertionError
        nursery.cancel_scope.cancel()


async def test_a_peer_whose_exchange_key_changed_is_still_known_by_its_identity() -> None:
    """The fall back from IK to XX still demands the same identity."""
    other = KeyPair(b"\x09" * 32)
    moved = KeyPair(SERVER.seed)
    object.__setattr__(moved, "_exchange", other.exchange_secret)
    object.__setattr__(moved, "static", other.static)
    async with plain_errors() as nursery:
        listeners = await listen("127.0.0.1", 0)
        nursery.start_soon(serve, listeners, moved, ECHO)
        name = listeners[0].socket.getsockname()
        async with connect(Address(name[0], name[1]), CALLER, expected_key=SERVER.key) as peer:
            assert peer.session.mode is Mode.XX
            assert peer.key == SERVER.key
        nursery.cancel_scope.cancel()


async def test_nobody_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", closed.getsockname()[1])
        with pytest.raises(Unreachable, match="refused"):
            async with connect(address, CALLER):
                raise AssertionError


@pytest.mark.parametrize("host", ["x..y", "a" * 64 + ".example", "\u00e9" * 200, "\ud800"])
async def test_a_name_that_cannot_be_looked_up(host: str) -> None:
    """Trackers name hosts as they like."""
    with pytest.raises(Unreachable, match="no host of that name"):
        async with connect(Address(host, 1), CALLER):
            raise AssertionError
    with pytest.raises(CannotListen, match="no such host"):
        await listen(host, 0)


async def test_a_taken_port_is_named() -> None:
    listeners = await listen("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(CannotListen, match=f"127.0.0.1:{port}: the port is taken"):
        await listen("127.0.0.1", port)
    with pytest.raises(CannotListen, match="no such host"):
        await listen("no.such.host.invalid", 0)
    for listener in listeners:
        await listener.aclose()


async def test_both_families_share_a_port() -> None:
    listeners = await listen(None, 0)
    ports = {listener.socket.getsockname()[1] for listener in listeners}
    assert len(ports) == 1
    async with plain_errors() as nursery:
        nursery.start_soon(serve, listeners, SERVER, ECHO)
        for host in ("127.0.0.1", "::1")[: len(listeners)]:
            async with connect(Address(host, next(iter(ports))), CALLER) as peer:
                await peer.request(Ask(1))
        nursery.cancel_scope.cancel()


async def test_who_is_not_admitted_is_told_why() -> None:
    def admit(peer: Peer) -> None:
        if peer.key == CALLER.key:
            raise NoSuchThing(thing="place for a liar")

    async with plain_errors() as nursery:
        address = await start_server(nursery, admit=admit)
        async with connect(address, CALLER) as peer:
            await peer.wait_closed()
            with pytest.raises(ConnectionLost, match="place for a liar"):
                await peer.request(Ask(1))
        async with connect(address, STRANGER) as peer:
            await peer.request(Ask(1))
        nursery.cancel_scope.cancel()


async def test_errors_inside_a_block_come_out_as_themselves() -> None:
    async with plain_errors() as nursery:
        address = await start_server(nursery)
        with pytest.raises(NoSuchThing):
            async with connect(address, CALLER):
                raise NoSuchThing(thing="x")
        nursery.cancel_scope.cancel()


async def test_what_runs_beside_a_connection_cannot_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    errors: list[Exception] = [KeyError("inside"), NoSuchThing(thing="peer")]

    async def beside(peer: Peer) -> None:
        if errors:
            raise errors.pop()

    async with plain_errors() as nursery:
        address = await start_server(nursery, on_peer=beside)
        for _ in range(3):
            async with connect(address, CALLER) as peer:
                await peer.request(Ask(1))
        assert not errors
        nursery.cancel_scope.cancel()


async def test_a_stream_that_ends_in_the_handshake() -> None:
    here, there = trio.testing.memory_stream_pair()
    await there.aclose()
    async with plain_errors() as nursery:
        with pytest.raises(HandshakeFailed):
            await open_peer(nursery, here, CALLER, initiator=True)


async def test_nothing_of_what_is_said_can_be_read_on_the_way() -> None:
    secret, tapped = b"the secret of the prompt, said twice: the secret of the prompt", bytearray()
    left, right = trio.testing.memory_stream_pair()
    there, far = trio.testing.memory_stream_pair()

    async def carry(source: trio.abc.Stream, target: trio.abc.Stream) -> None:
        async for data in source:
            tapped.extend(data)
            await target.send_all(data)

    async with plain_errors() as nursery:
        nursery.start_soon(carry, right, there)
        nursery.start_soon(carry, there, right)
        nursery.start_soon(Server(SERVER, ECHO, psk=TOKEN).welcome, far)
        peer = await open_peer(nursery, left, CALLER, initiator=True, psk=TOKEN)
        for payload in (secret, secret * 3000):
            assert bytes((await peer.request(Ask(1), payload)).payload) == payload
        nursery.cancel_scope.cancel()
    assert len(tapped) > 2 * 3000 * len(secret)
    for part in (secret[:12], b"test-ask", b"test-answer", bytes(SERVER.key), bytes(CALLER.key), TOKEN):
        assert part not in tapped
