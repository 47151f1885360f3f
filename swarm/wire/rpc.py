"""Requests and replies over encrypted connections: many at once, both ways, each with its own id.

    async with connect(address, keys, psk=token, expected_key=key) as peer:
        with trio.fail_after(5):                        # the caller owns the deadline
            reply = await peer.request(ReadRange(...))
        reply.message, reply.payload

    async def read(caller: Peer, message: ReadRange, payload: Buffer) -> Reply: ...
    await serve(listeners, keys, {ReadRange: read}, psk=token)

A handler may raise a SwarmError: the other side's `request` raises RemoteError with its code and text.
Whoever cancels a request tells the other side, whose handler is cancelled. Both sides may ask: a handler
can call ``caller.request``, and `connect` takes handlers too.

A message whose reply carries a payload declares how long it may be (``register(..., reply_payload=N)``).
"""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.calls import (
    Busy,
    ConnectionLost,
    Handler,
    Handlers,
    NotServed,
    Prompt,
    RemoteError,
    Reply,
    Shared,
)
from swarm.wire.frames import Buffer
from swarm.wire.handshake import Greeter, UnknownStatic
from swarm.wire.keys import KeyPair
from swarm.wire.limits import Limits
from swarm.wire.listening import CannotListen, addresses_of, listen
from swarm.wire.peer import Peer
from swarm.wire.race import plain_errors
from swarm.wire.server import Server, greet
from swarm.wire.stream import link_of, words_of

__all__ = [
    "Buffer",
    "Busy",
    "CannotListen",
    "ConnectionLost",
    "Handler",
    "Handlers",
    "Limits",
    "NotServed",
    "Peer",
    "Prompt",
    "RemoteError",
    "Reply",
    "Unreachable",
    "addresses_of",
    "connect",
    "dial",
    "listen",
    "open_peer",
    "serve",
]

_outgoing: trio.lowlevel.RunVar[Shared] = trio.lowlevel.RunVar("swarm_outgoing")


class Unreachable(SwarmError):
    """{address} cannot be reached: {reason}. Is it running, and is the address right?"""


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
    async with plain_errors() as nursery:
        peer = await dial(
            nursery, address, keys, psk=psk, expected_key=expected_key, handlers=handlers, limits=limits
        )
        try:
            yield peer
        finally:
            with trio.CancelScope(shield=True):
                await peer.aclose()


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

    ``psk`` is the 32-byte token of a private swarm, ``expected_key`` the Ed25519 key the other side must
    prove. Raises Unreachable, and the errors of `handshake` (WrongToken, TokenNeeded, KeyChanged, ...).
    """
    open_it = partial(
        open_peer, nursery, keys=keys, initiator=True, psk=psk, expected_key=expected_key,
        handlers=handlers, limits=limits, address=address,
    )  # fmt: skip
    try:
        return await open_it(await _open_stream(address, limits or Limits()))
    except UnknownStatic:
        # The other side may have changed the key it exchanges with but not its identity. Asking again
        # without knowing that key loses nothing: the identity must still be proven, by the same handshake.
        return await open_it(await _open_stream(address, limits or Limits()), pinned=False)


async def open_peer(
    nursery: trio.Nursery,
    stream: trio.abc.Stream,
    keys: KeyPair,
    *,
    initiator: bool,
    psk: bytes | None = None,
    expected_key: bytes | None = None,
    pinned: bool = True,
    handlers: Handlers | None = None,
    limits: Limits | None = None,
    address: Address | None = None,
) -> Peer:
    """Runs the handshake and then the connection over any stream: a relay's, or one in memory.

    ``pinned`` False begins with XX although a key is expected. Raises the errors of `handshake`.
    """
    shared = Shared(limits) if limits is not None else _shared_outgoing()
    greeter = Greeter(
        keys, initiator=initiator, psk=psk, expected_key=expected_key, pinned=pinned,
        peer=str(address or "The peer"),
    )  # fmt: skip
    peer, early = await greet(link_of(stream), greeter, shared, handlers or {}, address)
    await nursery.start(peer.run, early)
    return peer


async def serve(
    listeners: Sequence[trio.SocketListener],
    keys: KeyPair,
    handlers: Handlers,
    *,
    psk: bytes | None = None,
    limits: Limits | None = None,
    admit: Callable[[Peer], None] | None = None,
    on_peer: Callable[[Peer], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves handlers to whoever proves an identity (and knows the psk), until cancelled.

    ``admit`` may raise a SwarmError to turn a peer away, which is told why. ``on_peer`` runs beside the
    connection of each peer that comes in, and is cancelled when the peer is gone. Starts with the addresses
    that it listens on. Nothing that a stranger sends ends it.
    """
    server = Server(keys, handlers, psk=psk, limits=limits, admit=admit, on_peer=on_peer)
    async with plain_errors() as nursery:
        await nursery.start(
            partial(trio.serve_listeners, server.welcome, list(listeners), handler_nursery=nursery)
        )
        task_status.started(addresses_of(listeners))


def _shared_outgoing() -> Shared:
    """What this process's outgoing connections have in common, one for each run of trio."""
    try:
        return _outgoing.get()
    except LookupError:
        shared = Shared(Limits())
        _outgoing.set(shared)
        return shared


async def _open_stream(address: Address, limits: Limits) -> trio.SocketStream:
    try:
        with trio.fail_after(limits.handshake_s):
            return await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError:
        raise Unreachable(address=address, reason="it does not answer") from None
    except (OSError, UnicodeError) as error:
        raise Unreachable(address=address, reason=_why_unreachable(error)) from error


def _why_unreachable(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter: it cannot even be looked up
        return "there is no host of that name"
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else ()
    numbers = [cause.errno for cause in causes if isinstance(cause, OSError) and cause.errno]
    return os.strerror(numbers[0]).lower() if numbers else words_of(error)
