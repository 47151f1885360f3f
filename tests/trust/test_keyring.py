"""Keyrings: successions that can be followed forwards, and never back."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.trust.keyring import MAX_KEYS, BadKeyring, Keyring
from swarm.wire import cbor
from swarm.wire.keys import KeyPair

KEYS = [KeyPair(bytes([i + 1]) * 32) for i in range(40)]


def chain(length: int, *, retire: bool = False) -> list[Keyring]:
    """The keyring after each key was added (and the earlier ones retired)."""
    rings = [Keyring.start(KEYS[0])]
    for old, new in pairwise(KEYS[:length]):
        ring = rings[-1].succeed(old, new)
        rings.append(ring.retire(new) if retire else ring)
    return rings


def test_a_rotation_in_three_steps() -> None:
    old, new = KEYS[:2]
    first = Keyring.start(old)
    both = first.succeed(old, new)
    last = both.retire(new)
    assert (first.active, both.active, last.active) == ((old.key,), (old.key, new.key), (new.key,))
    assert both.latest == last.latest == new.key
    order = [first, both, last]
    for i, earlier in enumerate(order):
        for j, later in enumerate(order):
            assert later.follows(earlier) is (j >= i), (i, j)


@pytest.mark.parametrize("retire", [False, True])
def test_long_chains_forget_the_oldest(retire: bool) -> None:
    rings = chain(40, retire=retire)
    assert all(len(ring.keys) <= MAX_KEYS for ring in rings)
    assert all(Keyring.parse(ring.encode()) == ring for ring in rings[::5])
    assert rings[39].keys == tuple(key.key for key in KEYS[24:])
    for i in range(40):
        for j in range(40):
            reachable = i <= j < i + MAX_KEYS
            assert rings[j].follows(rings[i]) is reachable, (i, j)


def test_a_stranger_does_not_follow() -> None:
    ours = chain(3)
    stranger = Keyring.start(KEYS[30])
    assert not stranger.follows(ours[0])
    # The old key was stolen, and names another successor: whoever knows the true one is not fooled.
    fork = ours[0].succeed(KEYS[0], KEYS[31])
    assert fork.follows(ours[0])
    assert not fork.follows(ours[1])
    assert not ours[1].follows(fork)


def test_another_history_before_a_shared_key_does_not_follow() -> None:
    mine = chain(3)[-1]
    other = Keyring.start(KEYS[20]).succeed(KEYS[20], KEYS[21]).succeed(KEYS[21], KEYS[2])
    assert not other.follows(mine)


def test_only_the_latest_key_can_change_it() -> None:
    ring = chain(2)[-1]
    with pytest.raises(BadKeyring, match="latest key can name"):
        ring.succeed(KEYS[0], KEYS[5])
    with pytest.raises(BadKeyring, match="in it already"):
        ring.succeed(KEYS[1], KEYS[0])
    with pytest.raises(BadKeyring, match="latest key can retire"):
        ring.retire(KEYS[0])


def test_forgeries_are_refused() -> None:
    ring, other = chain(3)[-1], Keyring.start(KEYS[9])
    for wrong in (
        replace(ring, first_active=1),
        replace(ring, signature=other.signature),
        replace(ring, vouchers=ring.vouchers[::-1]),
        replace(ring, vouchers=ring.vouchers[:1]),
        replace(ring, keys=ring.keys[:2]),
        replace(ring, keys=(ring.keys[0], KEYS[9].key, ring.keys[2])),
        replace(ring, keys=(ring.keys[0], ring.keys[0], ring.keys[2])),
        replace(ring, first_active=3),
        replace(ring, first_active=-1),
        replace(ring, keys=(), vouchers=()),
        replace(ring, keys=(b"short", *ring.keys[1:])),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadKeyring):
            Keyring.parse(wrong.encode())
    for change in (
        {"format": 2},
        {"keys": 5},
        {"keys": ["text"]},
        {"first_active": True},
        {"signature": 1},
        {"more": 1},
    ):
        value = cbor.decode(ring.encode())
        assert isinstance(value, dict)
        with pytest.raises(BadKeyring):
            Keyring.parse(cbor.encode(value | change))  # type: ignore[arg-type]


def test_each_changed_byte_is_noticed() -> None:
    good, luck = chain(3)[-1].encode(), random.Random(5)
    for _ in range(200):
        bad = bytearray(good)
        bad[luck.randrange(len(bad))] ^= 1 << luck.randrange(8)
        with pytest.raises(BadKeyring):
            Keyring.parse(bytes(bad))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(BadKeyring):
        Keyring.parse(data)
