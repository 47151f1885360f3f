"""States: room that grows, cuts, marks, copies, and passes that fail in the middle."""

import numpy as np
import pytest

from engine.cache import KeyValue, Running, State
from engine.errors import CannotRewind


def rows(first: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Row of position p is [p, p + 0.5]."""
    return (
        np.arange(first, first + count, dtype=np.float32)[:, None] + np.array([0, 0.5], np.float32)
    ).reshape(count, 1, 2)


def extend(state: State, count: int) -> None:
    """One pass that writes positions to all parts: keys as `rows`, running sums as the number of tokens."""
    start = state.length
    state.prepare(count)
    for part in state.parts:
        if isinstance(part, KeyValue):
            part.write(start, rows(start, count))
        if isinstance(part, Running):
            part.after[0][...] = part.now[0] + count
    state.commit()


def held(part: KeyValue, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.asarray(part.arrays[0][: length - part.start], np.float32)


def test_rows_stay_where_they_are_while_room_grows() -> None:
    part = KeyValue([(1, 2)], np.float32, capacity=4)
    state = State([part])
    for count in (3, 1, 1, 20, 7):
        extend(state, count)
        np.testing.assert_array_equal(held(part, state.length), rows(0, state.length))
    assert state.length == 32
    assert part.capacity == 32
    assert state.nbytes == 32 * 2 * 4


def test_values_are_rounded_to_half_precision() -> None:
    part = KeyValue([(1, 1)], np.float16)
    state = State([part])
    state.prepare(1)
    part.write(0, np.array([[[1.0 + 2**-12]]], np.float32))
    state.commit()
    assert part.arrays[0][0, 0, 0] == 1.0


def test_cutting_back_and_writing_again() -> None:
    part = KeyValue([(1, 2)], np.float32, capacity=4)
    state = State([part])
    extend(state, 10)
    state.truncate(4)
    assert state.length == 4
    extend(state, 3)
    np.testing.assert_array_equal(held(part, 7), rows(0, 7))
    for wrong in (-1, 8):
        with pytest.raises(CannotRewind, match="cannot be cut"):
            state.truncate(wrong)


def test_a_window_gives_up_what_no_token_sees_and_says_how_far_it_goes_back() -> None:
    window = 4
    part = KeyValue([(1, 2)], np.float32, window=window, capacity=8)
    state = State([part])
    for _ in range(30):
        extend(state, 1)
        first = max(0, state.length - window + 1)
        assert part.start <= first
        np.testing.assert_array_equal(held(part, state.length), rows(part.start, state.length - part.start))
    assert part.capacity == 8
    assert part.start > 20
    reachable = part.start + window - 1
    assert state.floor(reachable) == reachable
    assert state.floor(reachable - 1) == 0
    state.truncate(reachable)
    extend(state, 5)
    np.testing.assert_array_equal(held(part, state.length), rows(part.start, state.length - part.start))
    state.truncate(0)
    extend(state, 3)
    np.testing.assert_array_equal(held(part, 3), rows(0, 3))


def test_a_window_takes_a_long_chunk_whole() -> None:
    part = KeyValue([(1, 2)], np.float32, window=4, capacity=8)
    state = State([part])
    extend(state, 6)
    extend(state, 40)
    np.testing.assert_array_equal(held(part, 46), rows(part.start, 46 - part.start))
    assert part.start <= 3  # the chunk's first row still sees its window


def test_a_running_sum_goes_back_one_pass_and_to_marks() -> None:
    part = Running([(3,)])
    state = State([part])
    extend(state, 5)
    state.mark()
    extend(state, 2)
    extend(state, 1)
    assert part.now[0].tolist() == [8.0] * 3
    assert [state.floor(length) for length in (8, 7, 6, 5, 4)] == [8, 7, 5, 5, 0]
    with pytest.raises(CannotRewind, match="go back to 5 tokens, but not to 6"):
        state.truncate(6)
    assert state.length == 8
    state.truncate(7)
    extend(state, 4)
    assert part.now[0].tolist() == [11.0] * 3
    state.truncate(5)
    assert part.now[0].tolist() == [5.0] * 3
    state.truncate(0)
    assert part.now[0].tolist() == [0.0] * 3
    extend(state, 2)
    assert part.now[0].tolist() == [2.0] * 3


def test_marks_are_bounded() -> None:
    part = Running([(1,)])
    state = State([part])
    for _ in range(20):
        extend(state, 1)
        state.mark()
    kept = [length for length in range(21) if state.floor(length) == length]
    assert kept == [0, 18, 19, 20]
    assert state.nbytes <= 6 * 4


def test_parts_agree_on_where_to_go_back() -> None:
    state = State([KeyValue([(1, 2)], np.float32, window=4, capacity=8), Running([(1,)])])
    extend(state, 3)
    state.mark()
    for _ in range(20):
        extend(state, 1)
    assert state.floor(22) == 22
    assert state.floor(10) == 0  # the sums could go to 3, but the window cannot


def test_a_pass_that_fails_leaves_no_trace() -> None:
    keys, sums = KeyValue([(1, 2)], np.float32, capacity=4), Running([(1,)])
    state = State([keys, sums])
    extend(state, 3)
    state.prepare(6)
    keys.write(3, rows(90, 6))
    sums.after[0][...] = 99.0
    assert state.length == 3
    extend(state, 2)
    np.testing.assert_array_equal(held(keys, 5), rows(0, 5))
    assert sums.now[0].tolist() == [5.0]


def test_copies_go_their_own_way() -> None:
    state = State([KeyValue([(1, 2)], np.float32, capacity=4), Running([(1,)])])
    extend(state, 3)
    twin = state.copy()
    extend(state, 5)
    assert twin.length == 3
    assert isinstance(twin.parts[1], Running)
    assert twin.parts[1].now[0].tolist() == [3.0]
    twin.truncate(0)
    extend(twin, 1)
    assert isinstance(state.parts[0], KeyValue)
    np.testing.assert_array_equal(held(state.parts[0], 8), rows(0, 8))
