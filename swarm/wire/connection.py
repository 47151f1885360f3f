"""One connection as a state machine, sans-IO: bytes in, events out; frames in, bytes out.

    connection = Connection(Greeter(...))
    send(connection.start())                       # the initiator's first bytes; nothing for a responder
    for event in connection.receive(data): ...     # a Broken event is the last one
    send(connection.output())                      # handshake answers, refusals: whenever there may be some

A long payload is announced before any memory is taken for it: the machine holds until `accept` or `skip`
is called. It then collects the enciphered payload, which `Sealed.open` deciphers (in a worker thread, if
the caller likes) while the machine goes on with what follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from swarm.errors import SwarmError
from swarm.wire import aead, frames
from swarm.wire.cbor import BadEncoding
from swarm.wire.frames import Buffer, Head, Kind
from swarm.wire.handshake import PREFACE_BYTES, Greeter, Session, refusal_error
from swarm.wire.messages import Message


class Violation(SwarmError):
    """{peer} broke the protocol: {reason}. The connection was closed."""


class CutOff(SwarmError):
    """{peer} closed the connection in the middle of {what}."""


class State(Enum):
    """Where a connection stands."""

    PREFACE = auto()
    HANDSHAKE = auto()
    CONFIRMATION = auto()
    OPEN = auto()
    HELD = auto()
    """A long payload was announced; nothing is read until it was accepted or skipped."""
    PAYLOAD = auto()
    SKIPPING = auto()
    CLOSED = auto()
    FAILED = auto()


class Input(Enum):
    """What moves it."""

    PREFACE = auto()
    HANDSHAKE_MESSAGE = auto()
    HANDSHAKE_CONFIRMED = auto()
    """The handshake's last message was read here: this side confirms."""
    HANDSHAKE_WRITTEN = auto()
    """The handshake's last message was written here: the other side must confirm."""
    RECORD = auto()
    ANNOUNCEMENT = auto()
    ACCEPTED = auto()
    SKIPPED = auto()
    PAYLOAD_COMPLETE = auto()
    END = auto()
    FAULT = auto()


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.PREFACE, Input.PREFACE): State.HANDSHAKE,
    (State.HANDSHAKE, Input.HANDSHAKE_MESSAGE): State.HANDSHAKE,
    (State.HANDSHAKE, Input.HANDSHAKE_CONFIRMED): State.OPEN,
    (State.HANDSHAKE, Input.HANDSHAKE_WRITTEN): State.CONFIRMATION,
    (State.CONFIRMATION, Input.RECORD): State.OPEN,
    (State.CONFIRMATION, Input.ANNOUNCEMENT): State.HELD,
    (State.OPEN, Input.RECORD): State.OPEN,
    (State.OPEN, Input.ANNOUNCEMENT): State.HELD,
    (State.HELD, Input.ACCEPTED): State.PAYLOAD,
    (State.HELD, Input.SKIPPED): State.SKIPPING,
    (State.PAYLOAD, Input.PAYLOAD_COMPLETE): State.OPEN,
    (State.SKIPPING, Input.PAYLOAD_COMPLETE): State.OPEN,
    **{(state, Input.END): State.CLOSED for state in State if state is not State.FAILED},
    **{(state, Input.FAULT): State.FAILED for state in State},
}


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake is done and both sides know it."""

    session: Session


@dataclass(frozen=True, slots=True)
class Received:
    """A frame whose payload, if any, came with it."""

    head: Head
    payload: Buffer


@dataclass(frozen=True, slots=True)
class Announced:
    """A frame whose long payload follows: `Connection.accept` or `Connection.skip` decides about it."""

    head: Head


@dataclass(frozen=True, slots=True)
class Arrived:
    """The payload that was accepted is there, still enciphered."""

    head: Head
    sealed: "Sealed"


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection cannot go on, for a named error: one of `handshake`, Violation or Tampered."""

    error: SwarmError


Event: TypeAlias = Opened | Received | Announced | Arrived | Broken


@dataclass(frozen=True, slots=True)
class Sealed:
    """An enciphered payload; `open` may run in any thread and in any order with others."""

    key: bytes
    suite: aead.Suite
    counter: int
    records: memoryview
    size: int

    def open(self) -> memoryview:
        """The payload. Raises Tampered: then the whole connection is to be given up."""
        return aead.open_records(self.key, self.counter, self.records, self.size, self.suite)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A frame to send: its first record, and what makes the records of a long payload, in any thread."""

    first: bytearray
    seal_rest: Callable[[], memoryview] | None
    rest_bytes: int


class Connection:
    """See the module. All bytes given to `receive` are used at once or kept; nothing is awaited."""

    def __init__(self, greeter: Greeter) -> None:
        self.state = State.HANDSHAKE if greeter.initiator else State.PREFACE
        self.session: Session | None = None
        self._greeter = greeter
        self._peer = greeter.peer
        self._out = bytearray()
        self._tail = bytearray()
        self._needs = aead.LENGTH_BYTES if greeter.initiator else PREFACE_BYTES
        self._head: Head | None = None
        self._records = memoryview(b"")
        self._filled = 0
        self._missing = 0
        self._heard = False

    # ---------------------------------------------------------------- what comes in

    def start(self) -> bytes:
        """The first bytes of an initiator; none for a responder."""
        return self._greeter.start() if self._greeter.initiator else b""

    def output(self) -> bytes:
        """Bytes that the machine itself wants sent, once."""
        out = bytes(self._out)
        self._out.clear()
        return out

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame has been received in part."""
        return self.state is State.OPEN and not self._tail

    @property
    def is_receiving(self) -> bool:
        """Whether the rest of a frame must come from the other side before anything else can happen."""
        return not self.is_between_frames and self.state is not State.HELD

    def room(self) -> memoryview | None:
        """While a payload is collected: where its next bytes go, for receiving without a copy."""
        if self.state is State.PAYLOAD and not self._tail:
            return self._records[self._filled :]
        return None

    def filled(self, count: int) -> list[Event]:
        """Says that so many bytes were put into `room`."""
        self._filled += count
        events: list[Event] = []
        self._complete_payload(events)
        return events

    def receive(self, data: Buffer) -> list[Event]:
        """Takes bytes in and says what they mean. After a Broken event no more are listened to."""
        events: list[Event] = []
        if self.state in (State.CLOSED, State.FAILED):
            return events
        try:
            self._take(data, events)
        except (frames.BadFrame, BadEncoding) as error:
            self._move(Input.FAULT)
            events.append(Broken(Violation(peer=self._peer, reason=str(error))))
        except SwarmError as error:
            self._move(Input.FAULT)
            events.append(Broken(error))
        return events

    def receive_end(self) -> None:
        """Says that the other side sends no more. Raises CutOff in the middle of something."""
        if self.state in (State.CLOSED, State.FAILED):
            return
        whole = self.is_between_frames
        what = "a frame" if self.session is not None else "the handshake"
        self._move(Input.END)
        if not whole:
            raise CutOff(peer=self._peer, what=what)

    def accept(self) -> list[Event]:
        """Takes memory for the announced payload; returns the events of bytes that were kept."""
        assert self._head is not None
        self._move(Input.ACCEPTED)
        self._records = aead.uninitialised(aead.sealed_length(self._head.payload_bytes))
        self._filled = 0
        return self.receive(b"")

    def skip(self) -> list[Event]:
        """Lets the announced payload pass by without keeping or checking it."""
        assert self._head is not None
        assert self.session is not None
        self._move(Input.SKIPPED)
        self._missing = aead.sealed_length(self._head.payload_bytes)
        self.session.receives.take(aead.record_count(self._head.payload_bytes))
        return self.receive(b"")

    def discard(self) -> None:
        """Lets go of what was received in part, once nothing more will be."""
        self._records, self._tail = memoryview(b""), bytearray()

    def _move(self, input: Input) -> None:
        try:
            self.state = TRANSITIONS[self.state, input]
        except KeyError:
            raise Violation(peer=self._peer, reason=f"{input.name} while {self.state.name}") from None

    def _take(self, data: Buffer, events: list[Event]) -> None:
        """Goes through kept and new bytes, leaving what is not complete for the next time."""
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needs and self.state not in (State.PAYLOAD, State.SKIPPING):
                return
            data, self._tail = self._tail, bytearray()
        view, start = memoryview(data), 0
        while self.state is not State.HELD:
            used = self._take_one(view[start:], events)
            if used == 0:
                break
            start += used
        self._tail += view[start:]

    def _take_one(self, view: memoryview, events: list[Event]) -> int:
        """Uses one unit from the front, if it is complete; returns its length."""
        if self.state is State.PAYLOAD:
            used = min(len(view), len(self._records) - self._filled)
            self._records[self._filled : self._filled + used] = view[:used]
            self._filled += used
            self._complete_payload(events)
            return used
        if self.state is State.SKIPPING:
            used = min(len(view), self._missing)
            self._missing -= used
            if self._missing == 0:
                self._move(Input.PAYLOAD_COMPLETE)
            return used
        if self.state is State.PREFACE:
            return self._take_preface(view)
        self._needs = aead.LENGTH_BYTES
        if len(view) < self._needs:
            return 0
        length = int.from_bytes(view[: aead.LENGTH_BYTES], "big")
        self._needs += length
        if len(view) < self._needs:
            return 0
        self._take_record(bytes(view[aead.LENGTH_BYTES : self._needs]), events)
        return self._needs

    def _take_preface(self, view: memoryview) -> int:
        self._needs = PREFACE_BYTES
        if len(view) < PREFACE_BYTES:
            return 0
        self._greeter.read_preface(bytes(view[:PREFACE_BYTES]))
        self._move(Input.PREFACE)
        return PREFACE_BYTES

    def _take_record(self, record: bytes, events: list[Event]) -> None:
        if len(record) < aead.TAG_BYTES and not self._heard:
            raise refusal_error(record, self._peer)
        if self.state is State.HANDSHAKE:
            self._out += self._greeter.read(record)
            session = self._greeter.session
            if session is None:
                self._move(Input.HANDSHAKE_MESSAGE)
                return
            self.session = session
            if not session.confirms:
                self._move(Input.HANDSHAKE_WRITTEN)
                return
            self._move(Input.HANDSHAKE_CONFIRMED)
            self._out += session.sends.record([])
            events.append(Opened(session))
            return
        assert self.session is not None
        plain = self.session.receives.decrypt(record)
        if not self._heard and self.state is State.CONFIRMATION:
            events.append(Opened(self.session))
        self._heard = True
        if not plain:
            self._move(Input.RECORD)
            return
        head, payload = frames.split_head(plain)
        if payload is not None:
            self._move(Input.RECORD)
            events.append(Received(head, payload))
            return
        self._head = head
        self._move(Input.ANNOUNCEMENT)
        events.append(Announced(head))

    def _complete_payload(self, events: list[Event]) -> None:
        if self._filled < len(self._records):
            return
        assert self._head is not None
        assert self.session is not None
        size, receives = self._head.payload_bytes, self.session.receives
        counter = receives.take(aead.record_count(size))
        sealed = Sealed(receives.key, receives.suite, counter, self._records, size)
        self._records = memoryview(b"")
        self._move(Input.PAYLOAD_COMPLETE)
        events.append(Arrived(self._head, sealed))

    # ---------------------------------------------------------------- what goes out

    def send_short(self, kind: Kind, id: int, message: Message, payload: Buffer) -> bytearray | None:
        """Enciphers a frame if it is one record; None, and nothing is used up, if not. Raises as `send`."""
        assert self.session is not None
        head = frames.encode_head(kind, id, message, len(payload))
        if not frames.fits_one_record(len(head), len(payload)):
            return None
        return self.session.sends.record(frames.join_head(head, payload))

    def send(self, kind: Kind, id: int, message: Message, payload: Buffer = b"") -> Outgoing:
        """Enciphers a frame; frames must leave in the order in which they were given to this method.

        Raises BadMessage when the message breaks its own rules (nothing was used up then).
        """
        assert self.session is not None
        sends = self.session.sends
        head = frames.encode_head(kind, id, message, len(payload))
        if frames.fits_one_record(len(head), len(payload)):
            first = sends.record(frames.join_head(head, payload))
            return Outgoing(first, None, 0)
        first = sends.record(frames.join_head(head))
        key, suite, counter = sends.key, sends.suite, sends.take(aead.record_count(len(payload)))
        return Outgoing(
            first,
            lambda: aead.seal_records(key, counter, payload, suite),
            aead.sealed_length(len(payload)),
        )
