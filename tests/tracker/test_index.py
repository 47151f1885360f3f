"""The index against a plain model: dictionaries of sets."""

import random
import time
import tracemalloc

import pytest

from swarm.wire.holdings import EMPTY, IndexSet
from tracker.index import BLOCK_INDICES, HoldingIndex, memory_of

TOTAL = 2 * BLOCK_INDICES + 100


def some_set(luck: random.Random, total: int) -> IndexSet:
    kind = luck.randrange(5)
    if kind == 0:
        return IndexSet.full(total)
    if kind == 1:
        return EMPTY
    if kind == 2:
        return IndexSet(luck.getrandbits(total))
    starts = [luck.randrange(total) for _ in range(luck.randrange(1, 6))]
    return IndexSet.from_ranges((start, min(total, start + luck.randrange(1, 700))) for start in starts)


@pytest.mark.parametrize("seed", range(6))
def test_any_history_agrees_with_plain_sets(seed: int) -> None:
    luck = random.Random(seed)
    index: HoldingIndex[str] = HoldingIndex(TOTAL)
    plain: dict[str, IndexSet] = {}
    for _ in range(60):
        peer = f"peer-{luck.randrange(12)}"
        held = some_set(luck, TOTAL)
        index.set(peer, held)
        plain[peer] = held
        if not held:
            del plain[peer]
    assert set(index) == set(plain)
    assert len(index) == len(plain)
    replicas = [sum(i in held for held in plain.values()) for i in range(TOTAL)]
    assert index.replicas().tolist() == replicas
    assert index.coverage().least_replicas == min(replicas)
    assert index.coverage().covered == sum(count > 0 for count in replicas)
    for peer in [f"peer-{number}" for number in range(12)]:
        assert index.held(peer) == plain.get(peer, EMPTY)
        assert index.encoded(peer) == plain.get(peer, EMPTY).encode()
    for times in (1, 2, 3):
        expected = IndexSet.of(i for i, count in enumerate(replicas) if count >= times)
        assert index.held_by_at_least(times) == expected


@pytest.mark.parametrize("seed", range(12))
def test_holders_cover_every_wanted_index_that_somebody_holds(seed: int) -> None:
    luck = random.Random(seed)
    index: HoldingIndex[int] = HoldingIndex(TOTAL)
    for peer in range(30):
        held = some_set(luck, TOTAL)
        index.set(peer, held if held != IndexSet.full(TOTAL) or luck.random() < 0.3 else EMPTY)
    wanted = some_set(luck, TOTAL) or IndexSet.of([5])
    chosen, complete = index.holders(wanted, 30, turn=luck.randrange(1000))
    assert complete
    assert len(set(chosen)) == len(chosen)
    replicas = index.replicas()
    held = [index.held(peer) for peer in chosen]
    for i in wanted:
        assert sum(i in one for one in held) >= min(3, int(replicas[i]))
    parts = index.parts(chosen, wanted)
    assert [IndexSet.decode(part) for part in parts] == [one & wanted for one in held]


def test_few_are_named_and_load_is_spread() -> None:
    index: HoldingIndex[int] = HoldingIndex(300)
    for peer in range(100):
        index.set(peer, IndexSet.full(300))
    answers = [index.holders(IndexSet.of([7]), 4, turn)[0] for turn in range(100)]
    assert all(len(answer) == 4 for answer in answers)
    assert {peer for answer in answers for peer in answer} == set(range(100))
    assert index.holders(IndexSet.of([7]), 4, 9)[0] == answers[9]


def test_the_only_holder_of_a_chunk_is_found_among_thousands() -> None:
    index: HoldingIndex[int] = HoldingIndex(2000)
    for peer in range(5000):
        index.set(peer, IndexSet.from_ranges([(0, 1999)]))
    index.set(9999, IndexSet.of([1999]))
    assert 9999 in index.holders(IndexSet.full(2000), 8, turn=3)[0]
    assert index.holders(IndexSet.of([1999]), 8) == ([9999], True)


def test_an_answer_that_was_cut_says_so() -> None:
    index: HoldingIndex[int] = HoldingIndex(100)
    for peer in range(100):
        index.set(peer, IndexSet.of([peer]))
    chosen, complete = index.holders(IndexSet.full(100), 10)
    assert len(chosen) == 10
    assert not complete
    assert index.holders(IndexSet.of([5, 6]), 10, usable=lambda peer: peer != 5) == ([6], False)
    assert index.holders(IndexSet.of([5]), 0) == ([], False)


def test_partial_replicas_leave_out_the_asker_and_whole_holders() -> None:
    index: HoldingIndex[str] = HoldingIndex(3)
    index.set("whole", IndexSet.full(3))
    index.set("a", IndexSet.of([0, 1]))
    index.set("b", IndexSet.of([1]))
    assert index.partial_replicas(without="a").tolist() == [0, 1, 0]
    assert index.partial_replicas(without="whole").tolist() == [1, 2, 0]
    assert index.replicas().tolist() == [2, 3, 1]


def test_replacing_and_removing_leave_nothing_behind() -> None:
    index: HoldingIndex[str] = HoldingIndex(5000)
    index.set("a", IndexSet.full(5000))
    index.set("a", IndexSet.of([4999]))
    assert index.holders(IndexSet.of([0]), 5) == ([], True)
    assert index.remove("a")
    assert not index.remove("a")
    assert len(index) == 0
    assert index.coverage().covered == 0
    with pytest.raises(ValueError, match="index 5000 where 5000"):
        index.set("a", IndexSet.of([5000]))


def test_a_model_without_experts_has_an_index_too() -> None:
    index: HoldingIndex[str] = HoldingIndex(0)
    index.set("a", EMPTY)
    assert index.coverage().covered == 0
    assert index.holders(EMPTY, 3) == ([], True)


def test_the_memory_of_a_set_is_not_underestimated() -> None:
    luck = random.Random(1)
    kinds = (
        IndexSet(luck.getrandbits(TOTAL * 8)),
        IndexSet.of(range(BLOCK_INDICES - 1, TOTAL * 8, BLOCK_INDICES)),
        IndexSet.from_ranges([(5, TOTAL)]),
        IndexSet.of([BLOCK_INDICES - 1]),
        IndexSet.full(TOTAL * 8),
    )
    for held in kinds:
        index: HoldingIndex[int] = HoldingIndex(TOTAL * 8)
        tracemalloc.start()
        for peer in range(200):
            index.set(peer, IndexSet(held.bits))
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken / 200 <= memory_of(held, index.total) <= 100 + 2 * taken / 200


@pytest.mark.parametrize("question", ["parts", "holders"])
def test_the_work_of_a_question_grows_as_the_model_does(question: str) -> None:
    def least_s(blocks: int) -> float:
        total = blocks * BLOCK_INDICES
        index: HoldingIndex[int] = HoldingIndex(total)
        luck = random.Random(blocks)
        for peer in range(2):
            index.set(peer, IndexSet(luck.getrandbits(total)))
        wanted = IndexSet(luck.getrandbits(total))
        index.held_by_at_least(1)
        times = []
        for _ in range(5):
            start = time.thread_time()
            if question == "parts":
                index.parts([0, 1], wanted)
            else:
                index.holders(wanted, most=2, depth=1)
            times.append(time.thread_time() - start)
        return min(times)

    assert least_s(1024) < 3 * 8 * least_s(128)
