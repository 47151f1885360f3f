"""Welcoming peers: the handshake in its time, limits a source, and what may happen beside a connection."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.calls import Handlers, Shared
from swarm.wire.connection import Broken, Connection, CutOff, Event, Opened
from swarm.wire.handshake import Greeter, HandshakeFailed, Refusal, refusal_record
from swarm.wire.keys import KeyPair
from swarm.wire.limits import Limits, Sources
from swarm.wire.listening import address_of
from swarm.wire.peer import Peer
from swarm.wire.stream import GONE, Link, link_of, words_of

_LAST_WORDS_S = 0.5
log = logging.getLogger(__name__)


async def greet(
    link: Link, greeter: Greeter, shared: Shared, handlers: Handlers, address: Address | None
) -> tuple[Peer, list[Event]]:
    """Runs a handshake to its end; returns the peer, to be run, and the events that came with the end.

    Raises the errors of `handshake`, after telling the other side; the link is then closed.
    """
    connection = Connection(greeter)
    try:
        with trio.fail_after(shared.limits.handshake_s):
            started = trio.current_time()
            await _write(link, connection.start())
            while True:
                count, events = await link.read(connection)
                round_trip_s = trio.current_time() - started
                if count == 0:
                    connection.receive_end()
                started = trio.current_time()
                await _write(link, connection.output())
                for place, event in enumerate(events):
                    if isinstance(event, Broken):
                        raise event.error
                    if isinstance(event, Opened):
                        peer = Peer(link, connection, event.session, shared, handlers)
                        peer.locate(address)
                        peer.measured(round_trip_s)
                        return peer, events[place + 1 :]
    except BaseException as error:
        refusal = Refusal.TOO_SLOW if isinstance(error, trio.TooSlowError) else greeter.refusal
        await _refuse(link, refusal)
        if isinstance(error, trio.TooSlowError):
            raise HandshakeFailed(peer=greeter.peer, reason="it took too long") from None
        if isinstance(error, CutOff):
            raise HandshakeFailed(peer=greeter.peer, reason="it closed the connection") from None
        if isinstance(error, GONE):
            raise HandshakeFailed(peer=greeter.peer, reason=words_of(error)) from error
        raise


class Server:
    """Turns streams that come in into peers that are answered."""

    def __init__(
        self,
        keys: KeyPair,
        handlers: Handlers,
        *,
        psk: bytes | None = None,
        limits: Limits | None = None,
        admit: Callable[[Peer], None] | None = None,
        on_peer: Callable[[Peer], Awaitable[None]] | None = None,
    ) -> None:
        self._keys = keys
        self._handlers = handlers
        self._psk = psk
        self._limits = limits or Limits()
        self._admit = admit
        self._on_peer = on_peer
        self._shared = Shared(self._limits)
        self._sources = Sources(self._limits)
        self._greeting: dict[trio.CancelScope, str] = {}
        """Handshakes under way, the oldest first, and where each comes from."""

    async def welcome(self, stream: trio.abc.Stream, address: Address | None = None) -> None:
        """Handshakes with whoever is at the other end, and answers it until the connection ends."""
        link = link_of(stream)
        if isinstance(stream, trio.SocketStream):
            try:
                address = address_of(stream.socket.getpeername())
            except OSError:  # it is gone already
                await link.aclose()
                return
        with self._sources.admit(address.source if address else "") as admitted:
            if not admitted:
                await _refuse(link, Refusal.BUSY)
                return
            await self._answer(link, address)

    async def _answer(self, link: Link, address: Address | None) -> None:
        peer, early = await self._greet(link, address)
        if peer is None:
            return
        if self._admit is not None:
            try:
                self._admit(peer)
            except SwarmError as error:
                log.info("%s is not admitted: %s", peer.name, error)
                await peer.turn_away(str(error))
                return
        await peer.run(early, self._beside if self._on_peer else None)
        log.debug("%s", peer.ended_by)

    async def _greet(self, link: Link, address: Address | None) -> tuple[Peer | None, list[Event]]:
        """A handshake that is given up when too many others have come since it began."""
        greeter = Greeter(self._keys, initiator=False, psk=self._psk, peer=str(address or "A peer"))
        with trio.CancelScope() as scope:
            self._greeting[scope] = address.source if address else ""
            if len(self._greeting) > self._limits.handshakes:
                self._give_one_up()
            try:
                return await greet(link, greeter, self._shared, self._handlers, address)
            except SwarmError as error:
                log.info("%s", error)
            finally:
                self._greeting.pop(scope, None)
        return None, []

    def _give_one_up(self) -> None:
        """Ends the oldest handshake of the source that has most of them under way."""
        counts = Counter(self._greeting.values())
        most = max(counts.values())
        oldest = next(scope for scope, source in self._greeting.items() if counts[source] == most)
        del self._greeting[oldest]
        oldest.cancel()

    async def _beside(self, peer: Peer) -> None:
        assert self._on_peer is not None
        try:
            await self._on_peer(peer)
        except SwarmError as error:
            log.info("what went on beside %s ended: %s", peer.name, error)
        except Exception:
            log.exception("what went on beside %s failed inside", peer.name)


async def _refuse(link: Link, refusal: Refusal | None) -> None:
    """Closes a link, saying why if there is a reason that helps the other side."""
    with trio.CancelScope(shield=True), trio.move_on_after(_LAST_WORDS_S):
        if refusal is not None:
            await link.finish(refusal_record(refusal))
    await link.aclose()


async def _write(link: Link, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[await link.write_some([rest]) :]
