"""Sending all threads to one routine at once, by its address."""

from typing import Any

from llvmlite import ir
from numba import prange, types

from engine.kernels.compile import intrinsic, kernel
from engine.kernels.ir import I64, VOID


@intrinsic
def _run(typing_context: Any, address: Any, numbers: Any, threads: Any) -> Any:
    """Runs what lies at an address, with a pointer to the array `numbers` int64 and the number of threads."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        kind = ir.FunctionType(VOID, [I64.as_pointer(), I64])
        data = context.make_array(signature.args[1])(context, builder, a[1]).data
        builder.call(builder.inttoptr(a[0], kind.as_pointer()), [data, a[2]])
        return context.get_dummy_value()

    return types.void(types.int64, numbers, types.int64), generate


@kernel(parallel=True)
def send(address, numbers, threads):  # type: ignore[no-untyped-def]
    """Runs the routine at `address` (see `compile.routine`) in each of so many threads, and waits for all. numbers:
    contiguous int64, what it is told."""
    for _ in prange(threads):
        _run(address, numbers, threads)
