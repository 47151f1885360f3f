"""Transfers that are cut off: nothing of them stays, neither memory nor the share of it that was set aside."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire.connection import Connection
from swarm.wire.frames import Kind
from swarm.wire.messages import Message
from swarm.wire.rpc import Limits, Peer
from swarm.wire.server import Server
from tests.wire.raw import frame, raw_caller
from tests.wire.support import SERVER, Answer, Ask


async def ask_back(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
    """Answers once the caller has answered a question itself, if its number is 1; else at once."""
    if message.number == 1:
        await caller.request(Ask(2))
    return Answer(message.number), b""


async def long_frame(stream: trio.abc.Stream, connection: Connection, kind: Kind, number: int) -> bytes:
    """A frame of 1 MiB that the server takes memory for, after what must come before it."""
    await stream.send_all(frame(connection, Kind.REQUEST, 1, Ask(1 if kind is Kind.REPLY else 3)))
    if kind is Kind.REPLY:
        await heard(stream, connection)
    return frame(connection, kind, number, Answer(2) if kind is Kind.REPLY else Ask(3), bytes(1 << 20))


async def heard(stream: trio.abc.Stream, connection: Connection) -> None:
    """Waits for a frame."""
    while not connection.receive(await stream.receive_some(65536)):
        pass


@contextmanager
def uncollected() -> Iterator[Callable[[], int]]:
    """Gives what counts the bytes that were allocated meanwhile and are still held, without a garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    ("kind", "number", "share"),
    [
        pytest.param(Kind.REQUEST, 2, 0.7, id="request"),
        pytest.param(Kind.NOTICE, 0, 0.7, id="notice"),
        pytest.param(Kind.REPLY, 1, 0.7, id="reply"),
        pytest.param(Kind.REQUEST, 1, 1.0, id="request-whose-number-was-used"),
    ],
)
async def test_a_transfer_cut_off_keeps_no_memory_from_others(kind: Kind, number: int, share: float) -> None:
    server = Server(SERVER, {Ask: ask_back}, limits=Limits(bytes_in_flight=3 << 20))
    with uncollected() as held_bytes:
        for _ in range(8):
            async with raw_caller(server=server) as (stream, connection, _):
                data = await long_frame(stream, connection, kind, number)
                await stream.send_all(data[: int(share * len(data))])
                await trio.testing.wait_all_tasks_blocked()
                del data, stream, connection
        assert held_bytes() < 2 << 20
    async with raw_caller(server=server) as (stream, connection, _):
        await stream.send_all(frame(connection, Kind.REQUEST, 1, Ask(3), bytes(1 << 20)))
        with trio.fail_after(5):
            await heard(stream, connection)
