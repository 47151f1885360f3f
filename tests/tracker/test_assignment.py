"""Assignment: rarest first, whole layers, stable, little moved."""

import random

import numpy as np
import pytest

from swarm.wire.holdings import EMPTY, ExpertLayout, IndexSet
from tracker.assignment import assign_chunks, assign_experts

LAYOUT = ExpertLayout((0, 16, 16, 16, 16))


def counts(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def same(total: int, value: int = 0) -> np.ndarray:
    return np.full(total, value, dtype=np.int32)


def test_the_rarest_chunks_come_first() -> None:
    replicas = counts(3, 0, 2, 0, 1, 5)
    assert assign_chunks(replicas, replicas, EMPTY, 3, turn=0) == IndexSet.of([1, 3, 4])
    assert assign_chunks(replicas, replicas, EMPTY, 4, turn=5) == IndexSet.of([1, 2, 3, 4])


def test_equal_chunks_are_taken_in_a_row_from_a_place_of_the_donors_own() -> None:
    nothing = same(100)
    assert assign_chunks(nothing, nothing, EMPTY, 10, turn=40).ranges() == [(40, 50)]
    assert assign_chunks(nothing, nothing, EMPTY, 10, turn=95).ranges() == [(0, 5), (95, 100)]


def test_a_donor_keeps_what_it_has_and_only_fills_its_room() -> None:
    replicas = same(100, 1)
    kept = IndexSet.from_ranges([(20, 30)])
    assert kept <= assign_chunks(replicas, replicas, kept, 15, turn=0)
    assert assign_chunks(replicas, replicas, kept, 10, turn=77) == kept


def test_a_smaller_donor_gives_up_what_most_others_hold() -> None:
    replicas = counts(0, 4, 1, 9, 0)
    assert assign_chunks(replicas, replicas, IndexSet.full(5), 3, turn=0) == IndexSet.of([0, 2, 4])


def test_a_full_donor_moves_to_what_nobody_holds_but_never_leaves_a_gap() -> None:
    replicas, ready = counts(0, 1, 1, 1), counts(0, 1, 0, 0)
    kept = IndexSet.of([1, 2, 3])
    assert assign_chunks(replicas, ready, kept, 3, turn=0) == IndexSet.of([0, 2, 3])
    assert assign_chunks(replicas, same(4), kept, 3, turn=0) == kept


def test_evening_out_needs_a_difference_of_two() -> None:
    kept = IndexSet.of([1])
    assert assign_chunks(counts(1, 2), same(2, 1), kept, 1, turn=0) == kept
    assert assign_chunks(counts(1, 3), same(2, 1), kept, 1, turn=0) == IndexSet.of([0])


def test_at_most_a_tenth_moves_at_once() -> None:
    replicas = np.concatenate((same(100, 5), same(100, 0)))
    kept = IndexSet.from_ranges([(0, 100)])
    moved = assign_chunks(replicas, same(200, 1), kept, 100, turn=0)
    assert len(moved - kept) == 10
    assert len(moved) == 100


def test_whole_layers_where_they_fit() -> None:
    nothing = same(LAYOUT.total)
    mine = assign_experts(LAYOUT, nothing, nothing, EMPTY, 40, turn=2)
    whole = [layer for layer in LAYOUT.layers() if all(i in mine for i in layer)]
    assert len(mine) == 40
    assert len(whole) == 2
    assert sum(any(i in mine for i in layer) for layer in LAYOUT.layers()) == 3


def test_missing_experts_come_before_whole_layers() -> None:
    replicas = same(LAYOUT.total, 1)
    missing = [3, 20, 40, 60]
    replicas[missing] = 0
    mine = assign_experts(LAYOUT, replicas, replicas, EMPTY, 4, turn=1)
    assert mine == IndexSet.of(missing)


def test_small_donors_share_a_layer_without_overlap() -> None:
    replicas = same(LAYOUT.total)
    seen = EMPTY
    for turn in range(16):
        mine = assign_experts(LAYOUT, replicas, replicas, EMPTY, 4, turn)
        assert len(mine) == 4
        assert not mine & seen
        seen |= mine
        replicas[list(mine)] += 1
    assert seen == IndexSet.full(LAYOUT.total)


def test_more_room_than_experts_takes_everything_and_a_dense_model_nothing() -> None:
    nothing = same(LAYOUT.total)
    assert assign_experts(LAYOUT, nothing, nothing, EMPTY, 1000, 0) == IndexSet.full(LAYOUT.total)
    assert assign_experts(ExpertLayout((0, 0)), same(0), same(0), EMPTY, 5, 0) == EMPTY
    assert assign_chunks(same(0), same(0), EMPTY, 5, 0) == EMPTY


@pytest.mark.parametrize("seed", range(3))
def test_disk_donors_of_any_size_replicate_evenly_and_keep_ranges_together(seed: int) -> None:
    luck = random.Random(seed)
    total = 3000
    replicas, ranges = same(total), 0
    donors: list[IndexSet] = []
    for _ in range(40):
        mine = assign_chunks(replicas, same(total), EMPTY, luck.randrange(100, 900), luck.getrandbits(32))
        replicas[list(mine)] += 1
        donors.append(mine)
        ranges += len(mine.ranges())
    assert replicas.max() - replicas.min() <= 1
    assert ranges < 8 * len(donors)
    # Half of them go; those that stay and have room fill the gaps, and none is moved without need.
    for gone in donors[::2]:
        replicas[list(gone)] -= 1
    for kept in donors[1::2]:
        replicas[list(kept)] -= 1
        mine = assign_chunks(replicas, same(total), kept, len(kept) + 300, luck.getrandbits(32))
        assert kept <= mine
        replicas[list(mine)] += 1
    assert replicas.min() >= 2


def test_foreign_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="index 7 where 4 exist"):
        assign_chunks(same(4), same(4), IndexSet.of([7]), 2, 0)
    with pytest.raises(ValueError, match="3 counts for 64"):
        assign_experts(LAYOUT, same(3), same(3), EMPTY, 2, 0)


@pytest.mark.parametrize("seed", range(5))
def test_any_question_is_answered_within_bounds_and_the_same_twice(seed: int) -> None:
    luck = random.Random(seed)
    total = LAYOUT.total
    for _ in range(50):
        replicas = counts(*(luck.randrange(4) for _ in range(total)))
        ready = np.minimum(replicas, counts(*(luck.randrange(4) for _ in range(total))))
        kept, capacity, turn = (
            IndexSet(luck.getrandbits(total)),
            luck.randrange(total + 9),
            luck.getrandbits(32),
        )
        for answer, again in [
            (
                assign_chunks(replicas, ready, kept, capacity, turn),
                assign_chunks(replicas, ready, kept, capacity, turn),
            ),
            (
                assign_experts(LAYOUT, replicas, ready, kept, capacity, turn),
                assign_experts(LAYOUT, replicas, ready, kept, capacity, turn),
            ),
        ]:
            assert answer == again
            assert len(answer) == min(capacity, total)
            if len(kept) <= capacity:
                assert all(ready[i] > 0 for i in kept - answer)
                assert len(kept - answer) <= max(1, capacity // 10)
