"""Whether the engine's kernels are being compiled right now, as Numba itself tells."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from numba.core import event as _untyped

numba_event: Any = _untyped  # nothing in it is annotated


class CompileWatch:
    """True while any kernel is being compiled, in any thread; listens between `with` and its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._listener: Any = None

    def __bool__(self) -> bool:
        return self._running > 0

    def __enter__(self) -> Self:
        watch = self

        class _Listener(numba_event.Listener):  # type: ignore[misc]
            def on_start(self, event: Any) -> None:
                watch._add(1)

            def on_end(self, event: Any) -> None:
                watch._add(-1)

        self._listener = _Listener()
        numba_event.register("numba:compile", self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            numba_event.unregister("numba:compile", self._listener)
            self._listener = None

    def _add(self, count: int) -> None:
        with self._lock:
            self._running += count
