"""The measurements measure; what they say is for people."""

from pathlib import Path

import trio

from mirror import bench
from mirror.cas import Store
from mirror.fetch import open_mirror
from mirror.memory import keep_freed_memory
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
            warm = await bench.warm_speeds(MirrorSource(mirror), "weights", plain, rounds=1)
            assert min(warm.mirror_speed, warm.plain_speed) > 0
            assert giver.asked == 4
    assert await trio.to_thread.run_sync(bench.tcp_copy_speed, plain) > 0
    mounted = await trio.to_thread.run_sync(bench.mounted_speeds, plain, plain, 1)
    assert min(mounted.first_speed, mounted.again_speed, mounted.plain_speed) > 0


def test_freed_memory_is_kept_without_harm() -> None:
    keep_freed_memory()
    assert len(bytearray(2 << 20)) == 2 << 20
