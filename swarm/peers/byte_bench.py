"""Measuring how bytes come: what `swarm bench bytes` runs.

The server is a process of its own (`python -m swarm.peers.byte_bench serve DIRECTORY`) and shares the
machine; the client is this one, with a store of its own on disk. Between them is what runs in a swarm: a
real, encrypted connection over loopback. A mount is served by another process (`… mount STORE DIRECTORY
MOUNTPOINT`).
"""

import itertools
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
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
from swarm.peers import crowd_bench
from swarm.peers.bench_process import helper, tell, until_let_go
from swarm.peers.crowd_bench import ROOT, Crowded
from swarm.peers.inventory import HashedFile, hash_files, list_files
from swarm.peers.links import Links
from swarm.peers.maintainer import DirectoryChunks, Maintainer
from swarm.peers.replicas import PeerReplica
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair, PeerKey

_MODULE = "swarm.peers.byte_bench"
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
    again_small: Beside | None = None
    """The same beside that file in pages of 4 KiB, as which the kernel keeps what came through FUSE."""
    crowd: Crowded | None = None
    """What a maintainer's many clients do to its memory, and to one of them."""


def measure(
    folder: Path,
    size_bytes: int,
    rounds: int,
    parts: Sequence[str],
    begin: Callable[[str], None] = lambda _: None,
    crowd: crowd_bench.Size | None = None,
) -> Bytes:
    """Measures `parts` of cold, warm, fuse and crowd in a folder of its own; `begin` is told each in turn.

    NoRoom; TooFewFiles for crowd; the errors of `mirror.fuse.mount` where nothing can be mounted; OSError.
    """
    free_bytes = shutil.disk_usage(folder).free
    needed_bytes = (2 + ("fuse" in parts) + rounds * ("cold" in parts)) * size_bytes
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
            begin("cold")
            found["cold"] = _cold(folder, model, tree, rounds)
        if set(parts) & {"warm", "fuse"}:
            _fill(store, tree, model)
        if "warm" in parts:
            begin("warm")
            found["warm"] = trio.run(_warm, store, tree, model / NAME, rounds)
    if "fuse" in parts:
        begin("fuse")
        found["first"], found["again"], found["again_small"] = _mounted(folder, model, rounds)
    if "crowd" in parts:
        begin("crowd")
        found["crowd"] = _crowded(model, tree, rounds, crowd or crowd_bench.Size())
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
            return trio.run(_fetch, store, tree, server.told)

    turns = itertools.count()

    with helper(_MODULE, "serve", str(model)) as server:
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


def _mounted(folder: Path, model: Path, rounds: int) -> tuple[tuple[float, ...], Beside, Beside]:
    mountpoint = folder / "mounted"
    mountpoint.mkdir()
    bench.copy_in_small_pages(model / NAME, folder / "small")
    turns = []
    for _ in range(rounds):
        with helper(_MODULE, "mount", str(folder / "warm"), str(model), str(mountpoint)):
            turns.append(bench.mounted_speeds(mountpoint / NAME, model / NAME, folder / "small", 1))
    firsts, agains, agains_small = zip(*turns, strict=True)
    return firsts, Beside.joined(agains), Beside.joined(agains_small)


def _crowded(model: Path, tree: Tree, rounds: int, size: crowd_bench.Size) -> Crowded:
    with crowd_bench.room_for_files(size), helper(_MODULE, "serve", str(model)) as server:
        return crowd_bench.measure(server, tree.chunk_count, rounds, size)


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


async def _serve(directory: str) -> None:
    model = Path(directory)
    hashed = await trio.to_thread.run_sync(_hashed, model, model.parent)
    maintainer = Maintainer({ROOT: DirectoryChunks(model, hashed)})
    keys = KeyPair.generate()
    listeners = await rpc.listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(rpc.serve), listeners, keys, maintainer.handlers())
        tell(port=address.port, key=keys.key.hex())
        await until_let_go(nursery)


async def _mount(store_path: str, directory: str, mountpoint: str) -> None:
    model = Path(directory)
    hashed = await trio.to_thread.run_sync(_hashed, model, model.parent)
    with Store(store_path) as store:
        async with open_mirror(Tree(file.entry for file in hashed), store) as mirror:
            await _show(mirror, Path(mountpoint))


async def _show(mirror: Mirror, mountpoint: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(mount, MirrorSource(mirror), mountpoint, issued_s=1_700_000_000))
        tell()
        await until_let_go(nursery)


if __name__ == "__main__":
    ROLES: dict[str, Callable[..., Awaitable[None]]] = {"serve": _serve, "mount": _mount}
    trio.run(ROLES[sys.argv[1]], *sys.argv[2:])
