"""The connection's machine: one table of what comes in and what it means, fed in every way."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import SwarmError
from swarm.wire import aead, cbor, frames
from swarm.wire.connection import (
    TRANSITIONS,
    Announced,
    Arrived,
    Broken,
    Connection,
    CutOff,
    Event,
    Input,
    Opened,
    Received,
    State,
    Violation,
)
from swarm.wire.frames import Kind
from swarm.wire.messages import BadMessage, Ping
from tests.wire.support import SERVER, TOKEN, Answer, Ask, machines, open_machines, talk


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[place : place + 1]


def in_lumps(data: bytes) -> Iterator[bytes]:
    luck = random.Random(7)
    while data:
        length = luck.randint(1, 70_000)
        yield data[:length]
        data = data[length:]


FEEDS = [whole, byte_by_byte, in_lumps]


def feed(connection: Connection, pieces: Iterator[bytes]) -> list[Event]:
    """Gives pieces to a machine, accepting what is announced; long payloads are opened."""
    events: list[Event] = []
    for piece in pieces:
        pending = connection.receive(piece)
        while pending:
            event = pending.pop(0)
            events.append(event)
            if isinstance(event, Announced):
                pending += connection.accept()
    return events


def readable(events: list[Event]) -> list[Any]:
    """Events as plain values that can be compared."""
    found: list[Any] = []
    for event in events:
        match event:
            case Received(head, payload):
                found.append((head.kind, head.id, head.message, bytes(payload)))
            case Announced(head):
                found.append((head.id, "announced", head.payload_bytes))
            case Arrived(head, sealed):
                found.append((head.kind, head.id, head.message, bytes(sealed.open())))
            case Broken(error):
                found.append(type(error))
            case Opened():
                found.append("opened")
    return found


def wire_bytes(connection: Connection, *args: Any) -> bytes:
    outgoing = connection.send(*args)
    return bytes(outgoing.first) + (bytes(outgoing.seal_rest()) if outgoing.seal_rest else b"")


def record(connection: Connection, plain: bytes) -> bytes:
    assert connection.session is not None
    return bytes(connection.session.sends.record([plain]))


def head_record(connection: Connection, head: Any, tail: bytes = b"") -> bytes:
    data = cbor.encode(head)
    return record(connection, len(data).to_bytes(2, "big") + data + tail)


LONG = bytes(range(256)) * 600  # 153,600 bytes: three records
HEAD = [0, 1, "test-ask", {"number": 5}, 0]

# What the caller sends after the handshake, and what the server makes of it.
TABLE: list[tuple[str, Callable[[Connection], bytes], list[Any]]] = [
    ("nothing", lambda c: b"", []),
    ("a confirmation", lambda c: record(c, b""), []),
    ("a notice", lambda c: wire_bytes(c, Kind.NOTICE, 0, Ping()), [(Kind.NOTICE, 0, Ping(), b"")]),
    (
        "a request with a short payload",
        lambda c: wire_bytes(c, Kind.REQUEST, 1, Ask(5), b"short"),
        [(Kind.REQUEST, 1, Ask(5), b"short")],
    ),
    (
        "a request with a long payload",
        lambda c: wire_bytes(c, Kind.REQUEST, 1, Ask(5), LONG),
        [(1, "announced", len(LONG)), (Kind.REQUEST, 1, Ask(5), LONG)],
    ),
    (
        "two requests, the first one long",
        lambda c: wire_bytes(c, Kind.REQUEST, 1, Ask(5), LONG) + wire_bytes(c, Kind.REQUEST, 2, Ask(6), b"x"),
        [(1, "announced", len(LONG)), (Kind.REQUEST, 1, Ask(5), LONG), (Kind.REQUEST, 2, Ask(6), b"x")],
    ),
    (
        "a request, then rubbish",
        lambda c: wire_bytes(c, Kind.REQUEST, 1, Ask(5)) + b"\x00\x20" + bytes(32) + bytes(99),
        [(Kind.REQUEST, 1, Ask(5), b""), aead.Tampered],
    ),
    ("a record without a head", lambda c: record(c, b"\x00"), [Violation]),
    ("an empty head", lambda c: record(c, b"\x00\x00"), [Violation]),
    ("a head longer than its record", lambda c: record(c, b"\x10\x00abc"), [Violation]),
    ("a head that is no CBOR", lambda c: record(c, b"\x00\x01\xff"), [Violation]),
    ("a head that is no list", lambda c: head_record(c, {"a": 1}), [Violation]),
    ("a head of four", lambda c: head_record(c, HEAD[:4]), [Violation]),
    ("an unknown kind", lambda c: head_record(c, [3, *HEAD[1:]]), [Violation]),
    ("a negative id", lambda c: head_record(c, [0, -1, *HEAD[2:]]), [Violation]),
    ("a true id", lambda c: head_record(c, [0, True, *HEAD[2:]]), [Violation]),
    ("a message without a name", lambda c: head_record(c, [0, 1, "", {}, 0]), [Violation]),
    ("a name that is no text", lambda c: head_record(c, [0, 1, 7, {}, 0]), [Violation]),
    ("a payload beyond all bounds", lambda c: head_record(c, [*HEAD[:4], 1 << 40]), [Violation]),
    ("less payload than said", lambda c: head_record(c, [*HEAD[:4], 9], b"short"), [Violation]),
    ("more payload than said", lambda c: head_record(c, [*HEAD[:4], 1], b"longer"), [Violation]),
    ("bytes before a separate payload", lambda c: head_record(c, [*HEAD[:4], 1 << 17], b"x"), [Violation]),
    ("a short record", lambda c: b"\x00\x11" + bytes(17), [aead.Tampered]),
]


@pytest.mark.parametrize("feeder", FEEDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("send", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(feeder: Callable[[bytes], Iterator[bytes]], send: Any, expected: list[Any]) -> None:
    caller, server = open_machines()
    assert readable(feed(server, feeder(send(caller)))) == expected
    failed = bool(expected) and isinstance(expected[-1], type)
    assert (server.state is State.FAILED) == failed
    if failed:
        assert server.receive(wire_bytes(caller, Kind.NOTICE, 0, Ping())) == []
    else:
        assert server.is_between_frames


@pytest.mark.parametrize("send", [row[1] for row in TABLE[2:6]], ids=[row[0] for row in TABLE[2:6]])
def test_what_is_cut_off_is_kept_until_the_rest_comes(send: Any) -> None:
    caller, server = open_machines()
    data = send(caller)
    assert feed(server, whole(data[:-1])) is not None
    assert not server.is_between_frames
    assert feed(server, whole(data[-1:]))
    assert server.is_between_frames


@pytest.mark.parametrize("feeder", FEEDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("options", [{}, {"psk": TOKEN}, {"expected_key": SERVER.key}])
def test_handshakes_fed_in_every_way(feeder: Any, options: dict[str, Any]) -> None:
    caller, server = machines(**options)
    seen: tuple[list[Event], list[Event]] = ([], [])
    to_server = caller.start()
    while to_server:
        seen[1].extend(feed(server, feeder(to_server)))
        seen[0].extend(feed(caller, feeder(server.output())))
        to_server = caller.output()
    assert readable(seen[0]) == readable(seen[1]) == ["opened"]
    assert caller.session is not None
    assert server.session is not None
    assert caller.session.hash == server.session.hash
    assert caller.state is server.state is State.OPEN


def test_a_request_may_follow_the_handshake_in_one_piece() -> None:
    caller, server = machines(expected_key=SERVER.key)
    server.receive(caller.start())
    caller.receive(server.output())
    events = server.receive(caller.output() + wire_bytes(caller, Kind.REQUEST, 1, Ask(1)))
    assert readable(events) == ["opened", (Kind.REQUEST, 1, Ask(1), b"")]


def test_a_payload_that_nobody_wants_passes_by() -> None:
    caller, server = open_machines()
    data = wire_bytes(caller, Kind.REQUEST, 1, Ask(5), LONG) + wire_bytes(caller, Kind.REQUEST, 2, Ask(6))
    for feeder in (whole, in_lumps):
        caller, server = open_machines()
        data = wire_bytes(caller, Kind.REQUEST, 1, Ask(5), LONG) + wire_bytes(caller, Kind.REQUEST, 2, Ask(6))
        events: list[Event] = []
        for piece in feeder(data):
            pending = server.receive(piece)
            while pending:
                events.append(pending.pop(0))
                if isinstance(events[-1], Announced):
                    pending += server.skip()
        assert readable(events) == [(1, "announced", len(LONG)), (Kind.REQUEST, 2, Ask(6), b"")]


def test_payload_received_in_place() -> None:
    caller, server = open_machines()
    data = wire_bytes(caller, Kind.REQUEST, 1, Ask(5), LONG)
    head_bytes = len(data) - aead.sealed_length(len(LONG))
    (event,) = server.receive(data[:head_bytes])
    assert isinstance(event, Announced)
    assert server.room() is None
    assert server.accept() == []
    data = data[head_bytes:]
    events: list[Event] = []
    while data:
        room = server.room()
        assert room is not None
        room[:50_000] = data[: len(room[:50_000])]
        events += server.filled(len(room[:50_000]))
        data = data[len(room[:50_000]) :]
    assert readable(events) == [(Kind.REQUEST, 1, Ask(5), LONG)]
    assert server.room() is None


def test_no_memory_is_taken_before_it_was_accepted() -> None:
    caller, server = open_machines()
    events = server.receive(head_record(caller, [0, 1, "test-ask", {"number": 1}, 1 << 20]))
    assert readable(events) == [(1, "announced", 1 << 20)]
    assert server.state is State.HELD
    assert server.room() is None


def test_a_message_that_is_bad_by_itself_does_not_end_the_connection() -> None:
    caller, server = open_machines()
    for number, head in enumerate(
        (
            [0, 1, "no-such-message", {}, 0],
            [0, 1, "test-ask", {}, 0],
            [0, 1, "test-ask", {"number": -1}, 0],
            [0, 1, "ping", {}, 1 << 20],
        )
    ):
        (event,) = server.receive(head_record(caller, head))
        assert isinstance(event, Received | Announced), number
        assert isinstance(event.head.message, BadMessage)
        if isinstance(event, Announced):
            server.skip()
    assert server.state is State.SKIPPING


def test_changed_payload_is_noticed_when_it_is_opened() -> None:
    caller, server = open_machines()
    data = bytearray(wire_bytes(caller, Kind.REQUEST, 1, Ask(5), LONG))
    data[-70_000] ^= 1
    arrived = feed(server, whole(bytes(data)))[-1]
    assert isinstance(arrived, Arrived)
    with pytest.raises(aead.Tampered):
        arrived.sealed.open()


def test_replayed_and_reordered_records_are_refused() -> None:
    for order in ((0, 0), (1, 0)):
        caller, server = open_machines()
        sent = [wire_bytes(caller, Kind.REQUEST, number, Ask(number)) for number in (1, 2)]
        events = feed(server, whole(b"".join(sent[place] for place in order)))
        assert readable(events)[-1] is aead.Tampered


def test_ends() -> None:
    caller, server = open_machines()
    server.receive_end()
    assert server.state is State.CLOSED
    server.receive_end()

    caller, server = open_machines()
    server.receive(wire_bytes(caller, Kind.REQUEST, 1, Ask(5))[:-1])
    with pytest.raises(CutOff, match="a frame"):
        server.receive_end()

    caller, server = machines()
    server.receive(caller.start())
    with pytest.raises(CutOff, match="handshake"):
        caller.receive_end()


def test_our_own_mistakes_use_up_nothing() -> None:
    caller, server = open_machines()
    for message, payload in ((Ask(-1), b""), (Ping(), b"payload"), (Answer(1), bytes((1 << 20) + 1))):
        with pytest.raises(BadMessage):
            caller.send(Kind.REQUEST, 1, message, payload)
    assert readable(server.receive(wire_bytes(caller, Kind.NOTICE, 0, Ping()))) == [
        (Kind.NOTICE, 0, Ping(), b"")
    ]


def test_every_state_can_end_and_fail() -> None:
    for state in State:
        assert TRANSITIONS[state, Input.FAULT] is State.FAILED
        if state is not State.FAILED:
            assert TRANSITIONS[state, Input.END] is State.CLOSED
    assert set(TRANSITIONS.values()) | {State.PREFACE} == set(State)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_to_a_server_are_answered_with_a_named_error_at_most(data: bytes) -> None:
    _, server = machines()
    for event in server.receive(b"SWRM\x01\x00" + data if len(data) % 2 else data):
        assert isinstance(event, Broken)
        assert isinstance(event.error, SwarmError)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_heads_are_answered_with_a_named_error_at_most(data: bytes, as_head: bool) -> None:
    caller, server = open_machines()
    plain = len(data).to_bytes(2, "big") + data if as_head else data
    for event in server.receive(record(caller, plain)):
        if isinstance(event, Broken):
            assert isinstance(event.error, SwarmError)
        else:
            assert isinstance(event, Received | Announced)


def test_mutated_conversations_never_give_other_errors() -> None:
    luck = random.Random(11)
    for _ in range(200):
        caller, server = open_machines()
        data = bytearray(
            wire_bytes(caller, Kind.REQUEST, 1, Ask(5), b"x" * 100)
            + wire_bytes(caller, Kind.NOTICE, 0, Ping())
        )
        for _ in range(luck.randint(1, 4)):
            match luck.randint(0, 2):
                case 0:
                    data[luck.randrange(len(data))] = luck.randrange(256)
                case 1:
                    del data[luck.randrange(len(data)) :][:1]
                case 2:
                    data.insert(luck.randrange(len(data)), luck.randrange(256))
        for event in feed(server, in_lumps(bytes(data))):
            assert isinstance(event, Received | Announced | Arrived | Broken)
            if isinstance(event, Received):
                assert event.head.message in (Ask(5), Ping())


def test_heads_have_a_bound() -> None:
    with pytest.raises(frames.BadFrame):
        frames.split_head((frames.MAX_HEAD + 1).to_bytes(2, "big") + bytes(frames.MAX_HEAD + 1))


def test_talk_opens_both() -> None:
    seen = talk(*machines(psk=TOKEN))
    assert readable(seen[0]) == readable(seen[1]) == ["opened"]
