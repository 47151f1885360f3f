"""A small model, and peers that give its chunks: honest, lying in every way, silent, slow, busy, broken."""

from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from random import Random

import trio

from mirror.errors import ReplicaBusy, ReplicaLacks
from mirror.replica import Buffer, Replica
from mirror.tree import Chunk, Tree
from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry

CHUNK = 256
Model = dict[str, bytes]
Behaviour = Callable[[bytes, Chunk], "bytes | None"]


def make_model(sizes: dict[str, int], seed: int = 1) -> Model:
    """Files of random bytes of these sizes."""
    luck = Random(seed)
    return {path: luck.randbytes(size) for path, size in sorted(sizes.items())}


def small_tree(model: Model, chunk_bytes: int = CHUNK) -> Tree:
    """The tree of a model, in chunks small enough for tests."""
    return Tree([file_entry(path, data, chunk_bytes) for path, data in model.items()], chunk_bytes)


def real_tree(model: Model) -> Tree:
    """The tree of a model in chunks of 1 MiB."""
    return Tree(file_entry(path, data) for path, data in model.items())


def file_entry(path: str, data: bytes, chunk_bytes: int = CHUNK_BYTES) -> FileEntry:
    """A file as a manifest lists it."""
    parts = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return FileEntry(path, len(data), Digests.of(sha256(part).digest() for part in parts))


class Giver:
    """A peer. `behaviour` turns the right bytes into what it sends; None for never anything."""

    def __init__(
        self,
        name: str,
        model: Model,
        behaviour: Behaviour | None = None,
        *,
        seconds: float = 0.01,
        tier: int = 0,
    ) -> None:
        self.name = name
        self.model = model
        self.behaviour = behaviour
        self.seconds = seconds
        self.tier = tier
        self.asked = 0
        self.under_way = 0
        self.most_under_way = 0
        self.broken: Exception | None = None

    @property
    def key(self) -> Hashable:
        return self.name

    async def fetch(self, chunk: Chunk) -> Buffer:
        self.asked += 1
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        try:
            await trio.sleep(self.seconds)
            if self.broken is not None:
                raise self.broken
            right = self.model[chunk.path][chunk.offset : chunk.offset + chunk.size]
            sent = right if self.behaviour is None else self.behaviour(right, chunk)
            if sent is None:
                await trio.sleep_forever()
            assert sent is not None
            return sent
        finally:
            self.under_way -= 1


class Givers:
    """`mirror.replica.Replicas` of these peers, who all seem to have everything."""

    def __init__(self, *givers: Replica) -> None:
        self.givers: list[Replica] = list(givers)
        self.found_later: list[Replica] = []
        self.refreshed = 0
        self.accused: dict[str, list[str]] = {}
        self.banned: set[str] = set()

    def holders(self, chunk: Chunk) -> Sequence[Replica]:
        return self.givers

    async def refresh(self) -> None:
        self.refreshed += 1
        self.givers += self.found_later
        self.found_later = []

    def accuse(self, replica: Replica, chunk: Chunk, reason: str, banned_s: float) -> None:
        self.accused.setdefault(replica.name, []).append(reason)
        if banned_s:
            self.banned.add(replica.name)


def flip(data: bytes, chunk: Chunk) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def truncate(data: bytes, chunk: Chunk) -> bytes:
    return data[:-1]


def oversize(data: bytes, chunk: Chunk) -> bytes:
    return data + b"more"


def stall(data: bytes, chunk: Chunk) -> None:
    return None


def zeros(data: bytes, chunk: Chunk) -> bytes:
    return bytes(len(data))


def swap(model: Model) -> Behaviour:
    """Sends the neighbouring chunk of the same file."""

    def send(data: bytes, chunk: Chunk) -> bytes:
        whole = model[chunk.path]
        at = (chunk.offset + len(data)) % (len(whole) - len(data))
        return whole[at : at + len(data)]

    return send


def other_file(model: Model) -> Behaviour:
    """Sends the same place of another file."""

    def send(data: bytes, chunk: Chunk) -> bytes:
        other = next(content for path, content in model.items() if path != chunk.path)
        return (other * 2)[chunk.offset % len(other) :][: len(data)]

    return send


def stale(old: Model) -> Behaviour:
    """Sends what an older version had there."""

    def send(data: bytes, chunk: Chunk) -> bytes:
        return old[chunk.path][chunk.offset : chunk.offset + len(data)]

    return send


def lacking(data: bytes, chunk: Chunk) -> bytes:
    raise ReplicaLacks(replica="peer", chunk=chunk.index, path=chunk.path, reason="it says so")


def busy(seconds: float, times: int) -> Behaviour:
    """Asks for patience so many times, then gives."""
    left = [times]

    def send(data: bytes, chunk: Chunk) -> bytes:
        if left[0]:
            left[0] -= 1
            raise ReplicaBusy(
                retry_after_s=seconds, replica="peer", chunk=chunk.index, path=chunk.path, reason="busy"
            )
        return data

    return send
