"""Requests and replies over encrypted connections: many at once, both ways, each with its own id.

    async with connect(address, keys, psk=token, expected_key=key) as peer:
        reply = await peer.request(ReadRange(...))          # the caller owns the deadline: trio.fail_after
        reply.message, reply.payload

    async def read(caller: Peer, message: ReadRange, payload: Buffer) -> Reply: ...
    await serve(listeners, keys, {ReadRange: read}, psk=token)

A handler may raise a SwarmError: the other side's `request` raises RemoteError with its code and text.
Whoever cancels a request tells the other side, whose handler is cancelled. Both sides may ask: a handler
can call ``caller.request``, and `connect` takes handlers too.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import trio

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Reply(NamedTuple):
    """What comes back: a message and the raw bytes that followed it."""

    message: Message
    payload: Buffer = b""


Handler: TypeAlias = "Callable[[Peer, Any, Buffer], Awaitable[tuple[Message, Buffer]]]"
Handlers: TypeAlias = Mapping[type[Message], Handler]


class RemoteError(SwarmError):
    """{peer} answered: {text} ({error_code})."""

    @property
    def remote_code(self) -> str:
        """The code of the other side's error, such as ``no-such-file``."""
        return str(self.fields["error_code"])

    @property
    def retry_after_s(self) -> float | None:
        """When the other side asks to be asked again, if it said so."""
        hint = self.fields.get("retry_after_s")
        return None if hint is None else float(str(hint))


class Busy(SwarmError):
    """{what} is busy; ask again in {retry_after_s} s.

    A handler raises it to turn work away with a hint; the asker sees a RemoteError with code ``busy``.
    """


class ConnectionLost(SwarmError):
    """The connection to {peer} ended: {reason}."""


class Unreachable(SwarmError):
    """{address} cannot be reached: {reason}. Is it running, and is the address right?"""


@dataclass(frozen=True)
class Limits:
    """What one connection, one source and one process may take."""

    handshake_s: float = 10.0
    idle_s: float = 60.0
    requests_per_connection: int = 64
    connections: int = 4096
    connections_per_source: int = 256
    bytes_in_flight: int = 64 << 20


class Peer:
    """The other end of an open connection."""

    key: PeerKey
    """Its Ed25519 identity, proven in the handshake."""
    address: Address | None
    """Where it was reached or came from; None when unknown (a memory stream, a relay)."""
    name: str
    """How messages call it: address and the start of its key."""

    @property
    def is_open(self) -> bool:
        """Whether requests can still be made."""
        raise NotImplementedError

    @property
    def round_trip_s(self) -> float | None:
        """The shortest round trip measured lately, or None."""
        raise NotImplementedError

    async def request(self, message: Message, payload: Buffer = b"") -> Reply:
        """Asks and waits for the reply; cancelling it takes the request back.

        Raises RemoteError when the other side's handler failed, ConnectionLost when there is no way to it.
        """
        raise NotImplementedError

    async def notify(self, message: Message, payload: Buffer = b"") -> None:
        """Sends a message that has no reply. Its handler's return value is dropped."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """Waits until the connection has ended, for whatever reason."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Closes the connection; requests under way raise ConnectionLost."""
        raise NotImplementedError


@asynccontextmanager
async def connect(
    address: Address,
    keys: KeyPair,
    *,
    psk: bytes | None = None,
    expected_key: bytes | None = None,
    handlers: Handlers | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Peer]:
    """Opens a connection for the length of a block; see `dial`."""
    raise NotImplementedError
    yield


async def dial(
    nursery: trio.Nursery,
    address: Address,
    keys: KeyPair,
    *,
    psk: bytes | None = None,
    expected_key: bytes | None = None,
    handlers: Handlers | None = None,
    limits: Limits | None = None,
) -> Peer:
    """Opens a connection that lives in the caller's nursery until it is closed or lost.

    ``psk`` is the 32-byte secret of a private swarm, ``expected_key`` the Ed25519 key the other side must
    prove. Raises Unreachable, WrongToken, KeyChanged, HandshakeFailed.
    """
    raise NotImplementedError


async def open_peer(
    nursery: trio.Nursery,
    stream: trio.abc.Stream,
    keys: KeyPair,
    *,
    initiator: bool,
    psk: bytes | None = None,
    expected_key: bytes | None = None,
    handlers: Handlers | None = None,
    limits: Limits | None = None,
    address: Address | None = None,
) -> Peer:
    """Runs the handshake and then the connection over any stream: a relay's, or one in memory."""
    raise NotImplementedError


async def listen(host: str | None, port: int) -> list[trio.SocketListener]:
    """Listens on a host (None: every IPv4 and IPv6 interface) and port; 0 takes one free port for all.

    Raises CannotListen when the port is taken or not allowed.
    """
    raise NotImplementedError


async def serve(
    listeners: Sequence[trio.SocketListener],
    keys: KeyPair,
    handlers: Handlers,
    *,
    psk: bytes | None = None,
    limits: Limits | None = None,
    on_peer: Callable[[Peer], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves handlers to whoever proves an identity (and knows the psk), until cancelled.

    ``on_peer`` is run in a task of its own for each peer that comes in, and cancelled when the peer is gone.
    Starts with the addresses that it listens on. Nothing a stranger sends ends it.
    """
    raise NotImplementedError
