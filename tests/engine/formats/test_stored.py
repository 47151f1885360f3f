"""Stored matrices decoded element by element, and the rules of rounding."""

import numpy as np
import pytest

from engine.formats import (
    BF16Matrix,
    F16Matrix,
    F32Matrix,
    FormatError,
    FP8Matrix,
    Int4Matrix,
    MXFP4Blocks,
    MXFP4Matrix,
    Q4Blocks,
    Q8Blocks,
    f32_to_bf16,
    round_q4,
    round_q8,
)
from engine.formats.codes import E2M1_DOUBLED, E4M3, bf16_to_f32

RNG = np.random.default_rng(3)


def test_plain_floats() -> None:
    values = RNG.standard_normal((5, 7)).astype(np.float32)
    assert (F32Matrix(values).f32() == values).all()
    assert (F16Matrix(values.astype(np.float16)).f32() == values.astype(np.float16)).all()
    bits = f32_to_bf16(values)
    assert (BF16Matrix(bits).f32() == bf16_to_f32(bits)).all()
    assert (BF16Matrix(bits).transposed().f32() == bf16_to_f32(bits).T).all()
    assert (F32Matrix(values).take(1, 2, 2).f32() == values[1:5:2]).all()


def test_fp8_blocks_also_where_they_are_ragged() -> None:
    codes = RNG.integers(0, 0x7F, (130, 150)).astype(np.uint8)
    scales = RNG.random((2, 2)).astype(np.float32)
    matrix = FP8Matrix(codes, scales)
    decoded = matrix.f32()
    for i, j in ((0, 0), (127, 128), (128, 127), (129, 149)):
        assert decoded[i, j] == E4M3[codes[i, j]] * scales[i // 128, j // 128]
    assert (matrix.take(1, 2).f32() == decoded[1::2]).all()
    exponents = FP8Matrix(codes, np.array([[127, 128], [126, 130]], np.uint8)).f32()
    assert exponents[129, 149] == E4M3[codes[129, 149]] * 8


@pytest.mark.parametrize("group_size", [32, 64])
def test_int4(group_size: int) -> None:
    cols = 72
    packed = RNG.integers(-(2**31), 2**31, (3, 9)).astype(np.int32)
    scales = f32_to_bf16(RNG.random((3, -(-cols // group_size))).astype(np.float32))
    matrix = Int4Matrix(packed, scales, cols, group_size)
    decoded = matrix.f32()
    for i, j in ((0, 0), (1, 31), (2, 32), (2, 71)):
        value = (int(packed[i, j // 8]) >> (4 * (j % 8)) & 15) - 8
        assert decoded[i, j] == value * bf16_to_f32(scales)[i, j // group_size]
    assert (matrix.take(2).f32() == decoded[2:]).all()


def test_mxfp4_layouts_of_the_hub() -> None:
    blocks = RNG.integers(0, 256, (3, 2, 16)).astype(np.uint8)
    scales = np.array([[0, 127], [1, 200], [130, 250]], np.uint8)
    decoded = MXFP4Matrix(blocks, scales).f32()
    assert decoded.shape == (3, 64)
    for i, j in ((0, 0), (0, 63), (1, 31), (2, 32)):
        byte = int(blocks[i, j // 32, j % 32 // 2])
        code = byte >> 4 if j % 2 else byte & 15
        assert decoded[i, j] == np.float32(E2M1_DOUBLED[code] / 2 * 2.0 ** (int(scales[i, j // 32]) - 127))
    same = MXFP4Matrix(blocks.reshape(3, 32).view(np.int8), scales)
    assert (same.f32() == decoded).all()


def test_gguf_blocks() -> None:
    scale = np.array([0.5], np.float16).view(np.uint8)
    numbers = np.arange(-16, 16, dtype=np.int8)
    row = np.concatenate([scale, numbers.view(np.uint8)])[None]
    assert (Q8Blocks(row).f32() == numbers * 0.5).all()
    halves = np.arange(16, dtype=np.uint8)
    row = np.concatenate([scale, halves | (15 - halves) << 4])[None]
    expected = np.concatenate([halves.astype(int) - 8, 7 - halves.astype(int)]) * 0.5
    assert (Q4Blocks(row).f32() == expected).all()
    row = np.concatenate([[128], halves | halves << 4]).astype(np.uint8)[None]
    assert (MXFP4Blocks(row).f32() == np.tile(E2M1_DOUBLED, 2)).all()


def test_q8_rule() -> None:
    weights = np.zeros((2, 40), np.float32)
    weights[0, :3] = [254, 1, 3]  # a scale of exactly 2: halves go to the even neighbour
    groups = round_q8(weights)
    assert groups.codes[0, :3].tolist() == [127, 0, 2]
    assert groups.scales.tolist() == [[2, 0], [0, 0]]
    assert groups.f32().shape == (2, 40)


def test_q4_rule_takes_the_sign_of_the_first_extreme() -> None:
    weights = np.zeros((1, 32), np.float32)
    weights[0, :4] = [8, -8, 7.5, -0.5]
    groups = round_q4(weights)
    assert groups.scales.tolist() == [[-1]]
    assert groups.codes[0, :4].tolist() == [-8, 7, -8, 0]


@pytest.mark.parametrize("rule", [round_q8, round_q4])
def test_extremes_stay_finite(rule: object) -> None:
    weights = np.array([[1e30, -1e30, 1e-45, 0]], np.float32)
    assert np.isfinite(rule(weights).f32()).all()  # type: ignore[operator]


def test_errors_name_shapes() -> None:
    with pytest.raises(FormatError, match=r"int4 weights of 64 columns"):
        Int4Matrix(np.zeros((2, 7), np.int32), np.zeros((2, 2), np.float16), 64)
    with pytest.raises(FormatError, match=r"scales uint8 \[2, 3\]"):
        MXFP4Matrix(np.zeros((2, 32), np.uint8), np.zeros((2, 3), np.uint8))
    with pytest.raises(FormatError, match="3 rows from 1"):
        F32Matrix(np.zeros((3, 3), np.float32)).take(1, 1, 3)
