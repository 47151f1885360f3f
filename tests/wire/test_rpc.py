"""Requests over connections: replies, errors, cancelling, limits and ends."""

import logging
import os
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from swarm.errors import SwarmError
from swarm.wire.messages import BadMessage, Message, Ping
from swarm.wire.rpc import (
    Busy,
    ConnectionLost,
    Limits,
    Peer,
    RemoteError,
    Reply,
)
from tests.wire.servers import NoSuchThing
from tests.wire.support import ECHO, SERVER, Answer, Ask, Unheard, echo, peers


@pytest.mark.parametrize("size", [0, 1, 60_000, 65_500, 65_519, 70_000, 1 << 20])
async def test_a_request_is_answered(size: int) -> None:
    payload = os.urandom(size)
    async with peers() as (server, _):
        reply = await server.request(Ask(7), payload)
        assert reply == Reply(Answer(7), reply.payload)
        assert bytes(reply.payload) == payload
        assert server.key == SERVER.key


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
