"""The codec of holdings: every set has one encoding, and everything else is refused."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.wire.holdings import EMPTY, ExpertLayout, IndexSet, MalformedHoldings

ranges = st.tuples(st.integers(0, 3000), st.integers(0, 400)).map(lambda pair: (pair[0], sum(pair)))
sets = st.builds(IndexSet, st.integers(0, 1 << 200)) | st.lists(ranges, max_size=20).map(IndexSet.from_ranges)


@given(sets)
def test_a_set_survives_its_encoding(held: IndexSet) -> None:
    assert IndexSet.decode(held.encode()) == held
    assert IndexSet.restore(held.encode()) == held
    assert IndexSet.from_ranges(held.ranges()) == held
    assert IndexSet.of(held) == held
    assert len(list(held)) == len(held)


@given(sets, sets)
def test_algebra_agrees_with_python_sets(one: IndexSet, other: IndexSet) -> None:
    a, b = set(one), set(other)
    assert set(one | other) == a | b
    assert set(one & other) == a & b
    assert set(one - other) == a - b
    assert (one <= other) == (a <= b)
    assert one.stop == max(a, default=-1) + 1
    assert one.start == min(a, default=0)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_any_bytes_are_one_set_or_a_typed_error(data: bytes, limit: int) -> None:
    try:
        held = IndexSet.decode(data, limit)
    except MalformedHoldings:
        return
    assert held.stop <= limit
    assert held.encode() == data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no bytes"),
        (b"\x02", "unknown kind 2"),
        (b"\x00\x80", "cut short"),
        (b"\x00\x01", "a gap without a run"),
        (b"\x00\x00\x00", "not the canonical"),
        (b"\x00\x01\x01\x00\x01", "not the canonical"),
        (b"\x00\x81\x00\x01", "not the canonical"),
        (b"\x01\x55\x00", "not the canonical"),
        (b"\x00\xff\xff\xff\xff\xff\x01\x01", "a number too large"),
        (b"\x00\x00\x65", "index 100 where 100 exist"),
        (b"\x01" + b"\x55" * 13, "index 102 where 100 exist"),
        (b"\x01" + b"\x55" * 14, "15 bytes for at most 100"),
    ],
)
def test_malformed_holdings_are_named(data: bytes, said: str) -> None:
    with pytest.raises(MalformedHoldings, match=said):
        IndexSet.decode(data, 100)


def test_a_model_of_300_gb_fits_one_bounded_message() -> None:
    chunks = 300_000
    luck = random.Random(7)
    assert len(IndexSet.full(chunks).encode()) == 5
    assert len(IndexSet.from_ranges([(100_000, 120_000)]).encode()) < 8
    alternating = IndexSet.from_ranges((index, index + 1) for index in range(0, chunks, 2))
    scattered = IndexSet(luck.getrandbits(chunks))
    for held in (alternating, scattered):
        assert len(held.encode()) <= 37_501
        assert IndexSet.decode(held.encode(), chunks) == held


def test_long_malformed_runs_are_named_too() -> None:
    good = b"\x50\x02" * 60
    assert len(IndexSet.decode(b"\x00" + good, 100_000)) == 120
    for bad, said in [
        (good + b"\x80", "cut short"),
        (good + b"\x01", "a gap without a run"),
        (good + b"\xff\xff\xff\xff\x01\x01", "a number too large"),
        (good + b"\xff\xff\x7f\x01", "where 100000 exist"),
    ]:
        with pytest.raises(MalformedHoldings, match=said):
            IndexSet.decode(b"\x00" + bad, 100_000)


def test_many_runs_take_the_shorter_encoding() -> None:
    sparse = IndexSet.from_ranges((start, start + 3) for start in range(0, 100_000, 1000))
    assert sparse.encode()[0] == 0
    assert len(sparse.encode()) < 350
    dense = IndexSet.from_ranges((start, start + 1) for start in range(0, 1000, 2))
    assert dense.encode()[0] == 1


def test_ranges_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0"):
        IndexSet.from_ranges([(-1, 2)])
    with pytest.raises(ValueError, match="at most"):
        IndexSet(-1)
    assert IndexSet.from_ranges([(5, 5)]) == EMPTY


def test_experts_are_numbered_through_the_layers() -> None:
    layout = ExpertLayout((0, 4, 8, 0, 4))
    assert layout.total == 16
    assert layout.index(1, 0) == 0
    assert layout.index(2, 7) == 11
    assert layout.layers() == [range(0, 4), range(4, 12), range(12, 16)]
    held = IndexSet.of([0, 3, 4, 15])
    assert layout.experts(held) == [(1, 0), (1, 3), (2, 0), (4, 3)]
    for layer, expert in [(0, 0), (1, 4), (5, 0), (-1, 0), (1, -1)]:
        with pytest.raises(IndexError):
            layout.index(layer, expert)
    with pytest.raises(IndexError):
        layout.experts(IndexSet.of([16]))
    with pytest.raises(ValueError, match="none below zero"):
        ExpertLayout((4, -1))
