"""How a token decoded alone goes through a decoder: as many layers in one call as can be.

Layers that are alike go through one call when their experts are all in memory. What that does not serve is left to the
general way.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from engine.expert_bank import ExpertBank
from engine.kernels import RowLayer, RowLayers


class SingleRow:
    """The layers of a decoder for single rows. One instance, one thread at a time."""

    def __init__(self, layers: Sequence[RowLayer | None]) -> None:
        """layers: as `Block.one_row` gives them."""
        self._layers = list(enumerate(layers))
        self._bank: ExpertBank | None = None
        self._groups: dict[int, list[RowLayer]] = {}  # by the number of the first layer
        self._made: dict[int, RowLayers] = {}

    def from_layer(self, layer: int, dtype: np.dtype[np.generic], bank: ExpertBank) -> RowLayers | None:
        """What takes a row through this layer and those that follow, with the experts of `bank` and caches of this
        type; None where nothing does."""
        if self._bank is not bank:
            self._bank, self._groups, self._made = bank, self._alike(bank), {}
        group = self._groups.get(layer)
        if group is None or not group[0].attention.serves(dtype):
            return None
        if layer not in self._made:
            experts = bank.placed(range(layer, layer + len(group)))
            if experts is None:
                return None
            self._made[layer] = RowLayers(group, dtype, *experts)
        return self._made[layer]

    def _alike(self, bank: ExpertBank) -> dict[int, list[RowLayer]]:
        """Layers one after another that are alike, experts included."""
        groups: dict[int, list[RowLayer]] = {}
        for _, group in groupby(self._layers, lambda pair: pair[1] and (pair[1].alike, bank.shape(pair[0]))):
            members = list(group)
            alike = [layer for _, layer in members if layer is not None]
            if alike:
                groups[members[0][0]] = alike
        return groups
