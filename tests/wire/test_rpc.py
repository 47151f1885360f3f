"""Requests over connections: replies, errors, cancelling, limits, ends, and the ways in."""

import logging
import os
import socket
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.handshake import HandshakeFailed, KeyChanged, Mode, TokenNeeded, TokenNotUsed, WrongToken
from swarm.wire.keys import KeyPair
from swarm.wire.messages import BadMessage, Message, Ping
from swarm.wire.race import plain_errors
from swarm.wire.rpc import (
    Busy,
    CannotListen,
    ConnectionLost,
    Limits,
    Peer,
    RemoteError,
    Reply,
    Unreachable,
    connect,
    listen,
    open_peer,
    serve,
)
from swarm.wire.server import Server
from tests.wire.support import CALLER, ECHO, SERVER, STRANGER, TOKEN, Answer, Ask, Unheard, echo, peers


class NoSuchThing(SwarmError):
    """There is no {thing} here; try another."""


async def start_server(
    nursery: trio.Nursery, handlers: Any = ECHO, host: str = "127.0.0.1", **options: Any
) -> Address:
    listeners = await listen(host, 0)

    async def run(task_status: trio.TaskStatus[list[Address]]) -> None:
        await serve(listeners, SERVER, handlers, task_status=task_status, **options)

    addresses: list[Address] = await nursery.start(run)
    return addresses[0]


@pytest.mark.parametrize("size", [0, 1, 60_000, 65_500, 65_519, 70_000, 1 << 20])
async def test_a_request_is_answered(size: int) -> None:
    payload = os.urandom(size)
    async with peers() as (server, _):
        reply = await server.request(Ask(7), payload)
        assert reply == Reply(Answer(7), reply.payload)
        assert bytes(reply.payload) == payload
        assert server.key == SERVER.key


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
    seen: list[int] = []

    async def look(peer: Peer) -> None:
        seen.append(peer._link._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))  # type: ignore[attr-defined]

    async with plain_errors() as nursery:
        address = await start_server(nursery, on_peer=look)
        async with connect(address, CALLER) as peer:
            await look(peer)
            await peer.request(Ask(1))
        nursery.cancel_scope.cancel()
    assert len(seen) == 2
    assert all(seen)


async def test_many_requests_at_once_and_both_ways() -> None:
    async with peers(caller_handlers=ECHO) as (server, caller):
        found: Counter[int] = Counter()

        async def ask(peer: Peer, number: int, size: int) -> None:
            payload = bytes([number]) * size
            reply = await peer.request(Ask(number), payload)
            assert reply.message == Answer(number)
            assert bytes(reply.payload) == payload
            found[number] += 1

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, server if number % 2 else caller, number, (number % 5) * 40_000)
        assert set(found.values()) == {1}
        assert len(found) == 200


async def test_errors_of_handlers_reach_who_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        match message.number:
            case 0:
                raise NoSuchThing(thing="\x1b[31mdragon\n")
            case 1:
                raise Busy(what="The dragon", retry_after_s=1.5)
            case 2:
                raise KeyError("a secret of the inside")
            case 3:
                return Answer(-5), b""
            case 4:
                return Answer(1), bytes((1 << 20) + 1)
            case 5:
                return None  # type: ignore[return-value]
            case _:
                return Answer(message.number), b""

    caplog.set_level(logging.CRITICAL)
    async with peers({Ask: fails}) as (server, _):
        with pytest.raises(RemoteError, match=r"There is no .*31mdragon  here; try another") as caught:
            await server.request(Ask(0))
        assert caught.value.remote_code == "no-such-thing"
        assert caught.value.retry_after_s is None
        assert "\x1b" not in str(caught.value)
        with pytest.raises(RemoteError) as caught:
            await server.request(Ask(1))
        assert (caught.value.remote_code, caught.value.retry_after_s) == ("busy", 1.5)
        for number in (2, 4, 5):
            with pytest.raises(RemoteError) as caught:
                await server.request(Ask(number))
            assert caught.value.remote_code == "internal-error"
            assert "secret" not in str(caught.value)
        with pytest.raises(RemoteError) as caught:
            await server.request(Ask(3))
        assert caught.value.remote_code == "bad-message"
        with pytest.raises(RemoteError) as caught:
            await server.request(Unheard())
        assert caught.value.remote_code == "not-served"
        with pytest.raises(RemoteError) as caught:
            await server.request(Ping())
        assert (await server.request(Ask(9))).message == Answer(9)


async def test_what_breaks_its_own_rules_is_not_sent() -> None:
    async with peers() as (server, _):
        with pytest.raises(BadMessage):
            await server.request(Ask(-1))
        with pytest.raises(BadMessage):
            await server.request(Ask(1), bytes((1 << 20) + 1))
        with pytest.raises(TypeError):
            await server.request(Ask(1), memoryview(bytes(100))[::2])
        assert (await server.request(Ask(1), memoryview(bytes(100)).cast("H"))).payload == bytes(100)


async def test_a_reply_longer_than_declared_is_refused() -> None:
    async with peers({Unheard: lambda caller, message, payload: echo(caller, Ask(1), bytes(200_000))}) as (
        server,
        _,
    ):
        with pytest.raises(RemoteError):  # its own side already refuses to send it
            await server.request(Unheard())
        assert server.is_open


async def test_cancelling_a_request_cancels_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    log: list[str] = []

    async def slow(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        try:
            await trio.sleep(message.number)
        except trio.Cancelled:
            log.append("cancelled")
            raise
        log.append("done")
        return Answer(message.number), b"x"

    async with peers({Ask: slow}) as (server, _):
        with trio.move_on_after(1) as scope:
            await server.request(Ask(50))
        assert scope.cancelled_caught
        await trio.sleep(1)
        assert log == ["cancelled"]
        assert (await server.request(Ask(1))).message == Answer(1)


async def test_a_reply_to_a_cancelled_request_passes_by() -> None:
    scope = trio.CancelScope()

    async def late(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        if message.number == 1:
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
        return Answer(message.number), bytes(200_000)

    async with peers({Ask: late}) as (server, _):
        for number in (1, 2, 3):
            with scope:
                await server.request(Ask(number))
            scope = trio.CancelScope()
        assert (await server.request(Ask(4))).message == Answer(4)


async def test_no_more_requests_than_allowed_are_asked_at_once() -> None:
    running, most = 0, 0
    go = trio.Event()

    async def count(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        return Answer(message.number), b""

    async with peers({Ask: count}, limits=Limits(requests_per_connection=4)) as (server, _):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(server.request, Ask(number))
            await trio.testing.wait_all_tasks_blocked()
            assert most == 4
            go.set()
        assert most == 4


async def test_a_process_answers_so_many_requests_at_once() -> None:
    go = trio.Event()

    async def wait(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        await go.wait()
        return Answer(message.number), b""

    async with peers({Ask: wait}, limits=Limits(requests=2)) as (server, _):
        busy: list[RemoteError] = []

        async def ask(number: int) -> None:
            try:
                await server.request(Ask(number), bytes(number * 100_000))
            except RemoteError as error:
                busy.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked(0.2)
            go.set()
        assert [error.remote_code for error in busy] == ["busy"] * 3
        assert all(error.retry_after_s for error in busy)
        assert (await server.request(Ask(1))).message == Answer(1)


async def test_memory_for_payloads_is_bounded() -> None:
    held, most = 0, 0

    async def hold(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        nonlocal held, most
        held += len(payload)
        most = max(most, held)
        await trio.testing.wait_all_tasks_blocked(0.01)
        held -= len(payload)
        return Answer(message.number), b""

    limits = Limits(bytes_in_flight=8 << 20)
    async with peers({Ask: hold}, limits=limits) as (server, _), trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(server.request, Ask(number), bytes(1 << 19))
    assert 1 << 20 <= most <= 8 << 20


async def test_notices_come_in_order_and_one_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    seen: list[int] = []
    inside = 0

    async def take(caller: Peer, message: Ask, payload: Any) -> None:
        nonlocal inside
        inside += 1
        await trio.lowlevel.checkpoint()
        assert inside == 1
        inside -= 1
        seen.append(message.number)
        if message.number == 3:
            raise NoSuchThing(thing="notice")
        if message.number == 4:
            raise KeyError("inside")

    async def ask(caller: Peer, message: Answer, payload: Any) -> tuple[Message, Any]:
        return Answer(0), b""

    async with peers({Ask: take, Answer: ask}) as (server, _):
        for number in range(20):
            await server.notify(Ask(number), bytes(number * 20_000))
        await server.notify(Unheard())
        await server.request(Answer(1))
        assert seen == list(range(20))


async def test_when_the_connection_is_lost_everybody_is_told() -> None:
    async def never(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        await trio.sleep_forever()
        raise AssertionError

    async with peers({Ask: never}) as (server, caller):
        errors: list[SwarmError] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await server.request(Ask(1))
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await caller.aclose("it is time to go")
        assert len(errors) == 3
        assert "it is time to go" in str(errors[0])
        await server.wait_closed()
        assert not server.is_open
        assert server.ended_by is not None
        for attempt in (server.request(Ask(1)), server.notify(Ask(1)), server.ping()):
            with pytest.raises(ConnectionLost):
                await attempt


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
