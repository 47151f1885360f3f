"""What `serve` and `tracker` have in common: keys, token, a port, the address to invite people to, an end."""

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import trio

from swarm.errors import SwarmError
from swarm.peers.settings import Home
from swarm.trust.files import write_atomically
from swarm.trust.identity import Identity
from swarm.trust.invite import new_token, token_from_text
from swarm.wire import rpc
from swarm.wire.address import Address, BadAddress, parse_address
from tracker.store import MemoryStore, SqliteStore, Store

# An address of a documentation network: asking the way there sends nothing.
_FAR_AWAY = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))


class TokenDamaged(SwarmError):
    """{path} holds no token of a private swarm; restore it, or delete it to get a new one and new invites."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens, and where others are told to find it."""

    listen: str | None
    """A host or address; None: every interface."""
    port: int
    advertise: str | None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.listen is not None and Address(self.listen, self.port).is_loopback


def secret_of(paths: Home, token: str | None, private: bool) -> bytes | None:
    """The secret of the swarm: from a passphrase, or one that was made here once; None when anybody may join.

    Raises:
        BadToken, TokenDamaged, OSError: it cannot be had.
    """
    if token is not None:
        return token_from_text(token)
    if not private:
        return None
    path = paths.data / "token"
    if not path.exists():
        write_atomically(path, new_token().hex().encode() + b"\n")
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise TokenDamaged(path=path)
    return secret


def open_store(paths: Home, wanted_port: int) -> Store:
    """What the tracker at a port must not forget. Nobody finds one again whose port the system chose."""
    if wanted_port == 0:
        return MemoryStore()
    return SqliteStore(paths.tracker_store(wanted_port))


def identity_of(paths: Home) -> Identity:
    """This machine's key, made on first use."""
    return Identity.load_or_create(paths.identity_key)


def operator_of(paths: Home, key_file: Path | None) -> Identity:
    """The operator's key: this machine's own is made on first use, one at another place must be there."""
    if key_file is None:
        return Identity.load_or_create(paths.operator_key)
    return Identity.load(key_file)  # a mistyped path must not make the model somebody else's


def invite_address(place: Place, port: int) -> Address:
    """The address that goes into invites: the advertised one, else the best guess. Raises BadAddress."""
    if place.advertise:
        address = parse_address(place.advertise, port)
        if not address.port:
            raise BadAddress(text=place.advertise, reason="port 0 cannot be reached")
        return address
    if place.listen is not None and place.listen not in ("0.0.0.0", "::"):
        return parse_address(place.listen, port) if ":" not in place.listen else Address(place.listen, port)
    return Address(own_host(), port)


def own_host() -> str:
    """The address of this machine's interface that leads away from it; loopback when none does."""
    for host, family in _FAR_AWAY:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            try:
                probe.connect((host, 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


@asynccontextmanager
async def listening(place: Place) -> AsyncIterator[list[trio.SocketListener]]:
    """The sockets of a place, for the length of a block. Raises CannotListen."""
    listeners = await rpc.listen(place.listen, place.port)
    try:
        yield listeners
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()


@asynccontextmanager
async def until_signalled() -> AsyncIterator[trio.Event]:
    """Gives an event that SIGINT, SIGTERM and SIGHUP set."""
    ended = trio.Event()

    async def watch(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        yield ended
        nursery.cancel_scope.cancel()
