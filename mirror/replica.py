"""What a mirror asks of those who have the bytes. `swarm.peers` implements it over the network, `http` over
the web."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mirror.tree import Chunk

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass
class Given:
    """What one replica did for us."""

    bytes: int = 0
    chunks: int = 0
    in_hand: int = 0
    wrong: int = 0
    trouble: str = ""
    """What went wrong with it last; empty after a chunk that was right."""
    banned_until: float = 0.0
    """On the system's monotonic clock."""

    def accused(self, reason: str, banned_s: float) -> None:
        """It gave wrong bytes, or was far too slow; it is not asked for so many seconds, 0 if it still is."""
        self.wrong += 1
        self.trouble = reason
        if banned_s:
            self.banned_until = time.monotonic() + banned_s

    @property
    def banned(self) -> bool:
        """Whether it is not asked now."""
        return self.banned_until > time.monotonic()


class Replica(Protocol):
    """Somebody who may give chunks."""

    @property
    def key(self) -> Hashable:
        """What it is known by for as long as it lives: a peer's public key, a web address."""
        ...

    @property
    def name(self) -> str:
        """What people call it; it is named so in errors."""
        ...

    @property
    def tier(self) -> int:
        """0 for peers. Replicas of a higher tier are asked only when no lower one can be; a negative one
        first."""
        ...

    async def fetch(self, chunk: Chunk) -> Buffer:
        """The bytes it claims are the chunk; whoever calls checks them, and bounds the time.

        ReplicaBusy when it asks for patience, ReplicaLacks when it says that it does not have the chunk. Any
        other SwarmError, OSError or trio.BrokenResourceError means that it failed.
        """
        ...


class Replicas(Protocol):
    """Everybody who may give chunks of one model, as far as is known."""

    def holders(self, chunk: Chunk) -> Sequence[Replica]:
        """Those thought to have this chunk, in any order; no waiting."""
        ...

    async def refresh(self) -> None:
        """Finds out anew who has what. Called when all known holders of a chunk failed; bounded in time by
        the caller. A SwarmError or OSError means that nothing new is known."""
        ...

    def accuse(self, replica: Replica, chunk: Chunk, reason: str, banned_s: float) -> None:
        """Is told that a replica gave wrong bytes, or was found far slower than others too often; `banned_s`
        is for how long it is not asked again, 0 when it still is. No waiting."""
        ...
