"""Kernels for a single row give the bits of the kernels that they put together."""

import numpy as np
import numpy.typing as npt
import pytest

from engine.cache import KeyValue, State
from engine.formats import F32Matrix
from engine.grouped import GroupedAttention
from engine.kernels import (
    Activation,
    ExpertShape,
    RowAttention,
    RowExperts,
    RowLinear,
    Weights,
    combine,
    matmul,
    matmul_parts,
    pack,
    pack_expert,
    run_experts,
    run_mlp,
)
from engine.layers import DenseMLP, Linear, Norm, Stack
from engine.models import Batch, Segment
from engine.rotary import RopeSettings, Rotary
from engine.router import Router, SigmoidRouter, SoftmaxRouter
from tests.engine.kernels.digests import COLS, ROWS, normal, stored

F32 = npt.NDArray[np.float32]


def same(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    """Whether shape, type and bits are the same."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("name", "weights"), [("f32", "q8"), ("f32", "q4"), ("int4", "auto"), ("mxfp4", "auto")]
)
@pytest.mark.parametrize("normed", [False, True])
def test_a_matrix_with_norm_bias_and_sum(name: str, weights: Weights, normed: bool) -> None:
    matrix = pack(stored(1)[name], weights)
    x, bias, added = normal(2, 1, matrix.cols), normal(3, ROWS), normal(4, 1, ROWS)
    norm = Norm(normal(5, matrix.cols), 1e-6, plus_one=True) if normed else None
    given = x if norm is None else norm(x)
    assert same(Linear(matrix)(x, norm), matmul(given, matrix))
    assert same(Linear(matrix, bias)(x, norm, added), added + (matmul(given, matrix) + bias))


def test_stacked_matrices_of_which_one_has_a_bias() -> None:
    sizes = (20, 5, 33)
    matrix = pack([F32Matrix(normal(seed, rows, COLS)) for seed, rows in enumerate(sizes)], "q8")
    x, bias = normal(6, 1, COLS), normal(7, 5)
    expected = matmul_parts(x, matrix)
    expected[1] = expected[1] + bias
    found = Stack([matrix], [None, bias, None])(x)
    assert all(same(*pair) and pair[0].flags.c_contiguous for pair in zip(found, expected, strict=True))


def test_a_row_that_does_not_fit_is_refused() -> None:
    alone = RowLinear(pack(F32Matrix(normal(1, ROWS, COLS)), "q8"), None)
    with pytest.raises(ValueError, match="columns"):
        alone(normal(2, 1, COLS + 1))


@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_and_their_sum(weights: Weights, biased: bool) -> None:
    hidden, inner, experts = 75, 41, 4
    arena = []
    for seed in range(experts):
        matrices = [
            F32Matrix(normal(10 * seed + part, *size))
            for part, size in enumerate(((inner, hidden), (inner, hidden), (hidden, inner)))
        ]
        shape = ExpertShape.of(*matrices, Activation("gpt_oss", limit=2.0), weights, biased)
        biases = [normal(100 + 10 * seed + part, size) for part, size in enumerate((inner, inner, hidden))]
        arena.append(pack_expert(shape, *matrices, *(biases if biased else ())))
    packed = np.stack(arena)
    x, shares = normal(5, 1, hidden), normal(6, 1, 3)
    slots, ids = np.array([3, 1, 0, 2], np.int32), np.array([[3, 2, 0]], np.int32)
    expected = combine(run_experts(shape, packed, x, slots[ids[0]], np.zeros(3, np.int32)), shares)
    assert same(RowExperts(shape, packed)(x, slots, ids, shares), expected)
    for wrong in (-1, experts):
        with pytest.raises(ValueError, match="below"):
            RowExperts(shape, packed)(x, slots, np.array([[0, 1, wrong]], np.int32), shares)
    rows = np.concatenate([x, x])
    assert same(DenseMLP(shape, packed[1])(x), run_mlp(shape, packed[1], rows)[:1])


def routers() -> list[Router]:
    experts, hidden = 13, 48
    logits = Linear(pack(F32Matrix(normal(1, experts, hidden)), "native"), normal(2, experts))
    correction = normal(3, experts)
    return [
        SoftmaxRouter(logits, 4, normalise=False),
        SoftmaxRouter(logits, 1, normalise=True),
        SigmoidRouter(logits, 4, scale=2.5),
        SigmoidRouter(logits, 4, correction, normalise=False),
        SigmoidRouter(logits, 4, correction, groups=13, groups_kept=2),
    ]


@pytest.mark.parametrize("router", routers())
def test_routers(router: Router) -> None:
    norm = Norm(normal(4, 48), 1e-5)
    x = normal(5, 6, 48)
    rows, ids, weights = router.normed(x, norm)
    assert same(rows, norm(x))
    for n in range(len(x)):
        for alone, together in zip(router.normed(x[n : n + 1], norm), (rows, ids, weights), strict=True):
            assert same(alone, together[n : n + 1])


def test_equal_scores_go_to_the_lower_index() -> None:
    logits = Linear(pack(F32Matrix(np.zeros((9, 16), np.float32)), "native"))
    for router in (SoftmaxRouter(logits, 3, normalise=True), SigmoidRouter(logits, 3)):
        assert router.normed(normal(1, 1, 16), Norm(normal(2, 16), 1e-5))[1].tolist() == [[0, 1, 2]]


HEADS, KV_HEADS, DIM = 6, 2, 16
WIDTHS = (HEADS * DIM, KV_HEADS * DIM)


def norms(by_head: bool | None) -> list[Norm | None]:
    if by_head is None:
        return [None, None]
    return [Norm(normal(seed, DIM if by_head else width), 1e-5) for seed, width in enumerate(WIDTHS, 40)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("by_head", "window", "sinks", "interleaved"),
    [(None, None, True, False), (True, None, False, True), (False, 90, False, False)],
)
def test_attention(
    dtype: type[np.floating], by_head: bool | None, window: int | None, sinks: bool, interleaved: bool
) -> None:
    """Row after row, each alone, against all of them in one pass; several blocks of keys."""
    count = 300
    attention = GroupedAttention(
        HEADS, KV_HEADS, DIM, *norms(by_head), window=window, sinks=normal(50, HEADS) if sinks else None
    )
    rotary = Rotary.of(RopeSettings(theta=1e4), DIM, 0.5, interleaved=interleaved)
    q, k, v = (normal(seed, count, width) for seed, width in enumerate((WIDTHS[0], WIDTHS[1], WIDTHS[1])))

    def seen(state: State, some: slice) -> F32:
        batch = Batch([Segment(state, range(some.start, some.stop))])
        state.prepare(len(batch))
        angles = rotary.angles(batch.positions)
        out = attention([q[some], k[some], v[some]], batch, batch.parts(0), rotary, angles)
        state.commit()
        return out

    def state() -> State:
        return State([attention.new_part(np.dtype(dtype))])

    together, alone = state(), state()
    expected = seen(together, slice(0, count))
    found = [seen(alone, slice(n, n + 1)) for n in range(count)]
    assert same(np.concatenate(found), expected)
    for one, other in zip(alone.parts, together.parts, strict=True):
        assert isinstance(one, KeyValue)
        assert isinstance(other, KeyValue)
        first = max(one.start, other.start)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert same(
                a[first - one.start : count - one.start], b[first - other.start : count - other.start]
            )


def test_heads_that_fill_no_registers_are_left_to_the_general_way() -> None:
    for dim in (16, 24):
        alone = RowAttention(2, dim, None, None, 1.0, None, None)
        assert alone.serves(np.dtype(np.float32)) == (dim == 16)
