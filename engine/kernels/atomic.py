"""Handing out tasks to threads: whoever is free takes the next, so a busy core delays nobody."""

import os
from typing import Any

from numba import types

from engine.kernels.compile import device, intrinsic
from engine.kernels.ir import I32, I64, constant, data_pointer, function, offset

pair: Any = types.UniTuple


@intrinsic
def next_task(typing_context: Any, counter: Any) -> Any:
    """The number counter[0] (int64), which is raised by one for the next caller, of whatever thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, signature.args[0], arguments[0], I64)
        return builder.atomic_rmw("add", pointer, constant(I64, 1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def next_tasks(typing_context: Any, counter: Any, total: Any, threads: Any) -> Any:
    """The next few tasks of `total`, from and to, given out by counter[0] (int64): many while many are left.

    A thread then reads long stretches of memory, and the last tasks are still shared evenly. From equals to
    when none is left.
    """
    result = pair(types.int64, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        pointer = data_pointer(context, b, signature.args[0], arguments[0], I64)
        left = b.sub(arguments[1], b.load_atomic(pointer, "monotonic", 8))
        share = b.sdiv(left, b.mul(arguments[2], constant(I64, 4)))
        share = b.select(b.icmp_signed(">", share, constant(I64, 1)), share, constant(I64, 1))
        first = b.atomic_rmw("add", pointer, share, "monotonic")
        ends = [
            b.select(b.icmp_signed("<", place, arguments[1]), place, arguments[1])
            for place in (first, b.add(first, share))
        ]
        return context.make_tuple(b, result, ends)

    return result(counter, types.int64, types.int64), generate


@intrinsic
def mark_done(typing_context: Any, done: Any, place: Any, count: Any) -> Any:
    """Raises done[place] (int64) by `count`; what this thread wrote before is seen by whoever sees that."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, signature.args[0], arguments[0], I64)
        builder.atomic_rmw("add", offset(builder, pointer, arguments[1]), arguments[2], "release")
        return context.get_dummy_value()

    return types.void(done, types.int64, types.int64), generate


@intrinsic
def tasks_done(typing_context: Any, done: Any, place: Any) -> Any:
    """done[place] (int64), with all that was written before `mark_done` raised it so far."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, signature.args[0], arguments[0], I64)
        return builder.load_atomic(offset(builder, pointer, arguments[1]), "acquire", 8)

    return types.int64(done, types.int64), generate


@intrinsic
def give_way(typing_context: Any) -> Any:
    """Lets another thread have the processor: in a loop that waits for one that may not be running."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            builder.call(function(builder, "sched_yield", I32, []), [])
        return context.get_dummy_value()

    return types.void(), generate


@device
def wait_for(done, place, count):  # type: ignore[no-untyped-def]
    """Returns once done[place] is `count`: other threads are at their last tasks until then."""
    while tasks_done(done, place) < count:
        give_way()
