"""The clocks a tracker looks at, in one place, so that tests can own time."""

import time
from dataclasses import dataclass
from typing import Protocol

import trio


class Clock(Protocol):
    """Where the time comes from."""

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""

    def unix_s(self) -> float:
        """Seconds since 1970."""

    def work_s(self) -> float:
        """Seconds that this thread has computed."""


@dataclass(frozen=True)
class SystemClock:
    """trio's clock and the system's two."""

    def monotonic_s(self) -> float:
        """Seconds on trio's clock."""
        return trio.current_time()

    def unix_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def work_s(self) -> float:
        """Seconds that this thread has computed."""
        return time.thread_time()
