"""What models remember of sequences that are done, so that a shared beginning is computed once.

A state is given out again, cut back, to a prompt that begins with its tokens. If most of it is of use it is
handed over; else a copy is, so that one long conversation does not use up a beginning that others share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import I32
from engine.cache import State
from engine.doubts import Doubts

LEAST_SHARED = 16  # tokens below which nothing is gained


def common(left: I32, right: I32) -> int:
    """How many tokens two sequences begin with together."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length


def as_array(ids: Sequence[int]) -> I32:
    """Token ids as int32 [n]."""
    return np.fromiter(ids, np.int32, len(ids))


@dataclass(eq=False)
class _Kept:
    ids: I32
    state: State


class Prefixes:
    """The states kept of one model: at most `most` of them and `limit_bytes`, the oldest go first."""

    def __init__(self, most: int, limit_bytes: int) -> None:
        self._most = most
        self._limit_bytes = limit_bytes
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Memory of the states kept."""
        return sum(kept.state.nbytes for kept in self._kept)

    def longest(self, ids: I32) -> int:
        """How many tokens of a prompt some kept state holds, all but the last at most."""
        return max((self._usable(kept, ids) for kept in self._kept), default=0)

    def take(self, ids: I32) -> State | None:
        """A state that holds a beginning of a prompt and nothing else; None when there is none of use."""
        best = max(self._kept, key=lambda kept: self._usable(kept, ids), default=None)
        if best is None or (length := self._usable(best, ids)) < LEAST_SHARED:
            return None
        self._kept.remove(best)
        if 2 * length >= best.state.length:
            state = best.state
        else:
            self._kept.append(best)
            state = best.state.copy()
        state.truncate(length)
        return state

    def keep(self, ids: Sequence[int], state: State) -> None:
        """Keeps a state whose tokens are `ids[:state.length]`."""
        if state.length < LEAST_SHARED or state.nbytes > self._limit_bytes:
            return
        self._kept.append(_Kept(as_array(ids[: state.length]), state))
        while len(self._kept) > self._most or self.nbytes > self._limit_bytes:
            del self._kept[0]

    def trim(self, doubts: Doubts) -> None:
        """Forgets what was computed with answers that turned out to be wrong."""
        for kept in self._kept:
            flaw = doubts.flaw(kept.state)
            if flaw is not None:
                kept.state.truncate(kept.state.floor(flaw.position))
                kept.ids = kept.ids[: kept.state.length]

    def clear(self) -> None:
        """Gives all memory back."""
        self._kept.clear()

    def _usable(self, kept: _Kept, ids: I32) -> int:
        return kept.state.floor(common(kept.ids, ids[:-1]))
