"""Which part of a model a donor should hold: pure, deterministic, and content with what is already there.

A donor keeps what it has. Free room goes to what the fewest others hold, one level of replicas after
another, so that every index gains its first replica before any gains its second, and each donor carries what
it said it can. Among equals, disk donors take consecutive chunks, compute donors whole layers (one request a
layer then reaches many experts); where to begin is decided by `turn`, a number drawn from the donor's key,
so that donors that come at the same moment differ and a donor that comes back is given the same.

A full donor is moved only where that helps: it gives up what enough others hold for what nobody holds, or
what is held more often by two, and at most a tenth of what it carries at a time. It never gives up what no
other donor is ready to serve.

Counts are of the *other* donors: `replicas` of those that hold or were told to hold an index, `ready` of
those that serve it now.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from swarm.wire.holdings import ExpertLayout, IndexSet

Counts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
_Fill = Callable[[Mask, int, npt.NDArray[np.int64]], None]
"""Marks so many more indices in the mask, of those not marked, the rarest first.

The last argument counts, for each number of replicas, the indices that are not marked.
"""


def assign_chunks(
    replicas: Counts, ready: Counts, kept: IndexSet, capacity: int, turn: int, most_moved: int | None = None
) -> IndexSet:
    """What a disk donor with room for `capacity` chunks should hold.

    `kept` is what it holds or was told to hold; counts are [chunks]. ValueError when `kept` has an index that
    the counts have not.
    """

    def fill(taken: Mask, room: int, free: npt.NDArray[np.int64]) -> None:
        _take_chunks(replicas, taken, room, free, turn)

    return _settle(replicas, ready, kept, capacity, turn, most_moved, fill)


def assign_experts(
    layout: ExpertLayout,
    replicas: Counts,
    ready: Counts,
    kept: IndexSet,
    capacity: int,
    turn: int,
    most_moved: int | None = None,
) -> IndexSet:
    """What a compute donor that can carry `capacity` experts should hold, whole layers where possible.

    `kept` is what it holds or was told to hold; counts are [layout.total]. ValueError when `kept` has an
    index that the layout has not.
    """
    if len(replicas) != layout.total:
        raise ValueError(f"{len(replicas)} counts for {layout.total} experts")

    def fill(taken: Mask, room: int, free: npt.NDArray[np.int64]) -> None:
        _take_experts(layout, replicas, taken, room, turn)

    return _settle(replicas, ready, kept, capacity, turn, most_moved, fill)


def turn_of(key: bytes) -> int:
    """The `turn` of a donor, drawn from its key."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big")


def _settle(
    replicas: Counts,
    ready: Counts,
    kept: IndexSet,
    capacity: int,
    turn: int,
    most_moved: int | None,
    fill: _Fill,
) -> IndexSet:
    total = len(replicas)
    mine = _mask(kept, total)
    capacity = min(capacity, total)
    surplus = len(kept) - capacity
    if surplus > 0:
        mine[_most_replicated(replicas, mine, surplus, turn)] = False
    elif surplus < 0:
        fill(mine, -surplus, np.bincount(replicas[~mine]))
    else:
        most_moved = max(1, capacity // 10) if most_moved is None else most_moved
        _exchange(replicas, ready, mine, most_moved, turn, fill)
    return _index_set(mine)


def _exchange(replicas: Counts, ready: Counts, mine: Mask, most_moved: int, turn: int, fill: _Fill) -> None:
    """Gives up what enough others hold for what is rarer, at most `most_moved` indices."""
    offered = _most_replicated(replicas, mine & (ready > 0), most_moved, turn)
    free = np.bincount(replicas[~mine])
    needed = int(np.searchsorted(np.cumsum(free), len(offered))) + 1
    rarest = np.repeat(np.arange(len(free))[:needed], free[:needed])[: len(offered)]
    offered = offered[: len(rarest)]
    gain = replicas[offered] - rarest
    # Moving must not move back: an index nobody else holds is worth one replica, others two.
    worth = gain >= np.where(rarest == 0, 1, 2)
    moved = offered[: int(worth.sum())]
    if len(moved):
        fill(mine, len(moved), free)
        mine[moved] = False


def _take_chunks(replicas: Counts, taken: Mask, room: int, free: npt.NDArray[np.int64], turn: int) -> None:
    """Marks the `room` rarest indices, those of one level in cyclic order from `turn`."""
    last = int(np.searchsorted(np.cumsum(free), room))  # the level that no longer fits whole
    rarer = ~taken & (replicas < last)
    candidates = np.flatnonzero(~taken & (replicas == last))
    room -= int(np.count_nonzero(rarer))
    start = int(np.searchsorted(candidates, turn % len(replicas))) if len(replicas) else 0
    taken |= rarer
    taken[np.concatenate((candidates[start:], candidates[:start]))[:room]] = True


def _take_experts(layout: ExpertLayout, replicas: Counts, taken: Mask, room: int, turn: int) -> None:
    """Marks the `room` rarest experts, those of one level by layers.

    Of the layers whose experts of that level all fit, those the donor is in already come first, then those
    with the most. When none fits, a part of the layer that is nearest to fitting is taken.
    """
    layers = layout.layers()
    if not layers:
        return
    first = np.array([layer.start for layer in layers])
    order = (np.arange(len(layers)) - turn) % len(layers)
    while room > 0 and not taken.all():
        level = replicas[~taken].min()
        rare = ~taken & (replicas == level)
        lacking = np.add.reduceat(rare, first, dtype=np.int64)
        strange = ~np.logical_or.reduceat(taken, first)
        fits = lacking <= room
        preferred = np.lexsort((order, np.where(fits, -lacking, lacking), strange, ~fits, lacking == 0))
        layer = layers[int(preferred[0])]
        candidates = layer.start + np.flatnonzero(rare[layer.start : layer.stop])
        start = int(np.searchsorted(candidates, layer.start + turn % len(layer)))
        chosen = np.concatenate((candidates[start:], candidates[:start]))[:room]
        taken[chosen] = True
        room -= len(chosen)


def _most_replicated(replicas: Counts, among: Mask, count: int, turn: int) -> npt.NDArray[np.int64]:
    """At most `count` indices of a mask, those the most others hold first, equals from `turn` backwards."""
    candidates = np.flatnonzero(among)
    total = len(replicas)
    keys = -replicas[candidates].astype(np.int64) * total - (candidates - turn) % total
    if count < len(candidates):
        nearest = np.argpartition(keys, count)[:count] if count else np.empty(0, dtype=np.int64)
        candidates, keys = candidates[nearest], keys[nearest]
    return candidates[np.argsort(keys)]


def _mask(held: IndexSet, total: int) -> Mask:
    if held.stop > total:
        raise ValueError(f"index {held.stop - 1} where {total} exist")
    octets = np.frombuffer(held.bits.to_bytes((total + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little")[:total].astype(np.bool_)


def _index_set(mask: Mask) -> IndexSet:
    return IndexSet(int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little"))
