"""Opening a model's experts without the model: what a donor and an executing server hold.

Only config.json and the headers of the weights are read; then experts as they are asked for or preloaded.
"""

from pathlib import Path

import numpy as np

from engine.checkpoint import Checkpoint
from engine.expert_bank import ExpertBank
from engine.kernels import Rows, quantize_rows
from engine.models import family_of
from engine.numerics import Weights
from engine.source import DirectorySource, Source
from swarm.peers.inventory import FileState, HashedFile
from swarm.wire.holdings import ExpertLayout

WARM_ROWS = 8


def open_experts(
    source: Source, weights: Weights, ram_bytes: int | None = None, cache: Path | None = None
) -> ExpertBank:
    """The experts of a model, none of them in memory yet. Blocks. Raises EngineError.

    cache: where experts are kept in packed form if they do not all fit; None: nowhere.
    """
    checkpoint = Checkpoint.open(source)
    family = family_of(checkpoint.config)
    layout = family.experts(family.parse(checkpoint.config))
    return ExpertBank(checkpoint, layout, weights, ram_bytes, cache)


def layout_of(bank: ExpertBank) -> ExpertLayout:
    """How the tracker numbers a model's experts."""
    counts = [0] * (max(bank.layout.layers, default=-1) + 1)
    for layer in bank.layout.layers:
        counts[layer] = bank.layout.experts_per_layer
    return ExpertLayout(tuple(counts))


def warm(bank: ExpertBank, experts: list[tuple[int, int]]) -> None:
    """Compiles what calls need, with one of these (layer, expert) of each shape, so that no call waits for it."""
    seen = set()
    for layer, expert in experts:
        shape = bank.shape(layer)
        if shape in seen:
            continue
        seen.add(shape)
        for count in (1, WARM_ROWS):
            plain = np.ones((count, shape.hidden), np.float32)
            rows: Rows | np.ndarray[tuple[int, ...], np.dtype[np.float32]] = (
                quantize_rows(plain) if shape.integer else plain
            )
            if isinstance(rows, Rows):
                rows = Rows.of(rows.q, rows.scale, rows.cols)
            bank.run(layer, rows, np.full(count, expert, np.int32), np.arange(count, dtype=np.int32))


class UnchangedDirectory(DirectorySource):
    """A served directory, for its executor: only what was signed is there, and only while it is unchanged."""

    def __init__(self, directory: Path, files: tuple[HashedFile, ...]) -> None:
        self._states = {file.entry.path: file.state for file in files}
        super().__init__(directory, self._states)

    def read(self, path: str, offset: int, length: int) -> memoryview:
        data = super().read(path, offset, length)
        if FileState.of((self.directory / path).stat()) != self._states[path]:
            raise OSError(f"{path} changed since it was signed")
        return data
