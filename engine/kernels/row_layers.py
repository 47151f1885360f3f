"""A row through the layers of a decoder, as many as are alike in one call (see `row_layers_kernel`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32, I32, U8, address_of
from engine.kernels import row_layers_kernel as call
from engine.kernels.attention import COST
from engine.kernels.attention_kernel import BLOCK
from engine.kernels.crew import send
from engine.kernels.experts import ExpertShape
from engine.kernels.row_attention import RowAttention
from engine.kernels.row_linear import RowLinear, RowNorm
from engine.kernels.row_route import RowRoute
from engine.kernels.threads import launch

CONSTANT = [
    call.LAYERS, call.CODE, call.PARAMETERS, call.INNER, call.TABLE, call.NORMS, call.PLACES, call.OUTPUT_PLACES,
    call.LAYOUT, call.PARAMETERS_AT, call.FACTORS,
]  # fmt: skip
VARYING = [call.HALF, call.FIRST, call.INTERLEAVED, call.X, call.COS, call.SIN, call.POSITION, call.OUT]
"""What is the same in all calls of some layers, and what is another in each; what stands for `Room` changes as it
grows."""


@dataclass(frozen=True, slots=True, eq=False)
class RowLayer:
    """What a layer is made of: norm, projections, attention, projection back, norm, router."""

    attention_norm: RowNorm
    projections: RowLinear
    attention: RowAttention
    kv_heads: int
    output: RowLinear
    feed_norm: RowNorm
    router: RowRoute

    @property
    def serves(self) -> bool:
        """Whether the kernels can take such a layer: where both matrices are of one format."""
        return self.projections.matrix.packing == self.output.matrix.packing

    @property
    def alike(self) -> tuple[Any, ...]:
        """What layers must have in common to go through one call."""
        matrices = (self.projections.matrix, self.output.matrix)
        formats = [(matrix.packing, matrix.parts) for matrix in matrices]
        rule = (self.router.matrix.packing, float(self.router.factor), float(self.attention.scale))
        return *formats, *rule, self.sizes()

    def sizes(self) -> call.Sizes:
        """The same in numbers, for the kernels."""
        first, back, route, heads = self.projections, self.output, self.router, self.attention
        return call.Sizes(
            first.matrix.cols, heads.heads, self.kv_heads, heads.dim, len(first.matrix.places), first.panel_bytes,
            len(back.matrix.places), back.panel_bytes, len(first.bias), len(back.bias),
            len(self.attention_norm.weight), len(heads.q_norm.weight), len(heads.k_norm.weight), len(heads.sinks),
            len(self.feed_norm.weight), route.panel_bytes, route.block, route.matrix.rows, route.k, len(route.bias),
            len(route.correction), int(route.sigmoids), int(route.normalise),
        )  # fmt: skip

    @property
    def work(self) -> int:
        """Multiplications of the two matrices."""
        return self.projections.work + self.output.work

    def line(self) -> list[int]:
        """Its line of the table, up to the experts."""
        heads, route = self.attention, self.router
        arrays = (
            self.attention_norm.weight, self.projections.matrix.data, self.projections.bias, heads.q_norm.weight,
            heads.k_norm.weight, heads.sinks, self.output.matrix.data, self.output.bias, self.feed_norm.weight,
            route.matrix.data, route.bias, route.correction,
        )  # fmt: skip
        return [*map(address_of, arrays), heads.window]

    def norms(self) -> list[np.float32]:
        """Epsilon and what is added to the weight, of each norm."""
        norms = (self.attention_norm, self.attention.q_norm, self.attention.k_norm, self.feed_norm)
        return [number for norm in norms for number in (norm.epsilon, norm.plus)]


class RowLayers:
    """Layers one after another that are alike, with experts behind their attention and nothing else, applied to single
    rows. One instance, one thread at a time."""

    def __init__(
        self, layers: Sequence[RowLayer], dtype: np.dtype[np.generic], shape: ExpertShape, arena: U8,
        slots: Sequence[I32],
    ) -> None:  # fmt: skip
        """layers: at least one; each `serves`, and `alike` is the same for all. Their expert e is that in
        arena[slots[layer][e]], all of them of `shape`, on the integer path. dtype: of the caches."""
        first = layers[0]
        self._sizes = first.sizes()
        self.chosen = self._sizes.chosen
        """Experts a row goes to in each layer."""
        self._table = np.zeros((len(layers), call.COLUMNS), np.int64)
        for line, layer, some in zip(self._table, layers, slots, strict=True):
            line[: call.KEYS] = [*layer.line(), address_of(arena), address_of(some)]
        norms = np.array([layer.norms() for layer in layers], np.float32)
        factors = np.array([first.attention.scale, first.router.factor], np.float32)
        self._call = np.zeros(call.CALL, np.int64)
        self._call[: call.SIZES] = self._sizes
        self._call[CONSTANT] = [
            len(layers), shape.activation.code, len(shape.parameters), shape.intermediate,
            *map(address_of, (self._table, norms, first.projections.matrix.places, first.output.matrix.places)),
            *map(address_of, (shape.layout, shape.parameters, factors)),
        ]  # fmt: skip
        self._kept = (*layers, shape, arena, *slots, norms, factors)  # what the numbers above point to
        dense, experts = first.projections.matrix.packing, shape.packing
        self._routine = call.row_layers(
            (dense.kind, dense.scale), (experts.kind, experts.scale), first.router.matrix.packing.kind,
            dtype == np.float16,
        )  # fmt: skip
        self._work = first.work + 3 * shape.hidden * shape.intermediate * self.chosen
        self._inner = shape.intermediate
        self._room = self._new_room(blocks=2)

    def __len__(self) -> int:
        return len(self._table)

    def __call__(
        self, x: F32, angles: tuple[F32, F32], first: int, interleaved: bool, caches: Sequence[tuple[int, ...]],
        position: I32,
    ) -> F32:  # fmt: skip
        """x f32 [1, hidden] through all layers -> f32 [1, hidden].

        angles, first, interleaved: see `rope`. caches: of each layer, see `engine.cache.KeyValue.place`; they are
        written to. position int32 [1], within them.
        """
        place = int(position[0])
        if place // BLOCK >= len(self._room.tops):
            self._room = self._new_room(blocks=2 * (place // BLOCK + 1))
        self._table[:, call.KEYS :] = [cache for _, cache in zip(self._table, caches, strict=True)]
        x, out = np.ascontiguousarray(x), np.empty(x.shape, np.float32)
        self._call[VARYING] = [
            angles[0].shape[1], first, interleaved, *map(address_of, (x, *angles, position, out)),
        ]  # fmt: skip
        self._room.tally.fill(0)
        reach = COST * self._sizes.heads * self._sizes.dim * (place + 1 - self._table.item(0, call.START))
        with launch(self._work + reach) as threads:
            send(self._routine.address, self._call, threads)
        return out

    def _new_room(self, blocks: int) -> call.Room:
        """Memory for so many blocks of keys, of which the kernels are told."""
        shapes = call.room_shapes.py_func(self._sizes, len(self), self._inner, blocks)
        room = call.Room(
            *(np.zeros(shape, kind) for shape, kind in zip(shapes, call.ROOM_TYPES, strict=True))
        )
        self._call[call.BLOCKS] = blocks
        self._call[call.ROOM :] = [address_of(array) for array in room]
        return room
