"""f32 rounded to f16, to the nearest and ties to even: what a cache of keys and values holds."""

from typing import Any

import numpy as np
from numba import types

from engine.arrays import F32, Array
from engine.kernels import ir as w
from engine.kernels.compile import intrinsic, kernel
from engine.kernels.ir import I16, load, offset, store, vector
from engine.kernels.isa import isa
from engine.kernels.threads import LARGE, over_rows

LANES = 32


@intrinsic
def _some(typing_context: Any, x: Any, start: Any, out: Any, place: Any) -> Any:
    """out.flat[place + i] = x.flat[start + i], i < LANES; x f32, out f32 or uint16 (the bits of f16), contiguous."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        value = load(
            b, offset(b, w.data_pointer(context, b, kinds[0], a[0], w.F32), a[1]), vector(w.F32, LANES), 4
        )
        halves = kinds[2].dtype == types.uint16
        target = offset(b, w.data_pointer(context, b, kinds[2], a[2], I16 if halves else w.F32), a[3])
        store(b, b.fptrunc(value, vector(w.F16, LANES)) if halves else value, target, 2 if halves else 4)
        return context.get_dummy_value()

    return types.void(x, types.intp, out, types.intp), generate


@kernel
def narrow_into(x, out):  # type: ignore[no-untyped-def]
    """out = x, both of one dimension; out f32 or uint16 (the bits of f16, by the instruction that there must be)."""
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        _some(x, i, out, i)
    if whole < len(x):
        last, ends = np.zeros(LANES, np.float32), np.empty(LANES, out.dtype)
        last[: len(x) - whole] = x[whole:]
        _some(last, 0, ends, 0)
        out[whole:] = ends[: len(x) - whole]


def narrow(x: F32, out: Array) -> None:
    """out[...] = x; `out` f16 or f32 of x's shape. Without an instruction for it NumPy does it."""
    if not (
        isa().half and out.dtype == np.float16 and x.dtype == np.float32 and x.shape == out.shape
        and x.flags.c_contiguous and out.flags.c_contiguous
    ):  # fmt: skip
        out[...] = x
        return
    source, target = x.reshape(-1), out.view(np.uint16).reshape(-1)
    if x.size < LARGE:
        narrow_into(source, target)
        return
    each = x.size // len(x)

    def run(rows: slice) -> None:
        some = slice(rows.start * each, rows.stop * each)
        narrow_into(source[some], target[some])

    over_rows(len(x), x.size, run)
