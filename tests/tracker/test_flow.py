"""One direction of a relayed stream: order, credit, ends, and every way to break the rules."""

import random

import pytest

from swarm.wire.messages.tracker import RELAY_WINDOW_BYTES
from tracker.flow import FlowViolation, Incoming, Outgoing


@pytest.mark.parametrize("seed", range(10))
def test_pieces_in_any_order_come_out_as_they_were_sent(seed: int) -> None:
    luck = random.Random(seed)
    content = luck.randbytes(3 * RELAY_WINDOW_BYTES + 17)
    sender, receiver = Outgoing(), Incoming()
    flying: list[tuple[int, bytes]] = []
    received = bytearray()
    while not receiver.finished:
        act = luck.randrange(3)
        if act == 0 and sender.room and sender.sent < len(content):
            piece = content[sender.sent :][: min(sender.room, luck.randrange(1, 60_000))]
            flying.append((sender.advance(len(piece)), piece))
            assert sender.sent <= len(received) + RELAY_WINDOW_BYTES
        elif act == 1 and flying:
            receiver.receive(*flying.pop(luck.randrange(len(flying))))
        elif act == 2:
            received += receiver.take(luck.randrange(1, 80_000))
            limit = receiver.new_credit()
            if limit is not None:
                sender.credit(limit)
        if sender.sent == len(content) and receiver.length is None and luck.random() < 0.5:
            receiver.end(len(content))
    assert received == content


def test_a_stream_may_end_without_a_byte() -> None:
    receiver = Incoming()
    receiver.end(0)
    assert receiver.finished
    assert receiver.take(10) == b""


def test_old_credit_takes_nothing_back() -> None:
    sender = Outgoing()
    sender.credit(5)
    assert sender.room == RELAY_WINDOW_BYTES
    with pytest.raises(ValueError, match="may be sent"):
        sender.advance(RELAY_WINDOW_BYTES + 1)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([(RELAY_WINDOW_BYTES, b"x")], "more than it may"),
        ([(0, b"")], "empty piece"),
        ([(0, b"abc"), (0, b"abc")], "twice"),
        ([(5, b"abc"), (5, b"abc")], "twice"),
        ([(3, b"abc"), (5, b"xyz"), (0, b"abc")], "overlap"),
        ([(0, b"abc"), (2, b"x")], "twice"),
    ],
)
def test_broken_rules_are_named(pieces: list[tuple[int, bytes]], said: str) -> None:
    receiver = Incoming()
    for piece in pieces[:-1]:
        receiver.receive(*piece)
    with pytest.raises(FlowViolation, match=said):
        receiver.receive(*pieces[-1])


def test_an_end_that_cannot_be_is_refused() -> None:
    receiver = Incoming()
    receiver.receive(10, b"abc")
    with pytest.raises(FlowViolation, match="its end"):
        receiver.end(12)
    receiver.end(13)
    receiver.end(13)
    with pytest.raises(FlowViolation, match="two places"):
        receiver.end(14)
    with pytest.raises(FlowViolation, match="after the end"):
        receiver.receive(13, b"x")
