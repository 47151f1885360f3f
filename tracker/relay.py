"""The tracker's relay: splices streams between those who ask and the peers that cannot be reached.

A relayed peer keeps one connection to the tracker and sends RelayListen on it. Who wants to reach it sends
RelayOpen; the tracker tells the peer (RelayIncoming) and from then on passes pieces, credits and ends from
one connection to the other. Inside the stream the two make their own handshake, so what passes here is
ciphertext.

Each connection has one task that sends to it, a piece of each stream in turn, so many streams share it
fairly and a frozen peer holds up nobody but itself. A sender is never further ahead than the window that the
receiver granted, which bounds what the relay stores; credits are held back from those that use more than
their rate. Nothing here waits without a deadline: for an answer, for a connection that takes no bytes, for a
silent stream.
"""

from collections import deque
from dataclasses import dataclass, field

import trio

from swarm.errors import SwarmError
from swarm.wire.keys import PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    RELAY_PIECE_BYTES,
    RELAY_WINDOW_BYTES,
    RelayClose,
    RelayCredit,
    RelayData,
    RelayIncoming,
    RelayListen,
    RelayOpen,
    RelayReady,
)
from swarm.wire.rpc import Buffer, Busy, ConnectionLost, Handler, Peer, RemoteError
from tracker.clock import Clock
from tracker.quota import Paces, Rate
from tracker.registry import Registry, bounded_network


class NotRelayed(SwarmError):
    """Peer {peer} keeps no connection to this tracker's relay; ask the tracker for its holders again."""


class RelayRefused(SwarmError):
    """Peer {peer} did not take a relayed stream: {reason}."""


class BadStreamNumber(SwarmError):
    """A stream's number must be odd and higher than the one before on its connection; {stream} is not."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What the relay takes. It stores at most `streams` × 2 × RELAY_WINDOW_BYTES, 256 MiB as it stands,
    and spends at most an eighth beyond that: pieces are joined, however small they come."""

    streams: int = 512
    streams_per_connection: int = 128
    streams_per_asker: int = 32
    streams_per_network: int = 128
    """Asked for from one network: keys are free. None may have more than are left free for all others."""
    bytes_per_second: float = 32 << 20
    """For each sender."""
    bytes_per_second_a_network: float = 64 << 20
    answer_s: float = 10.0
    silence_s: float = 300.0


@dataclass(eq=False)
class _Half:
    """A stream as seen from one of its two connections: what that side may send, and what waits for it."""

    link: "_Link"
    number: int
    other: "_Half" = field(init=False)
    allowed: int = RELAY_WINDOW_BYTES
    received: int = 0
    delivered: int = 0
    pieces: deque[bytearray] = field(default_factory=deque)
    granted: int = RELAY_WINDOW_BYTES
    """What that side has been told, or is about to be; behind `allowed` while it uses more than its rate."""
    granting: bool = False
    credit: int | None = None
    ending: RelayClose | None = None
    ended: bool = False
    """Whether this side has said that it sends no more."""
    queued: bool = False

    def store(self, data: Buffer) -> None:
        """Keeps bytes for this side until they are sent."""
        if not self.pieces or len(self.pieces[-1]) + len(data) > RELAY_PIECE_BYTES:
            self.pieces.append(bytearray())
        self.pieces[-1] += data

    def next_message(self) -> tuple[Message, Buffer] | None:
        """What to send to this side next: credit first, then bytes, then the end."""
        if self.credit is not None:
            limit, self.credit = self.credit, None
            return RelayCredit(self.number, limit), b""
        if self.pieces:
            data = self.pieces.popleft()
            self.delivered += len(data)
            return RelayData(self.number), data
        ending, self.ending = self.ending, None
        return None if ending is None else (ending, b"")


@dataclass(eq=False)
class _Link:
    """A connection that streams pass through."""

    peer: Peer
    streams: dict[int, _Half] = field(default_factory=dict)
    last_odd: int = -1
    last_even: int = 0
    waiting: deque[_Half] = field(default_factory=deque)
    farewells: deque[RelayClose] = field(default_factory=deque)
    wake: trio.Event = field(default_factory=trio.Event)
    network: str | None = field(init=False)
    """Where it comes from; None: not bounded."""

    def __post_init__(self) -> None:
        self.network = bounded_network(self.peer.address)

    def queue(self, half: _Half) -> None:
        """Lets the sending task know that a stream has something for this side."""
        if not half.queued:
            half.queued = True
            self.waiting.append(half)
        self.wake.set()


class Relay:
    """The relay's connections and streams; its tasks live in the nursery that it is given."""

    def __init__(self, nursery: trio.Nursery, registry: Registry, clock: Clock, limits: RelayLimits) -> None:
        self._nursery = nursery
        self._registry = registry
        self._clock = clock
        self._limits = limits
        self._pace = Paces(
            Rate(limits.bytes_per_second, RELAY_WINDOW_BYTES),
            Rate(limits.bytes_per_second_a_network, RELAY_WINDOW_BYTES),
        )
        self._links: dict[Peer, _Link] = {}
        self._listeners: dict[PeerKey, _Link] = {}
        self._active_s: dict[_Half, float] = {}
        self.relayed_bytes = 0
        """How many bytes of streams have passed."""

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._active_s)

    def reaches(self, key: PeerKey) -> bool:
        """Whether a peer keeps a connection for relayed streams."""
        return key in self._listeners

    def request_handlers(self) -> dict[type[Message], Handler]:
        """The messages that are answered."""
        return {RelayListen: self.listen, RelayOpen: self.open}

    def notice_handlers(self) -> dict[type[Message], Handler]:
        """The messages that are not answered; credit bounds them, not a quota of requests."""
        return {RelayData: self.data, RelayCredit: self.credit, RelayClose: self.close}

    async def listen(self, caller: Peer, message: RelayListen, payload: Buffer) -> tuple[RelayReady, bytes]:
        """From now on streams for the caller come over this connection."""
        self._registry.entry(caller.key, message.generation)
        self._listeners[caller.key] = self._link(caller)
        return RelayReady(), b""

    async def open(self, caller: Peer, message: RelayOpen, payload: Buffer) -> tuple[RelayReady, bytes]:
        """Opens a stream from the caller to a relayed peer, once that peer has taken it."""
        far = self._listeners.get(message.target)
        if far is None or not far.peer.is_open:
            raise NotRelayed(peer=message.target)
        near = self._link(caller)
        if not message.stream % 2 or message.stream <= near.last_odd:
            raise BadStreamNumber(stream=message.stream)
        near.last_odd = message.stream
        self._check_room(near, far)
        far.last_even += 2
        here, there = _Half(near, message.stream), _Half(far, far.last_even)
        here.other, there.other = there, here
        near.streams[here.number], far.streams[there.number] = here, there
        self._active_s[here] = self._clock.monotonic_s()
        try:
            await self._ask(far.peer, RelayIncoming(there.number, caller.key))
        except BaseException:
            # The peer may have taken the stream in the same moment as the asker gave it up.
            self._reset(here, "nobody waits for it any more", told=here)
            raise
        if here.number not in near.streams:
            raise RelayRefused(peer=message.target, reason="its connection was lost")
        return RelayReady(), b""

    async def data(self, caller: Peer, message: RelayData, payload: Buffer) -> None:
        """Passes a piece on."""
        half = self._half(caller, message.stream)
        if half is None:
            return
        half.received += len(payload)
        if half.received > half.allowed or half.ended or not len(payload):
            self._reset(half, "it sent more than it may")
            return
        self._active_s[_first(half)] = self._clock.monotonic_s()
        half.other.store(payload)
        half.other.link.queue(half.other)

    async def credit(self, caller: Peer, message: RelayCredit, payload: Buffer) -> None:
        """Lets the other side send on, later when it has used more than its rate."""
        half = self._half(caller, message.stream)
        if half is None:
            return
        sender = half.other
        limit = min(message.limit, half.delivered + RELAY_WINDOW_BYTES)
        if limit > sender.allowed:
            sender.allowed = limit
            if not sender.granting:
                sender.granting = True
                self._nursery.start_soon(self._grant, sender)

    async def close(self, caller: Peer, message: RelayClose, payload: Buffer) -> None:
        """Passes the end of a direction on, or resets the stream."""
        half = self._half(caller, message.stream)
        if half is None:
            return
        if message.reset:
            self._reset(half.other, message.reason, told=half)
            return
        half.ended = True
        half.other.ending = RelayClose(half.other.number, reset=False, reason=message.reason)
        half.other.link.queue(half.other)

    def drop(self, key: PeerKey) -> None:
        """Ends all streams that a peer has, and takes no more for it."""
        self._listeners.pop(key, None)
        for peer, link in list(self._links.items()):
            if peer.key == key:
                for half in list(link.streams.values()):
                    self._reset(half, "the peer left")

    def _link(self, peer: Peer) -> _Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(peer)
            self._nursery.start_soon(self._watch, link)
        return link

    def _half(self, caller: Peer, number: int) -> _Half | None:
        # A stream that is gone is no error: its end and the other side's last bytes cross on the way.
        link = self._links.get(caller)
        return link.streams.get(number) if link else None

    def _check_room(self, near: _Link, far: _Link) -> None:
        limits, network = self._limits, near.network
        crowded = max(len(near.streams), len(far.streams)) >= limits.streams_per_connection
        askers = [half.link for half in self._active_s]
        asked = sum(link.peer.key == near.peer.key for link in askers)
        nearby = 0 if network is None else sum(link.network == network for link in askers)
        if (
            crowded
            or asked >= limits.streams_per_asker
            or nearby >= limits.streams_per_network
            or nearby >= limits.streams - self.streams
        ):
            raise Busy(what="The tracker's relay", retry_after_s=2)

    async def _ask(self, peer: Peer, message: RelayIncoming) -> None:
        with trio.move_on_after(self._limits.answer_s):
            try:
                await peer.request(message)
                return
            except (RemoteError, ConnectionLost) as error:
                raise RelayRefused(peer=peer.key, reason=str(error)) from error
        raise RelayRefused(peer=peer.key, reason=f"it did not answer within {self._limits.answer_s:g} s")

    async def _grant(self, sender: _Half) -> None:
        """Tells a side what it may send, when its rate allows that: all that has come meanwhile together."""
        while sender.granted < sender.allowed and sender.number in sender.link.streams:
            limit, now_s = sender.allowed, self._clock.monotonic_s()
            link, amount = sender.link, limit - sender.granted
            await trio.sleep(self._pace.delay_s(link.peer.key, link.network, amount, now_s))
            sender.granted = sender.credit = limit
            sender.link.queue(sender)
        sender.granting = False

    async def _watch(self, link: _Link) -> None:
        """Sends to a connection until it ends, then ends its streams."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, link)
            nursery.start_soon(self._end_silent, link)
            await link.peer.wait_closed()
            nursery.cancel_scope.cancel()
        del self._links[link.peer]
        if self._listeners.get(link.peer.key) is link:
            del self._listeners[link.peer.key]
        for half in list(link.streams.values()):
            self._reset(half.other, "the other side's connection was lost", told=half)

    async def _send(self, link: _Link) -> None:
        while True:
            await link.wake.wait()
            link.wake = trio.Event()
            while link.farewells or link.waiting:
                if link.farewells:
                    await self._notify(link, link.farewells.popleft(), b"")
                    continue
                half = link.waiting.popleft()
                half.queued = False
                if link.streams.get(half.number) is not half:
                    continue
                found = half.next_message()
                if found is None:
                    continue
                self.relayed_bytes += len(found[1])
                link.queue(half)
                await self._notify(link, *found)
                if half.ended and half.other.ended and not _pending(half) and not _pending(half.other):
                    self._remove(half)

    async def _notify(self, link: _Link, message: Message, payload: Buffer) -> None:
        try:
            await link.peer.notify(message, payload)
        except ConnectionLost:
            await trio.sleep_forever()  # `_watch` learns of it too, and cancels this task

    async def _end_silent(self, link: _Link) -> None:
        while True:
            await trio.sleep(self._limits.silence_s / 4)
            old_s = self._clock.monotonic_s() - self._limits.silence_s
            for half in list(link.streams.values()):
                if self._active_s[_first(half)] < old_s:
                    self._reset(half, "the stream was silent for too long")

    def _reset(self, half: _Half, reason: str, told: _Half | None = None) -> None:
        """Ends a stream at once, and tells both sides, except one that knows."""
        self._remove(half)
        for side in (half, half.other):
            if side is not told:
                side.link.farewells.append(RelayClose(side.number, True, reason[:200]))
                side.link.wake.set()

    def _remove(self, half: _Half) -> None:
        for side in (half, half.other):
            side.link.streams.pop(side.number, None)
            side.pieces.clear()
        self._active_s.pop(_first(half), None)


def _first(half: _Half) -> _Half:
    """The side that asked for the stream: its number is odd."""
    return half if half.number % 2 else half.other


def _pending(half: _Half) -> bool:
    return bool(half.pieces) or half.ending is not None
