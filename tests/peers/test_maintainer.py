"""Serving chunks: exact bytes, files that change under the server, and fairness among peers."""

import os
from pathlib import Path

import pytest
import trio

from swarm.peers.inventory import hash_files, list_files
from swarm.peers.maintainer import (
    READS_PER_PEER,
    ChunkNotHere,
    DirectoryChunks,
    FileWithdrawn,
    Maintainer,
    NoSuchChunk,
    NotServedHere,
    watch,
)
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.data import CHUNK_BYTES, Chunk, ReadChunk
from swarm.wire.rpc import Peer

ROOT = bytes(32)


class Caller(Peer):
    """A caller of whom only the key matters."""

    def __init__(self, number: int) -> None:
        self.key = PeerKey(bytes([number]) * 32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_bytes(b"a" * 10)
    (folder / "b").write_bytes(b"")
    (folder / "c").write_bytes(b"c" * CHUNK_BYTES + b"d" * CHUNK_BYTES + b"e")
    return folder


def chunks_of(model: Path, withdrawn: list[str] | None = None) -> DirectoryChunks:
    files = hash_files(model, list_files(model), model.parent / "kept")
    return DirectoryChunks(model, files, (withdrawn if withdrawn is not None else []).append)


def test_chunks_are_numbered_through_all_files(model: Path) -> None:
    chunks = chunks_of(model)
    assert [chunks.read(index)[:1] for index in range(4)] == [b"a", b"c", b"d", b"e"]
    assert [len(chunks.read(index)) for index in range(4)] == [10, CHUNK_BYTES, CHUNK_BYTES, 1]
    assert chunks.held() == IndexSet.full(4)
    for index in (-1, 4):
        with pytest.raises(NoSuchChunk):
            chunks.read(index)


def replace(path: Path) -> None:
    other = path.with_name("new")
    other.write_bytes(b"x" * path.stat().st_size)
    other.replace(path)


def rewrite(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [replace, rewrite, Path.unlink, lambda path: os.truncate(path, 5)])
def test_a_changed_file_is_withdrawn_said_once_and_the_others_stay(change: object, model: Path) -> None:
    withdrawn: list[str] = []
    chunks = chunks_of(model, withdrawn)
    assert callable(change)
    change(model / "c")
    for _ in range(2):
        with pytest.raises(FileWithdrawn, match=r"c is not the file .* `swarm serve`"):
            chunks.read(2)
    assert withdrawn == ["c"]
    assert chunks.held() == IndexSet.of([0])
    assert chunks.read(0) == b"a" * 10


def test_a_file_that_comes_back_stays_withdrawn(model: Path) -> None:
    chunks = chunks_of(model)
    (model / "c").rename(model / "away")
    chunks.check()
    (model / "away").rename(model / "c")
    with pytest.raises(FileWithdrawn):
        chunks.read(1)


async def test_the_watch_notices_without_a_request(model: Path, autojump_clock: trio.abc.Clock) -> None:
    noticed = trio.Event()
    files = hash_files(model, list_files(model), model.parent / "kept")
    chunks = DirectoryChunks(model, files, lambda _: trio.from_thread.run_sync(noticed.set))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, chunks)
        replace(model / "a")
        await noticed.wait()
        nursery.cancel_scope.cancel()
    assert chunks.withdrawn == {"a"}


async def test_a_maintainer_answers_for_its_models_only(model: Path) -> None:
    maintainer = Maintainer({ROOT: chunks_of(model)})
    handler = maintainer.handlers()[ReadChunk]
    answer, payload = await handler(Caller(1), ReadChunk(ROOT, 3), b"")
    assert answer == Chunk()
    assert payload == b"e"
    with pytest.raises(NotServedHere):
        await handler(Caller(1), ReadChunk(b"\1" * 32, 3), b"")
    assert (maintainer.served.chunks, maintainer.served.bytes, maintainer.served.refused) == (1, 1, 1)


class Gate:
    """A source that says what it reads, and whose reads wait until they are let go."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self._send, self.reading = trio.open_memory_channel[int](100)

    def held(self) -> IndexSet:
        return IndexSet.full(100)

    def read(self, index: int) -> bytes:
        trio.from_thread.run(self._wait, index)
        return b"."

    async def _wait(self, index: int) -> None:
        self._send.send_nowait(index)
        await self.open.wait()


async def test_nobody_crowds_out_the_others() -> None:
    source = Gate()
    maintainer = Maintainer({ROOT: source})
    handler = maintainer.handlers()[ReadChunk]
    async with trio.open_nursery() as nursery:
        for index in range(20):
            nursery.start_soon(handler, Caller(1), ReadChunk(ROOT, index), b"")
        first = [await source.reading.receive() for _ in range(READS_PER_PEER)]
        assert max(first) < 20
        nursery.start_soon(handler, Caller(2), ReadChunk(ROOT, 77), b"")
        assert await source.reading.receive() == 77
        assert maintainer.busy_peers == 2
        source.open.set()
    assert maintainer.busy_peers == 0
    assert maintainer.served.chunks == 21


class Broken:
    """A source whose disk fails."""

    def held(self) -> IndexSet:
        return IndexSet.full(1)

    def read(self, index: int) -> bytes:
        raise OSError(5, "Input/output error", "/secret/place/of/the/operator")


async def test_what_the_disk_said_stays_here() -> None:
    handler = Maintainer({ROOT: Broken()}).handlers()[ReadChunk]
    with pytest.raises(ChunkNotHere) as raised:
        await handler(Caller(1), ReadChunk(ROOT, 0), b"")
    assert "secret" not in str(raised.value)
