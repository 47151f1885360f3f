"""Products with packed matrices, in every format, against numpy; a row alone equals the row in a batch."""

import numpy as np
import pytest

from engine.formats import F32Matrix, FP8Matrix, e4m3_to_f32, round_q4, round_q8
from engine.kernels import Rows, Weights, matmul, matmul_parts, pack, quantize_rows, stackable
from tests.engine.kernels.digests import COLS, ROWS, TOKENS, normal, stored

CASES: list[tuple[str, Weights]] = [
    *((name, "native") for name in ("f32", "f16", "bf16", "fp8", "int4", "mxfp4")),
    *((name, "auto") for name in ("f32", "f16", "bf16", "fp8", "int4", "mxfp4")),
    ("f32", "q4"),
    ("int4", "q4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "weights"), CASES)
def test_against_numpy(name: str, weights: Weights) -> None:
    matrix = stored(1)[name]
    w = pack(matrix, weights)
    x = normal(2, TOKENS, matrix.cols)
    values = {"q8": round_q8, "q4": round_q4}[w.format](matrix.f32()) if w.format in ("q8", "q4") else matrix
    taken = quantize_rows(x).f32() if w.integer else x
    expected = taken.astype(np.float64) @ values.f32().astype(np.float64).T
    y = matmul(x, w)
    assert y.shape == (TOKENS, ROWS)
    assert np.abs(y - expected).max() <= 1e-6 * np.abs(expected).max()
    for count in (1, 2, 5, 13):
        assert (matmul(x[:count], w) == y[:count]).all()
    assert (matmul(x[-1:], w) == y[-1:]).all()


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 32), (17, 33), (3, 320)])
@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
def test_odd_sizes(rows: int, cols: int, weights: Weights) -> None:
    w = pack(F32Matrix(normal(3, rows, cols)), weights)
    x = normal(4, 3, cols)
    decoded = matmul(np.eye(cols, dtype=np.float32), w).T  # an identity is not rounded
    expected = (quantize_rows(x).f32() if w.integer else x).astype(np.float64) @ decoded.astype(np.float64).T
    assert np.abs(matmul(x, w) - expected).max() <= 1e-6 * max(1, np.abs(expected).max())


def test_a_group_is_summed_exactly() -> None:
    """Scales that are powers of two and small integers: nothing is rounded, so the product is exact."""
    rng = np.random.default_rng(5)
    weights = rng.integers(-127, 128, (16, 64)).astype(np.float32)
    weights[:, ::32] = 127
    x = rng.integers(-127, 128, (3, 64)).astype(np.float32)
    x[:, ::32] = -127
    assert (matmul(x, pack(F32Matrix(weights), "q8")) == x @ weights.T).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 30])
def test_every_fp8_code_is_its_value(count: int) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(256, 1)
    scales = np.array([[1], [-2]], np.float32)
    y = matmul(np.ones((count, 1), np.float32), pack(FP8Matrix(codes, scales), "native"))
    expected = e4m3_to_f32(codes[:, 0]) * np.repeat(scales[:, 0], 128)
    assert np.array_equal(y, np.broadcast_to(expected, (count, 256)), equal_nan=True)
    assert np.isnan(expected).sum() == 2


@pytest.mark.parametrize("count", [1, 3, 30])
def test_a_nan_among_fp8_codes_is_the_sum_of_its_row_alone(count: int) -> None:
    codes = np.full((9, 300), 0x38, np.uint8)  # 1.0
    codes[2, 299], codes[5, 128] = 0x7F, 0xFF
    y = matmul(
        np.ones((count, 300), np.float32), pack(FP8Matrix(codes, np.ones((1, 3), np.float32)), "native")
    )
    assert np.isnan(y[:, [2, 5]]).all()
    assert (np.delete(y, [2, 5], axis=1) == 300).all()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "fp8"])
def test_a_row_among_many_is_the_row_alone(name: str) -> None:
    matrix = stored(3)[name]
    w = pack(matrix, "native")
    x = normal(5, 60, matrix.cols)
    alone = np.concatenate([matmul(row, w) for row in np.split(x, len(x))])
    for count in (3, 4, 23, 24, 25, 60):
        assert (matmul(x[:count], w) == alone[:count]).all()


def test_stacked_matrices_give_what_each_gives_alone() -> None:
    parts = [F32Matrix(normal(seed, rows, COLS)) for seed, rows in ((1, 20), (2, 5), (3, 33))]
    x = normal(6, 9, COLS)
    for weights in ("native", "q8"):
        together = matmul_parts(x, pack(parts, weights))
        for part, y in zip(parts, together, strict=True):
            assert y.flags.c_contiguous
            assert (matmul(x, pack(part, weights)) == y).all()


def test_stacking_needs_one_format() -> None:
    mixed = [F32Matrix(normal(1, 4, 8)), stored(1)["bf16"].take(0, 1, 4)]
    assert not stackable(mixed, "native")
    with pytest.raises(ValueError, match=r"f32 \[4, 8\], bf16 \[4, 75\]"):
        pack(mixed, "native")


def test_rows_can_be_given_rounded() -> None:
    w = pack(F32Matrix(normal(1, 20, COLS)), "q8")
    x = normal(2, 4, COLS)
    rows = quantize_rows(x)
    assert (matmul(rows, w) == matmul(x, w)).all()
    sent = Rows.of(rows.q.copy(), rows.scale.copy(), COLS)
    assert (matmul(sent, w) == matmul(x, w)).all()
    with pytest.raises(TypeError, match="takes f32 rows"):
        matmul(rows, pack(F32Matrix(normal(1, 20, COLS)), "native"))
    with pytest.raises(ValueError, match="rows of 75 columns"):
        matmul(x, pack(F32Matrix(normal(1, 20, 12)), "q8"))


def test_packed_bytes_depend_on_the_weights_alone() -> None:
    for matrix in stored(4, 21, 50).values():
        assert (pack(matrix).data == pack(matrix).data).all()


def test_fp8_scales_a_row_when_rows_were_picked() -> None:
    codes = np.random.default_rng(1).integers(0, 0x7E, (260, 140)).astype(np.uint8)
    matrix = FP8Matrix(codes, normal(2, 3, 2)).take(120, 3, 40)
    x = normal(3, 2, 140)
    expected = x.astype(np.float64) @ matrix.f32().astype(np.float64).T
    assert np.abs(matmul(x, pack(matrix, "native")) - expected).max() <= 1e-6 * np.abs(expected).max()
