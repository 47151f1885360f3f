"""The same bytes for threads that are not trio's."""

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from mirror.cas import Store
from mirror.errors import MirrorClosed, OutsideFile
from mirror.fetch import open_mirror
from mirror.plan import Readahead
from mirror.source import MirrorSource
from tests.mirror.fakes import CHUNK, Giver, Givers, make_model, small_tree, stall

MODEL = make_model({"config.json": 100, "weights": 20 * CHUNK + 3})
TREE = small_tree(MODEL)


async def test_missing_bytes_come_through_trio_and_what_is_here_does_not(tmp_path: Path) -> None:
    giver = Giver("a", MODEL, seconds=0)
    with Store(tmp_path) as store:
        async with open_mirror(TREE, store, Givers(giver)) as mirror:
            source = MirrorSource(mirror)
            assert source.files() == {path: len(data) for path, data in MODEL.items()}
            for _ in range(2):
                data = await trio.to_thread.run_sync(source.read, "weights", 5, 10 * CHUNK)
                assert data == MODEL["weights"][5 : 5 + 10 * CHUNK]
            assert giver.asked == 11
            mixed = await trio.to_thread.run_sync(source.read, "weights", 0, len(MODEL["weights"]))
            assert mixed == MODEL["weights"]
            with pytest.raises(OutsideFile):
                source.read("weights", 0, 10**6)
            # In the trio thread a warm read works too: it never leaves the thread it is called in.
            assert source.read("weights", 1, 5) == MODEL["weights"][1:6]
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert mirror.progress.verified_bytes == len(MODEL["weights"])


async def test_what_was_there_before_counts_as_progress(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for chunk in TREE.chunks("weights"):
            store.put(chunk.address, MODEL["weights"][chunk.offset : chunk.offset + chunk.size])
        async with open_mirror(TREE, store) as mirror:
            source = MirrorSource(mirror)
            await trio.to_thread.run_sync(source.read, "weights", 0, 3 * CHUNK)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert mirror.progress.verified_bytes == mirror.progress.wanted_bytes == 3 * CHUNK
            assert mirror.progress.fetched_bytes == 0


async def test_prefetch_and_readahead_from_another_thread(tmp_path: Path) -> None:
    giver = Giver("a", MODEL, seconds=0)
    with Store(tmp_path) as store:
        async with open_mirror(TREE, store, Givers(giver)) as mirror:
            source = MirrorSource(mirror)
            await trio.to_thread.run_sync(source.prefetch, [("config.json", 0, 100)])
            ahead = Readahead(least=4 * CHUNK)
            for _ in range(2):  # cold, then warm: both run ahead
                await trio.to_thread.run_sync(source.read, "weights", 0, CHUNK, ahead)
            with trio.fail_after(20):
                await mirror.ensure([*TREE.chunks("config.json"), *list(TREE.chunks("weights"))[:5]])
            assert giver.asked == 6
            with pytest.raises(OutsideFile):
                source.prefetch([("config.json", 0, 101)])


async def test_reads_end_when_the_mirror_closes_and_after_trio_is_gone(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        async with open_mirror(TREE, store, Givers(Giver("frozen", MODEL, stall))) as mirror:
            source = MirrorSource(mirror)
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    with pytest.raises(MirrorClosed, match=r"config\.json"):
                        await trio.to_thread.run_sync(source.read, "config.json", 0, 5)

                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.05)
                source.close()
        failures: list[BaseException] = []

        def late() -> None:
            for call in (lambda: source.read("weights", 0, 1), lambda: other.read("weights", 0, 1)):
                try:
                    call()
                except MirrorClosed as error:
                    failures.append(error)
            source.close()

        def elsewhere() -> MirrorSource:
            async def main() -> MirrorSource:
                async with open_mirror(TREE, store, Givers()) as mirror:
                    return MirrorSource(mirror)

            return trio.run(main)

        other = await trio.to_thread.run_sync(elsewhere)
        thread = threading.Thread(target=late)
        thread.start()
        await trio.to_thread.run_sync(thread.join)
        assert len(failures) == 2
        with pytest.raises(MirrorClosed):
            other.prefetch([("weights", 0, 1)])
