"""How long calls take in one place: moving averages, and when one is late. Pure; seconds come in as arguments."""

from collections import deque

MEMORY = 0.05
"""Weight of the newest call."""
SLOPE_AFTER = 8
"""Calls before a slope is believed."""
RATIOS = 128
P95_AFTER = 20
FAR = 3.0
"""While little is known, and against outliers that the p95 took in: so many times the median is late."""
MUCH = 4.0
MUCH_S = 0.02


def much_slower_s(other_s: float) -> float:
    """From when on a call is much slower than one elsewhere that takes `other_s`: beyond what distances differ by,
    so that it is worth asking whoever should be spared."""
    return MUCH * other_s + MUCH_S


class Pace:
    """What calls of one place took. Time is modelled as a part for the call and a part for each pair."""

    def __init__(self, told_pair_s: float = 0.0) -> None:
        self._count = 0
        self._weight = 0.0
        self._x = self._y = self._xx = self._xy = 0.0
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._late: tuple[int, float] = (-1, FAR)
        self.call_s = 0.0
        self.pair_s = told_pair_s
        """Both are what the donor itself told, or nothing, before the first call."""

    @property
    def measured(self) -> bool:
        """Whether a call was seen."""
        return self._count > 0

    def observe(self, pairs: int, took_s: float) -> None:
        """Takes in a call."""
        if self._count:
            self._ratios.append(took_s / max(self.expected_s(pairs), 1e-6))
        self._count += 1
        new = max(MEMORY, 1 / self._count)
        for name, value in (("_x", pairs), ("_y", took_s), ("_xx", pairs * pairs), ("_xy", pairs * took_s)):
            setattr(self, name, getattr(self, name) + new * (value - getattr(self, name)))
        spread = self._xx - self._x * self._x
        if self._count >= SLOPE_AFTER and spread > 0.01 * self._x * self._x:
            self.pair_s = min(max((self._xy - self._x * self._y) / spread, 0.0), self._y / max(self._x, 1.0))
        elif not self.pair_s:
            self.pair_s = self._y / max(self._x, 1.0) / 2
        self.call_s = max(self._y - self.pair_s * self._x, 0.0)

    def expected_s(self, pairs: int) -> float:
        """What a call should take."""
        return self.call_s + self.pair_s * pairs

    def late_s(self, pairs: int) -> float:
        """When a call is late: at the p95 of what was measured, at most three times the median."""
        if self._late[0] + 16 < self._count or self._late[0] < 0:
            ordered = sorted(self._ratios)
            ratio = FAR * ordered[len(ordered) // 2] if ordered else FAR
            if len(ordered) >= P95_AFTER:
                ratio = min(ratio, ordered[int(0.95 * len(ordered))])
            self._late = (self._count, max(ratio, 1.0))
        return self._late[1] * self.expected_s(pairs)
