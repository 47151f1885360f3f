"""One direction of a relayed stream: credit, ends, and every way to break the rules."""

import random

import pytest

from swarm.wire.messages.tracker import RELAY_WINDOW_BYTES
from tracker.flow import FlowViolation, Incoming, Outgoing


@pytest.mark.parametrize("seed", range(10))
def test_bytes_come_out_as_they_went_in_and_never_more_than_a_window_ahead(seed: int) -> None:
    luck = random.Random(seed)
    content = luck.randbytes(3 * RELAY_WINDOW_BYTES + 17)
    sender, receiver = Outgoing(), Incoming()
    flying: list[bytes] = []
    received = bytearray()
    while not receiver.finished:
        act = luck.randrange(3)
        if act == 0 and sender.room and sender.sent < len(content):
            piece = content[sender.sent :][: min(sender.room, luck.randrange(1, 60_000))]
            sender.advance(len(piece))
            flying.append(piece)
            assert sender.sent <= len(received) + RELAY_WINDOW_BYTES
        elif act == 1 and flying:
            receiver.receive(flying.pop(0))
        elif act == 2:
            received += receiver.take(luck.randrange(1, 80_000))
            limit = receiver.new_credit()
            if limit is not None:
                sender.credit(limit)
        receiver.ended = sender.sent == len(content) and not flying
    assert received == content


def test_a_stream_may_end_without_a_byte() -> None:
    receiver = Incoming()
    assert not receiver.finished
    receiver.ended = True
    assert receiver.finished
    assert receiver.take(10) == b""


def test_old_credit_takes_nothing_back() -> None:
    sender = Outgoing()
    sender.credit(5)
    assert sender.room == RELAY_WINDOW_BYTES
    with pytest.raises(ValueError, match="may be sent"):
        sender.advance(RELAY_WINDOW_BYTES + 1)


def test_broken_rules_are_named() -> None:
    receiver = Incoming()
    receiver.receive(bytes(RELAY_WINDOW_BYTES))
    with pytest.raises(FlowViolation, match="more than it may"):
        receiver.receive(b"x")
    with pytest.raises(FlowViolation, match="or none"):
        receiver.receive(b"")
    receiver.ended = True
    with pytest.raises(FlowViolation, match="after the end"):
        receiver.receive(b"x")
    assert not receiver.finished
