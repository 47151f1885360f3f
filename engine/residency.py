"""Which experts stay in memory: slots of equal size, given to those that are used most.

Pure bookkeeping; whoever owns the memory does what `place` says. An expert's score is the logarithm of how
often it was used, old uses counting half as much every `HALF_LIFE` steps; so it never needs to be updated
for the passage of time. Scores are kept for experts that are not resident, too: what comes back is known.
"""

from collections.abc import Collection, Iterable

import numpy as np

from engine.arrays import Array

HALF_LIFE = 2048.0  # steps; a step is one layer's turn
NOBODY = -1


class Residency:
    """`slots` places for experts numbered 0 … count."""

    def __init__(self, count: int, slots: int) -> None:
        self.slot_of: Array = np.full(count, NOBODY, np.int32)  # by expert
        self.owner: Array = np.full(slots, NOBODY, np.int64)  # by slot
        self._score: Array = np.full(count, -np.inf)
        self._free = list(range(slots - 1, -1, -1))
        self._step = 0

    @property
    def slots(self) -> int:
        return len(self.owner)

    def use(self, experts: Array, *, weight: float = 1.0) -> None:
        """Counts one use of each of these (distinct) experts, `weight` less than 1 for a guess; time moves
        one step."""
        self._step += 1
        now = self._step / HALF_LIFE + np.log2(weight)
        self._score[experts] = np.logaddexp2(self._score[experts], now)

    def place(self, expert: int, keep: Collection[int]) -> int | None:
        """A slot for an expert that has none: a free one, or that of the lowest score outside `keep` (slots).

        Its former owner loses it. None when all slots are to be kept.
        """
        if self._free:
            slot = self._free.pop()
        else:
            scores = self._score[self.owner]
            if keep:
                scores[list(keep)] = np.inf
            slot = int(np.argmin(scores))
            if scores[slot] == np.inf:
                return None
            self.slot_of[self.owner[slot]] = NOBODY
        self.owner[slot] = expert
        self.slot_of[expert] = slot
        return slot

    def release(self, experts: Iterable[int]) -> None:
        """Gives slots back, of experts whose bytes could not be had."""
        for expert in experts:
            slot = int(self.slot_of[expert])
            if slot != NOBODY:
                self.slot_of[expert] = NOBODY
                self.owner[slot] = NOBODY
                self._free.append(slot)

    def resident(self) -> list[int]:
        """Experts that have a slot, in order."""
        return [int(expert) for expert in np.flatnonzero(self.slot_of != NOBODY)]
