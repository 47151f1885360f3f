"""Reads bring the right bytes or fail; liars, sluggards and the dead are found out and left out."""

import errno
import itertools
import os
from random import Random

import pytest
import trio

from mirror.cas import Store
from mirror.errors import ChunkUnavailable, MirrorClosed, NoSuchFile, NotHere, OutsideFile
from mirror.fetch import Progress, open_mirror
from mirror.flight import Patience
from mirror.plan import Ledger
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
from tests.mirror.simulated import MemoryDisk
from tests.mirror.small import MODEL, TREE, mirrored


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


async def test_closing_ends_those_who_wait(store: Store, clock: WorkClock) -> None:
    async with mirrored(store, Giver("a", MODEL, stall)) as mirror, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(MirrorClosed, match=r"config\.json"):
                await mirror.read("config.json", 0, 10)

        nursery.start_soon(wait)
        await trio.sleep(1)
        mirror.close()
    assert trio.current_time() < 2


async def test_a_connection_lost_with_many_chunks_on_it_costs_a_moment(
    store: Store, clock: WorkClock
) -> None:
    giver = Giver("a", MODEL, seconds=0.05)
    async with mirrored(store, giver) as mirror, trio.open_nursery() as nursery:

        async def lose() -> None:
            await trio.sleep(0.1)
            giver.broken = ConnectionResetError(errno.ECONNRESET, "reset")
            await trio.sleep(0.1)
            giver.broken = None

        nursery.start_soon(lose)
        began = trio.current_time()
        await mirror.ensure(TREE.chunks("weights/a"))
        assert trio.current_time() - began < 4


async def test_a_read_begun_while_everybody_is_left_out_waits_for_who_comes_back(
    store: Store, clock: WorkClock
) -> None:
    giver, ledger = Giver("a", MODEL), Ledger()
    for number in range(10):
        ledger.failed("a", trio.current_time() + number / 10)
    async with open_mirror(TREE, store, Givers(giver), ledger=ledger) as mirror:
        began = trio.current_time()
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]
        assert trio.current_time() - began < 6


class Restarted(Givers):
    """A swarm whose only peer is known no more for a while after it failed, and then under a new address."""

    def __init__(self, before: Giver, after: Giver, back_s: float) -> None:
        super().__init__(before)
        self.after, self.back_s = after, back_s

    async def refresh(self) -> None:
        await super().refresh()
        self.givers = [self.after] if trio.current_time() >= self.back_s else []


async def test_who_registers_anew_elsewhere_is_asked_within_a_reads_patience(
    store: Store, clock: WorkClock
) -> None:
    before, after = Giver("a", MODEL), Giver("a", MODEL)
    before.broken = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    givers = Restarted(before, after, trio.current_time() + 10)
    async with open_mirror(TREE, store, givers) as mirror:
        began = trio.current_time()
        assert await mirror.read("config.json", 0, 100) == MODEL["config.json"]
        assert trio.current_time() - began < 12
        givers.back_s = trio.current_time() + 1000
        after.broken = before.broken
        began = trio.current_time()
        with pytest.raises(ChunkUnavailable, match=r"a failed: .*refused"):
            await mirror.read("weights/b", 0, 1)
        assert trio.current_time() - began <= Patience().failing_s
