"""Carries a connection's bytes over a trio stream.

A socket is read and written without a detour: short frames leave at once in the task that sends them, long
payloads are received into the memory where they will be deciphered. Any other stream (a relay's, one in
memory) goes by trio's own interface. Writes are never cut in the middle by their caller: they are queued,
and what cannot leave at once is written by one task of the connection.
"""

import os
import socket
import threading
from collections.abc import Sequence
from typing import Protocol

import trio

from swarm.wire import aead
from swarm.wire.connection import Connection, Event
from swarm.wire.frames import Buffer

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors that mean that a link is gone."""
_RECEIVE_BYTES = 256 << 10
_READS_IN_A_ROW = 8
_LAST_BYTES = 256 << 10
_local = threading.local()


class Link(Protocol):
    """The bytes of one connection, in both directions. One of the errors in GONE means what its name says."""

    def write_now(self, data: Buffer) -> int:
        """Writes what can be written without waiting; returns how many bytes that were."""

    async def write_some(self, parts: Sequence[memoryview]) -> int:
        """Waits until some bytes of these parts could be written; returns how many, at least one."""

    async def read(self, connection: Connection) -> tuple[int, list[Event]]:
        """Waits for bytes and gives them to the connection; 0 bytes mean the end."""

    async def finish(self, data: bytes) -> None:
        """Writes last words to a side that may still be talking, in a way that lets them arrive."""

    async def aclose(self) -> None:
        """Closes it."""

    @property
    def no_delay(self) -> bool | None:
        """Whether TCP_NODELAY is set; None where there is no socket of its own."""


def link_of(stream: trio.abc.Stream) -> Link:
    """The best way to carry bytes over a stream."""
    return SocketLink(stream) if isinstance(stream, trio.SocketStream) else StreamLink(stream)


def tune(sock: trio.socket.SocketType) -> None:
    """Small frames leave at once, and a machine that vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class SocketLink:
    """A TCP connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        tune(stream.socket)
        self._stream = stream
        self._descriptor = stream.socket.fileno()
        self._reads = 0
        self._drained = True

    def write_now(self, data: Buffer) -> int:
        try:
            return os.write(self._usable(), data)
        except BlockingIOError:
            return 0

    async def write_some(self, parts: Sequence[memoryview]) -> int:
        while True:
            try:
                written = os.writev(self._usable(), parts)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._descriptor)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return written

    async def read(self, connection: Connection) -> tuple[int, list[Event]]:
        if self._drained:
            self._reads = 0
            await trio.lowlevel.wait_readable(self._usable())
        self._reads += 1
        if self._reads % _READS_IN_A_ROW == 0:
            await trio.lowlevel.checkpoint()
        while True:
            room = connection.room()
            target = _receive_buffer() if room is None else room
            try:
                count = os.readv(self._usable(), [target])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._descriptor)
                continue
            # After a short read there is most likely nothing: asking would cost more than waiting.
            self._drained = count < len(target)
            if count == 0:
                return 0, []
            if room is None:
                return count, connection.receive(target[:count])
            return count, connection.filled(count)

    async def finish(self, data: bytes) -> None:
        # Closing with bytes unread would reset the connection, and the last words with it.
        try:
            await self._stream.send_all(data)
            await self._stream.send_eof()
            unread = _LAST_BYTES
            while unread > 0 and (got := await self._stream.receive_some(4096)):
                unread -= len(got)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it did not want to hear them

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def no_delay(self) -> bool | None:
        return bool(self._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def _usable(self) -> int:
        # A closed descriptor's number may already belong to another file.
        if self._stream.socket.fileno() != self._descriptor:
            raise trio.ClosedResourceError("this connection was closed")
        return self._descriptor


class StreamLink:
    """Any other stream of trio's."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    def write_now(self, data: Buffer) -> int:
        return 0

    async def write_some(self, parts: Sequence[memoryview]) -> int:
        await self._stream.send_all(parts[0])
        return len(parts[0])

    async def read(self, connection: Connection) -> tuple[int, list[Event]]:
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        return len(data), connection.receive(data) if data else []

    async def finish(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it did not want to hear them

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    @property
    def no_delay(self) -> bool | None:
        return None


def _receive_buffer() -> memoryview:
    """One buffer a thread: what is received is used or copied before anything else runs in that thread."""
    buffer: memoryview | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = aead.uninitialised(_RECEIVE_BYTES)
    return buffer


def words_of(error: BaseException) -> str:
    """What an error of the system or of trio means to a person."""
    while isinstance(error, trio.BrokenResourceError) and isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
