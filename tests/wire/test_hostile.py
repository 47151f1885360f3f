"""Peers that are slow, silent, greedy, confused or malicious: each costs a bounded time, nobody else."""

import os
import random
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire.connection import Connection
from swarm.wire.frames import Kind
from swarm.wire.handshake import Greeter
from swarm.wire.messages import BadMessage
from swarm.wire.race import plain_errors
from swarm.wire.rpc import ConnectionLost, open_peer
from tests.wire.raw import LIMITS, frame, head_record, raw_caller
from tests.wire.support import CALLER, SERVER, Answer, Ask, peers

pytestmark = pytest.mark.usefixtures("quiet", "nothing_failed_inside")


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
