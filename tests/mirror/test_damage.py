"""Disks that are full, and chunks that were damaged: the reader is told, or the chunk comes again."""

import errno
from pathlib import Path
from random import Random

import trio

from mirror.cas import Store
from mirror.errors import NotHere
from mirror.fetch import open_mirror
from tests.clocks import WorkClock
from tests.mirror.fakes import (
    CHUNK,
    Giver,
    Givers,
    make_model,
    small_tree,
)
from tests.mirror.simulated import FaultyFiles, MemoryDisk
from tests.mirror.small import MODEL, mirrored


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
