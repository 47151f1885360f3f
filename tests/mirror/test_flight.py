"""One chunk comes over the network once, however late somebody still takes it for absent."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from mirror.cas import Store
from mirror.fetch import Mirror, open_mirror
from mirror.flight import Flights, Patience
from mirror.plan import Ledger
from tests.mirror.fakes import CHUNK, Giver, Givers, make_model, small_tree
from tests.mirror.simulated import MemoryDisk

MODEL = make_model({"weights": 3 * CHUNK})
MODEL["copy"] = MODEL["weights"]
TREE = small_tree(MODEL)


@asynccontextmanager
async def flights_to(store: Store, giver: Giver) -> AsyncIterator[Flights]:
    async with trio.open_nursery() as nursery:
        yield Flights(store, Givers(giver), Ledger(), Patience(), nursery)


async def test_who_asks_when_a_flight_has_landed_gets_it_from_the_store() -> None:
    chunk, giver = TREE.chunk(0), Giver("a", MODEL, seconds=0)
    with Store("/store", files=MemoryDisk()) as store:
        async with flights_to(store, giver) as flights:
            looked = flights.landings
            first = await flights.start(chunk, looked).landed()
            assert await flights.start(chunk, looked).landed() == first
            assert flights.fetched_bytes == chunk.size
    assert giver.asked == 1


async def test_what_the_store_has_lost_since_it_landed_is_fetched_again() -> None:
    chunk, giver = TREE.chunk(0), Giver("a", MODEL, seconds=0)
    with Store("/store", files=MemoryDisk()) as store:
        async with flights_to(store, giver) as flights:
            looked = flights.landings
            first = await flights.start(chunk, looked).landed()
            store.gc([])
            assert await flights.start(chunk, looked).landed() == first
            assert flights.fetched_bytes == 2 * chunk.size
    assert giver.asked == 2


async def test_landings_that_are_forgotten_are_still_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.flight.LANDINGS_KEPT", 2)
    giver = Giver("a", MODEL, seconds=0)
    with Store("/store", files=MemoryDisk()) as store:
        async with flights_to(store, giver) as flights:
            looked = flights.landings
            for index in range(3):
                await flights.start(TREE.chunk(index), looked).landed()
            assert flights.remembered == 2
            for index in range(3):
                await flights.start(TREE.chunk(index), looked).landed()
    assert giver.asked == flights.landings == 3


async def test_who_looked_after_all_that_landed_does_not_have_the_store_looked_at_again() -> None:
    class Counting(Store):
        looks = 0

        def read_into(self, address: bytes, size: int, offset: int, buffer: memoryview) -> bool:
            self.looks += buffer.nbytes == CHUNK
            return super().read_into(address, size, offset, buffer)

    chunk, giver = TREE.chunk(0), Giver("a", MODEL, seconds=0)
    with Counting("/store", files=MemoryDisk()) as store:
        async with flights_to(store, giver) as flights:
            await flights.start(chunk, flights.landings).landed()
            store.gc([])
            await flights.start(chunk, flights.landings).landed()
        assert store.looks == 0
    assert giver.asked == 2


class Hesitant(Store):
    """A store whose first look-up finds nothing and says so only when `go_on` is set."""

    def __init__(self) -> None:
        super().__init__("/store", files=MemoryDisk())
        self.looked = trio.Event()
        self.go_on = trio.Event()

    def read_into(self, address: bytes, size: int, offset: int, buffer: memoryview) -> bool:
        found = super().read_into(address, size, offset, buffer)
        if not trio.from_thread.run_sync(self.looked.is_set):
            trio.from_thread.run_sync(self.looked.set)
            trio.from_thread.run(self.go_on.wait)
        return found


async def read(mirror: Mirror) -> None:
    await mirror.read("copy", 0, CHUNK)


async def prefetch(mirror: Mirror) -> None:
    mirror.prefetch([("copy", 0, CHUNK)])
    while mirror.progress.verified_bytes < 2 * CHUNK:
        await trio.lowlevel.checkpoint()


async def ensure(mirror: Mirror) -> None:
    await mirror.ensure([next(iter(TREE.chunks("copy")))])


@pytest.mark.parametrize("want", [read, prefetch, ensure])
async def test_what_is_stored_between_looking_and_fetching_is_not_fetched_again(
    want: Callable[[Mirror], object],
) -> None:
    giver = Giver("a", MODEL, seconds=0)
    with Hesitant() as store:
        async with open_mirror(TREE, store, Givers(giver)) as mirror, trio.open_nursery() as nursery:
            nursery.start_soon(want, mirror)
            await store.looked.wait()
            await mirror.read("weights", 0, CHUNK)
            store.go_on.set()
    assert giver.asked == 1
