"""A caller without manners: frames made by hand, over a connection that is shaken or not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from swarm.wire import cbor
from swarm.wire.address import Address
from swarm.wire.connection import Connection
from swarm.wire.frames import Kind
from swarm.wire.handshake import Greeter
from swarm.wire.messages import Message
from swarm.wire.race import plain_errors
from swarm.wire.rpc import Limits
from swarm.wire.server import Server
from tests.wire.support import CALLER, ECHO, SERVER

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
