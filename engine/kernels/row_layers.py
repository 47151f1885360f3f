"""A row through the layers of a decoder, as many as are alike in one call (see `row_layers_kernel`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.arrays import F32, I32, U8, Array
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


class Cache(Protocol):
    """One layer's keys and values, see `engine.cache.KeyValue`."""

    start: int
    addresses: list[int]
    bits: list[Array]

    @property
    def capacity(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Angles:
    """What turns heads, see `rope`: tables for the one position, from which dimension on, and in which form."""

    cos: F32
    sin: F32
    first: int
    interleaved: bool


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
        return [*map(_address, arrays), heads.window]

    def norms(self) -> list[np.float32]:
        """Epsilon and what is added to the weight, of each norm."""
        norms = (self.attention_norm, self.attention.q_norm, self.attention.k_norm, self.feed_norm)
        return [number for norm in norms for number in (norm.epsilon, norm.plus)]


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class RowLayers:
    """Layers one after another that are alike, with experts behind their attention and nothing else, applied to single
    rows. One instance, one thread at a time."""

    def __init__(
        self, layers: Sequence[RowLayer], shape: ExpertShape, arena: U8, slots: Sequence[I32]
    ) -> None:
        """layers: at least one; each `serves`, and `alike` is the same for all. Their expert e is that in
        arena[slots[layer][e]], all of them of `shape`, on the integer path."""
        first = layers[0]
        self._sizes = first.sizes()
        self.chosen = self._sizes.chosen
        """Experts a row goes to in each layer."""
        self._table = np.zeros((len(layers), call.COLUMNS), np.int64)
        for line, layer, some in zip(self._table, layers, slots, strict=True):
            line[: call.KEYS] = [*layer.line(), _address(arena), _address(some)]
        norms = np.array([layer.norms() for layer in layers], np.float32)
        factors = np.array([first.attention.scale, first.router.factor], np.float32)
        self._call = np.zeros(call.CALL, np.int64)
        self._call[: call.SIZES] = self._sizes
        self._call[CONSTANT] = [
            len(layers), shape.activation.code, len(shape.parameters), shape.intermediate,
            *map(_address, (self._table, norms, first.projections.matrix.places, first.output.matrix.places)),
            *map(_address, (shape.layout, shape.parameters, factors)),
        ]  # fmt: skip
        self._kept = (*layers, shape, arena, *slots, norms, factors)  # what the numbers above point to
        packing = first.projections.matrix.packing
        self._formats = (
            (packing.kind, packing.scale), (shape.packing.kind, shape.packing.scale), first.router.matrix.packing.kind
        )  # fmt: skip
        self._work = first.work + 3 * shape.hidden * shape.intermediate * self.chosen
        self._inner = shape.intermediate
        self._room = self._new_room(blocks=2)

    def __len__(self) -> int:
        return len(self._table)

    def __call__(self, x: F32, angles: Angles, caches: Sequence[Cache], position: I32) -> F32:
        """x f32 [1, hidden] through all layers -> f32 [1, hidden]. caches: of each layer, which is written to; position
        int32 [1], within them."""
        place = int(position[0])
        if place // BLOCK >= len(self._room.tops):
            self._room = self._new_room(blocks=2 * (place // BLOCK + 1))
        self._table[:, call.KEYS :] = [
            (*some.addresses, some.capacity, some.start) for _, some in zip(self._table, caches, strict=True)
        ]  # fmt: skip
        x, out = np.ascontiguousarray(x), np.empty(x.shape, np.float32)
        self._call[VARYING] = [
            angles.cos.shape[1], angles.first, angles.interleaved,
            *map(_address, (x, angles.cos, angles.sin, position, out)),
        ]  # fmt: skip
        self._room.tally.fill(0)
        routine = call.row_layers(*self._formats, caches[0].bits[0].dtype == np.uint16)
        reach = COST * self._sizes.heads * self._sizes.dim * (place + 1 - caches[0].start)
        with launch(self._work + reach) as threads:
            send(routine.address, self._call, threads)
        return out

    def _new_room(self, blocks: int) -> call.Room:
        """Memory for so many blocks of keys, of which the kernels are told."""
        shapes = call.room_shapes.py_func(self._sizes, len(self), self._inner, blocks)
        room = call.Room(
            *(np.zeros(shape, kind) for shape, kind in zip(shapes, call.ROOM_TYPES, strict=True))
        )
        self._call[call.BLOCKS] = blocks
        self._call[call.ROOM :] = [_address(array) for array in room]
        return room
