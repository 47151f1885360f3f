"""What is fetched ahead: when nothing is more urgent, once, and again when it was evicted."""

import errno

import trio

from mirror.cas import Store
from mirror.fetch import LOOKED_UP_TOGETHER, TRUSTED_S
from mirror.plan import Readahead
from tests.clocks import WorkClock
from tests.mirror.fakes import (
    CHUNK,
    Giver,
)
from tests.mirror.simulated import MemoryDisk
from tests.mirror.small import MODEL, TREE, mirrored


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
