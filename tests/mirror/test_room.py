"""Room for chunks: what is here and what is shared counts once, and the limit gives and takes."""

import hashlib
from collections.abc import Iterable

import pytest

from mirror.cas import TAG_BYTES, Store
from mirror.room import Room
from mirror.tree import Chunk
from tests.mirror.simulated import MemoryDisk

SIZE = 100
FILE = SIZE + TAG_BYTES


def content(number: int) -> bytes:
    """A chunk's bytes."""
    return bytes([number]) * SIZE


def chunks(numbers: Iterable[int]) -> list[Chunk]:
    """A model of these chunks, one after another."""
    return [
        Chunk(index, "x", index * SIZE, SIZE, hashlib.sha256(content(number)).digest())
        for index, number in enumerate(numbers)
    ]


def stored(limit_bytes: int | None = None, keep: Iterable[int] = ()) -> tuple[Store, MemoryDisk]:
    """A store that keeps some chunks."""
    disk = MemoryDisk()
    disk.free = 10 * FILE
    store = Store("/store", limit_bytes=limit_bytes, files=disk)
    for number in keep:
        store.put(hashlib.sha256(content(number)).digest(), content(number))
    return store, disk


def test_what_is_here_and_what_a_model_has_twice_takes_no_more() -> None:
    store, _ = stored(keep=[1, 2, 9])
    room = store.room_for(chunks([1, 1, 2, 3, 3, 3, 4]))
    assert (room.wanted_bytes, room.here_bytes, room.lacking_bytes) == (4 * FILE, 2 * FILE, 2 * FILE)
    assert (room.used_bytes, room.disk_bytes, room.allowed_bytes) == (3 * FILE, 10 * FILE, None)


def test_a_torn_file_is_to_come_again() -> None:
    store, disk = stored(keep=[1, 2])
    path = next(name for name in disk.names if name.endswith(chunks([1])[0].address.hex()))
    descriptor = disk.open(path, write=True)
    disk.write(descriptor, [b"x" * (FILE + 1)])
    disk.close(descriptor)
    assert store.room_for(chunks([1, 2])).lacking_bytes == FILE


def test_what_others_pinned_is_not_to_be_had_under_a_limit() -> None:
    store, _ = stored(5 * FILE, keep=[1, 2, 9])
    store.pin("mine", [chunk.address for chunk in chunks([1])])
    store.pin("theirs", [chunk.address for chunk in chunks([9, 8])])
    room = store.room_for(chunks([1, 2, 3]))
    assert (room.pinned_bytes, room.allowed_bytes) == (FILE, 4 * FILE)
    assert room.lacking_bytes == FILE


@pytest.mark.parametrize(
    ("limit_bytes", "disk_bytes"),
    [(None, 5), (1000, 5), (100, 5), (90, 15), (50, 55)],
)
def test_what_is_evicted_for_the_limit_comes_free(limit_bytes: int | None, disk_bytes: int) -> None:
    room = Room(wanted_bytes=40, here_bytes=10, free_bytes=5, used_bytes=70, limit_bytes=limit_bytes)
    assert room.disk_bytes == disk_bytes


def test_of_a_part_what_is_here_comes_first() -> None:
    room = Room(wanted_bytes=100, here_bytes=30, free_bytes=0)
    sizes = (1000, 100, 60, 30, 10)
    assert [room.at_most(size).lacking_bytes for size in sizes] == [70, 70, 30, 0, 0]
