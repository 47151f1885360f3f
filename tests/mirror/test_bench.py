"""The measurements measure; what they say is for people."""

from pathlib import Path

import numpy as np
import trio

from mirror import bench
from mirror.cas import Store
from mirror.fetch import open_mirror
from mirror.memory import buffer_of, keep_freed_memory
from mirror.source import MirrorSource
from tests.mirror.fakes import Giver, Givers, make_model, real_tree


async def test_every_speed_is_taken(tmp_path: Path) -> None:
    model = make_model({"weights": (3 << 20) + 5})
    plain = tmp_path / "plain"
    await trio.to_thread.run_sync(plain.write_bytes, model["weights"])
    giver = Giver("a", model, seconds=0)
    with Store(tmp_path / "store") as store:
        async with open_mirror(real_tree(model), store, Givers(giver)) as mirror:
            assert await bench.cold_speed(mirror, "weights") > 0
            assert giver.asked == 4
            warm = await bench.warm_speeds(MirrorSource(mirror), "weights", plain, rounds=2)
            assert min(*warm.speeds, *warm.references) > 0
            assert giver.asked == 4
    assert await trio.to_thread.run_sync(bench.tcp_copy_speed, plain) > 0
    small = tmp_path / "small"
    await trio.to_thread.run_sync(bench.copy_in_small_pages, plain, small)
    assert await trio.to_thread.run_sync(small.read_bytes) == model["weights"]
    first, *agains = await trio.to_thread.run_sync(bench.mounted_speeds, plain, plain, small, 2)
    again = bench.Beside.joined(agains)
    assert len(again.speeds) == len(again.references) == 4
    assert min(first, *again.speeds, *again.references) > 0


def test_a_ratio_belongs_to_its_turn() -> None:
    beside = bench.Beside((1.0, 4.0, 6.0), (2.0, 4.0, 8.0))
    assert (beside.speed, beside.reference) == (4.0, 4.0)
    assert beside.ratios == [0.5, 1.0, 0.75]


def test_freed_memory_is_kept_without_harm() -> None:
    keep_freed_memory()
    assert len(bytearray(2 << 20)) == 2 << 20


def test_large_buffers_begin_where_they_are_filled_fast() -> None:
    for size in (0, 1, 5000, 64 << 10, (1 << 20) + 3):
        buffer = buffer_of(size)
        assert (len(buffer), buffer.readonly, buffer.contiguous) == (size, False, True)
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] if size else 0
        assert size < 64 << 10 or address % 4096 == 240
