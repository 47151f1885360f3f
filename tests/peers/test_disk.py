"""Chunks kept for others: a donor of disk stays within its size, goes on after a restart, and heals, as does a further
server of a whole model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import trio

from mirror.cas import TAG_BYTES, Store
from mirror.files import Disk
from mirror.tree import Tree
from swarm.demo.generated import write_checkpoint
from swarm.peers.lent import BLOCK_BYTES, STORE_BYTES, chunks_within
from swarm.peers.maintainer import ChunkNotHere, ChunkSource, Maintainer
from swarm.peers.settings import Home
from swarm.trust.manifest import CHUNK_BYTES
from swarm.wire.holdings import IndexSet
from tests.e2e.hosts import Plan, hosted
from tests.peers.members import Report, content, fetched, followed, further, home_at, renewed

SIZE = 8_000_000
FEWER = 6
"""Chunks that a disk of SIZE has room for."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    (tmp_path / "model" / "more.bin").write_bytes(Random(1).randbytes(12 * CHUNK_BYTES + 9))
    return tmp_path / "model"


@dataclass
class Origin:
    """The operator's chunks, counted and switched off at will."""

    source: ChunkSource | None = None
    off: bool = False
    given: list[int] = field(default_factory=list)

    def wrap(self, source: ChunkSource) -> ChunkSource:
        self.source = source
        return self

    def held(self) -> IndexSet:
        assert self.source is not None
        return self.source.held()

    def read(self, index: int) -> bytes:
        assert self.source is not None
        if self.off:
            raise ChunkNotHere(index=index)
        self.given.append(index)
        return self.source.read(index)


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def plan(model: Path, tmp_path: Path, origin: Origin) -> Plan:
    return Plan(model, tmp_path / "host", source=origin.wrap)


def files_in(home: Home) -> list[Path]:
    """The files of the chunks that are kept."""
    return sorted(path for path in (home.chunks / "chunks").rglob("*") if path.is_file())


def taken(home: Home) -> int:
    """What the store takes on disk, in blocks, its folders and the list of what is lent included."""
    paths = [home.lent, *home.chunks.rglob("*")]
    sizes = (path.stat().st_size if path.is_file() else 1 for path in paths if path.exists())
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


def served(maintainer: Maintainer) -> IndexSet:
    """What is served of the model served last."""
    return list(maintainer.models.values())[-1].held()


async def until(true: Callable[[], bool]) -> None:
    """Waits for something to be so."""
    with trio.fail_after(60):
        while not true():  # noqa: ASYNC110 - what it waits for tells nobody
            await trio.sleep(0.01)


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> Callable[[Home], list[int]]:
    """Watches what a home takes on disk, after every write and every renaming."""

    def watch(home: Home) -> list[int]:
        sizes = [0]
        write, rename = Disk.write, Disk.rename

        def note(result: None) -> None:
            sizes[0] = max(sizes[0], taken(home))

        monkeypatch.setattr(Disk, "write", lambda *arguments: note(write(*arguments)))
        monkeypatch.setattr(Disk, "rename", lambda *arguments: note(rename(*arguments)))
        return sizes

    return watch


def test_what_the_store_needs_is_counted() -> None:
    assert chunks_within(SIZE) == FEWER
    assert chunks_within(STORE_BYTES) == chunks_within(0) == 0
    for size in (10 << 20, 50 * 10**9):
        assert 0.79 < chunks_within(size) * (CHUNK_BYTES + TAG_BYTES) / size < 1


async def test_a_donor_of_disk_never_takes_more_than_its_size(
    plan: Plan, tmp_path: Path, most: Callable[[Home], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, larger = home_at(tmp_path / "b"), 11_000_000
    async with hosted(plan) as host:
        begins, _ = Tree.of(host.publication.signed.manifest).numbers("more.bin")
        monkeypatch.setattr(
            "tracker.answers.turn_of", lambda _: begins
        )  # whole chunks, not those of small files
        sizes = most(home)
        async with further(host.invite, home, Report(), disk=True, size_bytes=larger) as maintainer:
            await until(lambda: len(served(maintainer)) == chunks_within(larger))
        assert SIZE < sizes[0] <= larger
        # A smaller size, from the next start on.
        report = Report()
        async with further(host.invite, home, report, disk=True, size_bytes=SIZE) as maintainer:
            await report.until("running")
            assert len(served(maintainer)) == len(files_in(home)) == FEWER
            sizes[0] = 0
            # Another version: what is the same stays, the rest makes room first.
            (plan.model / "more.bin").write_bytes(Random(2).randbytes(12 * CHUNK_BYTES))
            async with renewed(host.invite, home_at(tmp_path / "c"), plan, 2) as second:
                await followed(report, maintainer, second, FEWER)
            assert len(files_in(home)) == FEWER
        assert 0 < sizes[0] <= SIZE
    # Another model.
    write_checkpoint(tmp_path / "other", seed=3)
    (tmp_path / "other" / "more.bin").write_bytes(Random(3).randbytes(8 * CHUNK_BYTES))
    report = Report()
    async with hosted(Plan(tmp_path / "other", tmp_path / "host2", name="other")) as host:
        async with further(host.invite, home, report, disk=True, size_bytes=SIZE):
            await report.until("running")
        assert len(files_in(home)) == FEWER
    assert sizes[0] <= SIZE


async def test_what_is_given_up_goes_and_what_was_here_for_other_reasons_stays(
    plan: Plan, tmp_path: Path
) -> None:
    home = home_at(tmp_path / "b")
    async with hosted(plan) as host:
        await fetched(host.invite, home)
        before = files_in(home)
        for size in (SIZE, 5_000_000):
            report = Report()
            async with further(host.invite, home, report, disk=True, size_bytes=size):
                await report.until("running")
        assert files_in(home) == before


async def test_a_donor_of_disk_goes_on_after_a_restart(plan: Plan, tmp_path: Path, origin: Origin) -> None:
    home, first = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host:
        async with further(host.invite, home, first, disk=True, size_bytes=SIZE) as maintainer:
            await first.until("running")
            chunks = served(maintainer)
        origin.given.clear()
        for _ in range(3):  # each a peer that the tracker never met: what it has decides, not who it is
            report = Report()
            async with further(host.invite, home, report, disk=True, size_bytes=SIZE) as maintainer:
                await report.until("running")
                assert served(maintainer) == chunks
        assert not origin.given


@pytest.mark.parametrize("disk", [True, False])
async def test_it_survives_the_origin_and_a_restart_without_it(
    plan: Plan, tmp_path: Path, origin: Origin, disk: bool
) -> None:
    home, report = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host:
        async with further(host.invite, home, report, disk=disk):
            await report.until("running")
            origin.off = True
            assert await fetched(host.invite, home_at(tmp_path / "c")) == content(plan)
        files_in(home)[0].unlink()
        again = Report()
        async with further(host.invite, home, again, disk=disk) as maintainer:
            await again.until("fetching", "could not be had")
            count = again.told[-1][1]
            assert len(served(maintainer)) == count - 1, "the others are served"


def harm(home: Home) -> None:
    """Three chunks are damaged, one is gone."""
    files = files_in(home)
    for path in files[:3]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    files[3].unlink()


@pytest.mark.parametrize("disk", [True, False])
async def test_what_is_found_lost_is_announced_no_more_and_fetched_again(
    plan: Plan, tmp_path: Path, origin: Origin, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.donor.RETRY_S", 0.05)
    home, report = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host, further(host.invite, home, report, disk=disk) as maintainer:
        await report.until("running")
        chunks, before = served(maintainer), files_in(home)
        harm(home)
        origin.off = True
        source = list(maintainer.models.values())[-1]
        for index in chunks:
            with_loss(source, index, await trio.to_thread.run_sync(attempt, source, index))
        assert len(served(maintainer)) == len(chunks) - 4
        await report.until("fetching", "could not be had")
        origin.off = False
        await until(lambda: served(maintainer) == chunks)
        assert files_in(home) == before
        origin.off = True
        assert await fetched(host.invite, home_at(tmp_path / "c")) == content(plan)


def attempt(source: ChunkSource, index: int) -> bool:
    """Whether a chunk can be read."""
    try:
        source.read(index)
    except ChunkNotHere:
        return False
    return True


def with_loss(source: ChunkSource, index: int, was_read: bool) -> None:
    """What could not be read is not held any more."""
    assert (index in source.held()) == was_read


@pytest.mark.parametrize("disk", [True, False])
async def test_what_a_check_beside_it_removed_is_fetched_again(
    plan: Plan, tmp_path: Path, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.donor.ASK_AGAIN_S", 0.2)
    home, report = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host, further(host.invite, home, report, disk=disk) as maintainer:
        await report.until("running")
        chunks, before = served(maintainer), files_in(home)
        harm(home)
        with Store(home.chunks) as store:
            assert [right for _, right in store.verify()].count(False) == 3
        await until(lambda: files_in(home) == before and served(maintainer) == chunks)


async def test_who_assigns_too_much_is_not_obeyed(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tracker.answers.assign_chunks", lambda replicas, *_, **__: IndexSet.full(len(replicas))
    )
    home, report = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host, further(host.invite, home, report, disk=True, size_bytes=SIZE):
        await report.until("running")
        assert len(files_in(home)) == FEWER


@pytest.mark.parametrize("disk", [True, False])
async def test_nothing_is_pinned_once_it_has_ended(plan: Plan, tmp_path: Path, disk: bool) -> None:
    home, report = home_at(tmp_path / "b"), Report()
    async with hosted(plan) as host, further(host.invite, home, report, disk=disk):
        await report.until("running")
        with Store(home.chunks) as store:
            assert store.gc([]) == 0
            assert sum(one.bytes for one in store.pinned()) == store.used_bytes
    with Store(home.chunks) as store:
        assert store.gc([]) > 0
        assert not list(store.kept())
    again = Report()
    async with hosted(plan) as host, further(host.invite, home, again, disk=disk):
        await again.until("running")
