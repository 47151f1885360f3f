"""A row through several layers in one call gives the bits of the layers one after another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.cache import KeyValue, State
from engine.doubts import Doubts
from engine.expert_bank import ExpertBank
from engine.formats import F32Matrix
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import (
    Activation,
    ExpertShape,
    RowLayer,
    RowLayers,
    Weights,
    combine,
    pack,
    pack_expert,
    quantize_rows,
    run_experts,
    set_threads,
)
from engine.kernels import row_layers as module
from engine.kernels.threads import SMALL, launch
from engine.layers import Linear, Norm, Stack
from engine.models import Batch, Segment
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter, SoftmaxRouter
from tests.engine.kernels.digests import normal

F32 = npt.NDArray[np.float32]
HIDDEN, DIM, INNER, EXPERTS, CHOSEN, LAYERS = 80, 16, 41, 7, 3, 3
FEW = (6, 2)  # heads of queries, and of keys and values


class Layer(GroupedBlock):
    """A layer of made-up weights; `rich`: with all that families add."""

    def __init__(self, index: int, weights: Weights, *, rich: bool, heads: tuple[int, int] = FEW) -> None:
        all_widths = [heads[0] * DIM, heads[1] * DIM, heads[1] * DIM]
        seeds: Iterator[int] = iter(range(100 * index, 100 * index + 100))

        def draw(*shape: int) -> F32:
            return normal(next(seeds), *shape) * np.float32(0.3)

        def norm(width: int) -> Norm:
            return Norm(draw(width), 1e-5, plus_one=rich)

        self.index = index
        self.attention_norm, self.feed_norm = norm(HIDDEN), norm(HIDDEN)
        biases = [draw(width) if rich else None for width in all_widths]
        self.qkv = Stack([pack([F32Matrix(draw(width, HIDDEN)) for width in all_widths], weights)], biases)
        widths = (DIM, DIM) if rich else all_widths[:2]
        self.attention = GroupedAttention(
            *heads, DIM, norm(widths[0]), norm(widths[1]), window=90 if rich and index == 1 else None,
            sinks=draw(heads[0]) if rich else None,
        )  # fmt: skip
        self.output = Linear(
            pack(F32Matrix(draw(HIDDEN, all_widths[0])), weights), draw(HIDDEN) if rich else None
        )
        gate = Linear(pack(F32Matrix(draw(EXPERTS, HIDDEN)), "native"), draw(EXPERTS) if rich else None)
        self.router = (
            SigmoidRouter(gate, CHOSEN, draw(EXPERTS), scale=1.5)
            if rich
            else SoftmaxRouter(gate, CHOSEN, normalise=False)
        )


class Made:
    """Experts of made-up weights, as a model asks for them. None of them is in a bank."""

    looks_ahead = far = False
    doubts = Doubts()

    def __init__(self, weights: Weights, *, rich: bool) -> None:
        made = []
        for seed in range(LAYERS * EXPERTS):
            sizes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
            matrices = [F32Matrix(normal(5000 + 10 * seed + part, *size)) for part, size in enumerate(sizes)]
            biases = [normal(9000 + 10 * seed + part, rows) for part, (rows, _) in enumerate(sizes)]
            self.shape = ExpertShape.of(*matrices, Activation("gpt_oss", limit=2.0), weights, rich)
            made.append(pack_expert(self.shape, *matrices, *(biases if rich else ())))
        self.arena = np.stack(made)
        order = np.random.default_rng(3).permutation(len(made)).astype(np.int32)
        self.slots = list(order.reshape(LAYERS, EXPERTS))

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return work()

    def begin(self, layer: int, rows: F32, ids: Any, weights: F32) -> Callable[[], F32]:
        """See `engine.experts.Experts`."""
        return partial(self._run, layer, rows, ids, weights)

    def _run(self, layer: int, rows: F32, ids: Any, weights: F32) -> F32:
        row = np.repeat(np.arange(len(ids), dtype=np.int32), CHOSEN)
        slot = self.slots[layer][ids.reshape(-1)]
        return combine(run_experts(self.shape, self.arena, quantize_rows(rows), slot, row), weights)

    def local_bank(self) -> ExpertBank | None:
        """See `engine.experts.Experts`."""
        return None

    def prefetch(self, layer: int, ids: Any) -> None:
        """See `engine.experts.Experts`."""


def row_layer(layer: Layer) -> RowLayer:
    found = layer.one_row()
    assert found is not None
    return found


def compare(
    count: int, dtype: type[np.floating[Any]], dense: Weights, sparse: Weights, *, rich: bool,
    heads: tuple[int, int] = FEW,
) -> None:  # fmt: skip
    """`count` rows, all in one pass of the layers one after another, against each by itself through all of them."""
    layers, experts = (
        [Layer(index, dense, rich=rich, heads=heads) for index in range(LAYERS)],
        Made(sparse, rich=rich),
    )
    rotary = Rotary.of(RopeSettings(theta=1e4), DIM, 0.5 if rich else 1.0, interleaved=rich)
    given = normal(1, count, HIDDEN)

    together = State([layer.new_part(np.dtype(dtype)) for layer in layers])
    batch = Batch([Segment(together, range(count))])
    together.prepare(count)
    expected = given
    for layer in layers:
        expected = layer.attend(expected, batch, rotary, rotary.angles(batch.positions))
        expected = layer.feed(expected, experts)
    together.commit()

    alone = State([layer.new_part(np.dtype(dtype)) for layer in layers])
    run = RowLayers(
        [row_layer(layer) for layer in layers], np.dtype(dtype), experts.shape, experts.arena, experts.slots
    )
    for n in range(count):
        alone.prepare(1)
        position = np.array([n], np.int32)
        turning = rotary.angles(position), rotary.first, rotary.interleaved
        caches = [part.place for part in alone.parts if isinstance(part, KeyValue)]
        found = run(given[n : n + 1], *turning, caches, position)
        assert found.tobytes() == expected[n].tobytes(), f"row {n}"
        alone.commit()
    for one, other in zip(alone.parts, together.parts, strict=True):
        assert isinstance(one, KeyValue)
        assert isinstance(other, KeyValue)
        first = max(one.start, other.start)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert (
                a[first - one.start : count - one.start].tobytes()
                == b[first - other.start : count - other.start].tobytes()
            )


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize(
    ("dtype", "dense", "sparse"),
    [(np.float16, "q8", "q8"), (np.float32, "q8", "q4"), (np.float16, "q4", "q4")],
)
def test_rows_are_those_of_the_layers_one_after_another(
    dtype: type[np.floating[Any]], dense: Weights, sparse: Weights, rich: bool
) -> None:
    compare(300, dtype, dense, sparse, rich=rich)


@pytest.mark.parametrize("heads", [(20, 1), (3, 3)])
def test_many_and_single_queries_a_key_head(heads: tuple[int, int]) -> None:
    compare(140, np.float16, "q8", "q4", rich=True, heads=heads)


def launching(threads: int, promised: int) -> Callable[[int], Any]:
    """Launches of as many threads, which are told that they are `promised`."""

    @contextmanager
    def launched(work: int) -> Iterator[int]:
        set_threads(threads)
        try:
            with launch(SMALL):
                yield promised
        finally:
            set_threads(None)

    return launched


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize(("threads", "promised"), [(1, 1), (2, 2), (1, 3), (2, 7), (2, 40)])
def test_any_number_of_threads_gives_the_same(
    threads: int, promised: int, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side; and with more promised than there are, so that some come when others are done: they follow."""
    monkeypatch.setattr(module, "launch", launching(threads, promised))
    compare(150, np.float16, "q8", "q8", rich=rich)


def test_layers_that_differ_in_more_than_their_weights_are_not_alike() -> None:
    plain, rich, other = (
        row_layer(Layer(0, *how[:1], rich=how[1])) for how in (("q8", False), ("q8", True), ("q4", False))
    )
    assert plain.alike == row_layer(Layer(1, "q8", rich=False)).alike
    assert plain.alike != rich.alike
    assert plain.alike != other.alike
