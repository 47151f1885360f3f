"""The peers' side of the relay: streams through a connection to the tracker that behave like any trio stream.

    relay = RelayEnd()
    async with rpc.connect(tracker, keys, handlers=relay.handlers()) as connection:
        relay.attach(connection)
        nursery.start_soon(relay.run)
        peer = await dial_relayed(nursery, relay, target_key, keys)      # to reach a relayed peer, or:
        await relay.listen(generation)                                   # to be reached
        await serve_relayed(relay, Server(keys, handlers))

Inside each stream the two sides make their own handshake and prove their keys to each other. When the
connection to the tracker ends, so do its streams. Use a connection of its own for this: bulk delays
heartbeats otherwise.
"""

import trio

from swarm.wire import rpc
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    RELAY_PIECE_BYTES,
    RelayClose,
    RelayCredit,
    RelayData,
    RelayIncoming,
    RelayListen,
    RelayOpen,
    RelayReady,
)
from swarm.wire.rpc import Buffer, Busy, ConnectionLost, Handler, Handlers, Peer
from swarm.wire.server import Server
from tracker.flow import FlowViolation, Incoming, Outgoing

BACKLOG = 32


class RelayStream(trio.abc.Stream):
    """One relayed stream."""

    def __init__(self, end: "RelayEnd", number: int) -> None:
        self._end = end
        self.number = number
        self.incoming = Incoming()
        self.outgoing = Outgoing()
        self.broken: str | None = None
        self._closed = False
        self._changed = trio.Event()
        self._sending = trio.StrictFIFOLock()

    def wake(self) -> None:
        """Lets those who wait look again."""
        self._changed.set()
        self._changed = trio.Event()

    async def send_all(self, data: Buffer) -> None:
        """Sends bytes, waiting for the receiver's credit. BrokenResourceError when the stream was reset."""
        if self._sending.locked():
            raise trio.BusyResourceError("another task is sending on this stream")
        async with self._sending:
            self._check()
            view = memoryview(data).cast("B") if len(data) else memoryview(b"")
            await trio.lowlevel.checkpoint()
            while view:
                await self._wait_for_room()
                piece = bytes(view[: min(RELAY_PIECE_BYTES, self.outgoing.room)])
                self.outgoing.advance(len(piece))
                await self._end.notify(RelayData(self.number), piece)
                view = view[len(piece) :]

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the receiver takes more."""
        await trio.lowlevel.checkpoint()
        await self._wait_for_room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes in order; empty at the end. BrokenResourceError when the stream was reset."""
        await trio.lowlevel.checkpoint()
        if max_bytes is not None and max_bytes < 1:
            raise ValueError("at least one byte must be asked for")
        while not self.incoming.readable and not self.incoming.finished:
            self._check()
            await self._changed.wait()
        if self._closed:
            raise trio.ClosedResourceError
        data = self.incoming.take(max_bytes or RELAY_PIECE_BYTES)
        limit = self.incoming.new_credit()
        if limit is not None and self.broken is None:
            await self._end.notify(RelayCredit(self.number, limit), b"")
        return data

    async def aclose(self) -> None:
        """Ends the stream; what was sent before still arrives."""
        if not self._closed:
            self._closed = True
            self.wake()
            self._end.forget(self)
            if self.broken is None:
                message = RelayClose(self.number, reset=False)
                try:
                    await self._end.notify(message, b"")
                except trio.BrokenResourceError:
                    return
        await trio.lowlevel.checkpoint()

    async def _wait_for_room(self) -> None:
        self._check()
        while self.outgoing.room <= 0:
            await self._changed.wait()
            self._check()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self.broken is not None:
            raise trio.BrokenResourceError(self.broken)


class RelayEnd:
    """All relayed streams of one connection to a tracker."""

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self._streams: dict[int, RelayStream] = {}
        self._next_odd = 1
        self._arrivals, self._accepted = trio.open_memory_channel[tuple[PeerKey, RelayStream]](BACKLOG)

    def handlers(self) -> dict[type[Message], Handler]:
        """For the connection to the tracker."""
        return {
            RelayIncoming: self._incoming,
            RelayData: self._data,
            RelayCredit: self._credit,
            RelayClose: self._close,
        }

    def attach(self, peer: Peer) -> None:
        """Names the connection that the handlers belong to."""
        self._peer = peer

    @property
    def peer(self) -> Peer:
        """The connection to the tracker. RuntimeError before `attach`."""
        if self._peer is None:
            raise RuntimeError("attach the connection to the tracker first")
        return self._peer

    async def listen(self, generation: int) -> None:
        """Asks the tracker for streams. RemoteError when it knows no such registration, ConnectionLost."""
        await self.peer.request(RelayListen(generation))

    async def accept(self) -> tuple[PeerKey, RelayStream]:
        """The next stream, and the key the tracker says it comes from; the handshake inside proves it.

        EndOfChannel when the connection to the tracker has ended.
        """
        return await self._accepted.receive()

    async def open(self, target: PeerKey) -> RelayStream:
        """A stream to a relayed peer. RemoteError when the tracker cannot reach it, ConnectionLost."""
        stream = RelayStream(self, self._next_odd)
        self._next_odd += 2
        self._streams[stream.number] = stream
        try:
            await self.peer.request(RelayOpen(stream.number, target))
        except BaseException:
            self.forget(stream)
            raise
        return stream

    async def run(self) -> None:
        """Breaks every stream when the connection to the tracker ends; returns then."""
        await self.peer.wait_closed()
        self._arrivals.close()
        for stream in list(self._streams.values()):
            self._break(stream, "the connection to the tracker's relay was lost")

    async def notify(self, message: Message, payload: bytes) -> None:
        """Sends to the tracker. BrokenResourceError when the connection is gone."""
        try:
            await self.peer.notify(message, payload)
        except ConnectionLost as error:
            raise trio.BrokenResourceError(str(error)) from error

    def forget(self, stream: RelayStream) -> None:
        """Takes a stream out."""
        self._streams.pop(stream.number, None)

    async def _incoming(
        self, caller: Peer, message: RelayIncoming, payload: Buffer
    ) -> tuple[RelayReady, bytes]:
        stream = RelayStream(self, message.stream)
        self._streams[message.stream] = stream
        try:
            self._arrivals.send_nowait((message.source, stream))
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self.forget(stream)
            raise Busy(what="The relayed peer", retry_after_s=2) from None
        return RelayReady(), b""

    async def _data(self, caller: Peer, message: RelayData, payload: Buffer) -> None:
        stream = self._streams.get(message.stream)
        if stream is None:
            await self._refuse(message.stream, "nobody reads here any more")
            return
        try:
            stream.incoming.receive(bytes(payload))
            stream.wake()
        except FlowViolation as error:
            self._break(stream, str(error))
            await self._refuse(message.stream, str(error))

    async def _credit(self, caller: Peer, message: RelayCredit, payload: Buffer) -> None:
        stream = self._streams.get(message.stream)
        if stream is not None:
            stream.outgoing.credit(message.limit)
            stream.wake()

    async def _close(self, caller: Peer, message: RelayClose, payload: Buffer) -> None:
        stream = self._streams.get(message.stream)
        if stream is None:
            return
        if message.reset:
            self._break(stream, message.reason or "the other side reset the stream")
            return
        stream.incoming.ended = True
        stream.wake()

    def _break(self, stream: RelayStream, reason: str) -> None:
        stream.broken = reason
        self.forget(stream)
        stream.wake()

    async def _refuse(self, number: int, reason: str) -> None:
        try:
            await self.notify(RelayClose(number, reset=True, reason=reason[:200]), b"")
        except trio.BrokenResourceError:
            return  # nobody is there to be told


async def dial_relayed(
    nursery: trio.Nursery,
    end: RelayEnd,
    target: PeerKey,
    keys: KeyPair,
    *,
    psk: bytes | None = None,
    handlers: Handlers | None = None,
) -> Peer:
    """A connection to a relayed peer that lives in the caller's nursery, as `rpc.dial` makes one.

    Raises RemoteError when the tracker cannot reach it, and the errors of `rpc.open_peer`.
    """
    stream = await end.open(target)
    try:
        return await rpc.open_peer(
            nursery, stream, keys, initiator=True, psk=psk, expected_key=target, handlers=handlers
        )
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def serve_relayed(end: RelayEnd, server: Server) -> None:
    """Answers whoever comes through the relay; returns when the connection to the tracker has ended."""
    async with trio.open_nursery() as nursery:
        while True:
            try:
                _, stream = await end.accept()
            except trio.EndOfChannel:
                return
            nursery.start_soon(server.welcome, stream)
