"""The parts of a state that hold entries: growing, giving up old tokens, going back, being copied."""

import numpy as np

from engine.arrays import F32
from engine.cache import State
from engine.compressed import Entries, WindowAndEntries


def rows(first: int, count: int) -> F32:
    """Rows that say what they are."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 2, axis=1)


def feed(state: State, count: int) -> None:
    """Writes tokens as rows of their positions, entries as rows of 10,000 + their numbers."""
    length = state.length
    state.prepare(count)
    for part in state.parts:
        if isinstance(part, WindowAndEntries):
            part.write(length, rows(length, count)[:, None])
        assert isinstance(part, WindowAndEntries | Entries)
        first, last = length // part.ratio, (length + count) // part.ratio
        part.write_entries(first, rows(10_000 + first, last - first))
    state.commit()


def check(state: State, window: int) -> None:
    for part in state.parts:
        assert isinstance(part, WindowAndEntries | Entries)
        held = state.length // part.ratio
        array, at = (
            (part.array[:, 0], part.front) if isinstance(part, WindowAndEntries) else (part.arrays[0], 0)
        )
        np.testing.assert_array_equal(array[at : at + held], rows(10_000, held))
        if isinstance(part, WindowAndEntries):
            first = max(0, state.length - window + 1)
            seen = array[first - part.start : state.length - part.start]
            np.testing.assert_array_equal(seen, rows(first, state.length - first))


def test_tokens_and_entries_stay_where_they_are_looked_for() -> None:
    window = 100
    state = State([WindowAndEntries(2, np.float32, window, 3), Entries(2, np.float32, 3)])
    for count in (1, 5, 300, 1, 1, 700, 90, 2):
        feed(state, count)
        check(state, window)
    twin = state.copy()
    feed(state, 400)
    check(state, window)
    check(twin, window)
    joint = twin.parts[0]
    assert isinstance(joint, WindowAndEntries)
    assert joint.start > 0


def test_a_state_goes_back_as_far_as_its_tokens_are_held() -> None:
    window = 100
    state = State([WindowAndEntries(2, np.float32, window, 3), Entries(2, np.float32, 3)])
    feed(state, 250)
    assert state.floor(7) == 7  # nothing was given up yet
    feed(state, 350)
    joint = state.parts[0]
    assert isinstance(joint, WindowAndEntries)
    oldest = joint.start + window - 1
    assert state.floor(oldest) == oldest
    assert state.floor(oldest - 1) == 0
    state.truncate(oldest)
    check(state, window)
    feed(state, 10)
    check(state, window)
    state.truncate(0)
    feed(state, 20)
    check(state, window)


def test_a_copy_says_where_its_own_entries_lie() -> None:
    entries = Entries(3, np.float32, 2)
    entries.prepare(0, 8)
    entries.write_entries(0, np.arange(12, dtype=np.float32).reshape(4, 3))
    twin = entries.copy()
    assert twin.addresses == [array.ctypes.data for array in twin.arrays]
    entries.arrays[0][:] = 0
    np.testing.assert_array_equal(twin.arrays[0][:4], np.arange(12).reshape(4, 3))
