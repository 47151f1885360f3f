"""Power may be lost at any moment, and any one file operation may fail: what is read is right, or absent."""

import errno
import hashlib
import itertools
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
import trio

from mirror.cas import TAG_BYTES, Store
from mirror.fetch import open_mirror
from mirror.files import Files
from tests.mirror.fakes import Giver, Givers, flip, small_tree
from tests.mirror.simulated import FaultyFiles, MemoryDisk, power_losses

SIZE = 48
BLOCKS = [Random(number).randbytes(SIZE) for number in range(8)]
CHUNKS = {hashlib.sha256(block).digest(): block for block in BLOCKS}
ADDRESSES = list(CHUNKS)
LIMIT = 5 * (SIZE + TAG_BYTES)


def clock() -> Callable[[], int]:
    """A clock that moves on by an hour a look, so that recency and re-checks play their part."""
    hours = itertools.count(10**15, 3600 * 10**9)
    return lambda: next(hours)


def storing(disk: MemoryDisk) -> set[bytes]:
    with Store("/store", files=disk, clock_ns=clock()) as store:
        for address in ADDRESSES[:3]:
            store.put(address, CHUNKS[address])
        store.flush()
        for address in ADDRESSES[3:6]:
            store.put(address, CHUNKS[address])
    return set(ADDRESSES[:3])


def evicting(disk: MemoryDisk) -> set[bytes]:
    with Store("/store", files=disk, limit_bytes=LIMIT, clock_ns=clock()) as store:
        store.pin("mine", ADDRESSES[:2])
        for address in ADDRESSES[:4]:
            store.put(address, CHUNKS[address])
        store.flush()
        for address in ADDRESSES[4:]:
            store.put(address, CHUNKS[address])
        store.gc(ADDRESSES[6:7])
    return set()


def verifying(disk: MemoryDisk) -> set[bytes]:
    with Store("/store", files=disk, clock_ns=clock()) as store:
        for address in ADDRESSES[:5]:
            store.put(address, CHUNKS[address])
        store.flush()
    for address in ADDRESSES[1:3]:
        disk.apply("write", disk.names[path_of(address)].number, bytes(7))
    with Store("/store", files=disk, clock_ns=clock()) as store:
        assert [right for _, right in store.verify()].count(False) == 2
        store.put(ADDRESSES[1], CHUNKS[ADDRESSES[1]])
    return {ADDRESSES[0], ADDRESSES[3], ADDRESSES[4]}


def path_of(address: bytes) -> str:
    return f"/store/chunks/{address.hex()[:2]}/{address.hex()}"


async def pulling(disk: MemoryDisk) -> set[bytes]:
    """What a donor does: pins its share, fetches it from peers, syncs."""
    model = {"weights": b"".join(BLOCKS)}
    tree = small_tree(model, SIZE)
    share = list(tree.chunks("weights"))[:5]
    with Store("/store", files=disk, limit_bytes=LIMIT, clock_ns=clock()) as store:
        store.pin("mine", [chunk.address for chunk in share])
        async with open_mirror(tree, store, Givers(Giver("a", model), Giver("b", model, flip))) as mirror:
            await mirror.ensure(share)
        await trio.to_thread.run_sync(store.flush)
    return {chunk.address for chunk in share}


def check(disk: MemoryDisk, flushed: set[bytes]) -> None:
    """What is read is right, what was flushed is there, all heals, the limit holds, nothing is left over."""
    with Store("/store", limit_bytes=LIMIT, files=disk, clock_ns=clock()) as store:
        for address, block in CHUNKS.items():
            found = store.read(address, SIZE)
            assert found is None or found == block
            assert found is not None or address not in flushed
        assert store.used_bytes == sum(kept.bytes for kept in store.kept())
        store.unpin("mine")
        for address, block in CHUNKS.items():
            store.put(address, block)
            assert store.used_bytes <= LIMIT
            assert store.read(address, SIZE) == block
    assert not [name for name in disk.names if "/incoming/" in name]
    assert disk.open_descriptors == 0


def check_all(disk: MemoryDisk, flushed: set[bytes]) -> int:
    last_sync = max(index for index, operation in enumerate(disk.log) if operation[0] == "sync")
    states = 0
    for seed in range(2):
        for done, state in power_losses(disk.log, seed):
            check(state, flushed if done > last_sync else set())
            states += 1
    return states


@pytest.mark.parametrize(("scenario", "least"), [(storing, 1400), (evicting, 2000), (verifying, 1400)])
def test_every_power_loss_leaves_only_right_bytes(
    scenario: Callable[[MemoryDisk], set[bytes]], least: int
) -> None:
    disk = MemoryDisk()
    flushed = scenario(disk)
    assert check_all(disk, flushed) > least


async def test_every_power_loss_of_a_donor_that_pulls_leaves_only_right_bytes() -> None:
    disk = MemoryDisk()
    flushed = await pulling(disk)
    assert check_all(disk, flushed) > 1000


def contents(disk: MemoryDisk) -> set[str]:
    return {name for name in disk.names if "/chunks/" in name}


def use(disk: MemoryDisk, files: Files) -> None:
    """Stores, evicts and reads; asserts what must hold even while operations fail."""
    with Store("/store", files=files, limit_bytes=LIMIT, clock_ns=clock()) as store:
        for address in ADDRESSES[:7]:
            with suppress(OSError):
                store.put(address, CHUNKS[address])
            with suppress(OSError):
                found = store.read(address, SIZE)
                assert found is None or found == CHUNKS[address]
        temporary = [name for name in disk.names if "/incoming/" in name and not name.endswith(".lock")]
        assert not temporary
        assert store.used_bytes <= LIMIT


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_fault_at_any_one_operation_is_an_error_or_nothing(number: int) -> None:
    for nth in itertools.count(1):
        disk = MemoryDisk()
        faulty = FaultyFiles(disk, nth, number)
        try:
            use(disk, faulty)
        except OSError as error:
            if error.errno != number:
                raise
        if not faulty.reached:
            break
        assert disk.open_descriptors == 0, faulty.failed
        disk.power_cycle()
        check(disk, set())
    assert nth > 100
