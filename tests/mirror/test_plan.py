"""Choosing, striking, banning, hedging and reading ahead, with time as an argument."""

from collections.abc import Hashable
from dataclasses import dataclass

import pytest

from mirror.plan import Ledger, Policy, Readahead


@dataclass(frozen=True)
class Peer:
    key: Hashable
    tier: int = 0


A, B, C = Peer("a"), Peer("b"), Peer("c")


def measured(ledger: Ledger, peer: Peer, seconds: float, now_s: float = 0.0, size: int = 1) -> None:
    in_hand = ledger.began(peer.key)
    ledger.ended(peer.key)
    ledger.gave(peer.key, size, seconds, in_hand, now_s)


def test_the_nearest_by_measured_time_is_asked_first() -> None:
    ledger = Ledger()
    measured(ledger, A, 0.5)
    measured(ledger, B, 0.1)
    assert ledger.choose([A, B], 1.0) == B
    assert ledger.choose([B, A], 1.0) == B


def test_a_queue_counts_as_much_as_distance() -> None:
    ledger = Ledger()
    measured(ledger, A, 0.5)
    measured(ledger, B, 0.1)
    for _ in range(5):
        ledger.began(B.key)
    assert ledger.choose([A, B], 1.0) == A


def test_equals_take_turns() -> None:
    ledger = Ledger()
    measured(ledger, A, 0.10, size=100)
    measured(ledger, B, 0.11, size=10)
    assert ledger.choose([A, B], 1.0) == B
    ledger.began(B.key)
    assert ledger.choose([A, B], 1.0) == A


def test_a_stranger_is_tried_and_an_old_measurement_is_forgotten() -> None:
    ledger = Ledger()
    measured(ledger, A, 0.1, size=50)
    assert ledger.choose([A, B], 1.0) == B
    measured(ledger, B, 9.0)
    assert ledger.choose([A, B], 2.0) == A
    measured(ledger, A, 0.1, now_s=100.0)
    assert ledger.choose([A, B], 100.0) == B


def test_higher_tiers_wait_for_lower_ones_to_fail() -> None:
    ledger = Ledger()
    web, first = Peer("web", 1), Peer("first", -1)
    assert ledger.choose([web, A, first], 0.0) == first
    assert ledger.choose([web, A], 0.0) == A
    ledger.failed(A.key, 0.0)
    assert ledger.choose([web, A], 0.0) == web
    assert ledger.choose([web], 0.0, frozenset({"web"})) is None


def test_three_lies_within_an_hour_ban_and_longer_each_time() -> None:
    ledger = Ledger()
    assert [ledger.lied("a", now) for now in (0.0, 3000.0, 3601.0)] == [0.0, 0.0, 0.0]
    assert ledger.lied("a", 3602.0) == 600.0
    assert ledger.choose([A], 4201.0) is None
    assert ledger.banned(3602.0) == {"a": 600.0}
    assert ledger.choose([A], 4202.0) == A
    assert [ledger.lied("a", 5000.0) for _ in range(3)] == [0.0, 0.0, 1200.0]
    for _ in range(60):
        longest_s = ledger.lied("a", 6000.0)
    assert longest_s == 86_400.0


def test_silence_leaves_out_for_longer_each_time_until_it_answers() -> None:
    ledger = Ledger()
    pauses = []
    now_s = 0.0
    for _ in range(8):
        ledger.failed("a", now_s)
        pause_s = ledger.standing("a").out_until_s - now_s
        assert ledger.choose([A, B], now_s + pause_s / 2) == B
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    measured(ledger, A, 0.1, now_s)
    ledger.failed("a", now_s)
    assert ledger.opens_in_s([A, B], now_s) == 0.0
    assert ledger.opens_in_s([A], now_s) == 1.0


def test_who_is_alone_is_tried_again_soon_however_often_it_failed() -> None:
    ledger = Ledger()
    for _ in range(8):
        ledger.failed("a", 0.0)
    assert ledger.opens_in_s([A], 1.0) == 3.0
    assert ledger.choose([A], 3.9) is None
    assert ledger.choose([A], 4.0) == A
    assert ledger.choose([A, B], 4.0) == B
    ledger.was_busy("a", 1.0, 25.0)
    assert ledger.choose([A], 4.0) is None


def test_requests_that_one_lost_connection_took_along_are_one_failure() -> None:
    ledger = Ledger()
    for _ in range(12):
        ledger.failed("a", 5.0, began_s=4.0)
    assert ledger.standing("a").out_until_s == 6.0
    ledger.failed("a", 6.5, began_s=6.0)
    assert ledger.standing("a").out_until_s == 8.5


def test_who_moved_is_asked_at_once() -> None:
    ledger = Ledger()
    for _ in range(8):
        ledger.failed("a", 0.0)
    ledger.moved("a")
    assert ledger.choose([A], 0.1) == A


def test_a_wish_to_wait_is_granted_and_bans_are_not_waited_for() -> None:
    ledger = Ledger()
    ledger.was_busy("a", 10.0, 25.0)
    assert ledger.opens_in_s([A], 10.0) == 25.0
    for _ in range(3):
        ledger.lied("b", 10.0)
    assert ledger.opens_in_s([B], 10.0) is None
    assert ledger.opens_in_s([], 10.0) is None


def test_slow_three_times_running_bans_for_a_while() -> None:
    ledger = Ledger()
    assert [ledger.was_slow("a", 5.0, 1, 0.0) for _ in range(2)] == [0.0, 0.0]
    measured(ledger, A, 0.1)
    assert [ledger.was_slow("a", 5.0, 1, 0.0) for _ in range(3)] == [0.0, 0.0, 60.0]
    assert ledger.choose([A], 59.0) is None
    assert [ledger.was_slow("a", 5.0, 1, 100.0) for _ in range(3)] == [0.0, 0.0, 120.0]


def test_the_hedge_follows_what_was_measured() -> None:
    ledger = Ledger(Policy(first_hedge_s=1.0, least_hedge_s=0.05, hedge_factor=1.5))
    assert ledger.hedge_after_s() == 1.0
    for number in range(100):
        measured(ledger, A, 2.0 if number >= 90 else 0.2)
    assert ledger.hedge_after_s() == pytest.approx(3.0)
    for _ in range(200):
        measured(ledger, A, 0.001)
    assert ledger.hedge_after_s() == 0.05


def test_reading_forward_doubles_the_window() -> None:
    ahead = Readahead(least=10, most=40)
    asked = []
    for offset in range(0, 200, 10):
        asked.append(ahead.advance(offset, 10, 1000))
    covered = [byte for start, stop in asked for byte in range(start, stop)]
    assert covered == list(range(10, covered[-1] + 1)), "each byte once, in order"
    assert 200 + 40 >= covered[-1] + 1 >= 200 + 20
    assert max(stop - start for start, stop in asked) >= 20
    assert asked[0] == (10, 20)


def test_a_jump_closes_the_window_and_the_end_bounds_it() -> None:
    ahead = Readahead(least=10, most=40)
    ahead.advance(0, 10, 1000)
    start, stop = ahead.advance(500, 10, 1000)
    assert start == stop
    start, stop = ahead.advance(510, 10, 525)
    assert (start, stop) == (520, 525)
    assert Readahead().advance(0, 5, 5) == (5, 5)


def test_a_little_out_of_order_still_runs_forward() -> None:
    ahead = Readahead(least=40, most=40)
    reached = 0
    for offset in (0, 20, 10, 40, 30, 60, 50):
        start, stop = ahead.advance(offset, 10, 1000)
        reached = max(reached, stop) if start < stop else reached
    assert reached > 90
