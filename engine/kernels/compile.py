"""Compilation of the kernels: lazily, once a machine, and again when a source that matters has changed.

Numba keys its on-disk cache by the file of the function alone. A kernel here is made of functions and
intrinsics from several files, so the key is the contents of its file and of every file of this package that
it imports, directly or not.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import extending, njit
from numba import types as untyped_types
from numba.core import caching as untyped_caching
from numba.core import ccallback as untyped_callbacks
from numba.core import event as untyped_event
from numba.core import serialize as untyped_serialize

types: Any = untyped_types
caching: Any = untyped_caching
callbacks: Any = untyped_callbacks
event: Any = untyped_event
serialize: Any = untyped_serialize

PACKAGE = "engine.kernels"
DIRECTORY = Path(__file__).parent
ROUTINE = (types.CPointer(types.int64), types.int64), types.void
IMPORT = re.compile(
    rf"^\s*(?:(?:from|import)\s+{re.escape(PACKAGE)}\.|from\s+{re.escape(PACKAGE)}\s+import\s+)(\w+)",
    re.MULTILINE,
)


@cache
def _source(file: Path) -> tuple[str, str]:
    """The text of a source file, and its digest."""
    text = file.read_text(encoding="utf-8")
    return text, hashlib.sha256(text.encode()).hexdigest()


def imported_files(file: Path) -> set[Path]:
    """The files of this package that a source file imports."""
    return {
        found for name in IMPORT.findall(_source(file)[0]) if (found := DIRECTORY / f"{name}.py").exists()
    }


def reached_files(file: Path) -> set[Path]:
    """A source file and all files of this package that it rests on."""
    reached: set[Path] = set()
    waiting = {file}
    while waiting:
        current = waiting.pop()
        reached.add(current)
        waiting |= imported_files(current) - reached
    return reached


@cache
def source_stamp(file: Path) -> str:
    """A digest of `file` and of all files of this package that it rests on."""
    parts = sorted(f"{path.name}:{_source(path)[1]}" for path in reached_files(file))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamped(locator: type[Any]) -> type[Any]:
    class Stamped(locator):  # type: ignore[misc]
        def get_source_stamp(self) -> str:
            return source_stamp(Path(self._py_file))

    return Stamped


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [  # noqa: RUF012
        _stamped(caching.UserProvidedCacheLocator),
        _stamped(caching.InTreeCacheLocator),
        _stamped(caching.UserWideCacheLocator),
    ]


def _named(value: Any) -> Any:
    """What a kernel is closed over, told so that it is the same in every process: functions by where they stand, for
    what they say is in the stamp."""
    function = getattr(value, "py_func", None)
    if function is None:
        return serialize.dumps(value)
    return function.__module__, function.__qualname__, _closed_over(function)


def _closed_over(function: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(_named(cell.cell_contents) for cell in function.__closure__ or ())


def _told_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function under a name that also says what it is closed over.

    Machine code is found by name, and what one process kept on disk may bear the same name as what another kept: then
    functions of one place, closed over different formats, would be taken for each other by whoever loads both.
    """
    if function.__closure__:
        digest = hashlib.sha256(repr(_closed_over(function)).encode()).hexdigest()
        place, _, name = function.__qualname__.rpartition(".")
        function.__qualname__ = f"{place}.{digest[:16]}.{name}"
    return function


class _KernelCache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Implementation

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        code = hashlib.sha256(self._py_func.__code__.co_code).hexdigest()
        return signature, codegen.magic_tuple(), (code, repr(_closed_over(self._py_func)))


def kernel(function: Callable[..., Any] | None = None, *, parallel: bool = False) -> Any:
    """Decorator: compiles on the first call, releases the GIL, keeps the machine code on disk where it can. No
    fastmath.
    """

    def wrap(function: Callable[..., Any]) -> Any:
        function = _told_apart(function)
        dispatcher: Any = njit(nogil=True, parallel=parallel, error_model="numpy")(function)
        with suppress(RuntimeError):  # nowhere to keep it: then it is compiled at every start
            dispatcher._cache = _KernelCache(function)
        return dispatcher

    return wrap if function is None else wrap(function)


def routine(function: Callable[..., Any]) -> Any:
    """Decorator for what all threads do together (see `crew`): takes a pointer to int64 and their number. Compiled at
    once, kept on disk where it can be; its `address` is where its machine code lies, as long as it lives.

    A parallel kernel is compiled several times over, each time with all that it calls; this is, once.
    """
    function = _told_apart(function)
    compiled = callbacks.CFunc(function, ROUTINE, {}, {"nopython": True, "error_model": "numpy"})
    with suppress(RuntimeError):
        compiled._cache = _KernelCache(function)
    compiled.compile()
    return compiled


def device(function: Callable[..., Any]) -> Any:
    """Decorator for functions that only kernels call: part of each caller's machine code, not kept by
    itself.
    """
    return njit(nogil=True, error_model="numpy")(_told_apart(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Decorator for functions that write their LLVM code themselves; constants reach them as literal
    types.
    """
    return extending.intrinsic(prefer_literal=True)(function)


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self, started: Callable[[str], None]) -> None:
        self._started = started

    def on_start(self, compiling: Any) -> None:
        name = getattr(compiling.data["dispatcher"], "py_func", None)
        self._started(getattr(name, "__qualname__", "a kernel"))

    def on_end(self, compiling: Any) -> None:
        """The end is of no interest."""


@contextmanager
def on_compile(started: Callable[[str], None]) -> Iterator[None]:
    """Within the block, `started(name)` is called whenever a kernel has to be compiled (not when it is loaded
    from disk).

    It may be called from the thread that runs kernels, and must return at once.
    """
    listener = _Listener(started)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
