"""Numeric profiles and receipts."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from swarm.trust.profile import NumericProfile, ProfileDiffers
from swarm.trust.receipts import give_receipt, reply_digest, request_digest
from swarm.wire.keys import BadSignature, KeyPair
from swarm.wire.messages import Bounds, Message, register

DONOR, OTHER = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32)
PROFILE = NumericProfile(1, b"r" * 32, "q8")


@register("test-receipt", payload=100)
@dataclass(frozen=True, slots=True)
class Work(Message):
    number: Annotated[int, Bounds(0, 9)]


def test_profiles_are_equal_just_when_all_parts_are() -> None:
    assert PROFILE.digest == NumericProfile(1, b"r" * 32, "q8").digest
    PROFILE.check(NumericProfile(1, b"r" * 32, "q8"), "peer")
    for other, part in (
        (NumericProfile(2, b"r" * 32, "q8"), "arithmetic"),
        (NumericProfile(1, b"s" * 32, "q8"), "manifest"),
        (NumericProfile(1, b"r" * 32, "q4"), "weights"),
    ):
        assert other.digest != PROFILE.digest
        with pytest.raises(ProfileDiffers, match=f"peer computes with another .*{part}"):
            PROFILE.check(other, "peer")


def test_digests_are_over_everything() -> None:
    digests = {
        digest(Work(number), payload)
        for digest in (request_digest, reply_digest)
        for number in (1, 2)
        for payload in (b"", b"a", b"ab", memoryview(b"ba"))
    }
    assert len(digests) == 16
    assert all(len(digest) == 32 for digest in digests)


def test_a_receipt_holds_for_what_it_is_about_and_nothing_else() -> None:
    digests: dict[str, Any] = {
        "profile": PROFILE.digest,
        "request": request_digest(Work(1), b""),
        "reply": reply_digest(Work(2), b"x"),
    }
    receipt = give_receipt(DONOR, **digests)
    receipt.check()
    for name in digests:
        with pytest.raises(BadSignature):
            replace(receipt, **{name: bytes(32)}).check()
    with pytest.raises(BadSignature):
        replace(receipt, donor=OTHER.key).check()
    with pytest.raises(BadSignature):
        replace(receipt, reply=receipt.request, request=receipt.reply).check()
    with pytest.raises(ValueError, match="three digests"):
        give_receipt(DONOR, profile=b"", request=bytes(32), reply=bytes(32))
