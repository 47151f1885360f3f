"""How fast a model is on this machine: loading, prefill, decoding, and the memory it takes.

Each figure is the median of several runs with its quartiles. Tokens are pseudo-random and always the same.
"""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.bench import FORMATS
from engine.cache import State
from engine.decoder import Frame
from engine.engine import Engine
from engine.models import Segment

DECODED = 24  # tokens of one measured run of decoding


@dataclass(frozen=True, slots=True)
class Figure:
    """Tokens a second: median and quartiles over `runs`."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, tokens: int, seconds: Sequence[float]) -> "Figure":
        """From the seconds that runs of `tokens` tokens took."""
        low, median, high = np.percentile([tokens / second for second in seconds], [25, 50, 75])
        return cls(float(median), float(low), float(high), len(seconds))


class Subject:
    """A loaded model as a subject of measurements: runs of prefill and of decoding, in any order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._states: dict[int, State] = {}

    def prefill(self, count: int) -> float:
        """Seconds for the first `count` tokens of a new sequence, logits of the last."""
        state = self._engine.model.new_state()
        ids = self._ids(count)
        begun = time.perf_counter()
        self._feed(state, ids)
        return time.perf_counter() - begun

    def decode(self, context: int, count: int = DECODED) -> float:
        """Seconds for `count` single tokens after `context` others."""
        if context not in self._states:
            state = self._engine.model.new_state()
            self._feed(state, self._ids(context))
            state.mark()
            self._states[context] = state
        state = self._states[context]
        ids = self._ids(context + count)[context:]
        begun = time.perf_counter()
        for token in ids:
            self._engine.model.forward([Segment(state, [token])], self._engine.experts)
        taken = time.perf_counter() - begun
        state.truncate(context)
        return taken

    def decode_together(self, sequences: int, context: int, count: int = DECODED) -> float:
        """Seconds for `count` steps of `sequences` sequences decoded together."""
        states = []
        for number in range(sequences):
            state = self._engine.model.new_state()
            self._feed(state, self._ids(context, number))
            states.append(state)
        ids = [self._ids(count, 1000 + number) for number in range(sequences)]
        begun = time.perf_counter()
        for step in range(count):
            segments = [Segment(state, [ids[number][step]]) for number, state in enumerate(states)]
            self._engine.model.forward(segments, self._engine.experts)
        return time.perf_counter() - begun

    def warm(self, count: int) -> None:
        """Brings all that a run needs into memory, compiled kernels and experts alike."""
        self.prefill(count)
        self.decode(8, 2)

    def _feed(self, state: State, ids: list[int], rows: int = 512) -> None:
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            last = start + rows >= len(ids)
            self._engine.model.forward(
                [Segment(state, part, "last" if last else "none")], self._engine.experts
            )

    def _ids(self, count: int, seed: int = 7) -> list[int]:
        drawn = np.random.default_rng(seed).integers(0, self._engine.model.vocab_size, count)
        return [int(token) for token in drawn]


def peak_bytes() -> int:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def active_bytes(engine: Engine) -> int:
    """Bytes of weights that one token reads: all dense ones but the embedding table, and its share of the experts."""
    layout, bank = engine.bank.layout, engine.bank
    chosen = int(engine.config.experts_per_token) * len(layout.layers)
    expert = bank.total_bytes // max(1, layout.experts_per_layer * len(layout.layers))
    return engine.model.resident_bytes - _table_bytes(engine) + chosen * expert


def active_macs(engine: Engine) -> int:
    """Multiplications a token of a long prompt takes, attention over the cache and the head left out."""
    layout, bank = engine.bank.layout, engine.bank
    macs = 0
    for layer in layout.layers:
        shape = bank.shape(layer)
        macs += int(engine.config.experts_per_token) * 3 * shape.hidden * shape.intermediate
    each = bank.total_bytes / max(
        1,
        layout.experts_per_layer
        * 3
        * sum(bank.shape(layer).hidden * bank.shape(layer).intermediate for layer in layout.layers),
    )  # bytes a weight, dense ones being kept in the same format
    head = engine.model.head.matrix.nbytes if isinstance(engine.model, Frame) else 0
    return macs + int((engine.model.resident_bytes - _table_bytes(engine) - head) / each)


def kernel_kind(engine: Engine) -> str:
    """The format in which experts are kept, as `engine.bench.FORMATS` names it; bf16 for what has no name there."""
    kind = engine.bank.shape(engine.bank.layout.layers[0]).packing.kind
    return kind if kind in FORMATS else "bf16"


def _table_bytes(engine: Engine) -> int:
    table = getattr(engine.model, "embedding", None)
    return int(getattr(table, "nbytes", 0))
