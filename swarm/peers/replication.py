"""How many donors are ready for each expert."""

from collections.abc import Sequence

import numpy as np

from swarm.wire.holdings import ExpertLayout, IndexSet


def count_replicas(sets: Sequence[IndexSet], layout: ExpertLayout) -> tuple[tuple[int, ...], ...]:
    """How many of some sets hold each expert: [layer][expert], layers without experts left out."""
    total = layout.total
    counts = np.zeros(total, np.int64)
    for held in sets:
        packed = np.frombuffer((held.bits & (1 << total) - 1).to_bytes(-(-total // 8), "little"), np.uint8)
        counts += np.unpackbits(packed, bitorder="little")[:total]
    layers = [layout.layer(layer) for layer in range(len(layout.experts_in_layer))]
    return tuple(tuple(counts[numbers.start : numbers.stop].tolist()) for numbers in layers if numbers)
