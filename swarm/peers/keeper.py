"""Which experts run here while the others are on their way, when the user lends memory for that.

Experts that are asked for often are read in the background, as many as fit. Whether running them here is
quicker is measured, not assumed: layers with and without are timed, and the quicker way is taken, the other
tried now and then.
"""

import numpy as np

from engine.arrays import I32, Array
from engine.expert_bank import ExpertBank

HOT_AFTER = 4
"""Uses after which an expert is read."""
TRY_EVERY = 16
NEW_SHARE = 0.1


class Keeper:
    """See the module. Lives in the compute thread."""

    def __init__(self, bank: ExpertBank) -> None:
        self._bank = bank
        self._uses: dict[int, Array] = {
            layer: np.zeros(bank.layout.experts_per_layer, np.int64) for layer in bank.layout.layers
        }
        self._times_s: dict[bool, float] = {}
        self._rounds = 0

    def choose(self, layer: int, expert: I32) -> Array:
        """Which pairs to run here, bool [P]."""
        uses = self._uses[layer]
        np.add.at(uses, expert, 1)
        asked = set(expert.tolist())
        here = [one for one in asked if self._bank.has(layer, one)]
        hot = [one for one in asked if uses[one] >= HOT_AFTER and one not in here]
        if hot and len(self._bank.resident()) < self._bank.capacity:
            self._bank.prefetch(layer, hot)
        self._rounds += 1
        if not here or not self._worth_it():
            return np.zeros(len(expert), np.bool_)
        return np.isin(expert, here)

    def took(self, layer_rows: int, here: bool, took_s: float) -> None:
        """Learns what a layer took, for single rows: prompts say little about them."""
        if layer_rows == 1:
            before = self._times_s.get(here, took_s)
            self._times_s[here] = before + NEW_SHARE * (took_s - before)

    def _worth_it(self) -> bool:
        if len(self._times_s) < 2:
            return self._rounds % 2 == 0  # both are tried first
        quicker = self._times_s[True] <= self._times_s[False]
        return quicker if self._rounds % TRY_EVERY else not quicker
