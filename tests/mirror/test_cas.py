"""The store on a real disk: what is kept, what is believed, what goes; alone and with other processes."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from mirror.cas import IN_MEMORY, RECHECK_NS, TAG_BYTES, Store
from mirror.errors import StoreFull, StoreReadOnly, WrongBytes
from mirror.files import Disk
from mirror.space import Pinned
from tests.mirror import store_process
from tests.mirror.simulated import MemoryDisk, Unwritable

BLOCKS = [Random(number).randbytes(1000) for number in range(10)]
ADDRESSES = [sha256(block).digest() for block in BLOCKS]
ENTRY = 1000 + TAG_BYTES
KILLS = int(os.environ.get("SWARM_TEST_KILLS", "12"))
"""Processes killed at a random moment; 200 for a release."""


def place(root: Path, number: int) -> Path:
    address = ADDRESSES[number].hex()
    return root / "chunks" / address[:2] / address


def filled(root: Path, *numbers: int, limit_bytes: int | None = None) -> Store:
    store = Store(root, limit_bytes=limit_bytes)
    for number in numbers:
        store.put(ADDRESSES[number], BLOCKS[number])
    return store


def test_what_is_put_is_read_in_any_part_now_and_by_the_next_process(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1) as store:
        assert store.read(ADDRESSES[0], 1000) == BLOCKS[0]
    with Store(tmp_path) as store:
        assert store.read(ADDRESSES[1], 1000, 990, 10) == BLOCKS[1][990:]
        assert store.read(ADDRESSES[1], 1000, 0, 0) == b""
        assert store.read(ADDRESSES[2], 1000) is None
        assert {kept.address for kept in store.kept()} == set(ADDRESSES[:2])
        assert store.used_bytes == 2 * ENTRY


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        with pytest.raises(WrongBytes):
            store.put(ADDRESSES[0], BLOCKS[1])
        assert store.used_bytes == 0


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[500] ^= 4
    with path.open("r+b") as file:
        file.write(content)


def swap(path: Path) -> None:
    """Another chunk's file, right in itself, under this one's name."""
    path.write_bytes(place(path.parents[2], 1).read_bytes())


@pytest.mark.parametrize(
    "harm",
    [
        flip,
        swap,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(ENTRY)),
        lambda path: os.truncate(path, 1000),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.unlink(),
    ],
)
def test_damage_is_noticed_also_after_the_chunk_was_believed(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    for believed in (False, True):
        with filled(tmp_path, 0, 1) as store:
            assert not believed or store.read(ADDRESSES[0], 1000) == BLOCKS[0]
            harm(place(tmp_path, 0))
            assert store.read(ADDRESSES[0], 1000, 0, 10) is None
            assert not place(tmp_path, 0).exists()
            store.put(ADDRESSES[0], BLOCKS[0])
            assert store.read(ADDRESSES[0], 1000) == BLOCKS[0]
            assert store.used_bytes >= 2 * ENTRY
        with Store(tmp_path) as store:
            assert store.used_bytes == 2 * ENTRY


def test_what_has_left_the_memory_is_checked_when_it_comes_from_the_disk() -> None:
    disk = MemoryDisk()
    with Store("/store", files=disk) as store:
        for number in range(IN_MEMORY + 2):
            block = number.to_bytes(4, "big")
            store.put(sha256(block).digest(), block)
        first, last = (sha256(number.to_bytes(4, "big")).digest() for number in (0, IN_MEMORY + 1))
        for address in (first, last):  # as a medium loses it: nobody wrote, no stamp changed
            disk.names[f"/store/chunks/{address.hex()[:2]}/{address.hex()}"].data[0] ^= 4
        assert store.read(first, 4) is None
        assert store.has(last, 4), "it is still in memory"
        assert store.healed == 1


def test_a_chunk_that_left_the_memory_may_be_evicted_by_then() -> None:
    disk = MemoryDisk()
    blocks = [number.to_bytes(4, "big") for number in range(IN_MEMORY + 1)]
    with Store("/store", files=disk) as store:
        for block in blocks:
            store.put(sha256(block).digest(), block)
            store.gc([])
        assert store.used_bytes == 0
    assert disk.open_descriptors == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is told nothing elsewhere")
def test_what_is_dropped_leaves_the_memory_and_is_read_again_right(tmp_path: Path) -> None:
    disk, content = Disk(), Random(1).randbytes(1 << 20)
    descriptor = disk.create(f"{tmp_path}/file")
    try:
        disk.write(descriptor, [content, b"tag"])
        disk.drop(descriptor)
        assert disk.read(descriptor, 1 << 20, 0) == content, "it may still be on its way to the disk"
        os.fsync(descriptor)
        disk.drop(descriptor)
        try:
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            pass
        else:
            pytest.skip("this file system lives in memory")
        assert disk.read(descriptor, 1 << 20, 0) == content
        assert disk.read(descriptor, 2 << 20, 0) == content + b"tag"
    finally:
        disk.close(descriptor)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    with Store(tmp_path, limit_bytes=4 * ENTRY, clock_ns=lambda: now_ns) as store:
        for number in range(4):
            store.put(ADDRESSES[number], BLOCKS[number])
            now_ns += RECHECK_NS
        assert store.read(ADDRESSES[0], 1000) is not None
        for number in (4, 5):
            now_ns += RECHECK_NS
            store.put(ADDRESSES[number], BLOCKS[number])
            assert store.used_bytes <= 4 * ENTRY
        assert {kept.address for kept in store.kept()} == {ADDRESSES[n] for n in (0, 3, 4, 5)}


def test_pinned_chunks_stay_for_every_process(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1, 2) as donor:
        donor.pin("share", ADDRESSES[:2])
        with Store(tmp_path, limit_bytes=3 * ENTRY) as other:
            for number in range(3, 8):
                other.put(ADDRESSES[number], BLOCKS[number])
            assert other.gc([]) == ENTRY
            assert {kept.address for kept in other.kept()} == set(ADDRESSES[:2])
            other.pin("mine", ADDRESSES[3:4])
            other.put(ADDRESSES[3], BLOCKS[3])
            with pytest.raises(StoreFull, match="larger size"):
                other.put(ADDRESSES[4], BLOCKS[4])
            donor.unpin("share")
            other.put(ADDRESSES[4], BLOCKS[4])
    with pytest.raises(ValueError, match="name"):
        Store(tmp_path).pin("../x", [])


def test_a_torn_list_of_pins_counts_as_none(tmp_path: Path) -> None:
    with filled(tmp_path, 0) as store:
        store.pin("share", ADDRESSES[:1])
        (pins,) = (tmp_path / "pins").iterdir()
        os.truncate(pins, 40)
        assert store.gc([]) == ENTRY


@pytest.mark.parametrize("how", ["close", "kill"])
def test_pins_end_with_the_process_that_pinned(tmp_path: Path, how: str) -> None:
    with filled(tmp_path, 0, 1, limit_bytes=2 * ENTRY) as store:
        code = (
            "import sys\nfrom mirror.cas import Store\n"
            "with Store(sys.argv[1]) as store:\n"
            "    store.pin('share', [bytes.fromhex(one) for one in sys.argv[2:]])\n"
            "    print('pinned', flush=True)\n"
            "    sys.stdin.read()\n"
        )
        donor = subprocess.Popen(
            [sys.executable, "-c", code, tmp_path, *(one.hex() for one in ADDRESSES[:2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with donor:
            assert donor.stdin is not None
            assert donor.stdout is not None
            donor.stdout.readline()
            assert store.pinned() == [Pinned(donor.pid, "share", 2 * ENTRY)]
            assert store.gc([]) == 0
            with pytest.raises(
                StoreFull, match=rf"process {donor.pid} keeps 2.1 kB of it.*or end that process"
            ):
                store.put(ADDRESSES[2], BLOCKS[2])
            if how == "kill":
                donor.kill()
            donor.stdin.close()
            donor.wait()
        assert store.room_for([]).pinned_bytes == 0
        store.put(ADDRESSES[2], BLOCKS[2])
        assert store.pinned() == []
        assert store.gc([]) == 2 * ENTRY


def test_what_is_smaller_than_one_chunk_says_so(tmp_path: Path) -> None:
    with (
        Store(tmp_path, limit_bytes=ENTRY - 1) as store,
        pytest.raises(StoreFull, match="less than what is read"),
    ):
        store.put(ADDRESSES[0], BLOCKS[0])


def test_a_smaller_limit_is_kept_at_once(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1, 2, 3) as donor:
        donor.pin("share", ADDRESSES[:1])
        with Store(tmp_path, limit_bytes=2 * ENTRY) as store:
            assert store.trim() == 2 * ENTRY
            assert store.trim() == 0
            assert store.used_bytes == 2 * ENTRY
        with Store(tmp_path, limit_bytes=ENTRY // 2) as store:
            assert store.trim() == ENTRY
            assert [kept.address for kept in store.kept()] == ADDRESSES[:1]


def test_chosen_chunks_are_evicted_but_for_those_that_are_pinned(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1, 2) as store:
        store.pin("share", ADDRESSES[:1])
        assert store.evict(ADDRESSES[:2] + ADDRESSES[5:]) == ENTRY
        assert {kept.address for kept in store.kept()} == {ADDRESSES[0], ADDRESSES[2]}


def everything_below(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def test_a_store_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    filled(tmp_path, 0, 1, 2).close()
    flip(place(tmp_path, 1))
    before = everything_below(tmp_path)
    later_ns = time.time_ns() + 2 * RECHECK_NS
    with Store(tmp_path, limit_bytes=ENTRY, files=Unwritable(), clock_ns=lambda: later_ns) as store:
        assert store.read_only
        assert store.read(ADDRESSES[0], 1000) == BLOCKS[0]
        assert store.read(ADDRESSES[1], 1000) is None
        assert store.used_bytes == 3 * ENTRY
        store.put(ADDRESSES[0], BLOCKS[0])
        with pytest.raises(StoreReadOnly, match="can only be read") as refused:
            store.put(ADDRESSES[3], BLOCKS[3])
        assert refused.value.errno == errno.EROFS
        store.pin("share", ADDRESSES[:1])
        store.unpin("share")
        assert (store.trim(), store.gc([]), store.evict(ADDRESSES), store.pinned()) == (0, 0, 0, [])
        assert [right for _, right in store.verify()].count(False) == 1
        assert store.room_for([]).used_bytes == 3 * ENTRY
        store.flush()
    assert everything_below(tmp_path) == before


def test_what_cannot_be_written_and_holds_nothing_is_the_disk_s_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        Store(tmp_path, files=Unwritable())


def test_verify_names_and_removes_what_is_damaged(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1, 2) as store:
        flip(place(tmp_path, 1))
        wrong = [kept.address for kept, right in store.verify() if not right]
        assert wrong == [ADDRESSES[1]]
        assert store.healed == 1
        assert [right for _, right in store.verify()] == [True, True]


def test_gc_keeps_what_is_wanted_and_leaves_strange_files_alone(tmp_path: Path) -> None:
    with filled(tmp_path, 0, 1, 2) as store:
        strange = place(tmp_path, 0).with_name("notes.txt")
        strange.touch()
        assert store.gc(ADDRESSES[1:2]) == 2 * ENTRY
        assert strange.exists()
        assert [kept.address for kept in store.kept()] == [ADDRESSES[1]]


def test_what_dead_processes_were_writing_is_removed_and_the_living_are_left_alone(tmp_path: Path) -> None:
    with Store(tmp_path) as living:
        dead = tmp_path / "incoming" / "99-dead"
        dead.mkdir()
        (dead / "1").write_bytes(b"half")
        (tmp_path / "incoming" / "99-dead.lock").touch()
        with Store(tmp_path):
            assert len(list((tmp_path / "incoming").iterdir())) == 4, (
                "two processes, a folder and a lock each"
            )
        living.put(ADDRESSES[0], BLOCKS[0])
    assert not list((tmp_path / "incoming").iterdir())


def test_an_unusable_place_is_the_disk_s_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Store(tmp_path / "file" / "store")


def spawn(root: Path, seed: int, limit_bytes: int) -> "subprocess.Popen[str]":
    script = Path(store_process.__file__).resolve()
    environment = dict(os.environ, PYTHONPATH=str(script.parents[2]))
    command = [sys.executable, str(script), str(root), str(seed), str(limit_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_processes_killed_at_random_leave_only_right_bytes(tmp_path: Path) -> None:
    luck = Random(3)
    limit_bytes = 12 * (store_process.BLOCK_BYTES + TAG_BYTES)
    killed = 0
    while killed < KILLS:
        pair = [spawn(tmp_path, luck.randrange(1 << 30), limit_bytes) for _ in range(min(4, KILLS - killed))]
        for process in pair:
            assert process.stdout is not None
            process.stdout.readline()
        for process in pair:
            time.sleep(luck.random() * 0.05)
            assert process.poll() is None, "a wrong byte, or more bytes than the limit"
            process.kill()
            process.communicate()
            killed += 1
        with Store(tmp_path, limit_bytes=limit_bytes) as store:
            assert len(list((tmp_path / "incoming").iterdir())) == 2
            assert store.used_bytes == sum(kept.bytes for kept in store.kept()) <= limit_bytes
            for number in range(store_process.BLOCKS):
                right = store_process.block(number)
                found = store.read(sha256(right).digest(), len(right))
                assert found is None or found == right
