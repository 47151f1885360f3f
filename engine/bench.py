"""How fast the kernels are on this machine, beside what its memory can do: figures for `swarm bench kernels`.

Weights are made up in memory, nothing is read from disk. Each figure is the median of several runs, with the
quartiles.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numba import prange

from engine.arrays import F32, Array, aligned, aligned_bytes
from engine.formats import (
    BF16Matrix,
    F32Matrix,
    FP8Matrix,
    Int4Matrix,
    MXFP4Matrix,
    Q4Blocks,
    Q8Blocks,
    StoredMatrix,
    f32_to_bf16,
)
from engine.kernels import attention, kernel, matmul, pack, quantize_rows, threads
from engine.kernels.packing import Weights, choose, pack_into
from engine.kernels.threads import launch

FORMATS: Mapping[str, tuple[str, Weights]] = {
    "q8": ("bf16", "q8"), "q4": ("bf16", "q4"), "int4": ("int4", "auto"), "mxfp4": ("mxfp4", "auto"),
    "bf16": ("bf16", "native"), "f32": ("f32", "native"), "fp8": ("fp8", "native"),
}  # fmt: skip
"""What kernels run on: how it is stored, and the choice of weights that keeps or makes it so."""

STORED_BITS = {"f32": 32, "bf16": 16, "fp8": 8, "int4": 4.5, "mxfp4": 4.25, "Q8_0": 8.5, "Q4_0": 4.5}
"""Bits a weight of what is packed when a model is loaded, scales included."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a run: median and quartiles."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement: what was run, how long it took, bytes of weights (or cache) read and
    multiplications a run.
    """

    name: str
    timing: Timing
    nbytes: int
    macs: int
    beside_read: float | None = None
    """Bytes a second as a share of what a plain read of memory reached in turns with it; None if not compared."""

    @property
    def gbytes_per_s(self) -> float:
        return self.nbytes / self.timing.median_s / 1e9

    @property
    def gmacs_per_s(self) -> float:
        return self.macs / self.timing.median_s / 1e9


def in_turns(runs: Sequence[Callable[[], object]], *, least_rounds: int = 5, least_s: float = 0.3) -> Array:
    """Seconds [rounds, runs] of runs that take turns: each once unmeasured, then at least `least_rounds` rounds that
    together take at least `least_s` seconds."""
    for run in runs:
        run()
    rounds: list[list[float]] = []
    spent_s = 0.0
    while len(rounds) < least_rounds or spent_s < least_s:
        seconds = []
        for run in runs:
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        rounds.append(seconds)
        spent_s += sum(seconds)
    return np.array(rounds)


def summed_up(seconds: Array) -> Timing:
    """Median and quartiles of seconds [runs]."""
    low, median, high = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(low), float(high))


def timed(run: Callable[[], object], *, least_s: float = 0.3) -> Timing:
    """One run taken for itself, as often as `in_turns` says."""
    return summed_up(in_turns([run], least_s=least_s)[:, 0])


@kernel(parallel=True)
def _read(data, totals, threads):  # type: ignore[no-untyped-def]
    share = len(data) // threads
    for t in prange(threads):
        some = data[t * share : (t + 1) * share]
        total = np.int64(0)
        for i in range(len(some)):
            total += some[i]
        totals[t * 8] = total


def plain_read(nbytes: int) -> Callable[[], None]:
    """What reads `nbytes` (a multiple of 8) of memory by all threads each time that it is called."""
    data = np.ones(nbytes // 8, np.int64)
    totals = np.zeros(8 * threads(), np.int64)

    def run() -> None:
        with launch(nbytes) as count:
            _read(data, totals, count)

    return run


def read_speed(nbytes: int = 512 << 20, least_s: float = 0.3) -> Speed:
    """A plain read of memory that no cache holds, by all threads."""
    return Speed("plain read", timed(plain_read(nbytes), least_s=least_s), nbytes, 0)


def made_up_matrix(stored: str, rows: int, cols: int, seed: int = 0) -> StoredMatrix:
    """A matrix stored as one of STORED_BITS says. Rows repeat, to be made quickly."""
    rng = np.random.default_rng(seed)
    some = min(rows, 64)

    def repeated(part: Array) -> Array:
        return np.ascontiguousarray(np.tile(part, (-(-rows // some), 1))[:rows])

    groups = -(-cols // 32)
    if stored == "int4":
        packed = rng.integers(-(2**31), 2**31, (some, -(-cols // 8))).astype(np.int32)
        scales = f32_to_bf16(rng.random((some, groups), np.float32))
        return Int4Matrix(repeated(packed), repeated(scales), cols)
    if stored == "mxfp4":
        codes = rng.integers(0, 256, (some, cols // 2)).astype(np.uint8)
        exponents = rng.integers(115, 125, (some, groups)).astype(np.uint8)
        return MXFP4Matrix(repeated(codes), repeated(exponents))
    if stored == "fp8":
        codes = rng.integers(0x40, 0x7E, (some, cols)).astype(np.uint8)
        codes |= rng.integers(0, 2, codes.shape).astype(np.uint8) << 7
        steps = rng.random((-(-rows // 128), -(-cols // 128)), np.float32)
        return FP8Matrix(repeated(codes), steps)
    if stored in ("Q8_0", "Q4_0"):
        blocks = rng.integers(0, 256, (some, groups, 34 if stored == "Q8_0" else 18)).astype(np.uint8)
        blocks[:, :, 1] = 0x20 + blocks[:, :, 1] % 8  # f16 scales from 2 ** -7 to 2 ** -5
        lines = repeated(blocks.reshape(some, -1))
        return Q8Blocks(lines) if stored == "Q8_0" else Q4Blocks(lines)
    values = rng.standard_normal((some, cols), np.float32) * np.float32(0.02)
    return F32Matrix(repeated(values)) if stored == "f32" else BF16Matrix(repeated(f32_to_bf16(values)))


def packing_speed(stored: str, rows: int, cols: int, least_s: float = 0.3) -> Speed:
    """Packing a matrix [rows, cols] by `auto`, which is what loading does with it; bytes as stored."""
    matrix = made_up_matrix(stored, rows, cols)
    packing = choose(matrix, "auto")
    out = aligned_bytes(packing.nbytes(rows, cols))
    timing = timed(lambda: pack_into(matrix, packing, out), least_s=least_s)
    nbytes = int(rows * cols * STORED_BITS[stored] / 8)
    return Speed(f"packing {stored} as {packing.kind} [{rows}, {cols}]", timing, nbytes, 0)


def matmul_speed(kind: str, rows: int, cols: int, tokens: int, least_s: float = 0.3) -> Speed:
    """One matrix [rows, cols] times `tokens` rows, rounded beforehand on the integer path. A single token takes turns
    with a plain read of as many bytes."""
    stored, weights = FORMATS[kind]
    w = pack(made_up_matrix(stored, rows, cols), weights)
    x: F32 = np.random.default_rng(1).standard_normal((tokens, cols), np.float32)
    given = quantize_rows(x) if w.integer else x
    out = aligned((tokens, rows), np.float32)

    def run() -> None:
        matmul(given, w, out)

    name, macs = f"{kind} [{rows}, {cols}] × {tokens}", rows * cols * tokens
    if tokens > 1:
        return Speed(name, timed(run, least_s=least_s), w.nbytes, macs)
    seconds = in_turns([run, plain_read(w.nbytes)], least_rounds=9, least_s=2 * least_s)
    beside = float(np.median(seconds[:, 1] / seconds[:, 0]))
    return Speed(name, summed_up(seconds[:, 0]), w.nbytes, macs, beside)


def attention_speed(
    heads: int,
    key_heads: int,
    dim: int,
    context: int,
    tokens: int,
    dtype: str = "float16",
    layers: int = 1,
    least_s: float = 0.3,
) -> Speed:
    """Attention of the last `tokens` rows of a context, over `layers` caches in turn (so that none
    stays in a cache).
    """
    rng = np.random.default_rng(0)
    caches = []
    for _ in range(layers):
        k, v = (aligned((context, key_heads, dim), dtype) for _ in range(2))
        for cache in (k, v):
            cache[...] = rng.standard_normal((1, key_heads, dim), np.float32)
        caches.append((k, v))
    q = rng.standard_normal((tokens, heads, dim), np.float32)
    positions = np.arange(context - tokens, context, dtype=np.int32)

    def run() -> None:
        for k, v in caches:
            attention(q, k, v, positions, scale=dim**-0.5)

    seen = tokens * (2 * context - tokens + 1) // 2
    nbytes = sum(k.nbytes + v.nbytes for k, v in caches)
    name = f"attention {heads}/{key_heads} × {dim}, {context} keys × {tokens}"
    return Speed(name, timed(run, least_s=least_s), nbytes, 2 * layers * seen * heads * dim)


def kernel_speeds(kinds: Iterable[str] = FORMATS, *, cols: int = 2048, tokens: int = 128) -> list[Speed]:
    """The usual table: plain read; packing of each stored format; each format with one row from memory (beside a plain
    read), and with many rows."""
    speeds = [read_speed(), *(packing_speed(stored, 4096, cols) for stored in STORED_BITS)]
    for kind in kinds:
        bytes_a_weight = {"q8": 1.06, "fp8": 1.0, "bf16": 2.0, "f32": 4.0}.get(kind, 0.56)
        rows = int((256 << 20) / (cols * bytes_a_weight)) // 16 * 16
        speeds.append(matmul_speed(kind, rows, cols, 1))
        speeds.append(matmul_speed(kind, 2048, cols, tokens))
    return speeds
