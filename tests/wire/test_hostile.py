"""Peers that are slow, silent, greedy, confused or malicious: each costs a bounded time, nobody else."""

import logging
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire import cbor
from swarm.wire.address import Address
from swarm.wire.answers import Answers
from swarm.wire.calls import Busy, Shared
from swarm.wire.connection import Connection, Received
from swarm.wire.frames import Head, Kind
from swarm.wire.handshake import Greeter, HandshakeFailed, TurnedAway
from swarm.wire.messages import BadMessage, Message, Ping
from swarm.wire.outbox import HIGH_WATER_PIECES
from swarm.wire.pings import MOST_PONGS_WAITING
from swarm.wire.race import plain_errors
from swarm.wire.rpc import ConnectionLost, Limits, Peer, addresses_of, connect, listen, open_peer, serve
from swarm.wire.server import Server
from tests.wire.support import CALLER, ECHO, SERVER, STRANGER, Answer, Ask, Unheard, peers

LIMITS = Limits(handshake_s=10, idle_s=60, least_bytes_per_s=1000, pace_s=10)


@asynccontextmanager
async def raw_caller(
    handlers: Any = ECHO,
    limits: Limits = LIMITS,
    *,
    shake: bool = True,
    pair: Any = trio.testing.memory_stream_pair,
    server: Server | None = None,
) -> AsyncIterator[tuple[trio.abc.Stream, Connection, trio.Event]]:
    """A stream into a server, a machine that speaks on it if it likes, and the end of the server's side."""
    here, there = pair()
    ended = trio.Event()

    async def serve_one() -> None:
        listening = server or Server(SERVER, handlers, limits=limits)
        await listening.welcome(there, Address("192.0.2.1", 1))
        ended.set()

    async with plain_errors() as nursery:
        nursery.start_soon(serve_one)
        connection = Connection(Greeter(CALLER, initiator=True, expected_key=SERVER.key))
        if shake:
            await here.send_all(connection.start())
            while connection.session is None:
                connection.receive(await here.receive_some(65536))
            await here.send_all(connection.output())
        yield here, connection, ended
        await trio.aclose_forcefully(here)
        with trio.fail_after(120):
            await ended.wait()


def frame(connection: Connection, kind: Kind, id: int, message: Message, payload: bytes = b"") -> bytes:
    outgoing = connection.send(kind, id, message, payload)
    return bytes(outgoing.first) + (bytes(outgoing.seal_rest()) if outgoing.seal_rest else b"")


def head_record(connection: Connection, head: Any) -> bytes:
    assert connection.session is not None
    data = cbor.encode(head)
    return bytes(connection.session.sends.record([len(data).to_bytes(2, "big"), data]))


async def test_who_says_nothing_is_closed_in_time(autojump_clock: Any) -> None:
    async with raw_caller(shake=False) as (_, _, ended):
        started = trio.current_time()
        await ended.wait()
        assert trio.current_time() - started == pytest.approx(LIMITS.handshake_s, abs=1)


async def test_a_handshake_in_drops_is_closed_in_time(autojump_clock: Any) -> None:
    async with raw_caller(shake=False) as (stream, connection, ended):
        started = trio.current_time()
        first = connection.start()
        for place in range(len(first)):
            if ended.is_set():
                break
            await stream.send_all(first[place : place + 1])
            await trio.sleep(0.5)
        await ended.wait()
        assert trio.current_time() - started < LIMITS.handshake_s + 2


@pytest.mark.parametrize(
    "rubbish", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"SWRM\x01\x00\xff\xff" + b"x" * 65535]
)
async def test_rubbish_is_closed_at_once(rubbish: bytes, autojump_clock: Any) -> None:
    async with raw_caller(shake=False) as (stream, _, ended):
        started = trio.current_time()
        await stream.send_all(rubbish)
        await ended.wait()
        assert trio.current_time() - started < 1


async def test_early_close_at_every_byte_of_a_conversation(autojump_clock: Any) -> None:
    for cut in range(0, 700, 23):
        async with raw_caller(shake=False) as (stream, connection, _):
            sent = 0

            async def send(data: bytes, cut: int = cut, stream: Any = stream) -> None:
                nonlocal sent
                await stream.send_all(data[: max(cut - sent, 0)])
                sent += len(data)

            await send(connection.start())
            if sent < cut:
                connection.receive(await stream.receive_some(65536))
                await send(connection.output())
                await send(frame(connection, Kind.REQUEST, 1, Ask(1), bytes(400)))


async def test_a_frame_in_drops_is_closed_in_time(autojump_clock: Any) -> None:
    async with raw_caller() as (stream, connection, ended):
        started = trio.current_time()
        data = frame(connection, Kind.REQUEST, 1, Ask(1), os.urandom(1 << 20))
        for place in range(200, len(data), 100):
            if ended.is_set():
                break
            await stream.send_all(data[place - 200 if place == 200 else place - 100 : place])
            await trio.sleep(1)  # 100 bytes a second
        assert ended.is_set()
        assert trio.current_time() - started < 2 * LIMITS.pace_s + 2


async def test_a_slow_but_honest_sender_is_waited_for(autojump_clock: Any) -> None:
    async with raw_caller() as (stream, connection, ended):
        data = frame(connection, Kind.REQUEST, 1, Ask(1), bytes(50_000))
        for place in range(0, len(data), 1200):
            await stream.send_all(data[place : place + 1200])
            await trio.sleep(1)
        assert not ended.is_set()
        connection.receive(await stream.receive_some(65536))


async def test_a_silent_peer_is_pinged_and_then_given_up(autojump_clock: Any) -> None:
    async with raw_caller() as (stream, _, ended):
        started = trio.current_time()
        await trio.sleep(LIMITS.idle_s / 2 + 1)
        assert await stream.receive_some(65536)  # a ping came, and stays unanswered
        await ended.wait()
        assert trio.current_time() - started == pytest.approx(LIMITS.idle_s, abs=2)


async def test_a_living_peer_that_has_nothing_to_say_is_kept(autojump_clock: Any) -> None:
    async with peers(limits=LIMITS) as (server, caller):
        await trio.sleep(20 * LIMITS.idle_s)
        assert server.is_open
        assert caller.is_open
        assert (await server.request(Ask(1))).message == Answer(1)


async def test_who_does_not_take_its_replies_is_dropped(autojump_clock: Any) -> None:
    async with raw_caller(pair=trio.testing.lockstep_stream_pair) as (stream, connection, ended):
        started = trio.current_time()
        await stream.send_all(frame(connection, Kind.REQUEST, 1, Ask(1), b"take me"))
        await ended.wait()
        assert trio.current_time() - started == pytest.approx(LIMITS.pace_s, abs=2)


@pytest.mark.parametrize(
    "heads",
    [
        [[0, 5, "test-ask", {"number": 1}, 0], [0, 5, "test-ask", {"number": 1}, 0]],
        [[0, 5, "test-ask", {"number": 1}, 0], [0, 4, "test-ask", {"number": 1}, 0]],
        [[1, 1, "test-answer", {"number": 1}, 0]],
        [[1, 1, "test-answer", {"number": 1}, 1 << 20]],
        [[0, 1, "test-ask", {"number": 1}, (1 << 40)]],
        [[9, 1, "test-ask", {"number": 1}, 0]],
    ],
    ids=["an id twice", "an id too low", "an answer", "a long answer", "a giant", "no kind"],
)
async def test_who_breaks_the_protocol_is_closed_at_once(heads: list[Any], autojump_clock: Any) -> None:
    async with raw_caller() as (stream, connection, ended):
        started = trio.current_time()
        for head in heads:
            await stream.send_all(head_record(connection, head))
        await ended.wait()
        assert trio.current_time() - started < 1


async def test_a_replayed_record_ends_the_connection(autojump_clock: Any) -> None:
    async with raw_caller() as (stream, connection, ended):
        data = frame(connection, Kind.REQUEST, 1, Ask(1))
        await stream.send_all(data + data)
        await ended.wait()


async def test_a_changed_long_payload_ends_the_connection() -> None:
    async with raw_caller() as (stream, connection, ended):
        data = bytearray(frame(connection, Kind.REQUEST, 1, Ask(1), bytes(300_000)))
        data[150_000] ^= 1
        await stream.send_all(data)
        with trio.fail_after(10):
            await ended.wait()


async def test_random_rubbish_after_the_handshake(autojump_clock: Any) -> None:
    luck = random.Random(3)
    for _ in range(30):
        async with raw_caller() as (stream, connection, ended):
            await stream.send_all(frame(connection, Kind.REQUEST, 1, Ask(1)))
            await stream.send_all(luck.randbytes(luck.randint(1, 5000)))
            await stream.send_all(b"\x00\x00" * 9)
            await ended.wait()


async def test_a_server_that_lies_about_replies() -> None:
    """A caller gets a named error, and no memory is taken for what it did not ask."""

    async def scenario(head: list[Any], error: type[Exception]) -> None:
        here, there = trio.testing.memory_stream_pair()
        machine = Connection(Greeter(SERVER, initiator=False))

        async def lie() -> None:
            asked = False
            while not asked:
                data = await there.receive_some(65536)
                events = machine.receive(data)
                await there.send_all(machine.output())
                asked = any(getattr(event, "head", None) is not None for event in events)
            await there.send_all(head_record(machine, head))

        async with plain_errors() as nursery:
            nursery.start_soon(lie)
            peer = await open_peer(nursery, here, CALLER, initiator=True)
            with pytest.raises(error):
                await peer.request(Ask(1))
            nursery.cancel_scope.cancel()

    await scenario([1, 7, "test-answer", {"number": 1}, 0], ConnectionLost)
    await scenario([1, 1, "test-answer", {"number": -1}, 0], BadMessage)
    await scenario([1, 1, "no-such-message", {}, 0], BadMessage)
    await scenario([1, 1, "test-answer", {"number": 1}, 2 << 20], BadMessage)
    await scenario([1, 1, "failure", {"code": "x"}, 0], BadMessage)
    await scenario([7, 1, "test-answer", {"number": 1}, 0], ConnectionLost)


async def test_unfinished_handshakes_make_room_for_others(autojump_clock: Any) -> None:
    server = Server(SERVER, ECHO, limits=Limits(handshakes=8))
    async with plain_errors() as nursery:
        mute = []
        for _ in range(30):
            here, there = trio.testing.memory_stream_pair()
            mute.append(here)
            nursery.start_soon(server.welcome, there)
        await trio.testing.wait_all_tasks_blocked()
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(server.welcome, there)
        started = trio.current_time()
        peer = await open_peer(nursery, here, CALLER, initiator=True)
        assert (await peer.request(Ask(1))).message == Answer(1)
        assert trio.current_time() - started < 1
        nursery.cancel_scope.cancel()


async def test_a_slow_handshake_is_not_given_up_for_a_flood_from_elsewhere(autojump_clock: Any) -> None:
    server = Server(SERVER, ECHO, limits=Limits(handshakes=8))
    async with plain_errors() as nursery:
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(server.welcome, there, Address("10.0.0.1", 1))
        await trio.testing.wait_all_tasks_blocked()
        mute = []
        for port in range(30):
            mine, theirs = trio.testing.memory_stream_pair()
            mute.append(mine)
            nursery.start_soon(server.welcome, theirs, Address("10.0.0.2", port))
        await trio.testing.wait_all_tasks_blocked()
        peer = await open_peer(nursery, here, CALLER, initiator=True)
        assert (await peer.request(Ask(1))).message == Answer(1)
        nursery.cancel_scope.cancel()


async def test_one_source_has_so_many_connections() -> None:
    listeners = await listen("127.0.0.1", 0)
    name = listeners[0].socket.getsockname()
    address = Address(name[0], name[1])
    server = Server(SERVER, ECHO, limits=Limits(connections_per_source=2))
    async with plain_errors() as nursery:
        nursery.start_soon(trio.serve_listeners, server.welcome, listeners)
        async with connect(address, CALLER), connect(address, STRANGER) as second:
            with pytest.raises((TurnedAway, HandshakeFailed)):
                async with connect(address, CALLER):
                    raise AssertionError
            assert (await second.request(Ask(1))).message == Answer(1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with connect(address, CALLER) as peer:
            await peer.request(Ask(1))
        nursery.cancel_scope.cancel()


async def test_a_machine_with_many_addresses_is_one_source() -> None:
    server = Server(SERVER, ECHO, limits=Limits(connections_per_source=2))
    async with plain_errors() as nursery:
        ours = []
        for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
            mine, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.welcome, theirs, Address(host, 5000))
            await trio.testing.wait_all_tasks_blocked()
            ours.append(mine)
        for number in (0, 1, 3):
            await open_peer(nursery, ours[number], CALLER, initiator=True)
        with pytest.raises((TurnedAway, HandshakeFailed)):
            await open_peer(nursery, ours[2], CALLER, initiator=True)
        nursery.cancel_scope.cancel()


async def test_who_leaves_while_it_is_refused_does_not_end_the_server() -> None:
    listeners = await listen("127.0.0.1", 0)
    address = addresses_of(listeners)[0]
    async with plain_errors() as nursery:
        await nursery.start(serve, listeners, SERVER, ECHO)
        stream = await trio.open_tcp_stream(address.host, address.port)
        machine = Connection(Greeter(STRANGER, initiator=True))
        await stream.send_all(machine.start())
        while machine.session is None:
            machine.receive(await stream.receive_some(65536))
            await stream.send_all(machine.output())
        refused = b"".join(frame(machine, Kind.REQUEST, number, Unheard()) for number in range(1, 200))
        os.write(stream.socket.fileno(), refused)
        stream.socket.close()  # before any of it is read, so that the second refusal meets a closed port
        async with connect(address, CALLER) as peer:
            assert (await peer.request(Ask(1))).message == Answer(1)
        nursery.cancel_scope.cancel()


async def test_who_takes_no_pongs_gets_few_until_it_does(autojump_clock: Any) -> None:
    async with raw_caller(pair=trio.testing.lockstep_stream_pair) as (stream, connection, _):
        pongs: list[int] = []
        for pings in (range(1, 1001), range(1001, 1002)):
            for number in pings:
                await stream.send_all(frame(connection, Kind.NOTICE, number, Ping()))
            with trio.move_on_after(1):
                while True:
                    events = connection.receive(await stream.receive_some(65536))
                    pongs += [event.head.id for event in events if isinstance(event, Received)]
        assert len(pongs) <= MOST_PONGS_WAITING + 2
        assert pongs[-1] == 1001


async def test_who_takes_no_refusals_is_not_read_further(autojump_clock: Any) -> None:
    sent = 0
    async with raw_caller(pair=trio.testing.lockstep_stream_pair) as (stream, connection, _):
        with trio.move_on_after(1):
            while sent < 10 * HIGH_WATER_PIECES:
                await stream.send_all(frame(connection, Kind.REQUEST, sent + 1, Unheard()))
                sent += 1
    assert HIGH_WATER_PIECES <= sent <= HIGH_WATER_PIECES + 10


class Leaving:
    """A peer whose connection ends while a reply waits to leave."""

    name = "leaving"
    sent_bytes = 0

    async def send(self, kind: Kind, id: int, message: Message, payload: Any = b"") -> None:
        await trio.lowlevel.checkpoint()
        raise ConnectionLost(peer=self.name, reason="it left")


async def test_who_leaves_while_a_failure_waits_to_be_told_does_not_end_the_server() -> None:
    async def fail(caller: Peer, message: Ask, payload: Any) -> None:
        raise Busy(what="This test", retry_after_s=1)

    answers = Answers(Leaving(), {Ask: fail}, Shared(Limits()))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await answers.take(nursery, Head(Kind.REQUEST, 1, Ask(1), 0), b"", None)


async def test_who_hoards_memory_by_not_taking_replies_loses_it_to_others() -> None:
    """Two that take nothing hold all memory for replies; an honest one is served all the same."""

    async def big(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        return Answer(message.number), bytes(1 << 20)

    listeners = await listen("127.0.0.1", 0)
    name = listeners[0].socket.getsockname()
    server = Server(SERVER, {Ask: big}, limits=Limits(bytes_in_flight=8 << 20))
    async with plain_errors() as nursery:
        nursery.start_soon(trio.serve_listeners, server.welcome, listeners)
        hoarders = []
        for _ in range(2):
            stream = await trio.open_tcp_stream(name[0], name[1])
            machine = Connection(Greeter(STRANGER, initiator=True))
            await stream.send_all(machine.start())
            while machine.session is None:
                machine.receive(await stream.receive_some(65536))
                await stream.send_all(machine.output())
            for number in range(1, 30):
                await stream.send_all(frame(machine, Kind.REQUEST, number, Ask(number)))
            hoarders.append(stream)
        await trio.testing.wait_all_tasks_blocked(0.2)
        with trio.fail_after(20):
            async with connect(Address(name[0], name[1]), CALLER) as peer:
                for number in range(5):
                    assert len((await peer.request(Ask(number))).payload) == 1 << 20
        for stream in hoarders:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of this is worth more than a line of information in the log."""
    caplog.set_level(logging.WARNING)


@pytest.fixture(autouse=True)
def nothing_failed_inside(caplog: pytest.LogCaptureFixture) -> Any:
    """No stranger may bring the software into a state that it did not foresee."""
    yield
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
