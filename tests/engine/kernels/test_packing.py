"""Packed bytes of every stored format and choice of weights, against a plain layout in numpy."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine.arrays import F32, U8, Array
from engine.formats import (
    BF16Matrix,
    F16Matrix,
    F32Matrix,
    FormatError,
    FP8Matrix,
    Groups,
    Int4Matrix,
    MXFP4Blocks,
    MXFP4Matrix,
    Q4Blocks,
    Q8Blocks,
    StoredMatrix,
    f32_to_bf16,
    round_q4,
    round_q8,
)
from engine.formats.codes import nibbles
from engine.kernels import ExpertShape, Weights, choose, pack_expert
from engine.kernels.activation import Activation
from engine.kernels.packing import Packing, pack_into
from tests.engine.kernels.digests import normal

SIZES = [(1, 1), (4, 16), (17, 33), (5, 48), (37, 75), (130, 150), (260, 512), (1030, 1100)]
CHOICES: list[Weights] = ["auto", "q8", "q4", "native"]
EXTREMES = [0, -0.0, 1e-45, -1e-40, 3e-8, 6e-5, 65519, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan]


def values(seed: int, *shape: int) -> F32:
    """Normally distributed, of very different sizes from row to row, with extremes here and there, and zeros."""
    rng = np.random.default_rng(seed)
    found = normal(seed, *shape) * np.float32(10) ** rng.integers(-9, 3, (shape[0], 1)).astype(np.float32)
    flat = found.reshape(-1)
    for extreme in EXTREMES:
        flat[rng.integers(0, len(flat), -(-len(flat) // 1000))] = extreme
    found[rng.integers(0, shape[0])] = 0
    return found


def matrices(rows: int, cols: int) -> Iterator[StoredMatrix]:
    """In each stored format; codes and scales take all values they can."""
    rng = np.random.default_rng(rows)
    wide = values(1, rows, cols)
    yield F32Matrix(wide)
    yield F32Matrix(np.ascontiguousarray(wide.T)).transposed()
    yield BF16Matrix(f32_to_bf16(np.repeat(wide, 3, axis=0))).take(1, 3, rows)
    yield F16Matrix(rng.integers(0, 1 << 16, (rows, cols)).astype(np.uint16).view(np.float16))
    codes = rng.integers(0, 256, (rows, cols)).astype(np.uint8)
    yield FP8Matrix(codes, values(2, -(-rows // 128), -(-cols // 128)))
    yield FP8Matrix(codes, f32_to_bf16(values(3, rows, 1)), (1, cols))
    yield FP8Matrix(codes, rng.integers(0, 256, (1, 1)).astype(np.uint8), (rows, cols))
    packed = rng.integers(-(2**31), 2**31, (rows, -(-cols // 8))).astype(np.int32)
    yield Int4Matrix(packed, f32_to_bf16(values(4, rows, -(-cols // 32))), cols)
    yield Int4Matrix(packed, values(5, rows, -(-cols // 64)).astype(np.float16), cols, 64)
    yield Int4Matrix(packed, values(6, rows, -(-cols // 96)), cols, 96)
    blocks = rng.integers(0, 256, (rows, -(-cols // 32), 34)).astype(np.uint8)
    yield Q8Blocks(blocks.reshape(rows, -1))
    yield Q4Blocks(blocks[:, :, :18].reshape(rows, -1))
    yield MXFP4Blocks(blocks[:, :, :17].reshape(rows, -1))
    if cols > 1:
        exponents = rng.integers(0, 256, (rows, -(-(cols - cols % 2) // 32))).astype(np.uint8)
        yield MXFP4Matrix(codes[:, : cols // 2], exponents)


def filled(lines: Array, rows: int, cols: int, value: int = 0) -> Array:
    """[rows, cols] that begins with `lines`."""
    whole = np.full((rows, cols), value, lines.dtype)
    whole[: lines.shape[0], : lines.shape[1]] = lines
    return whole


def plain_integers(stored: StoredMatrix, packing: Packing) -> U8:
    """Panels of 16 rows: blocks of the weights of some groups, [8 steps][16 rows][4 columns], then their scales."""
    kept = stored.stored_as() == (packing.kind, packing.scale)
    groups = stored.groups() if kept else {"q8": round_q8, "q4": round_q4}[packing.kind](stored.f32())
    assert isinstance(groups, Groups)
    codes = (groups.codes.astype(np.int16) + (128 if packing.kind == "q8" else 8)).astype(np.uint8)
    if packing.kind == "mxfp4":
        codes = e2m1_codes(stored)
    count, panels = groups.scales.shape[1], packing.panels(stored.rows)
    blank = {"q8": 128, "mxfp4": 0}.get(packing.kind, 8)
    codes = filled(filled(codes, stored.rows, count * 32, blank), 16 * panels, count * 32, blank)
    steps = codes.reshape(panels, 16, count, 8, 4).transpose(0, 2, 3, 1, 4)
    if packing.kind != "q8":
        steps = steps[:, :, :4] | (steps[:, :, 4:] << 4)
    scaled = 4 // groups.scales.itemsize
    scales = filled(groups.scales, 16 * panels, count).reshape(panels, 16, count).transpose(0, 2, 1)
    lines = np.ascontiguousarray(scales).view(np.uint8).reshape(panels, count, -1)
    size, blocks = steps[0, 0].size, -(-count // scaled)
    out = np.zeros((panels, blocks, scaled * size + 64), np.uint8)
    for g in range(count):
        block, place = out[:, g // scaled], g % scaled
        block[:, place * size : (place + 1) * size] = steps[:, g].reshape(panels, -1)
        at = scaled * size + place * (64 // scaled)
        block[:, at : at + 64 // scaled] = lines[:, g]
    return out.reshape(panels, -1)


def e2m1_codes(stored: StoredMatrix) -> U8:
    """Codes as panels hold them: as stored, but of GGUF's blocks the zero with a sign becomes the other."""
    if isinstance(stored, MXFP4Matrix):
        return nibbles(stored.packed)
    assert isinstance(stored, MXFP4Blocks)
    split = stored.blocks.reshape(stored.rows, -1, 17)[:, :, 1:]
    codes = np.concatenate([split & 15, split >> 4], 2).reshape(stored.rows, -1)
    return np.where(codes == 8, np.uint8(0), codes)


def plain_floats(stored: StoredMatrix, packing: Packing) -> U8:
    """Panels of 4 rows, [columns / 16][4 rows][16], then the scales of fp8 (NaN where a code is), filled up to a
    multiple of 64 bytes.
    """
    given = stored.f32()
    held: Array = given
    if packing.kind == "fp8":
        assert isinstance(stored, FP8Matrix)
        held = stored.codes
    elif packing.kind == "f16":
        assert isinstance(stored, F16Matrix)
        held = stored.values
    elif packing.kind == "bf16":
        held = f32_to_bf16(given)
    if isinstance(stored, BF16Matrix) and packing.kind == "bf16":
        held = stored.values
    panels, chunks = packing.panels(stored.rows), -(-stored.cols // 16)
    turned = filled(held, 4 * panels, 16 * chunks).reshape(panels, 4, chunks, 16).transpose(0, 2, 1, 3)
    parts = [np.ascontiguousarray(turned).reshape(panels, -1).view(np.uint8)]
    if isinstance(stored, FP8Matrix) and packing.kind == "fp8":
        blocks = -(-stored.cols // packing.block)
        nan = filled(stored.codes & 0x7F == 0x7F, stored.rows, blocks * packing.block)
        nan = nan.reshape(stored.rows, blocks, -1).any(2)
        scales = filled(np.where(nan, np.float32(np.nan), stored.f32_scales()), 4 * panels, blocks)
        parts.append(scales.reshape(panels, -1).view(np.uint8))
    return filled(np.concatenate(parts, 1), panels, packing.panel_bytes(stored.cols))


def packed(stored: StoredMatrix, packing: Packing) -> U8:
    """Packed bytes [panels, bytes], written with room between the panels, which has to stay as it is."""
    count, size = packing.panels(stored.rows), packing.panel_bytes(stored.cols)
    data = np.full((count, size + 64), 0xAA, np.uint8)
    pack_into(stored, packing, data.reshape(-1), 0, size + 64)
    assert (data[:, size:] == 0xAA).all()
    return data[:, :size]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
@pytest.mark.parametrize("weights", CHOICES)
@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_packed_bytes(rows: int, cols: int, weights: Weights) -> None:
    for stored in matrices(rows, cols):
        packing = choose(stored, weights)
        kept = stored.stored_as() == (packing.kind, packing.scale)
        if packing.integer and not kept and np.isnan(numbers := stored.f32()).any():
            # What becomes of NaN only the kernel says, of whatever format the same.
            assert (packed(stored, packing) == packed(F32Matrix(numbers), packing)).all()
            stored = F32Matrix(np.where(np.isnan(numbers), np.float32(1), numbers))
        expected = plain_integers(stored, packing) if packing.integer else plain_floats(stored, packing)
        assert (packed(stored, packing) == expected).all(), (type(stored).__name__, packing)


def test_matrices_of_one_expert_in_different_formats() -> None:
    """They are widened, or rounded, to one format: each gives what its values give."""
    rng = np.random.default_rng(1)
    gate = BF16Matrix(f32_to_bf16(normal(1, 33, 64)))
    up = FP8Matrix(rng.integers(0, 0x7F, (33, 64)).astype(np.uint8), normal(2, 1, 1))
    down = F16Matrix(normal(3, 64, 33).astype(np.float16))
    for weights in CHOICES:
        shape = ExpertShape.of(gate, up, down, Activation(), weights)
        mixed = pack_expert(shape, gate, up, down)
        wide = pack_expert(shape, *(F32Matrix(matrix.f32()) for matrix in (gate, up, down)))
        assert (mixed == wide).all(), weights


def test_fp8_blocks_that_would_split_a_group_are_refused() -> None:
    with pytest.raises(FormatError, match="blocks of 48 columns"):
        FP8Matrix(np.zeros((2, 96), np.uint8), np.ones((1, 2), np.float32), (128, 48))
