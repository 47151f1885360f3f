"""LLVM types and a few words for writing vector code with them. No fast-math flag is ever set here."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils as untyped_cgutils

cgutils: Any = untyped_cgutils

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID = ir.VoidType()
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()

Builder = Any
Value = Any


def vector(kind: Any, lanes: int) -> Any:
    """The type of `lanes` values of `kind`."""
    return ir.VectorType(kind, lanes)


def constant(kind: Any, value: Any) -> Value:
    """A constant; for a vector type, the same value in each lane or a list of one value a lane."""
    if isinstance(kind, ir.VectorType) and not isinstance(value, list):
        value = [value] * kind.count
    return ir.Constant(kind, value)


def call(builder: Builder, name: str, result: Any, arguments: list[Value]) -> Value:
    """Calls an LLVM intrinsic by its full name."""
    return builder.call(function(builder, name, result, [argument.type for argument in arguments]), arguments)


def suffix(kind: Any) -> str:
    """How intrinsics spell a type: v16f32, i32, …"""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    floats = {"half": "f16", "float": "f32", "double": "f64"}
    return floats.get(str(kind), str(kind))


def fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    """a · b + c with one rounding, on scalars or vectors; without the instruction it becomes calls of
    fmaf.
    """
    return call(builder, f"llvm.fma.{suffix(a.type)}", a.type, [a, b, c])


def function(builder: Builder, name: str, result: Any, arguments: list[Any]) -> Value:
    """The function `name` of the module, declared when it is not yet."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def variable(builder: Builder, value: Value) -> Value:
    """A place on the stack, set to `value` here."""
    return cgutils.alloca_once_value(builder, value)


def prefetch(builder: Builder, pointer: Value, near: int = 3) -> None:
    """Asks for the cache line at an address, which need not be valid.

    `near` 3: into all caches; 2: into the second and those beyond.
    """
    address = builder.bitcast(pointer, I8.as_pointer())
    declared = function(builder, "llvm.prefetch.p0", VOID, [address.type, I32, I32, I32])
    builder.call(declared, [address, constant(I32, 0), constant(I32, near), constant(I32, 1)])


def prefetch_lines(builder: Builder, pointer: Value, nbytes: int, near: int = 3) -> None:
    """Asks for all cache lines of `nbytes` from an address on, as `prefetch` does for one."""
    start = builder.bitcast(pointer, I8.as_pointer())
    for line in range(0, nbytes, 64):
        prefetch(builder, offset(builder, start, line), near)


def unseen(builder: Builder, number: int) -> Value:
    """`number` (i64) so that the compiler does not know it: it leaves a loop of so many rounds a loop."""
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [constant(I64, number)], False)


def splat(builder: Builder, value: Value, lanes: int) -> Value:
    """A vector with `value` in each lane."""
    kind = vector(value.type, lanes)
    blank = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(blank, value, constant(I32, 0))
    return builder.shuffle_vector(single, blank, constant(vector(I32, lanes), 0))


def shuffle(builder: Builder, a: Value, b: Value, lanes: list[int]) -> Value:
    """Lanes of a then b, picked by constant numbers."""
    return builder.shuffle_vector(a, b, constant(vector(I32, len(lanes)), lanes))


def load(builder: Builder, pointer: Value, kind: Any, align: int = 1) -> Value:
    """Loads a `kind` from a pointer of whatever type."""
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=align)


def store(builder: Builder, value: Value, pointer: Value, align: int = 1) -> None:
    """Stores to a pointer of whatever type."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=align)


def data_pointer(context: Any, builder: Builder, kind: Any, array: Value, element: Any) -> Value:
    """The address of a Numba array's first element, as a pointer to `element`."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, element.as_pointer())


def offset(builder: Builder, pointer: Value, index: Value | int) -> Value:
    """The address `index` elements on."""
    return builder.gep(pointer, [constant(I64, index) if isinstance(index, int) else index])


def row_of(builder: Builder, named: dict[str, Value], token: Value) -> Value:
    """The row that named["index"] has for a token (i64) from named["first"] on, of named["count"] tokens; the last
    one's for tokens beyond."""
    last = builder.sub(named["count"], constant(I64, 1))
    nearest = builder.select(builder.icmp_signed("<", token, last), token, last)
    return builder.load(offset(builder, named["index"], builder.add(named["first"], nearest)))


def by_count(
    builder: Builder, named: dict[str, Value], sizes: list[int], name: str,
    body: Callable[[Builder, int, dict[str, Value]], None],
) -> None:  # fmt: skip
    """Calls the function `name` for the smallest of `sizes` that is not below named["count"] (at most the
    largest).

    Each function is written once a module, by `body(builder, size, arguments)`; it takes the values of
    `named`.
    """
    keys = list(named)
    for size in sizes:
        title = f"{name}_{size}"
        if title not in builder.module.globals:
            kind = ir.FunctionType(VOID, [named[key].type for key in keys])
            written = ir.Function(builder.module, kind, title)
            written.linkage = "internal"
            written.attributes.add("noinline")
            inside = ir.IRBuilder(written.append_basic_block("entry"))
            body(inside, size, dict(zip(keys, written.args, strict=True)))
            inside.ret_void()
    arguments = [named[key] for key in keys]

    def choose(left: list[int]) -> None:
        chosen = builder.module.globals[f"{name}_{left[0]}"]
        if len(left) == 1:
            builder.call(chosen, arguments)
            return
        with builder.if_else(builder.icmp_signed("<=", named["count"], constant(I64, left[0]))) as (
            then,
            otherwise,
        ):
            with then:
                builder.call(chosen, arguments)
            with otherwise:
                choose(left[1:])

    choose(sizes)


def by_number(builder: Builder, number: Value, bodies: list[Callable[[], Value]]) -> Value:
    """What the body of this number (i64, below their count) gives; all give values of one type."""
    entry = builder.block
    end = builder.append_basic_block("chosen")
    given = []
    places = []
    for body in bodies:
        places.append(builder.append_basic_block("case"))
        builder.position_at_end(places[-1])
        given.append((body(), builder.block))
        builder.branch(end)
    builder.position_at_end(entry)
    choice = builder.switch(number, places[-1])
    for place, block in enumerate(places[:-1]):
        choice.add_case(constant(I64, place), block)
    builder.position_at_end(end)
    result = builder.phi(given[0][0].type)
    for value, block in given:
        result.add_incoming(value, block)
    return result


def sum_lanes(builder: Builder, value: Value) -> Value:
    """The fixed tree of the float path: the upper half of the lanes is added to the lower until one is
    left.
    """
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low = shuffle(builder, value, value, list(range(lanes)))
        high = shuffle(builder, value, value, list(range(lanes, 2 * lanes)))
        value = builder.fadd(low, high)
    return builder.extract_element(value, constant(I32, 0))
