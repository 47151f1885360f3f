"""Donors that answer late or never, beside somebody quicker: what that costs a reply, and how they come back."""

from pathlib import Path
from typing import Any

import pytest
import trio

from swarm.peers import partner
from swarm.peers import pool as pools
from swarm.peers.network import NetworkClosed
from swarm.peers.remote import Rules
from tests.peers.donors import Donor, Swarm, swarm_of

AUTO = Rules.parse("auto", 0.0)


async def never() -> None:
    await trio.sleep_forever()


class Slow:
    """Makes calls take so many seconds more."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self) -> None:
        await trio.sleep(self.seconds)


async def until_doubted(remote: Any, doubted: bool) -> None:
    with trio.fail_after(30):
        while remote.doubted != doubted:  # noqa: ASYNC110 - nothing tells of it but itself
            await trio.sleep(0.01)


async def took_s(swarm: Swarm, right: list[int]) -> float:
    """Seconds of a reply, which is right."""
    started = trio.current_time()
    assert await swarm.tokens(len(right)) == right
    return trio.current_time() - started


@pytest.mark.parametrize("last_resort", [True, False])
async def test_a_donor_that_never_answered_anything_costs_a_moment(
    oracle: Path, monkeypatch: pytest.MonkeyPatch, last_resort: bool
) -> None:
    monkeypatch.setattr(partner, "FIRST_TRY_S", 0.5)
    mute, other = Donor(1, before=never), Donor(2, last_resort=last_resort)
    async with swarm_of(oracle / "olmoe", [mute, other], AUTO) as swarm:
        assert await swarm.tokens(1) == await swarm.tokens(1)
        assert await took_s(swarm, await swarm.tokens()) < 5
        remote = swarm.remote(mute)
        with trio.fail_after(30):
            while not remote.suspended:  # noqa: ASYNC110 - nothing tells of it but itself
                await trio.sleep(0.01)
        assert remote.doubted
        assert mute.asked < other.asked / 2
        assert swarm.experts.stats.failovers == 0


async def test_a_first_deadline_is_short_where_somebody_else_can_be_asked(
    oracle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partner, "FIRST_TRY_S", 0.2)
    mute = Donor(1, before=never)
    async with swarm_of(
        oracle / "olmoe", [mute, Donor(2, last_resort=True)], Rules.parse("off", 0.0)
    ) as swarm:
        right = await swarm.tokens(2)
        assert swarm.remote(mute).suspended
        assert right == swarm.local(2)
        assert swarm.experts.stats.failovers == 1


async def test_a_much_slower_donor_is_passed_over_for_the_last_resort_until_it_is_quick_again(
    oracle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "FIRST_PROOF_S", 0.05)
    slow = Slow(1.0)
    donor, serving = Donor(1, before=slow), Donor(2, last_resort=True)
    async with swarm_of(oracle / "olmoe", [donor, serving], AUTO) as swarm:
        started = trio.current_time()
        right = await swarm.tokens(4)
        assert trio.current_time() - started < 8  # of the 16 that its calls would take
        assert donor.asked <= 8
        remote = swarm.remote(donor)
        await until_doubted(remote, True)
        assert not remote.suspended  # for what nobody else holds it is still asked
        assert await took_s(swarm, right) < 8
        slow.seconds = 0.0
        await until_doubted(remote, False)
        assert remote.slow_s == 0.0
        assert right == swarm.local(4)


async def test_what_is_in_memory_here_runs_here_where_the_only_donor_is_much_slower(oracle: Path) -> None:
    donor = Donor(1, before=Slow(1.0))
    async with swarm_of(oracle / "olmoe", [donor], AUTO) as swarm:
        right = swarm.local(4)  # has the experts read
        assert await took_s(swarm, right) < 8  # of 16
        assert donor.asked <= 8


async def test_a_slow_donor_is_asked_where_nothing_else_can_be(oracle: Path) -> None:
    donor = Donor(1, before=Slow(0.3))
    async with swarm_of(oracle / "olmoe", [donor], AUTO) as swarm:
        right = await swarm.tokens(1)
        assert donor.asked == 4
        assert swarm.experts.stats.remote_calls == swarm.experts.stats.calls
        assert right == swarm.local(1)


async def test_a_hung_call_is_waited_for_by_nobody_and_measures_its_donor(oracle: Path) -> None:
    donor = Donor(1)

    async def hang() -> None:
        if donor.asked == 20:
            await trio.sleep(1.8)

    donor.before = hang
    async with swarm_of(oracle / "olmoe", [donor, Donor(2)], AUTO) as swarm:
        right = swarm.local(16)
        swarm.engine.bank.close()
        longest = 0.0

        def tell(layer: int, rows: int, kept: int, ms: float, tale: object) -> None:
            nonlocal longest
            longest = max(longest, ms)

        swarm.experts.tell = tell
        assert await swarm.tokens(16) == right
        assert longest < 1500


async def test_whoever_is_late_for_a_model_that_was_let_go_is_told(oracle: Path) -> None:
    computing = 0

    async def late() -> None:
        nonlocal computing
        computing += 1
        try:
            await trio.sleep_forever()
        finally:
            computing -= 1

    waited_for, quick = Donor(1, before=late), Donor(2)
    async with swarm_of(oracle / "olmoe", [waited_for, quick], Rules.parse("5", 0.0)) as swarm:
        assert await swarm.tokens(2) == swarm.local(2)
        remote = swarm.remote(waited_for)
        assert remote.overdue_since is not None  # its answer is waited for, to see how long it takes
        assert computing
        swarm.experts.pool.leave()
        with trio.fail_after(30):
            while computing:  # noqa: ASYNC110 - nothing tells of it but itself
                await trio.sleep(0.01)
        with pytest.raises(NetworkClosed):
            await swarm.tokens(1)
        assert remote.peer.is_open


async def test_a_pool_that_was_left_before_its_first_round_refuses_every_one(oracle: Path) -> None:
    async with swarm_of(oracle / "olmoe", [Donor(1)]) as swarm:
        swarm.experts.pool.leave()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(NetworkClosed), trio.fail_after(30):
                await swarm.tokens(1)
