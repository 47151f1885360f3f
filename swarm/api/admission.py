"""How many requests are taken in, and when those that are not had better ask again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.api.errors import busy

_NEWEST = 0.2  # how much of the mean the newest request makes


class Admission:
    """Places for the requests that have slots, and for `most_waiting` beyond them."""

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._slots = slots
        self._most_waiting = most_waiting
        self._taken = 0
        self._mean_s = 1.0
        """How long requests took lately."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for the length of a block; ApiError when there is none."""
        if self._taken >= self._slots + self._most_waiting:
            raise busy(max(1, min(60, round(self._mean_s * self._most_waiting / self._slots))))
        self._taken += 1
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._taken -= 1
            self._mean_s += _NEWEST * (time.monotonic() - began_s - self._mean_s)
