"""From a thread into the event loop: all that a step tells is delivered with one wake-up.

A wake-up is a system call, which hands the interpreter to the event loop; one for each token of each reply would hold
up the thread that computes.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import trio

Delivery: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


class Post:
    """Calls made in the order they were put in. Made inside the event loop that it delivers to."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: deque[Delivery] = deque()

    def put(self, call: Callable[..., None], *arguments: Any) -> None:
        """Has `call(*arguments)` made once `send` is called; from any thread."""
        self._waiting.append((call, arguments))

    def send(self) -> None:
        """Delivers what was put in; from any thread. Does nothing once the loop has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._deliver)

    def _deliver(self) -> None:
        while self._waiting:
            call, arguments = self._waiting.popleft()
            call(*arguments)
