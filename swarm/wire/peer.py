"""The other end of an open connection: requests to it, its requests to us, signs of life.

One task reads; each request that comes in is answered in a task of its own; who asks waits in its own task,
which also deciphers a long reply (in a worker thread). Everything ends together: when the connection is
lost, requests under way raise ConnectionLost and the answers being worked out are cancelled.
"""

import math
from collections.abc import Awaitable, Callable

import trio

from swarm.errors import SwarmError, clean_text
from swarm.wire.address import Address
from swarm.wire.answers import Answers
from swarm.wire.calls import Bulk, ConnectionLost, Handlers, Reply, Shared
from swarm.wire.connection import Announced, Arrived, Broken, Connection, Event, Received, Violation
from swarm.wire.frames import Buffer, Head, Kind
from swarm.wire.handshake import Session
from swarm.wire.keys import PeerKey
from swarm.wire.limits import Pace
from swarm.wire.messages import BadMessage, Cancel, Goodbye, Message, Ping, Pong
from swarm.wire.outbox import Outbox, Piece, TooSlow
from swarm.wire.pings import Pings
from swarm.wire.questions import Question, Questions
from swarm.wire.stream import GONE, Link, words_of

_CLOSE_S = 1.0
_EARLIER = 0.05
"""By how much of its time a silent peer may be pinged early: moving a deadline costs more than reading a frame."""


class Peer:
    """The other end of an open connection; made by `rpc`."""

    def __init__(
        self, link: Link, connection: Connection, session: Session, shared: Shared, handlers: Handlers
    ) -> None:
        self.key: PeerKey = session.key
        """Its Ed25519 identity, proven in the handshake."""
        self.session = session
        """What the handshake left; its hash is a name of this connection that only both sides know."""
        self.address: Address | None = None
        """Where it was reached or came from; None when unknown (a relay, a stream in memory)."""
        self.name = self.source = ""
        """How messages call it, and whom what it takes counts for."""
        self.round_trip_s: float | None = None
        """The shortest round trip measured by handshake and pings."""
        self.received_bytes = 0
        """Bytes read from the network on this connection since its handshake."""
        self._link = link
        self._connection = connection
        self._shared = shared
        self._limits = shared.limits
        self._outbox = Outbox(link, shared.limits, self._start_writing, self._write_failed)
        self._answers = Answers(self, handlers, shared)
        self.questions = Questions(shared.limits.requests_per_connection)
        self._pings = Pings(self._tell, self._outbox)
        self._arriving: Bulk | None = None  # the long payload that is being received or handed on
        self._ended: SwarmError | None = None
        self._closed = trio.Event()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._read_at = 0.0
        self._pinged = False
        self._pace = Pace(shared.limits)
        self.locate(None)

    def __repr__(self) -> str:
        return f"<Peer {self.name}{'' if self.is_open else ', closed'}>"

    @property
    def is_open(self) -> bool:
        """Whether requests can still be made."""
        return self._ended is None

    @property
    def ended_by(self) -> SwarmError | None:
        """Why the connection ended; None while it is open."""
        return self._ended

    @property
    def sent_bytes(self) -> int:
        """Bytes written to the network on this connection since its handshake."""
        return self._outbox.sent_bytes

    @property
    def no_delay(self) -> bool | None:
        """Whether small frames leave at once (TCP_NODELAY); None where it has no socket of its own, as in a relay."""
        return self._link.no_delay

    async def request(self, message: Message, payload: Buffer = b"") -> Reply:
        """Asks and waits for the reply; cancelling it takes the request back.

        Raises RemoteError when the other side's handler failed, ConnectionLost when there is no way to it,
        BadMessage when question or answer break their own rules.
        """
        while not (self.questions.is_free and self._outbox.has_room):  # either may go while the other comes
            await self.questions.wait_free()
            await self._outbox.wait_room()
        self._check_open()
        arrived = trio.Event()
        question = self.questions.ask(message, arrived.set)
        sent = False
        try:
            await self.send(Kind.REQUEST, question.id, message, payload)
            sent = True
            await arrived.wait()
            return await self.questions.unpack(question)
        finally:
            if sent:
                self.forget(question)
            else:
                self.questions.forget(question)

    def ask_at_once(self, message: Message, payload: bytes, told: Callable[[], None]) -> Question | None:
        """Sends a short request now; None when it would have to wait for something (`request` does).

        `told` is called, in the task that reads, when the reply came or never will: `questions` unpacks it.
        In any case `forget` ends it. Raises ConnectionLost, BadMessage.
        """
        if not self.questions.is_free or not self.sends_at_once:
            return None
        self._check_open()
        question = self.questions.ask(message, told)
        sent = False
        try:
            sent = self.send_at_once(Kind.REQUEST, question.id, message, payload)
        finally:
            if not sent:
                self.questions.forget(question)
        return question if sent else None

    def forget(self, question: Question) -> None:
        """Ends a question, which is taken back if it has no answer."""
        self.questions.forget(question)
        if question.answer is None and self._ended is None:
            self._tell(question.id, Cancel())

    async def notify(self, message: Message, payload: Buffer = b"") -> None:
        """Sends a message that has no reply; returns when it is on its way. Raises ConnectionLost.

        Notices are handled in the order in which they were sent, one at a time, before anything else is
        read: a handler of notices must be quick, and must not wait for a reply on the same connection.
        """
        await self.send(Kind.NOTICE, 0, message, payload)

    async def ping(self) -> float:
        """The seconds of a round trip, measured now. Raises ConnectionLost."""
        self._check_open()
        round_trip_s = await self._pings.ask(self.questions.next_id())
        self._check_open()
        self.measured(round_trip_s)
        return round_trip_s

    def measured(self, round_trip_s: float) -> None:
        """Notes the seconds of a round trip."""
        self.round_trip_s = min(round_trip_s, self.round_trip_s or round_trip_s)

    async def wait_closed(self) -> None:
        """Waits until the connection has ended, for whatever reason."""
        await self._closed.wait()

    async def aclose(self, reason: str = "it was closed") -> None:
        """Says goodbye and closes the connection; requests under way raise ConnectionLost."""
        if self._ended is None:
            self._tell(0, Goodbye(clean_text(reason, limit=200)))
            self._end(reason)
            with trio.move_on_after(_CLOSE_S):
                await self._outbox.flush()
        self._scope.cancel()
        await self._closed.wait()

    def drop(self, reason: str) -> None:
        """Ends the connection at once, without a goodbye."""
        self._end(reason)
        self._scope.cancel()

    def locate(self, address: Address | None) -> None:
        """Notes where the peer is, also for its name."""
        self.address = address
        self.source = address.source if address is not None else ""
        self.name = self.questions.peer = f"{address or 'peer'} ({self.key[:4].hex()})"

    async def turn_away(self, reason: str) -> None:
        """Says goodbye to a peer that is not going to be run."""
        goodbye = self._connection.send(Kind.NOTICE, 0, Goodbye(clean_text(reason, limit=200)))
        self._end(reason)
        with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_S):
            await self._link.finish(bytes(goodbye.first))
        await self._link.aclose()
        self._closed.set()

    def receiving_stalled_s(self, now: float) -> float:
        """For how long a frame has been received in part, without progress."""
        return now - self._read_at if self._connection.is_receiving else 0.0

    def sending_stalled_s(self, now: float) -> float:
        """For how long bytes have waited to leave, without progress."""
        return self._outbox.stalled_s(now)

    async def send(self, kind: Kind, id: int, message: Message, payload: Buffer = b"") -> Piece | None:
        """Sends a frame; returns the place of a long payload in the queue. For `answers` and this class.

        Raises ConnectionLost, BadMessage. A long payload is enciphered in a worker thread, in its place.
        """
        await self._outbox.wait_room()
        self._check_open()
        if type(payload) is not bytes:
            payload = memoryview(payload).cast("B")
        outgoing = self._connection.send(kind, id, message, payload)
        self._outbox.put(outgoing.first)
        if outgoing.seal_rest is None:
            return None
        piece = self._outbox.reserve(outgoing.rest_bytes)
        with trio.CancelScope(shield=True):  # its nonces are taken: it must follow, whoever loses patience
            piece.fill(await trio.to_thread.run_sync(outgoing.seal_rest, limiter=self._shared.crypto))
        return piece

    @property
    def sends_at_once(self) -> bool:
        """Whether a short frame that is sent now leaves now."""
        return self._ended is None and self._outbox.is_empty

    def send_at_once(self, kind: Kind, id: int, message: Message, payload: Buffer = b"") -> bool:
        """Sends a frame that is one record; False, and nothing is done, when it is longer. Raises BadMessage."""
        data = self._connection.send_short(kind, id, message, payload)
        if data is not None:
            self._outbox.put(data)
        return data is not None

    def _tell(self, id: int, message: Message) -> None:
        """Sends a short notice without waiting."""
        self._outbox.put(self._connection.send(Kind.NOTICE, id, message).first)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ConnectionLost(**self._ended.fields)

    def _start_writing(self) -> None:
        if self._nursery is not None and self._ended is None:
            self._nursery.start_soon(self._outbox.run)

    def _write_failed(self, error: Exception) -> None:
        self.drop("it takes its bytes too slowly" if isinstance(error, TooSlow) else words_of(error))

    async def run(
        self,
        early: list[Event],
        beside: Callable[["Peer"], Awaitable[None]] | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Reads until the connection ends, with ``beside`` running as long.

        ``early`` are the events that came together with the handshake.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    task_status.started()
                    if beside is not None:
                        nursery.start_soon(beside, self)
                    try:
                        await self._read(early)
                    finally:
                        self._end("this side ended")  # before the nursery takes no more writers
                    nursery.cancel_scope.cancel()
        finally:
            self._end("this side ended")
            with trio.CancelScope(shield=True):
                await self._link.aclose()
            # The parts of a connection refer to each other: without this its payloads stay until those are collected.
            self._outbox.discard()
            self._connection.discard()
            if self._arriving is not None:
                self._arriving.release()
            self._closed.set()

    async def _read(self, events: list[Event]) -> None:
        """Reads until the connection ends. A silent peer is pinged once before it is given up."""
        self._read_at = trio.current_time()
        try:
            await self._handle_all(events)
            while self._ended is None:
                with trio.CancelScope() as scope:
                    await self._read_in_time(scope)
                if not scope.cancelled_caught:
                    return
                if not self._connection.is_between_frames:
                    self._end("it sends a frame too slowly")
                elif self._pinged:
                    self._end(f"it has been silent for {self._limits.idle_s:.0f} s")
                else:
                    self._pinged = True
                    self._tell(0, Ping())
        except GONE as error:
            self._end(words_of(error))
        except SwarmError as error:  # it broke the rules, or was lost while it was answered
            self._end(str(error))

    async def _read_in_time(self, scope: trio.CancelScope) -> None:
        """Reads and handles, moving the deadline of ``scope`` along while bytes come."""
        while self._ended is None:
            if self._connection.is_between_frames:
                self._pace.stop()
                idle_s = self._limits.idle_s * (1.0 if self._pinged else 0.5)
                if not 0.0 <= self._read_at + idle_s - scope.deadline < _EARLIER * idle_s:
                    scope.deadline = self._read_at + idle_s
            else:
                self._pace.keep_on(trio.current_time())
                scope.deadline = self._pace.deadline
            count, events = await self._link.read(self._connection)
            self._read_at = trio.current_time()
            self._pace.progress(count, self._read_at)
            self.received_bytes += count
            self._pinged = False
            if count == 0:
                self._connection.receive_end()
                self._end("the other side closed it")
            elif events and not (len(events) == 1 and self._handled(events[0])):
                scope.deadline = math.inf  # what is done with them may take its time
                await self._handle_all(events)

    def _handled(self, event: Event) -> bool:
        """Handles an event that came alone, if that needs no waiting: short replies, requests that can be answered."""
        if not isinstance(event, Received):
            return False
        if event.head.kind is Kind.REPLY:
            self.questions.take(event.head, event.payload, None)
            return True
        assert self._nursery is not None
        return event.head.kind is Kind.REQUEST and self._answers.take_now(
            self._nursery, event.head, event.payload
        )

    async def _handle_all(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Received(head, payload):
                    await self._dispatch(head, payload, None)
                case Announced(head):
                    await self._admit(head)
                case Arrived(head, sealed):
                    assert self._arriving is not None
                    self._arriving.fill(sealed)
                    await self._dispatch(head, b"", self._arriving)
                    self._arriving = None
                case Broken(error):
                    raise Violation(peer=self.name, reason=str(error)) from error

    async def _admit(self, head: Head) -> None:
        """Takes memory for a long payload, or lets it pass by when nobody here wants it."""
        is_reply = head.kind is Kind.REPLY
        wanted = self.questions.wants(head) if is_reply else self._answers.objection(head) is None
        if not wanted or isinstance(head.message, BadMessage):
            await self._dispatch(head, b"", None)
            await self._handle_all(self._connection.skip())
            return
        await self._shared.incoming.take(head.payload_bytes, self)
        self._arriving = Bulk(head.payload_bytes, self._shared, self)
        self._read_at = trio.current_time()
        self._pace.start(self._read_at)
        await self._handle_all(self._connection.accept())

    async def _dispatch(self, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        if head.kind is Kind.REPLY:
            self.questions.take(head, payload, bulk)
        elif head.kind is Kind.REQUEST:
            assert self._nursery is not None
            await self._answers.take(self._nursery, head, payload, bulk)
        else:
            await self._take_notice(head, payload, bulk)

    async def _take_notice(self, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        match head.message:
            case Ping():
                self._pings.answer(head.id)
            case Pong():
                self._pings.answered(head.id)
            case Cancel():
                self._answers.cancel(head.id)
            case Goodbye(reason):
                self._end(f"it said: {clean_text(reason)}")
            case _ if self._answers.objection(head) is None:
                await self._answers.notice(head, payload, bulk)
            case _ if bulk is not None:
                bulk.release()

    def _end(self, reason: str) -> None:
        """Notes why the connection ends, once, and wakes everyone who waits for something from it."""
        if self._ended is not None:
            return
        self._ended = ConnectionLost(peer=self.name, reason=reason)
        self.questions.end(self._ended)
        self._pings.end()
