"""Further maintainers of a whole model: fetched or copied, they follow later versions and serve without the origin."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from swarm.demo.generated import write_checkpoint
from swarm.peers.donor import ComputeDonor, Lending, Offer
from swarm.peers.executor import Bank, Executor
from swarm.peers.inventory import NotThatModel
from swarm.peers.maintainer import Maintainer
from swarm.peers.membership import Listening, Swarming, member
from swarm.peers.room import LimitTooLow, NoRoom, find_room
from swarm.peers.session import join
from swarm.peers.settings import remember
from swarm.peers.target import parse_target
from swarm.trust.identity import Identity
from swarm.trust.manifest import CHUNK_BYTES
from swarm.wire.holdings import IndexSet
from tests.e2e.hosts import Plan, hosted
from tests.peers.members import Report, content, fetched, followed, further, home_at, joined, renewed, retired


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    (tmp_path / "model" / "more.bin").write_bytes(b"1" * (2 * CHUNK_BYTES + 9))
    return tmp_path / "model"


@pytest.fixture
def plan(model: Path, tmp_path: Path) -> Plan:
    return Plan(model, tmp_path / "host")


async def test_who_comes_later_is_seen_by_those_that_are_here(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.session.LOOK_EVERY_S", 0.02)
    async with hosted(plan) as host, join(parse_target(host.invite), home_at(tmp_path / "b")) as session:
        await session.open_model()
        assert len(session.snapshot().peers) == 1
        async with further(host.invite, home_at(tmp_path / "c"), Report(), disk=True):
            with trio.fail_after(20):
                while sum(peer.chunks > 0 for peer in session.snapshot().peers) < 2:
                    await session.models()


async def test_a_donor_of_disk_that_has_all_does_not_say_it_fetches(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.donor.ASK_AGAIN_S", 0.01)
    report, home = Report(), home_at(tmp_path / "b")
    looked, again = 0, trio.Event()

    async def look(*arguments: Any, **options: Any) -> None:
        nonlocal looked
        looked += 1
        if looked == 4:
            again.set()
        await find_room(*arguments, **options)

    monkeypatch.setattr("swarm.peers.disk.find_room", look)
    async with hosted(plan) as host, further(host.invite, home, report, disk=True):
        await report.until("running")
        begun = len(report.told)
        with trio.fail_after(20):
            await again.wait()
        assert report.told[begun:] == []


@pytest.mark.parametrize("disk", [False, True])
async def test_later_versions_are_followed(plan: Plan, tmp_path: Path, disk: bool) -> None:
    report = Report()
    async with (
        hosted(plan) as host,
        further(host.invite, home_at(tmp_path / "b"), report, disk=disk) as maintainer,
    ):
        first = host.publication.root
        await report.until("running")
        assert set(maintainer.models) == {first}
        chunks = len(maintainer.models[first].held())
        # Signed anew, the same files: served under both, nothing fetched.
        async with renewed(host.invite, home_at(tmp_path / "c"), plan, 2) as second:
            await followed(report, maintainer, second, chunks)
            assert maintainer.models[first].held() == maintainer.models[second].held()
        # Other content: the old version makes room.
        (plan.model / "more.bin").write_bytes(b"2" * (CHUNK_BYTES + 1))
        async with renewed(host.invite, home_at(tmp_path / "c"), plan, 3) as third:
            await followed(report, maintainer, third, chunks - 1)
            await retired(report, maintainer, second)
        served = maintainer.served.chunks
        assert await fetched(host.invite, home_at(tmp_path / "d")) == content(plan)
        assert maintainer.served.chunks > served


async def test_donors_of_compute_follow_later_versions_too(plan: Plan, tmp_path: Path) -> None:
    report, identity = Report(), Identity.generate()
    executor = Executor(identity)
    where = Listening("127.0.0.1", local=True)

    async def ready(root: bytes) -> Bank:
        with trio.fail_after(60):
            while True:
                for bank in executor.banks.values():
                    if bank.profile.root == root and len(bank.ready) == bank.layout.total:
                        return bank
                announcer.changed()  # else the next sign of life is seconds away
                await trio.sleep(0.05)

    async with (
        hosted(plan) as host,
        join(parse_target(host.invite), home_at(tmp_path / "b"), identity=identity) as session,
        trio.open_nursery() as nursery,
    ):
        donor = ComputeDonor(
            session, await session.open_model(), Offer(200_000_000), executor, Lending(on_change=report.take)
        )
        await donor.open()
        async with member(Swarming(session, identity, None), where, executor.handlers(), executor) as (
            announcer,
            seen,
        ):
            nursery.start_soon(donor.run, announcer, seen)
            first = await ready(host.publication.root)
            async with renewed(host.invite, home_at(tmp_path / "c"), plan, 2) as root:
                second = await ready(root)
                assert second.experts is first.experts
                assert first in executor.banks.values()
            write_checkpoint(plan.model, seed=1)
            async with renewed(host.invite, home_at(tmp_path / "c"), plan, 3) as root:
                third = await ready(root)
                assert third.experts is not second.experts
                assert second not in executor.banks.values()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("disk", [False, True])
async def test_what_will_not_fit_is_refused_before_it_is_fetched(
    plan: Plan, tmp_path: Path, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, home, report = [CHUNK_BYTES], home_at(tmp_path / "b"), Report()
    monkeypatch.setattr("mirror.files.Disk.free_bytes", lambda *_: free[0])
    async with hosted(plan) as host:
        with pytest.raises(NoRoom, match=r"needs \d.* MB more on the disk of .*, and 1.0 MB are free"):
            async with further(host.invite, home, report, disk=disk):
                pass
        remember(home_at(tmp_path / "c").settings, cache_bytes=CHUNK_BYTES)
        with pytest.raises(LimitTooLow, match=r"`swarm cache limit` leaves 1.0 MB for it"):
            async with further(host.invite, home_at(tmp_path / "c"), report, disk=disk):
                pass
        assert not report.told
        free[0] = 1 << 40
        async with further(host.invite, home, report, disk=disk) as maintainer:
            await report.until("running")
            chunks = len(maintainer.models[host.publication.root].held())
            free[0] = 0
            (plan.model / "more.bin").write_bytes(b"1" * CHUNK_BYTES + b"2" * CHUNK_BYTES)
            async with renewed(host.invite, home_at(tmp_path / "d"), plan, 2):
                with trio.fail_after(60):
                    while not any("1.0 MB more on the disk" in told[3] for told in report.told):
                        assert report.announcer is not None
                        report.announcer.changed()  # else the next sign of life is seconds away
                        await trio.sleep(0.05)
            if not disk:
                assert len(maintainer.models[host.publication.root].held()) == chunks, "the old one is served"


async def test_a_copy_serves_at_once_and_a_wrong_one_is_refused(plan: Plan, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(plan.model, tmp_path / "copy"))
    (copy / "notes.txt").write_text("not part of the model")
    report = Report()
    async with hosted(plan) as host:
        async with further(host.invite, home_at(tmp_path / "b"), report, copy) as maintainer:
            told = await report.until("running")
            assert report.told[-1][1:3] == (opened_chunks(maintainer), opened_chunks(maintainer))
            assert maintainer.served.chunks == 0
            served = await fetched(host.invite, home_at(tmp_path / "c"))
            assert served == content(plan)
            (copy / "more.bin").write_bytes(b"changed")
            await report.until("running", problem="more.bin changed", after=told)
        with pytest.raises(NotThatModel, match=r"more\.bin has other content"):
            async with further(host.invite, home_at(tmp_path / "b"), Report(), copy):
                pass
        (copy / "more.bin").unlink()
        with pytest.raises(NotThatModel, match=r"more\.bin is missing"):
            async with further(host.invite, home_at(tmp_path / "b"), Report(), copy):
                pass


@pytest.mark.parametrize("copied", [False, True])
async def test_the_owner_is_told_what_chats_with_somebody_elses_model_will_trip_over(
    plan: Plan, tmp_path: Path, copied: bool
) -> None:
    settings = plan.model / "generation_config.json"
    settings.write_text('{"do_sample": true, "temperature": -1}')
    copy = Path(shutil.copytree(plan.model, tmp_path / "copy")) if copied else None
    report = Report()
    async with hosted(plan) as host, further(host.invite, home_at(tmp_path / "b"), report, copy):
        with trio.fail_after(60):
            while not report.trouble:
                await report.more.wait()
        (reason,) = report.trouble
        assert reason.startswith("generation_config.json: temperature is -1")
        settings.write_text("{}")
        if copy is not None:
            (copy / settings.name).write_text("{}")
        async with renewed(host.invite, home_at(tmp_path / "c"), plan, 2):
            with trio.fail_after(60):
                while report.trouble:
                    assert report.announcer is not None
                    report.announcer.changed()  # else the next sign of life is seconds away
                    await trio.sleep(0.05)


def opened_chunks(maintainer: Maintainer) -> int:
    (source,) = maintainer.models.values()
    return len(source.held())


async def test_who_is_reached_directly_is_relayed_too(plan: Plan, tmp_path: Path) -> None:
    async with (
        hosted(plan) as host,
        join(parse_target(host.invite), home_at(tmp_path / "other")) as other,
        joined(host.invite, home_at(tmp_path / "member"), Maintainer()) as here,
    ):
        root, count = host.publication.root, (await here.session.open_model()).mirror.tree.chunk_count
        here.announcer.held[root] = lambda: IndexSet.full(count)
        here.announcer.changed()
        ways: set[tuple[bool, bool]] = set()
        with trio.fail_after(20):
            while (True, True) not in ways:
                await trio.sleep(0.02)
                contacts = [holder.contact for holder in await other.tracker.holders(root, None, count)]
                ways = {(bool(one.port), one.relay) for one in contacts if one.key != other.tracker.key}
