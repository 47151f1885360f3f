"""Where experts are placed, and when a call counts as late."""

import random

from swarm.peers.choice import Candidate, choose
from swarm.peers.pace import Pace

EIGHT = [(expert, 1) for expert in range(8)]


def bits(*experts: int) -> int:
    return sum(1 << expert for expert in experts)


def test_what_few_hold_goes_to_those_who_hold_it() -> None:
    every, some = bits(*range(8)), bits(6, 7)
    placed, nobody = choose(
        EIGHT, [Candidate(every, every, 0.001, 0.001), Candidate(some, some, 0.001, 0.001)]
    )
    assert nobody == []
    assert sorted(placed[0] + placed[1]) == list(range(8))
    assert set(placed[1]) == {6, 7}


def test_nobody_is_named_for_what_nobody_holds() -> None:
    one = [Candidate(bits(0, 1), bits(0), 0.001, 0.001)]
    assert choose(EIGHT[:3], one) == ({0: [0, 1]}, [2])
    assert choose(EIGHT[:3], one * 2)[1] == [2]
    assert choose(EIGHT[:2], []) == ({}, [0, 1])


def test_the_last_resort_is_asked_only_for_what_nobody_else_holds() -> None:
    every = bits(*range(8))
    slow = Candidate(bits(0, 1, 2), bits(0, 1, 2), 1.0, 1.0)
    serving = Candidate(every, every, 0.0, 0.0, last_resort=True)
    placed, _ = choose(EIGHT, [serving, slow])
    assert sorted(placed[1]) == [0, 1, 2]
    assert sorted(placed[0]) == [3, 4, 5, 6, 7]


def test_the_last_resort_is_asked_where_all_others_are_known_to_be_much_slower() -> None:
    every = bits(*range(8))
    serving = Candidate(every, every, 0.01, 0.0001, last_resort=True, measured=True)
    near = Candidate(bits(0, 1, 2), bits(0, 1, 2), 0.05, 0.0001, measured=True)
    far = Candidate(bits(0, 1, 2), bits(0, 1, 2), 0.5, 0.0001, measured=True)
    assert sorted(choose(EIGHT, [serving, near])[0][1]) == [0, 1, 2]
    assert sorted(choose(EIGHT, [serving, far])[0][0]) == list(range(8))
    assert sorted(choose(EIGHT, [serving, near, far])[0][1]) == [0, 1, 2]


def test_equals_take_turns_and_the_slow_get_little() -> None:
    every = bits(*range(8))
    equals = [Candidate(every, every, 0.01, 0.0001) for _ in range(4)]
    counts = [0] * 4
    for turn in range(400):
        for place, experts in choose(EIGHT[:1], equals, turn)[0].items():
            counts[place] += len(experts)
    assert counts == [100] * 4
    quick, slow = Candidate(every, every, 0.001, 0.001), Candidate(every, every, 0.001, 0.01)
    placed, _ = choose(EIGHT, [quick, slow])
    assert len(placed[0]) > len(placed.get(1, []))


def test_experts_in_memory_are_preferred() -> None:
    every = bits(*range(8))
    cold, warm = Candidate(every, 0, 0.001, 0.0001, cold_s=0.01), Candidate(every, every, 0.001, 0.0001)
    assert choose(EIGHT, [cold, warm])[0] == {1: list(range(8))}


def test_a_pace_learns_what_a_call_and_a_pair_take() -> None:
    luck, pace = random.Random(0), Pace()
    assert not pace.measured
    for _ in range(400):
        pairs = luck.randrange(1, 40)
        pace.observe(pairs, (0.002 + 0.0005 * pairs) * luck.uniform(0.9, 1.1))
    assert abs(pace.call_s - 0.002) < 0.0007
    assert abs(pace.pair_s - 0.0005) < 0.0001
    assert 1.0 < pace.late_s(8) / pace.expected_s(8) < 1.5


def test_outliers_do_not_make_everything_late_later() -> None:
    luck, pace = random.Random(0), Pace()
    for _ in range(400):
        pace.observe(8, 0.25 if luck.random() < 0.08 else 0.001)
    assert pace.late_s(8) < 0.1
