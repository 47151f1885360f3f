"""Who holds which chunks, or which experts, of one model: pure, exact at the granularity of one index.

Peers that hold everything are kept apart; the holdings of the others are cut into blocks of 2,048 indices,
so a question about a few indices looks at few entries, and 10,000 whole replicas cost no more than their
names. How often each index is held is kept as an array and never recounted.

The index knows nothing of addresses, lifetimes or what an index stands for (`swarm.wire.holdings`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from swarm.wire.holdings import EMPTY, IndexSet

BLOCK_INDICES = 2048
_BLOCK_BYTES = BLOCK_INDICES // 8
MAX_ENTRIES_SCANNED = 20_000
"""A question looks at no more entries than this, some three milliseconds; what it then lacks is asked
again."""

_PEER_BYTES = 96
_ENTRY_BYTES = 380
"""What the part of a set that falls into a block takes beside its encoding: a number and its place in the block."""

PeerId = TypeVar("PeerId", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well the holdings of a model cover it: the least replicas an index has, and how many have any."""

    total: int
    covered: int
    least_replicas: int


class HoldingIndex(Generic[PeerId]):
    """The holdings of many peers of one model with `total` chunks or experts."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._everything = IndexSet.full(total)
        self._whole: dict[PeerId, None] = {}
        self._encoded: dict[PeerId, bytes] = {}
        self._blocks: list[dict[PeerId, int]] = [{} for _ in range(-(-total // BLOCK_INDICES))]
        self._partial_replicas = np.zeros(total, dtype=np.int32)
        self._at_least: dict[int, int] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._whole or peer in self._encoded

    def __iter__(self) -> Iterator[PeerId]:
        yield from self._whole
        yield from self._encoded

    def __len__(self) -> int:
        return len(self._whole) + len(self._encoded)

    @property
    def whole(self) -> int:
        """How many peers hold everything."""
        return len(self._whole)

    def held(self, peer: PeerId) -> IndexSet:
        """What a peer holds; the empty set for a peer that is not here."""
        if peer in self._whole:
            return self._everything
        encoded = self._encoded.get(peer)
        return EMPTY if encoded is None else IndexSet.restore(encoded)

    def encoded(self, peer: PeerId) -> bytes:
        """What a peer holds, encoded; cheaper than `held(peer).encode()`."""
        if peer in self._whole:
            return self._everything.encode()
        return self._encoded.get(peer) or EMPTY.encode()

    def set(self, peer: PeerId, held: IndexSet) -> None:
        """Replaces what a peer holds; the empty set removes it. ValueError for an index beyond the last."""
        if held.stop > self.total:
            raise ValueError(f"index {held.stop - 1} where {self.total} exist")
        before = self.held(peer)
        if before == held:
            return
        self._at_least.clear()
        if self._whole.pop(peer, self) is None:
            before = EMPTY
        if held == self._everything:
            self._whole[peer] = None
            held = EMPTY
        if held:
            self._encoded[peer] = held.encode()
        else:
            self._encoded.pop(peer, None)
        for changed, change in ((held - before, np.add), (before - held, np.subtract)):
            _apply(self._partial_replicas, changed, change)
        octets = held.bits.to_bytes(len(self._blocks) * _BLOCK_BYTES, "little")
        for block in _touched(IndexSet(held.bits ^ before.bits)):
            part = _part(octets, block)
            if part:
                self._blocks[block][peer] = part
            else:
                self._blocks[block].pop(peer, None)

    def remove(self, peer: PeerId) -> bool:
        """Forgets a peer. False when it was not here."""
        known = peer in self
        self.set(peer, EMPTY)
        return known

    def replicas(self) -> npt.NDArray[np.int32]:
        """How many peers hold each index, [total]; a copy."""
        return self._partial_replicas + np.int32(len(self._whole))

    def partial_replicas(self, without: PeerId) -> npt.NDArray[np.int32]:
        """How many peers that do not hold everything, and are not this one, hold each index, [total]; a
        copy."""
        counts = self._partial_replicas.copy()
        if without in self._encoded:
            _apply(counts, self.held(without), np.subtract)
        return counts

    def coverage(self) -> Coverage:
        """How well the holdings cover the model."""
        covered = self.held_by_at_least(1).bits.bit_count()
        least = int(self._partial_replicas.min()) + len(self._whole) if self.total else len(self._whole)
        return Coverage(self.total, covered, least)

    def held_by_at_least(self, replicas: int) -> IndexSet:
        """The indices that at least so many peers hold."""
        partial = replicas - len(self._whole)
        if partial <= 0:
            return self._everything
        if partial not in self._at_least:
            packed = np.packbits(self._partial_replicas >= partial, bitorder="little")
            self._at_least[partial] = int.from_bytes(packed.tobytes(), "little")
        return IndexSet(self._at_least[partial])

    def parts(self, peers: Iterable[PeerId], wanted: IndexSet) -> list[bytes]:
        """Which of the wanted indices each of the peers holds, encoded."""
        whole = wanted.encode()
        everything = wanted == self._everything
        return [
            whole
            if peer in self._whole
            else self.encoded(peer)
            if everything
            else IndexSet(self._within(peer, wanted)).encode()
            for peer in peers
        ]

    def _within(self, peer: PeerId, wanted: IndexSet) -> int:
        touched = _touched(wanted)
        parts = (self._blocks[block].get(peer, 0).to_bytes(_BLOCK_BYTES, "little") for block in touched)
        return int.from_bytes(b"".join(parts), "little") << touched.start * BLOCK_INDICES & wanted.bits

    def holders(
        self,
        wanted: IndexSet,
        most: int,
        turn: int = 0,
        depth: int = 3,
        usable: Callable[[PeerId], bool] = lambda peer: True,
    ) -> tuple[list[PeerId], bool]:
        """At most `most` usable peers that together hold what is wanted, every index `depth` times if
        possible.

        First every wanted index is covered once, then twice, and so on, so rare ones come before spare ones.
        `turn` rotates the choice among equals; the same holdings and turn give the same answer. The flag is
        False when an index that somebody holds may be missing, because `most` or the bound of the scan was
        reached or its holders are not usable: asking for that index alone completes the answer.
        """
        if most <= 0 or not wanted:
            return [], not wanted
        chosen: dict[PeerId, None] = {}
        room_for_whole = most if not self._encoded else max(1, most // 2)
        whole = islice((peer for peer in _rotated(self._whole, turn) if usable(peer)), room_for_whole)
        chosen.update((peer, None) for peer in whole)
        wholes = len(chosen)
        budget = MAX_ENTRIES_SCANNED
        complete = wholes > 0
        for level in range(wholes + 1, depth + 1):
            needed = wanted & self.held_by_at_least(level + len(self._whole) - wholes)
            missed = False
            octets = needed.bits.to_bytes(len(self._blocks) * _BLOCK_BYTES, "little")
            for block in _touched(needed):
                part = _part(octets, block)
                if not part:
                    continue
                lacking = part & ~self._covered(block, chosen, level - wholes)
                entries = self._blocks[block]
                for peer in _rotated(entries, turn) if lacking and len(chosen) < most and budget > 0 else ():
                    budget -= 1
                    if peer not in chosen and entries[peer] & lacking and usable(peer):
                        chosen[peer] = None
                        lacking = part & ~self._covered(block, chosen, level - wholes)
                    if not lacking or budget <= 0 or len(chosen) >= most:
                        break
                missed = missed or bool(lacking)
            if level == 1:
                complete = not missed
        return list(chosen), complete

    def _covered(self, block: int, chosen: dict[PeerId, None], times: int) -> int:
        """The indices of a block that at least `times` of the chosen partial holders hold."""
        entries = self._blocks[block]
        levels = [0] * times
        for peer in chosen if len(chosen) <= len(entries) else entries:
            held = entries.get(peer, 0) if peer in chosen else 0
            if held:
                for level in range(times - 1, 0, -1):
                    levels[level] |= levels[level - 1] & held
                levels[0] |= held
        return levels[-1]


def memory_of(held: IndexSet, total: int) -> int:
    """What an index of `total` indices spends on one peer's holdings: bytes of memory, rather more than less.

    It has little to do with the length of their encoding: an index in each block is encoded in a few bytes.
    """
    if len(held) == total:
        return _PEER_BYTES
    octets = held.bits.to_bytes(-(-total // BLOCK_INDICES) * _BLOCK_BYTES, "little")
    blocks = np.frombuffer(octets, dtype=np.uint64).reshape(-1, _BLOCK_BYTES // 8).any(axis=1)
    return _PEER_BYTES + len(held.encode()) + _ENTRY_BYTES * int(np.count_nonzero(blocks))


def _touched(held: IndexSet) -> range:
    """The blocks from the first to the last index of a set."""
    return range(held.start // BLOCK_INDICES, (held.stop - 1) // BLOCK_INDICES + 1) if held else range(0)


def _part(octets: bytes, block: int) -> int:
    """The indices of a block, of a set as bytes; cheaper than cutting them out of a set as one number."""
    return int.from_bytes(octets[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES], "little")


def _apply(counts: npt.NDArray[np.int32], held: IndexSet, change: np.ufunc) -> None:
    """Adds one to the counts of a set's indices, or subtracts it."""
    first, stop = held.start // 8 * 8, held.stop
    octets = (held.bits >> first).to_bytes((stop - first + 7) // 8, "little")
    flags = np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little")[: stop - first]
    change(counts[first:stop], flags, out=counts[first:stop])


def _rotated(entries: Mapping[PeerId, object], turn: int) -> Iterator[PeerId]:
    """The keys of a dictionary, beginning at a place that `turn` decides."""
    start = turn % len(entries) if entries else 0
    yield from islice(entries, start, None)
    yield from islice(entries, start)
