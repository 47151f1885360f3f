"""Reads bring the right bytes or fail; liars, sluggards and the dead are found out and left out."""

import errno
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from mirror.cas import Store
from mirror.errors import ChunkUnavailable, MirrorClosed, NoSuchFile, NotHere, OutsideFile
from mirror.fetch import LOOKED_UP_TOGETHER, TRUSTED_S, Mirror, Progress, open_mirror
from mirror.flight import Patience
from mirror.plan import Ledger, Policy, Readahead
from tests.clocks import WorkClock
from tests.mirror.fakes import (
    CHUNK,
    Giver,
    Givers,
    busy,
    flip,
    lacking,
    make_model,
    other_file,
    oversize,
    small_tree,
    stale,
    stall,
    swap,
    truncate,
    zeros,
)
from tests.mirror.simulated import FaultyFiles, MemoryDisk

MODEL = make_model({"config.json": 100, "empty": 0, "weights/a": 40 * CHUNK + 17, "weights/b": 3 * CHUNK})
TREE = small_tree(MODEL)


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store("/store", files=MemoryDisk()) as opened:
        yield opened


@asynccontextmanager
async def mirrored(store: Store, *givers: Giver, policy: Policy | None = None) -> AsyncIterator[Mirror]:
    async with open_mirror(TREE, store, Givers(*givers), ledger=Ledger(policy)) as mirror:
        yield mirror


async def test_any_range_of_any_file(store: Store, clock: WorkClock) -> None:
    luck = Random(1)
    async with mirrored(store, Giver("a", MODEL)) as mirror:
        for _ in range(60):
            path, data = luck.choice(list(MODEL.items()))
            start, stop = sorted((luck.randint(0, len(data)), luck.randint(0, len(data))))
            assert await mirror.read(path, start, stop - start) == data[start:stop]


async def test_what_does_not_exist_is_said(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("a", MODEL)) as mirror:
        with pytest.raises(NoSuchFile) as missing:
            await mirror.read("weights", 0, 1)
        assert missing.value.errno == errno.ENOENT
        with pytest.raises(OutsideFile, match="has 100"):
            await mirror.read("config.json", 90, 11)


async def test_readers_of_one_chunk_share_one_flight(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    async with mirrored(store, giver) as mirror, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(mirror.read, "weights/b", 10, 5)
    assert giver.asked == 1


async def test_a_reader_that_gives_up_does_not_end_the_flight(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL, seconds=1)
    async with mirrored(store, giver) as mirror:
        with trio.move_on_after(0.5):
            await mirror.read("weights/b", 0, 5)
        assert await mirror.read("weights/b", 0, 5) == MODEL["weights/b"][:5]
    assert giver.asked == 1


async def test_equals_share_the_load_and_the_nearest_takes_most(clock: WorkClock) -> None:
    model = make_model({"weights": 600 * CHUNK})
    tree = small_tree(model)

    async def asked(*seconds: float) -> list[int]:
        givers = [Giver(str(number), model, seconds=delay) for number, delay in enumerate(seconds)]
        with Store("/store", files=MemoryDisk()) as store:
            async with open_mirror(tree, store, Givers(*givers)) as mirror:
                await mirror.read("weights", 0, 600 * CHUNK)
        return [giver.asked for giver in givers]

    equals = await asked(0.01, 0.01, 0.01, 0.01)
    assert min(equals) > 0.6 * max(equals)
    near, far = await asked(0.002, 0.2)
    assert near > 8 * far


async def test_another_replica_steps_in_chunk_by_chunk(store: Store, clock: WorkClock) -> None:
    broken, sound = Giver("broken", MODEL), Giver("sound", MODEL)
    broken.broken = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    async with mirrored(store, broken, sound) as mirror:
        assert await mirror.read("weights/a", 0, 40 * CHUNK) == MODEL["weights/a"][: 40 * CHUNK]
    assert broken.asked < 30


async def test_holders_are_looked_up_again_when_all_fail(store: Store, clock: WorkClock) -> None:
    givers = Givers(Giver("a", MODEL, lacking))
    givers.found_later = [Giver("b", MODEL)]
    async with open_mirror(TREE, store, givers) as mirror:
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]
    assert givers.refreshed == 1


async def test_nobody_has_it_is_an_error_now_and_tried_again_later(store: Store, clock: WorkClock) -> None:
    givers = Givers()
    async with open_mirror(TREE, store, givers) as mirror:
        for _ in range(2):
            with pytest.raises(ChunkUnavailable, match="no peer has it") as failure:
                await mirror.read("config.json", 0, 100)
            assert failure.value.errno == errno.EIO
        givers.givers.append(Giver("late", MODEL))
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]


async def test_a_short_outage_is_waited_out_and_a_long_one_is_not(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    giver.broken = ConnectionResetError(errno.ECONNRESET, "reset")
    async with mirrored(store, giver) as mirror, trio.open_nursery() as nursery:

        async def mend() -> None:
            await trio.sleep(5)
            giver.broken = None

        nursery.start_soon(mend)
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]
        giver.broken = ConnectionResetError(errno.ECONNRESET, "reset")
        began = trio.current_time()
        with pytest.raises(ChunkUnavailable, match=r"a failed: .*reset"):
            await mirror.read("weights/b", 0, 1)
        assert trio.current_time() - began <= Patience().failing_s


async def test_a_busy_peer_is_given_the_time_it_asks_for(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL, busy(30.0, times=2))
    async with mirrored(store, giver) as mirror:
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]
    assert 60 <= trio.current_time() < 70
    assert giver.asked == 3


async def test_a_slow_chunk_is_asked_of_another_replica(store: Store, clock: WorkClock) -> None:
    slow = Giver("slow", MODEL, seconds=50)
    async with mirrored(store, slow, Giver("quick", MODEL)) as mirror:
        began = trio.current_time()
        await mirror.read("weights/a", 0, 40 * CHUNK)
        assert trio.current_time() - began < 5


async def test_a_frozen_only_peer_ends_in_an_error(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("frozen", MODEL, stall)) as mirror:
        with pytest.raises(ChunkUnavailable, match="frozen did not answer in time"):
            await mirror.read("config.json", 0, 100)
        assert trio.current_time() < 200


OLD = make_model({path: len(data) for path, data in MODEL.items()}, seed=2)


@pytest.mark.parametrize("lie", [flip, truncate, oversize, zeros, swap(MODEL), other_file(MODEL), stale(OLD)])
async def test_a_liar_alone_gives_nothing(store: Store, clock: WorkClock, lie: object) -> None:
    giver = Giver("liar", MODEL, lie)  # type: ignore[arg-type]
    givers = Givers(giver)
    async with open_mirror(TREE, store, givers) as mirror:
        for offset in range(0, 5 * CHUNK, CHUNK):
            with pytest.raises(ChunkUnavailable):
                await mirror.read("weights/a", offset, CHUNK)
    assert givers.banned == {"liar"}
    assert giver.asked == 3
    assert not list(store.kept())


async def test_seven_of_eight_lie_and_not_one_wrong_byte_arrives(clock: WorkClock) -> None:
    # A tenth of the blocks that each take ten times as long are the same time for liars to waste.
    blocks = int(os.environ.get("SWARM_TEST_BLOCKS", "1000"))
    seconds = 100 / blocks
    model = make_model({"other": 64 * 50, "weights": 64 * (blocks - 50)})
    old = make_model({path: len(data) for path, data in model.items()}, seed=2)
    tree = small_tree(model, 64)
    lies = [flip, truncate, swap(model), stall, oversize, other_file(model), stale(old)]
    honest = [Giver(f"honest {number}", model, seconds=seconds) for number in range(8)]
    mixed = [
        *(Giver(f"liar {number}", model, lie, seconds=seconds) for number, lie in enumerate(lies)),
        Giver("honest", model, seconds=seconds),
    ]

    async def took_s(givers: Givers, share: int) -> float:
        with Store("/store", files=MemoryDisk()) as store:
            async with open_mirror(tree, store, givers) as mirror:
                began = trio.current_time()
                for path, data in model.items():
                    for offset in range(0, len(data) // share, 64 * 1000):
                        length = min(64 * 1000, len(data) // share - offset)
                        assert await mirror.read(path, offset, length) == data[offset : offset + length]
                return trio.current_time() - began

    honest_s = 4 * await took_s(Givers(*honest), 4)
    givers = Givers(*mixed)
    mixed_s = await took_s(givers, 1)
    assert mixed_s <= 2 * honest_s
    assert givers.banned == {giver.name for giver in mixed[:-1]}


async def test_progress_never_runs_backwards(clock: WorkClock) -> None:
    seen: list[Progress] = []
    with Store("/store", files=MemoryDisk(), limit_bytes=10 * (CHUNK + 32)) as store:
        async with mirrored(store, Giver("a", MODEL)) as mirror:
            for offset in [*range(0, 40 * CHUNK, CHUNK), *range(0, 40 * CHUNK, CHUNK)]:
                await mirror.read("weights/a", offset, CHUNK)
                seen.append(mirror.progress)
        assert store.used_bytes <= 10 * (CHUNK + 32)
    for earlier, later in itertools.pairwise(seen):
        assert later.wanted_bytes >= earlier.wanted_bytes
        assert later.verified_bytes >= earlier.verified_bytes
        assert later.fetched_bytes >= earlier.fetched_bytes
    assert seen[-1].verified_bytes == seen[-1].wanted_bytes == 40 * CHUNK
    assert seen[-1].fetched_bytes > 60 * CHUNK, "what was evicted comes again"


async def test_offline_has_what_the_store_has(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("a", MODEL)) as mirror:
        await mirror.read("weights/b", 0, 2 * CHUNK)
    async with open_mirror(TREE, store) as mirror:
        assert mirror.offline
        assert await mirror.read("weights/b", 0, 2 * CHUNK) == MODEL["weights/b"][: 2 * CHUNK]
        with pytest.raises(NotHere, match="offline"):
            await mirror.read("weights/b", 0, 3 * CHUNK)


async def test_a_second_model_fetches_only_what_it_does_not_share(store: Store, clock: WorkClock) -> None:
    second = dict(MODEL, tuned=MODEL["weights/a"][: 30 * CHUNK] + bytes(range(256)) * 2)
    giver = Giver("a", second)
    async with mirrored(store, Giver("first", MODEL)) as mirror:
        await mirror.read("weights/a", 0, 40 * CHUNK)
    async with open_mirror(small_tree(second), store, Givers(giver)) as mirror:
        assert await mirror.read("tuned", 0, len(second["tuned"])) == second["tuned"]
    assert giver.asked == 1, "two equal chunks of one file are one, too"


async def test_prefetch_brings_what_was_asked_and_reads_go_first(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL, seconds=1)
    async with mirrored(store, giver) as mirror:
        mirror.prefetch([("weights/a", 0, 40 * CHUNK)])
        await trio.sleep(0.1)
        await mirror.read("weights/b", 0, 1)
        assert trio.current_time() < 1.2, "the prefetch does not stand in the way"
        await trio.sleep(10)
        asked = giver.asked
        assert await mirror.read("weights/a", 0, 40 * CHUNK) == MODEL["weights/a"][: 40 * CHUNK]
        assert giver.asked == asked == 41


async def test_a_failed_prefetch_is_forgotten_and_a_read_tries_again(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    giver.broken = OSError(errno.EHOSTUNREACH, "no route")
    async with mirrored(store, giver) as mirror:
        mirror.prefetch([("config.json", 0, 100)])
        await trio.sleep(100)
        giver.broken = None
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]


async def test_prefetches_go_side_by_side_also_when_few_are_asked_for(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL, seconds=1)
    async with mirrored(store, giver) as mirror:
        mirror.prefetch([("weights/a", 0, LOOKED_UP_TOGETHER * CHUNK)])
        await trio.sleep(1.5)
        assert giver.most_under_way == giver.asked == LOOKED_UP_TOGETHER
        assert mirror.progress.verified_bytes == LOOKED_UP_TOGETHER * CHUNK


async def test_what_was_read_before_its_prefetch_came_to_it_is_not_fetched_again(
    store: Store, clock: WorkClock
) -> None:
    giver = Giver("a", MODEL, seconds=1)
    async with mirrored(store, giver) as mirror:
        mirror.prefetch([("weights/a", 0, 40 * CHUNK)])
        await trio.sleep(0.1)
        await mirror.read("weights/a", 20 * CHUNK, 20 * CHUNK)  # more than are prefetched at once
        await trio.sleep(30)
        assert giver.asked == 40


async def test_prefetch_brings_again_what_was_evicted_since_it_was_here(
    store: Store, clock: WorkClock
) -> None:
    giver = Giver("a", MODEL, seconds=1)
    chunks = list(TREE.chunks("weights/b"))
    async with mirrored(store, giver) as mirror:
        await mirror.ensure(chunks)
        store.gc([])
        await trio.sleep(TRUSTED_S)
        mirror.prefetch([("weights/b", 0, len(MODEL["weights/b"]))])
        await trio.sleep(3)
        assert giver.asked == 2 * len(chunks)
        assert all(store.has(chunk.address, chunk.size) for chunk in chunks)
        await trio.sleep(TRUSTED_S)
        mirror.prefetch([("weights/b", 0, len(MODEL["weights/b"]))])
        await trio.sleep(3)
        assert giver.asked == 2 * len(chunks), "what is still here does not come again"


async def test_the_store_is_not_looked_at_again_for_every_hint(store: Store, clock: WorkClock) -> None:
    class Counting(Store):
        looks = 0

        def has(self, address: bytes, size: int) -> bool:
            self.looks += 1
            return super().has(address, size)

    with Counting("/counting", files=MemoryDisk()) as counting:
        async with mirrored(counting, Giver("a", MODEL)) as mirror:
            await mirror.ensure(TREE.chunks("weights/b"))
            before = counting.looks
            for _ in range(20):
                mirror.prefetch([("weights/b", 0, len(MODEL["weights/b"]))])
                await trio.sleep(0.1)
            assert counting.looks == before


async def test_reading_forward_fetches_ahead_and_jumping_does_not(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    async with mirrored(store, giver) as mirror:
        forward = Readahead(least=4 * CHUNK, most=16 * CHUNK)
        await mirror.read("weights/a", 0, CHUNK, forward)
        await trio.sleep(1)
        assert giver.asked == 5
        await mirror.read("weights/a", 30 * CHUNK, CHUNK, Readahead(least=4 * CHUNK))
        await trio.sleep(1)
        assert giver.asked == 6


async def test_ensure_has_everything_stored_or_says_why_not(store: Store, clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    async with mirrored(store, giver) as mirror:
        await mirror.ensure(TREE.chunks("weights/a"))
        assert all(store.has(chunk.address, chunk.size) for chunk in TREE.chunks("weights/a"))
        giver.broken = OSError(errno.EHOSTUNREACH, "no route")
        with pytest.raises(ChunkUnavailable, match="no route"):
            await mirror.ensure(TREE.chunks("weights/b"))


async def test_ensure_fetches_again_what_the_store_has_lost(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("a", MODEL)) as mirror:
        for _ in range(2):
            await mirror.ensure(TREE.chunks("weights/b"))
            assert all(store.has(chunk.address, chunk.size) for chunk in TREE.chunks("weights/b"))
            store.gc([])


async def test_a_full_disk_reaches_the_reader_as_itself(clock: WorkClock) -> None:
    giver = Giver("a", MODEL)
    for nth in range(1, 60):
        disk = MemoryDisk()
        faulty = FaultyFiles(disk, 10_000, errno.ENOSPC)
        with Store("/store", files=faulty) as store:  # type: ignore[arg-type]
            faulty.restart(nth)
            async with mirrored(store, giver) as mirror:
                try:
                    data = await mirror.read("weights/b", 0, 2 * CHUNK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                else:
                    assert data == MODEL["weights/b"][: 2 * CHUNK]
                faulty.restart(0)
                assert await mirror.read("weights/b", 0, 2 * CHUNK) == MODEL["weights/b"][: 2 * CHUNK]
            left = [name for name in disk.names if "/incoming/" in name and not name.endswith(".lock")]
            assert not left
    assert giver.asked > 100, "no peer was blamed for the disk"


async def test_closing_ends_those_who_wait(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("a", MODEL, stall)) as mirror, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(MirrorClosed, match=r"config\.json"):
                await mirror.read("config.json", 0, 10)

        nursery.start_soon(wait)
        await trio.sleep(1)
        mirror.close()
    assert trio.current_time() < 2


async def test_damage_is_healed_online_and_an_error_offline(tmp_path: Path) -> None:
    """1,000 random corruptions: flips, truncations, deletions, zeroed extents."""
    luck = Random(7)
    model = make_model({"weights": 100 * CHUNK})
    tree = small_tree(model)
    chunks = list(tree.chunks("weights"))
    healed = absent = 0
    with Store(tmp_path) as store:
        givers = Givers(Giver("a", model, seconds=0))
        async with open_mirror(tree, store, givers) as online, open_mirror(tree, store) as offline:
            await online.read("weights", 0, 100 * CHUNK)
            for number in range(1000):
                chunk = luck.choice(chunks)
                damage(tmp_path / "chunks" / chunk.address.hex()[:2] / chunk.address.hex(), luck)
                right = model["weights"][chunk.offset : chunk.offset + chunk.size]
                if number % 2:
                    assert await online.read("weights", chunk.offset, chunk.size) == right
                    healed += 1
                else:
                    try:
                        assert await offline.read("weights", chunk.offset, chunk.size) == right
                    except NotHere:
                        absent += 1
        assert healed == 500
        assert absent > 400, "some damage only zeroes what was zero, or was undone"
        assert await trio.to_thread.run_sync(lambda: all(right for _, right in store.verify()))


def damage(path: Path, luck: Random) -> None:
    if not path.exists():
        return
    content = bytearray(path.read_bytes())
    at = luck.randrange(len(content))
    match luck.randrange(4):
        case 0:
            content[at] ^= 1 << luck.randrange(8)
        case 1:
            del content[at:]
        case 2:
            path.unlink()
            return
        case 3:
            length = min(64, len(content) - at)
            content[at : at + length] = bytes(length)
    if luck.random() < 0.5:
        path.write_bytes(content)
    else:  # in place, as a failing disk or a stray write would
        with path.open("r+b") as file:
            file.write(content)
            file.truncate(len(content))
