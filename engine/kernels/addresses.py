"""Arrays that kernels are told of by their addresses alone: many at once, in one table of numbers."""

from typing import Any

from numba import types
from numba.np.numpy_support import carray as untyped_carray

from engine.kernels.compile import device, intrinsic

carray: Any = untyped_carray
pointer_to: Any = types.CPointer


@intrinsic
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to what the array `like` is made of."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        return builder.inttoptr(a[0], context.get_value_type(signature.return_type))

    return pointer_to(like.dtype)(types.int64, like), generate


@device
def array_at(address, shape, like):  # type: ignore[no-untyped-def]
    """The contiguous array of this shape at an address, of the type of the array `like`. It must outlive its use."""
    return carray(_pointer(address, like), shape)
