"""Measuring how bytes come: what `swarm bench bytes` runs.

The server is a process of its own (`python -m swarm.peers.byte_bench serve DIRECTORY`) and shares the
machine; the client is this one, with a store of its own on disk. Between them is what runs in a swarm: a
real, encrypted connection over loopback. A mount is served by another process (`… mount STORE DIRECTORY
MOUNTPOINT`).
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio

from mirror import bench
from mirror.bench import Beside
from mirror.cas import Store
from mirror.fetch import Mirror, open_mirror
from mirror.fuse import mount
from mirror.source import MirrorSource
from mirror.tree import Chunk, Tree
from swarm.errors import SwarmError
from swarm.peers.inventory import HashedFile, hash_files, list_files
from swarm.peers.links import Links
from swarm.peers.maintainer import DirectoryChunks, Maintainer
from swarm.peers.replicas import PeerReplica
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair, PeerKey

ROOT = bytes(32)
NAME = "weights"


class NoRoom(SwarmError):
    """Measuring takes {needed} bytes in {folder}, and {free} are free there. Choose a smaller --size or another
    --folder."""


@dataclass(frozen=True)
class Bytes:
    """What was measured, in bytes a second; None for what was left out."""

    size_bytes: int
    cold: Beside | None = None
    """From a maintainer into the store, beside a plain TCP copy."""
    warm: Beside | None = None
    """From the store through the mirror, beside pread of a plain file."""
    first: Sequence[float] = ()
    """The first read through FUSE of chunks that are in the store."""
    again: Beside | None = None
    """A second read through FUSE, beside the same file in the page cache."""


def measure(
    folder: Path,
    size_bytes: int,
    rounds: int,
    parts: Sequence[str],
    tell: Callable[[str], None] = lambda _: None,
) -> Bytes:
    """Measures `parts` of cold, warm and fuse in a folder of its own; each is told when it begins.

    NoRoom; the errors of `mirror.fuse.mount` where nothing can be mounted; OSError.
    """
    free_bytes = shutil.disk_usage(folder).free
    needed_bytes = (2 + rounds * ("cold" in parts)) * size_bytes
    if free_bytes < needed_bytes:
        raise NoRoom(folder=folder, free=free_bytes, needed=needed_bytes)
    model = folder / "model"
    model.mkdir()
    _write(model / NAME, size_bytes)
    found: dict[str, Any] = {}
    with Store(folder / "warm") as store:
        hashed = _hashed(model, folder)
        tree = Tree(file.entry for file in hashed)
        if "cold" in parts:
            tell("cold")
            found["cold"] = _cold(folder, model, tree, rounds)
        if set(parts) & {"warm", "fuse"}:
            _fill(store, tree, model)
        if "warm" in parts:
            tell("warm")
            found["warm"] = trio.run(_warm, store, tree, model / NAME, rounds)
    if "fuse" in parts:
        tell("fuse")
        found["first"], found["again"] = _mounted(folder, model, rounds)
    return Bytes(size_bytes, **found)


def _write(path: Path, size_bytes: int) -> None:
    luck = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, size_bytes, 1 << 20):
            file.write(luck.bytes(min(1 << 20, size_bytes - start)))


def _hashed(model: Path, kept: Path) -> tuple[HashedFile, ...]:
    return hash_files(model, list_files(model), kept / "hashes")


def _fill(store: Store, tree: Tree, model: Path) -> None:
    with (model / NAME).open("rb") as file:
        for chunk in tree.chunks(NAME):
            store.put(chunk.address, file.read(chunk.size))
    store.flush()


def _cold(folder: Path, model: Path, tree: Tree, rounds: int) -> Beside:
    # Every turn's store stays until the end: for some seconds after a thousand files were removed, ext4 takes a
    # quarter longer to make new ones. And what an earlier turn left to be written is not this one's.
    def once() -> float:
        os.sync()
        with Store(folder / f"cold-{next(turns)}") as store:
            return trio.run(_fetch, store, tree, server)

    turns = itertools.count()

    with _process("serve", str(model)) as server:
        bench.tcp_copy_speed(model / NAME)
        return Beside.turns(rounds, lambda: bench.tcp_copy_speed(model / NAME), once)


async def _fetch(store: Store, tree: Tree, server: dict[str, Any]) -> float:
    async with trio.open_nursery() as nursery:
        replicas = _TheOne(Links(nursery, KeyPair.generate()), server, tree.chunk_count)
        async with open_mirror(tree, store, replicas) as mirror:
            speed = await bench.cold_speed(mirror, NAME)
        nursery.cancel_scope.cancel()
    return speed


async def _warm(store: Store, tree: Tree, plain: Path, rounds: int) -> Beside:
    async with open_mirror(tree, store) as mirror:
        return await bench.warm_speeds(MirrorSource(mirror), NAME, plain, rounds)


def _mounted(folder: Path, model: Path, rounds: int) -> tuple[tuple[float, ...], Beside]:
    mountpoint = folder / "mounted"
    mountpoint.mkdir()
    firsts, agains = [], []
    for _ in range(rounds):
        with _process("mount", str(folder / "warm"), str(model), str(mountpoint)):
            first, again = bench.mounted_speeds(mountpoint / NAME, model / NAME, 1)
            firsts.append(first)
            agains.append(again)
    speeds = tuple(speed for again in agains for speed in again.speeds)
    references = tuple(speed for again in agains for speed in again.references)
    return tuple(firsts), Beside(speeds, references)


class _TheOne:
    """One maintainer that is known beforehand, in place of a tracker."""

    def __init__(self, links: Links, server: dict[str, Any], chunk_count: int) -> None:
        address = Address("127.0.0.1", server["port"])
        held = IndexSet.full(chunk_count)
        self._replicas = (PeerReplica(links, address, PeerKey(bytes.fromhex(server["key"])), ROOT, held),)

    def holders(self, chunk: Chunk) -> Sequence[PeerReplica]:
        """It."""
        return self._replicas

    async def refresh(self) -> None:
        """There is nobody to ask."""

    def accuse(self, replica: object, chunk: Chunk, reason: str, banned_s: float) -> None:
        """It is ours, so what it does wrong is a fault here."""
        raise RuntimeError(f"the server of the measurement failed: {reason}")


@contextmanager
def _process(*arguments: str) -> Iterator[dict[str, Any]]:
    """One of this module's processes for the length of a block; what it said when it was ready."""
    command = [sys.executable, "-m", "swarm.peers.byte_bench", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a process of the measurement ended before it was ready: {arguments[0]}")
            yield json.loads(line)
        finally:
            assert process.stdin is not None
            process.stdin.close()


async def _serve(directory: str) -> None:
    model = Path(directory)
    hashed = await trio.to_thread.run_sync(_hashed, model, model.parent)
    maintainer = Maintainer({ROOT: DirectoryChunks(model, hashed)})
    keys = KeyPair.generate()
    listeners = await rpc.listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(rpc.serve), listeners, keys, maintainer.handlers())
        print(json.dumps({"port": address.port, "key": keys.key.hex()}), flush=True)
        await _until_let_go(nursery)


async def _mount(store_path: str, directory: str, mountpoint: str) -> None:
    model = Path(directory)
    hashed = await trio.to_thread.run_sync(_hashed, model, model.parent)
    with Store(store_path) as store:
        async with open_mirror(Tree(file.entry for file in hashed), store) as mirror:
            await _show(mirror, Path(mountpoint))


async def _show(mirror: Mirror, mountpoint: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(mount, MirrorSource(mirror), mountpoint, issued_s=1_700_000_000))
        print("{}", flush=True)
        await _until_let_go(nursery)


async def _until_let_go(nursery: trio.Nursery) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    ROLES: dict[str, Callable[..., Awaitable[None]]] = {"serve": _serve, "mount": _mount}
    trio.run(ROLES[sys.argv[1]], *sys.argv[2:])
