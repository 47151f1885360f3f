"""Whether chunks that are wanted will find room in a store: what is to come, what the disk and the limit have for it.

Pure. All sizes are bytes as the store's files take them, tags included.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mirror.space import Kept


@dataclass(frozen=True, slots=True)
class Room:
    """The figures of a store, for some chunks that are wanted in it at the same time."""

    wanted_bytes: int
    """All of them, each once however often a model has it."""
    here_bytes: int
    """Those of them that are in the store, not checked."""
    free_bytes: int
    """What the disk has free."""
    used_bytes: int = 0
    """Everything in the store."""
    pinned_bytes: int = 0
    """What is in the store, not wanted, and may not be evicted."""
    limit_bytes: int | None = None
    """The most that the store may hold; None: no limit."""

    def at_most(self, size_bytes: int) -> "Room":
        """The same for as many of the chunks as fit into a size, if those that are here are among them."""
        return replace(
            self,
            wanted_bytes=min(size_bytes, self.wanted_bytes),
            here_bytes=min(size_bytes, self.here_bytes),
        )

    @property
    def lacking_bytes(self) -> int:
        """What is to come."""
        return self.wanted_bytes - self.here_bytes

    @property
    def disk_bytes(self) -> int:
        """What may come before the disk is full: what is free, and what is evicted on the way to keep the limit."""
        if self.limit_bytes is None:
            return self.free_bytes
        return self.free_bytes + max(0, self.used_bytes + self.lacking_bytes - self.limit_bytes)

    @property
    def allowed_bytes(self) -> int | None:
        """How much of what is wanted the limit leaves room for; None: all of it."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.pinned_bytes)


def measure(
    wanted: Mapping[bytes, int],
    kept: Iterable[Kept],
    pinned: Collection[bytes],
    free_bytes: int,
    limit_bytes: int | None,
) -> Room:
    """The room for files of these sizes by address, in a store that keeps and pins these."""
    here = used = others = 0
    for file in kept:
        used += file.bytes
        if wanted.get(file.address) == file.bytes:
            here += file.bytes
        elif file.address in pinned and file.address not in wanted:
            others += file.bytes
    return Room(sum(wanted.values()), here, free_bytes, used, others, limit_bytes)
