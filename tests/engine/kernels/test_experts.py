"""Experts against the same formula in numpy; a pair alone equals the pair among others; sums in the
router's order.
"""

import numpy as np
import numpy.typing as npt
import pytest

from engine.formats import F32Matrix, StoredMatrix, round_q8
from engine.kernels import (
    Activation,
    ExpertRows,
    ExpertShape,
    RowExperts,
    Weights,
    activation,
    combine,
    pack_expert,
    quantize_rows,
    run_experts,
    run_mlp,
    set_threads,
    threads,
)
from engine.kernels.experts_integer import tasks_of
from tests.engine.kernels.digests import normal

HIDDEN, INNER, EXPERTS, TOKENS, CHOSEN = 75, 41, 4, 9, 2
F32 = npt.NDArray[np.float32]
SEEDS = range(EXPERTS)


def matrices(
    seed: int, inner: int = INNER, hidden: int = HIDDEN
) -> tuple[StoredMatrix, StoredMatrix, StoredMatrix]:
    sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
    gate, up, down = (F32Matrix(normal(10 * seed + part, *size)) for part, size in enumerate(sizes))
    return gate, up, down


def biases(seed: int) -> tuple[F32, F32, F32]:
    gate, up, down = (
        normal(100 + 10 * seed + part, size) for part, size in enumerate((INNER, INNER, HIDDEN))
    )
    return gate, up, down


def arena(shape: ExpertShape) -> npt.NDArray[np.uint8]:
    packed = [pack_expert(shape, *matrices(seed), *(biases(seed) if shape.biases else ())) for seed in SEEDS]
    return np.stack(packed)


def reference(shape: ExpertShape, seed: int, x: F32) -> F32:
    """One expert on rows x, f64 inside, with the roundings of the integer path."""
    gate, up, down = (
        (round_q8(matrix.f32()).f32() if shape.integer else matrix.f32()).astype(np.float64)
        for matrix in matrices(seed)
    )
    gate_bias, up_bias, down_bias = biases(seed) if shape.biases else (0, 0, 0)
    if shape.integer:
        x = quantize_rows(x).f32()
    g, u = x @ gate.T + gate_bias, x @ up.T + up_bias
    h = activation(shape.activation, g.astype(np.float32), u.astype(np.float32))
    if shape.integer:
        h = quantize_rows(h).f32()
    return np.asarray(h @ down.T + down_bias, np.float32)


@pytest.mark.parametrize(
    ("weights", "kind", "biased"), [("q8", "silu", False), ("q8", "gpt_oss", True), ("native", "silu", True)]
)
def test_against_numpy(weights: Weights, kind: str, biased: bool) -> None:
    shape = ExpertShape.of(*matrices(0), Activation(kind, limit=2.0), weights, biased)  # type: ignore[arg-type]
    packed, x = arena(shape), normal(5, TOKENS, HIDDEN) * np.float32(0.3)
    rng = np.random.default_rng(2)
    ids = np.stack([rng.permutation(EXPERTS)[:CHOSEN] for _ in range(TOKENS)]).astype(np.int32)
    slot, row = ids.reshape(-1), np.repeat(np.arange(TOKENS, dtype=np.int32), CHOSEN)
    outputs = run_experts(shape, packed, x, slot, row)
    expected = np.stack([reference(shape, int(s), x[r : r + 1])[0] for s, r in zip(slot, row, strict=True)])
    tolerance = 2e-3 if shape.integer else 1e-5  # rounding steps where f32 and f64 fall on different sides
    assert np.abs(outputs.f32() - expected).max() <= tolerance * np.abs(expected).max()
    for pair in (0, 7, 17):
        alone = run_experts(shape, packed, x[row[pair] :][:1], slot[pair : pair + 1], np.zeros(1, np.int32))
        assert (alone.values[0] == outputs.values[pair]).all()
        assert (alone.scale[0] == outputs.scale[pair]).all()
    given = quantize_rows(x) if shape.integer else x
    assert (run_experts(shape, packed, given, slot, row).values == outputs.values).all()
    dense = run_mlp(shape, packed[1], x)
    assert np.abs(dense - reference(shape, 1, x)).max() <= tolerance * np.abs(dense).max()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_how_many_blocks_are_made_together_moves_no_bit(count: int) -> None:
    inner, hidden, experts = 300, 150, 8  # the last block of each is not full
    made = [matrices(seed, inner, hidden) for seed in range(experts)]
    shape = ExpertShape.of(*made[0], Activation(), "q8", biases=True)
    bias = normal(7, inner), normal(8, inner), normal(9, hidden)
    packed, x = np.stack([pack_expert(shape, *one, *bias) for one in made]), normal(5, 14, hidden)
    slot = np.array(
        [*range(experts), 3, 3, 6, *[5] * 13], np.int32
    )  # one expert has more rows than a tile takes
    row = np.arange(len(slot), dtype=np.int32) % len(x)
    before = threads()
    try:
        set_threads(count)
        assert tasks_of(experts, -(-inner // 32), threads())[0] > 1
        together = run_experts(shape, packed, x, slot, row)
        ids, shares = np.arange(experts, dtype=np.int32)[None], normal(6, 1, experts)
        summed = RowExperts(shape, packed)(x[:1], ids[0], ids, shares)
        of_one = run_experts(shape, packed, x[:1], ids[0], np.zeros(experts, np.int32))
        assert (summed == combine(of_one, shares)).all()
    finally:
        set_threads(before)
    assert tasks_of(1, -(-inner // 32), 2)[0] == 1
    for pair in range(len(slot)):
        alone = run_experts(shape, packed, x[row[pair] :][:1], slot[pair : pair + 1], np.zeros(1, np.int32))
        assert (alone.values[0] == together.values[pair]).all()
        assert (alone.scale[0] == together.scale[pair]).all()


def test_outputs_are_rounded_to_int16() -> None:
    shape = ExpertShape.of(*matrices(0), Activation(), "q8")
    packed, x = arena(shape), normal(5, TOKENS, HIDDEN)
    outputs = run_experts(shape, packed, x, np.zeros(TOKENS, np.int32), np.arange(TOKENS, dtype=np.int32))
    plain = run_mlp(shape, packed[0], x)
    grouped = np.zeros((TOKENS, 96), np.float32)
    grouped[:, :HIDDEN] = plain
    scale = np.abs(grouped.reshape(TOKENS, 3, 32)).max(2) / np.float32(32767)
    assert (outputs.scale == scale).all()
    whole = np.rint(plain / np.repeat(scale, 32, axis=1)[:, :HIDDEN])
    assert (outputs.values == whole).all()


def test_combine_adds_in_the_order_given() -> None:
    values = np.array([[1e8], [1], [-1e8], [3], [4], [5]], np.float32)
    outputs = ExpertRows(values, np.empty((6, 0), np.float32))
    assert combine(outputs, np.ones((2, 3), np.float32)).tolist() == [[0], [12]]
    rounded = ExpertRows(np.array([[100], [-50]], np.int16), np.array([[0.5], [2]], np.float32))
    assert combine(rounded, np.array([[2, 1]], np.float32)).tolist() == [[0]]
    with pytest.raises(ValueError, match="need 4 outputs, not 6"):
        combine(outputs, np.ones((2, 2), np.float32))


def test_mixed_formats_are_rounded_to_q8() -> None:
    gate, up, down = matrices(0)
    half = F32Matrix(down.f32())
    assert ExpertShape.of(gate, up, half, Activation(), "auto").packing.kind == "q8"
    assert ExpertShape.of(gate, up, half, Activation(), "native").packing.kind == "f32"


def test_errors() -> None:
    shape = ExpertShape.of(*matrices(0), Activation(), "q8")
    packed, x = arena(shape), normal(5, 2, HIDDEN)
    with pytest.raises(ValueError, match="slots must be below 4"):
        run_experts(shape, packed, x, np.array([4], np.int32), np.array([0], np.int32))
    with pytest.raises(ValueError, match="rows of 74 columns"):
        run_experts(shape, packed, x[:, 1:], np.array([0], np.int32), np.array([0], np.int32))
    with pytest.raises(ValueError, match="the gate matrix is"):
        pack_expert(shape, matrices(0)[2], *matrices(0)[1:])
    assert len(run_experts(shape, packed, x, np.empty(0, np.int32), np.empty(0, np.int32))) == 0
