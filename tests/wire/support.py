"""What the wire's tests share: messages of their own, a pair of machines, a pair of peers, raw sockets."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import trio
import trio.testing

from swarm.wire.connection import Connection, Event, Opened
from swarm.wire.handshake import Greeter
from swarm.wire.keys import KeyPair
from swarm.wire.messages import Bounds, Message, register
from swarm.wire.race import plain_errors
from swarm.wire.rpc import Handlers, Limits, Peer, open_peer
from swarm.wire.server import Server

CALLER = KeyPair(b"\x01" * 32)
SERVER = KeyPair(b"\x02" * 32)
STRANGER = KeyPair(b"\x03" * 32)
TOKEN = b"t" * 32
MAX_TEST_PAYLOAD = 1 << 20


@register("test-ask", payload=MAX_TEST_PAYLOAD, reply_payload=MAX_TEST_PAYLOAD)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """A request of the tests: a number and any payload."""

    number: Annotated[int, Bounds(0, 1 << 32)]


@register("test-answer", payload=MAX_TEST_PAYLOAD)
@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The reply to it."""

    number: Annotated[int, Bounds(0, 1 << 32)]


@register("test-unheard")
@dataclass(frozen=True, slots=True)
class Unheard(Message):
    """A request that no test serves."""


async def echo(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
    """Answers with the same number and payload."""
    return Answer(message.number), payload


ECHO: Handlers = {Ask: echo}


def machines(**options: Any) -> tuple[Connection, Connection]:
    """A caller's and a server's connection, before the handshake."""
    both = {key: options.pop(key) for key in ("psk",) if key in options}
    caller = Connection(Greeter(CALLER, initiator=True, **both, **options))
    return caller, Connection(Greeter(SERVER, initiator=False, **both))


def open_machines(**options: Any) -> tuple[Connection, Connection]:
    """The same after the handshake."""
    caller, server = machines(**options)
    talk(caller, server)
    assert caller.session is not None
    assert server.session is not None
    return caller, server


def talk(caller: Connection, server: Connection) -> tuple[list[Event], list[Event]]:
    """Carries bytes between two machines until both are silent; returns what each of them saw."""
    seen: tuple[list[Event], list[Event]] = ([], [])
    to_server, to_caller = caller.start(), b""
    while to_server or to_caller:
        seen[1].extend(server.receive(to_server))
        to_caller = server.output()
        seen[0].extend(caller.receive(to_caller))
        to_server = caller.output()
    return seen


def opened(events: Iterable[Event]) -> bool:
    """Whether a handshake was finished among these events."""
    return any(isinstance(event, Opened) for event in events)


@asynccontextmanager
async def peers(
    handlers: Handlers = ECHO, *, caller_handlers: Handlers | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Both ends of one connection over a stream in memory: the caller's view of the server, and back."""
    here, there = trio.testing.memory_stream_pair()
    met: list[Peer] = []
    arrived = trio.Event()

    async def meet(peer: Peer) -> None:
        met.append(peer)
        arrived.set()
        await trio.sleep_forever()

    server = Server(SERVER, handlers, limits=limits, on_peer=meet)
    async with plain_errors() as nursery:
        nursery.start_soon(server.welcome, there)
        peer = await open_peer(
            nursery, here, CALLER, initiator=True, expected_key=SERVER.key, handlers=caller_handlers,
            limits=limits or Limits(),
        )  # fmt: skip
        await arrived.wait()
        yield peer, met[0]
        await peer.aclose()
        nursery.cancel_scope.cancel()
