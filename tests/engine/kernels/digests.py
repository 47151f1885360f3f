"""Prints one digest a kernel over fixed inputs; run under several CPU targets, the output has to be
the same.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine import kernels
from engine.formats import (
    BF16Matrix,
    F16Matrix,
    F32Matrix,
    FP8Matrix,
    Int4Matrix,
    MXFP4Blocks,
    MXFP4Matrix,
    Q4Blocks,
    Q8Blocks,
    StoredMatrix,
    f32_to_bf16,
)
from engine.kernels.activation import KINDS
from engine.kernels.compress import pool_windows
from engine.kernels.convolution import causal_convolution
from engine.kernels.delta import delta_rule, delta_state, forget
from engine.kernels.hyper import collapse, spread, stream_weights
from engine.kernels.indexer import choose_keys
from engine.kernels.isa import isa

ROWS, COLS, TOKENS = 37, 75, 14


def normal(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Normally distributed f32 that depend on nothing but the seed: sums of twelve uniform integers."""
    draws = np.random.default_rng(seed).integers(0, 1 << 20, (*shape, 12)).sum(-1)
    values: npt.NDArray[np.float32] = ((draws - 6 * ((1 << 20) - 1)) / (1 << 20)).astype(np.float32)
    return values


def stored(seed: int, rows: int = ROWS, cols: int = COLS) -> dict[str, StoredMatrix]:
    """A matrix in each stored format."""
    rng = np.random.default_rng(seed)
    values = normal(seed, rows, cols)
    codes = rng.integers(0, 256, (rows, cols)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 3
    packed = rng.integers(-(2**31), 2**31, (rows, -(-cols // 8))).astype(np.int32)
    even = cols - cols % 2
    blocks = rng.integers(0, 256, (rows, -(-cols // 32), 34)).astype(np.uint8)
    blocks[:, :, 1] &= 0x9F  # scales that are finite, many of them subnormal
    return {
        "f32": F32Matrix(values),
        "f16": F16Matrix(values.astype(np.float16)),
        "bf16": BF16Matrix(f32_to_bf16(values)),
        "fp8": FP8Matrix(codes, normal(seed + 1, -(-rows // 128), -(-cols // 128))),
        "int4": Int4Matrix(packed, f32_to_bf16(normal(seed + 2, rows, -(-cols // 32))), cols),
        "mxfp4": MXFP4Matrix(
            rng.integers(0, 256, (rows, even // 2)).astype(np.uint8),
            rng.integers(0, 140, (rows, -(-even // 32))).astype(np.uint8),
        ),
        "q8_0": Q8Blocks(blocks.reshape(rows, -1)),
        "q4_0": Q4Blocks(blocks[:, :, :18].reshape(rows, -1)),
        "mxfp4 of gguf": MXFP4Blocks(blocks[:, :, 1:18].reshape(rows, -1)),
    }


def matrices() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    chosen: dict[str, tuple[kernels.Weights, ...]] = {
        "f32": ("native", "auto", "q4"), "f16": ("native",), "fp8": ("native",), "int4": ("auto",),
        "mxfp4": ("auto",),
    }  # fmt: skip
    for name, choices in chosen.items():
        matrix = stored(5)[name]
        x = normal(7, TOKENS, matrix.cols)
        for weights in choices:
            for count in (1, 3, TOKENS):
                yield f"{name} {weights} {count}", kernels.matmul(x[:count], kernels.pack(matrix, weights))


def packed() -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    choices: tuple[kernels.Weights, ...] = ("auto", "q8", "q4", "native")
    for name, matrix in stored(5).items():
        for weights in choices:
            yield f"{name} {weights} packed", kernels.pack(matrix, weights).data


def experts() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    gate, up, down = (
        F32Matrix(normal(seed, *size)) for seed, size in ((1, (41, 64)), (2, (41, 64)), (3, (64, 41)))
    )
    x = normal(4, 5, 64)
    slot, row = np.zeros(5, np.int32), np.arange(5, dtype=np.int32)
    for kind in ("silu", "situ"):
        shape = kernels.ExpertShape.of(gate, up, down, kernels.Activation(kind, limit=2.0), "q8")
        arena = kernels.pack_expert(shape, gate, up, down).reshape(1, -1)
        outputs = kernels.run_experts(shape, arena, x, slot, row)
        yield f"experts {kind}", kernels.combine(outputs, normal(9, 5, 1))


def functions() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    x = normal(11, 6, 77) * np.float32(3)
    for name in ("exp", "log", "log1p", "softplus", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "erf"):
        yield name, getattr(kernels, name)(x if name not in ("log", "log1p") else np.abs(x))
    for kind in KINDS:
        yield f"activation {kind}", kernels.activation(kernels.Activation(kind, limit=2.0), x, x[::-1])
    yield "softmax", kernels.softmax(x)
    yield "rms_norm", kernels.rms_norm(x, x[0], 1e-6)
    yield "layer_norm", kernels.layer_norm(x, x[0], x[1], 1e-6)
    cos, sin = kernels.rope_tables(np.arange(6) * 999, kernels.inverse_frequencies(64, 1e6))
    yield "rope", kernels.rope(normal(12, 6, 2, 64), cos, sin)
    rows = kernels.quantize_rows(x)
    yield "quantize", rows.q.astype(np.float32)
    yield "quantize scale", rows.scale


def attentions() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    count = 150
    positions = np.arange(count, dtype=np.int32)
    q, k, v = normal(21, count, 4, 40), normal(22, count, 2, 40), normal(23, count, 2, 24)
    yield "attention", kernels.attention(q, k.astype(np.float16), v.astype(np.float16), positions, scale=0.2)
    keys, values = np.zeros((2, 160, 2, 40), np.float32), np.zeros((2, 160, 2, 24), np.float32)
    table = [(100 * s, (100, 50)[s], keys[s].ctypes.data, values[s].ctypes.data, 160, 0) for s in (0, 1)]
    positions[100:] -= 100
    yield (
        "attention of two",
        kernels.sequence_attention(q, k, v, np.array(table, np.int64), keys.dtype, positions, 99, scale=0.2),
    )


def sparse() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    counts = np.array([300, 280], np.int32)
    keys = choose_keys(normal(31, 2, 6, 32), normal(32, 2, 6), normal(33, 300, 32), counts, 20, scale=0.2)
    yield "chosen keys", keys.astype(np.float32)
    values, gates, bias = normal(34, 16, 40), normal(35, 16, 40), normal(36, 4, 40)
    yield "pooled windows", pool_windows(values, gates, bias, 0, 0, 4, overlap=True)
    pre, post, comb = stream_weights(normal(37, 3, 24), normal(38, 24), normal(39, 3), 1e-6, 20)
    yield "stream weights", comb
    x = normal(40, 3, 4, 77)
    yield "streams", spread(x, collapse(x, pre), post, comb)


def recurrences() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    q, k, v = normal(31, 9, 2, 20), normal(32, 9, 2, 20) * np.float32(0.25), normal(33, 9, 6, 70)
    before, after = np.zeros((2, *delta_state(6, 20, 70)), np.float32)
    gate, bias, rate = normal(34, 9, 6, 20), normal(35, 6, 20), np.abs(normal(36, 6))
    decay = forget(gate, bias, rate)
    yield "forget", decay
    yield "forget bounded", forget(gate, bias, rate, -5.0)
    yield "delta", delta_rule(q, k, v, decay, kernels.sigmoid(normal(37, 9, 6)), before, after)
    yield "delta state", after
    tails = np.zeros((2, 3, 37), np.float32)
    yield "convolution", causal_convolution(normal(38, 11, 37), normal(39, 4, 37), *tails, silu=True)


def digests() -> list[str]:
    """One line a result: its name and a digest of its bits."""
    return [
        f"{name} {hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]}"
        for group in (matrices, packed, experts, functions, attentions, recurrences, sparse)
        for name, values in group()
    ]


if __name__ == "__main__":
    print("#", isa().name)
    print("\n".join(digests()))
