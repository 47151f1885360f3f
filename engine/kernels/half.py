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
def _halves(typing_context: Any, x: Any, start: Any, out: Any, place: Any) -> Any:
    """out.flat[place + i] = the bits of x.flat[start + i] as f16, i < LANES; x f32 and out uint16, contiguous."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        source = offset(b, w.data_pointer(context, b, kinds[0], a[0], w.F32), a[1])
        target = offset(b, w.data_pointer(context, b, kinds[2], a[2], I16), a[3])
        store(b, b.fptrunc(load(b, source, vector(w.F32, LANES), 4), vector(w.F16, LANES)), target, 2)
        return context.get_dummy_value()

    return types.void(x, types.intp, out, types.intp), generate


@kernel
def _narrow(x, out):  # type: ignore[no-untyped-def]
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        _halves(x, i, out, i)
    if whole < len(x):
        last, bits = np.zeros(LANES, np.float32), np.empty(LANES, np.uint16)
        last[: len(x) - whole] = x[whole:]
        _halves(last, 0, bits, 0)
        out[whole:] = bits[: len(x) - whole]


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
        _narrow(source, target)
        return
    each = x.size // len(x)

    def run(rows: slice) -> None:
        some = slice(rows.start * each, rows.stop * each)
        _narrow(source[some], target[some])

    over_rows(len(x), x.size, run)
