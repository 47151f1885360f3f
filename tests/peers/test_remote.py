"""Whoever computes, and whatever becomes of them in mid reply: the tokens are those of local experts."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.errors import ExpertsUnavailable
from swarm.demo.generated import Shape, write_checkpoint
from swarm.peers import partner
from swarm.peers import pool as pools
from swarm.peers.calls import Form
from swarm.peers.network import NetworkClosed
from swarm.peers.remote import Rules
from swarm.peers.summary import summary
from swarm.peers.tale import Tale
from swarm.peers.trace import tracing
from swarm.wire.rpc import Busy
from tests.peers.donors import Donor, at_random, every, liar, swarm_of

ALL = 32  # experts of the reference folders: 4 layers of 8


def dealt(donors: int, total: int = ALL) -> list[range]:
    """Every donor gets every so-many-th expert."""
    return [range(number, total, donors) for number in range(donors)]


@pytest.mark.parametrize("model", ["olmoe", "qwen3_moe"])
async def test_any_split_gives_the_same_tokens(oracle: Path, model: str) -> None:
    for count in (1, 2, 3, 5):
        donors = [Donor(number + 1, held) for number, held in enumerate(dealt(count))]
        async with swarm_of(oracle / model, donors) as swarm:
            assert await swarm.tokens() == swarm.local()
            stats = swarm.experts.stats
            assert stats.remote_calls == stats.calls > 0
            assert len(stats.by_donor) == count
            assert stats.failovers == stats.hedges == 0


async def test_native_weights_travel_as_plain_floats(oracle: Path) -> None:
    async with swarm_of(oracle / "olmoe", [Donor(1), Donor(2)], weights="native") as swarm:
        assert await swarm.tokens() == swarm.local()
        assert swarm.experts.stats.remote_calls == swarm.experts.stats.calls


async def test_a_model_of_sixteen_layers_and_eight_experts_a_token(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Shape(64, 32, layers=16, experts=16, experts_per_token=8))
    donors = [Donor(1, range(0, 200)), Donor(2, range(100, 256)), Donor(3, last_resort=True)]
    async with swarm_of(tmp_path, donors) as swarm:
        assert await swarm.tokens(4) == swarm.local(4)
        assert donors[2].asked == 0  # everything is held by somebody else


async def test_replicas_share_the_load(oracle: Path) -> None:
    donors = [Donor(1), Donor(2), Donor(3)]
    async with swarm_of(oracle / "olmoe", donors) as swarm:
        await swarm.tokens(16)
        assert min(donor.asked for donor in donors) > 0


async def test_donors_that_join_and_leave_are_noticed(oracle: Path) -> None:
    first = Donor(1, range(16))
    async with swarm_of(oracle / "olmoe", [first]) as swarm:
        right = swarm.local(16)
        assert await swarm.tokens(16) == right  # the other half runs here
        before = swarm.experts.stats.remote_calls
        assert 0 < before < swarm.experts.stats.calls
        second = Donor(2)
        await swarm.add(second)
        assert await swarm.tokens(16) == right
        assert second.asked > 0
        first.scope.cancel()  # gone without a word
        await trio.testing.wait_all_tasks_blocked()
        assert await swarm.tokens(16) == right


async def test_a_donor_that_dies_while_it_computes(oracle: Path) -> None:
    dying = Donor(1)

    async def die() -> None:
        if dying.asked == 5:
            dying.scope.cancel()
            await trio.sleep_forever()

    dying.before = die
    async with swarm_of(oracle / "olmoe", [dying, Donor(2, last_resort=True)]) as swarm:
        assert await swarm.tokens() == swarm.local()
        assert swarm.experts.stats.failovers == 1


async def test_a_frozen_donor_costs_one_deadline_and_is_asked_again_when_it_moved(
    oracle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partner, "LEAST_DEADLINE_S", 0.1)
    monkeypatch.setattr(partner, "PATIENCE", 0.0)
    monkeypatch.setattr(pools, "FIRST_PROOF_S", 0.02)
    monkeypatch.setattr(pools, "PROOF_S", 0.2)
    frozen = Donor(1)
    thaw = trio.Event()

    async def freeze() -> None:
        if frozen.asked > 3:
            await thaw.wait()

    frozen.before = freeze
    async with swarm_of(
        oracle / "olmoe", [frozen, Donor(2, last_resort=True)], Rules.parse("off", 0.0)
    ) as swarm:
        right = swarm.local()
        assert await swarm.tokens() == right
        remote, stats = swarm.remote(frozen), swarm.experts.stats
        for _ in range(5):
            await trio.sleep(0.05)
            await remote.peer.ping()  # that says nothing
            assert await swarm.tokens() == right
        assert remote.suspended
        assert stats.failovers == 1  # one deadline, and not one request more
        assert stats.by_donor[remote.name] < stats.remote_calls
        assert 1 <= frozen.asked - 4 <= 9  # proofs, further and further apart
        thaw.set()
        await proven(remote)
        asked = frozen.asked
        assert await swarm.tokens() == right
        assert frozen.asked > asked


async def proven(remote: Any) -> None:
    """Returns when a donor may be asked again."""
    with trio.fail_after(30):
        while remote.doubted:  # noqa: ASYNC110 - nothing tells of it but itself
            await trio.sleep(0.01)


async def test_a_late_answer_is_hedged(oracle: Path) -> None:
    async def slow() -> None:
        await trio.sleep(0.5)

    donors = [Donor(1, before=slow), Donor(2)]
    async with swarm_of(oracle / "olmoe", donors, Rules(0.005, 0.0)) as swarm:
        assert await swarm.tokens(3) == swarm.local(3)
        stats = swarm.experts.stats
        assert stats.hedges >= stats.hedges_won > 0
        assert stats.failovers == 0


async def test_busy_donors_are_waited_for(oracle: Path) -> None:
    donor = Donor(1)

    async def busy() -> None:
        if donor.asked % 2:
            raise Busy(what="This executor", retry_after_s=0.001)

    donor.before = busy
    async with swarm_of(oracle / "olmoe", [donor]) as swarm:
        assert await swarm.tokens(3) == swarm.local(3)
        assert swarm.experts.stats.remote_calls == swarm.experts.stats.calls
        assert swarm.remote(donor).tally.busy > 0


@pytest.mark.parametrize("rate", [1, 10])
async def test_a_liar_is_convicted_and_the_tokens_are_right(oracle: Path, rate: int) -> None:
    lying = Donor(1, twist=lambda run: liar(run, every(rate)))
    donors = [lying, Donor(2), Donor(3)]
    async with swarm_of(oracle / "olmoe", donors, Rules(None, 1.0)) as swarm:
        assert await swarm.tokens() == swarm.local()
        (conviction,) = swarm.convictions
        assert conviction.donor.key == lying.key
        assert conviction.proof is not None
        assert swarm.remote(lying).banned
        asked = lying.asked
        assert await swarm.tokens() == swarm.local()
        assert lying.asked == asked
        assert "is banned: it gave a wrong answer" in summary(swarm.experts)


async def test_colluding_donors_are_found_by_recomputing_here(oracle: Path) -> None:
    donors = [Donor(number, twist=lambda run: liar(run, every(1))) for number in (1, 2, 3)]
    async with swarm_of(oracle / "olmoe", donors, Rules(None, 1.0)) as swarm:
        right = swarm.local()
        with trio.fail_after(30):
            while len(swarm.convictions) < 3:
                await swarm.tokens()
        assert await swarm.tokens() == right
        assert all(swarm.remote(donor).banned for donor in donors)


async def test_rare_lies_are_found_at_the_usual_share(oracle: Path) -> None:
    lying = Donor(1, twist=lambda run: liar(run, at_random(0.5, 1)))
    async with swarm_of(oracle / "olmoe", [lying, Donor(2)], Rules(None, 0.3)) as swarm:
        with trio.fail_after(30):
            while not swarm.convictions:
                await swarm.tokens()
        assert [conviction.donor.key for conviction in swarm.convictions] == [lying.key]


async def test_without_anybody_it_runs_here_or_says_why_not(
    oracle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with swarm_of(oracle / "olmoe", []) as swarm:
        assert await swarm.tokens(3) == swarm.local(3)
        assert summary(swarm.experts) == ""

        def gone(*_: object) -> None:
            raise ExpertsUnavailable("the experts can be had from nowhere")

        monkeypatch.setattr(swarm.engine.bank, "run", gone)
        with pytest.raises(ExpertsUnavailable, match="from nowhere"):
            await swarm.tokens(3)


async def test_bytes_are_what_the_formats_imply_and_leave_at_once(tmp_path: Path) -> None:
    """A real width, so that what frames and encryption add shows as it is."""
    write_checkpoint(tmp_path, Shape(2048, 32, layers=2, experts=8, experts_per_token=8))
    donor = Donor(1)
    async with swarm_of(tmp_path, [donor]) as swarm:
        await swarm.tokens(1)
        sent, received = swarm.experts.transferred()
        rounds = swarm.experts.stats.rounds
        await swarm.tokens(21)
        sent, received = (
            after - before
            for after, before in zip(swarm.experts.transferred(), (sent, received), strict=True)
        )
        rows = len(range(5, 15)) + 20
        layers = 2 * rows
        assert swarm.experts.stats.rounds - rounds == 2 * 21
        form = Form(2048, True)
        assert form.row_bytes == 2048 + 4 * 64
        assert form.output_bytes == 2 * 2048 + 4 * 64
        assert sent == pytest.approx(layers * (form.row_bytes + 8 * 4), rel=0.05)
        assert received == pytest.approx(layers * 8 * form.output_bytes, rel=0.05)
        assert swarm.remote(donor).peer.no_delay


async def test_a_trace_tells_each_hop(oracle: Path, tmp_path: Path) -> None:
    async with swarm_of(oracle / "olmoe", [Donor(1)]) as swarm:
        with tracing(swarm.experts, tmp_path / "trace", pytest.fail):
            await swarm.tokens(2)
        lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [line["layer"] for line in lines] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert lines[0]["rows"] == 10
    (hop,) = lines[-1]["hops"]
    assert (hop["cause"], hop["outcome"]) == ("first", "used")
    assert hop["sent_bytes"] < hop["received_bytes"]


def test_rules_are_read_as_people_write_them() -> None:
    assert Rules.parse("auto", 0.1) == Rules(None, 0.1)
    assert Rules.parse("20", 0.0).hedge_s == 0.02
    assert Rules.parse("off", 0.0).hedge_s == float("inf")
    with pytest.raises(ValueError, match="hedge"):
        Rules.parse("-1", 0.0)


async def test_experts_that_are_often_asked_for_run_here_meanwhile(oracle: Path) -> None:
    donor = Donor(1)
    async with swarm_of(oracle / "olmoe", [donor], Rules(None, 0.0, keep=True)) as swarm:
        right = swarm.local(24)
        swarm.engine.bank.close()  # what the local run left there; the donors' bank is another
    async with swarm_of(oracle / "olmoe", [Donor(1)], Rules(None, 0.0, keep=True)) as swarm:
        kept: list[int] = []
        others: list[int] = []

        def tell(layer: int, rows: int, chosen: int, ms: float, tale: Tale) -> None:
            kept.append(chosen)
            others.append(tale.quicker_pairs + tale.local_pairs)  # the donor was late, or failed

        swarm.experts.tell = tell
        assert await swarm.tokens(24) == right
        stats = swarm.experts.stats
        assert sum(kept) > 0
        assert stats.remote_calls + sum(kept) + sum(others) == stats.calls


async def test_leaving_the_swarm_ends_a_reply_that_waits(oracle: Path) -> None:
    reached = trio.Event()

    async def never() -> None:
        reached.set()
        await trio.sleep_forever()

    failed: list[str] = []
    async with swarm_of(oracle / "olmoe", [Donor(1, before=never)]) as swarm:

        async def reply() -> None:
            with trio.CancelScope(shield=True):
                try:
                    await swarm.tokens()
                except NetworkClosed as error:
                    failed.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reply)
            await reached.wait()
            swarm.nursery.cancel_scope.cancel()
    assert failed == ["network-closed"]
