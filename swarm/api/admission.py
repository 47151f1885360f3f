"""How many replies are taken on, and when requests for more had better be sent again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.api.errors import bad, busy

_NEWEST = 0.2  # how much of the mean the newest request makes


class Admission:
    """Places for the replies that have slots, and for `most_waiting` beyond them. A request takes one for each reply
    that it asks for."""

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._slots = slots
        self._most_waiting = most_waiting
        self._taken = 0
        self._mean_s = 1.0
        """How long a reply held its slot lately."""

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Places for the length of a block; ApiError when there are not that many."""
        most = self._slots + self._most_waiting
        if count > most:
            raise bad(
                f"This asks for {count:,} replies at once; this server takes on {most:,}. Ask for fewer choices (n), "
                "or send fewer prompts at a time.",
                "n",
                "too_many_replies",
            )
        if self._taken + count > most:
            raise busy(max(1, min(60, round(self._mean_s * self._most_waiting / self._slots))))
        self._taken += count
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._taken -= count
            took_s = (time.monotonic() - began_s) * min(count, self._slots) / count
            self._mean_s += _NEWEST * (took_s - self._mean_s)
