"""Handing out tasks to threads: whoever is free takes the next, so a busy core delays nobody."""

from typing import Any

from numba import types

from engine.kernels.compile import intrinsic
from engine.kernels.ir import I64, constant, data_pointer


@intrinsic
def next_task(typing_context: Any, counter: Any) -> Any:
    """The number counter[0] (int64), which is raised by one for the next caller, of whatever thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, signature.args[0], arguments[0], I64)
        return builder.atomic_rmw("add", pointer, constant(I64, 1), "monotonic")

    return types.int64(counter), generate
