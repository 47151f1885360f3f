"""Turns an expert's tensors, in whatever form they are stored, into the packed form that the kernels run.

What a packed expert's bytes depend on (the model's files, the weights format, the numeric definition, the layout
that the kernels read, the shape) names its place in the cache of packed experts.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from engine.arrays import F32, U8
from engine.checkpoint import Checkpoint, merged
from engine.experts import ExpertLayout, ExpertRefs, MatrixRef
from engine.formats import StoredMatrix
from engine.kernels import LAYOUT_VERSION, ExpertShape, pack_expert
from engine.numerics import NUMERICS_VERSION, Weights
from engine.packed_cache import PackedCache
from engine.weights import Outline, Shelf, byte_ranges


class ExpertReader:
    """Reads experts of one model. Safe to use from several threads."""

    def __init__(
        self, checkpoint: Checkpoint, layout: ExpertLayout, weights: Weights, cache: Path | None = None
    ) -> None:
        self.bytes_read = 0  # stored bytes from the model's files and packed bytes from the cache
        self.from_cache = 0  # experts
        self.keeps = True  # whether what is packed goes into the cache
        self._checkpoint = checkpoint
        self._layout = layout
        self._weights = weights
        self._counting = threading.Lock()
        self._shapes: dict[int, ExpertShape] = {}
        self._caches: dict[ExpertShape, PackedCache] = {}
        identity = checkpoint.source.fingerprint() if cache is not None else None
        for layer in layout.layers:
            shape = self._shapes[layer] = self._shape(layout.refs(layer, 0))
            if cache is not None and identity is not None and shape not in self._caches:
                key = f"{NUMERICS_VERSION} {LAYOUT_VERSION} {identity} {weights} {shape}"
                self._caches[shape] = PackedCache(cache, key)

    def shape(self, layer: int) -> ExpertShape:
        """The shape of the experts of a layer."""
        return self._shapes[layer]

    @property
    def cache_trouble(self) -> str | None:
        """Why packed experts are no longer kept; None when all is well."""
        return next((cache.full for cache in self._caches.values() if cache.full), None)

    def announce(self, experts: Sequence[tuple[int, int]]) -> None:
        """Tells the model's source which bytes reading these (layer, expert) will take."""
        refs = [
            ref
            for layer, expert in experts
            if (cache := self._caches.get(self._shapes[layer])) is None or not cache.has(layer, expert)
            for ref in self._layout.refs(layer, expert)
        ]
        if refs:
            self._checkpoint.source.prefetch(merged(byte_ranges(self._checkpoint, refs)))

    def read(self, layer: int, expert: int, out: U8) -> None:
        """Fills `out`, uint8 [shape(layer).nbytes]. Raises OSError from the source, EngineError for bad
        tensors."""
        shape = self._shapes[layer]
        cache = self._caches.get(shape)
        if cache is not None and cache.read(layer, expert, out):
            self._count(out.nbytes, 1)
            return
        refs = self._layout.refs(layer, expert)
        self.pack(layer, expert, out)
        self._count(sum(length for _, _, length in merged(byte_ranges(self._checkpoint, list(refs)))), 0)
        if cache is not None and self.keeps:
            cache.write(layer, expert, out)

    def pack(self, layer: int, expert: int, out: U8) -> None:
        """Fills `out` from the model's files, whatever the cache holds."""
        shape = self._shapes[layer]
        refs = self._layout.refs(layer, expert)
        shelf = Shelf(self._checkpoint)
        gate, up, down = self._matrices(shelf, refs)
        gate_bias = self._bias(shelf, refs.gate_bias, shape.intermediate)
        up_bias = self._bias(shelf, refs.up_bias, shape.intermediate)
        down_bias = self._bias(shelf, refs.down_bias, shape.hidden)
        pack_expert(shape, gate, up, down, gate_bias, up_bias, down_bias, out)

    def _shape(self, refs: ExpertRefs) -> ExpertShape:
        gate, up, down = self._matrices(Outline(self._checkpoint), refs)
        return ExpertShape.of(
            gate, up, down, self._layout.activation, self._weights, biases=refs.down_bias is not None
        )

    def _matrices(self, shelf: Shelf, refs: ExpertRefs) -> tuple[StoredMatrix, StoredMatrix, StoredMatrix]:
        hidden, intermediate = self._layout.hidden, self._layout.intermediate
        return (
            shelf.matrix(refs.gate, intermediate, hidden),
            shelf.matrix(refs.up, intermediate, hidden),
            shelf.matrix(refs.down, hidden, intermediate),
        )

    @staticmethod
    def _bias(shelf: Shelf, ref: MatrixRef | None, count: int) -> F32 | None:
        return None if ref is None else shelf.vector(ref, count)

    def _count(self, nbytes: int, from_cache: int) -> None:
        with self._counting:
            self.bytes_read += nbytes
            self.from_cache += from_cache
