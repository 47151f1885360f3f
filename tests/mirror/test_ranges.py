"""Interval sets, against sets of single integers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.ranges import RangeSet, covered, touched

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])))


def members(ranges: RangeSet) -> set[int]:
    return {value for start, stop in ranges for value in range(start, stop)}


@given(pairs, pairs)
def test_algebra_is_that_of_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = RangeSet(first), RangeSet(second)
    assert members(a | b) == members(a) | members(b)
    assert members(a & b) == members(a) & members(b)
    assert members(a - b) == members(a) - members(b)
    assert a.total == len(members(a))
    assert bool(a) == bool(members(a))
    assert (a == b) == (members(a) == members(b))
    assert a != b or hash(a) == hash(b)


@given(pairs, st.integers(0, 70), st.integers(0, 70))
def test_questions_are_answered(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    some = RangeSet(ranges)
    inside = members(some)
    assert (start in some) == (start in inside)
    assert members(RangeSet(some.within(start, stop))) == inside & set(range(start, stop))


@given(pairs)
def test_intervals_are_increasing_and_never_touch(ranges: list[tuple[int, int]]) -> None:
    listed = list(RangeSet(ranges))
    assert all(stop < start for (_, stop), (start, _) in pairwise(listed))
    assert RangeSet(listed) == RangeSet(ranges)


def test_bad_intervals_are_refused() -> None:
    for bad in ((-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="no interval"):
            RangeSet([bad])
    assert repr(RangeSet([(1, 2), (2, 3), (5, 5)])) == "RangeSet([(1, 3)])"
    assert RangeSet() != "nothing"


@pytest.mark.parametrize(
    ("start", "stop", "chunks"),
    [(0, 0, []), (0, 1, [0]), (0, 10, [0]), (9, 11, [0, 1]), (10, 20, [1]), (15, 31, [1, 2, 3])],
)
def test_chunks_that_share_a_byte(start: int, stop: int, chunks: list[int]) -> None:
    assert list(touched(start, stop, 10)) == chunks


def test_chunks_that_are_there_whole() -> None:
    assert covered(RangeSet([(0, 9), (10, 25)]), 10, 25) == [1, 2]
    assert covered(RangeSet([(0, 24)]), 10, 25) == [0, 1]
    assert covered(RangeSet(), 10, 25) == []
