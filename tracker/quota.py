"""Token buckets: how much of something each source may use, bounded in memory, with the clock as an
argument."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of `burst` tokens that fills by `per_second`."""

    per_second: float
    burst: float


class Quota:
    """One bucket of a rate for each source; sources beyond `most_sources` push out the one longest unused."""

    def __init__(self, rate: Rate, most_sources: int = 65_536) -> None:
        self._rate = rate
        self._most_sources = most_sources
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, source: Hashable, now_s: float, tokens: float = 1.0) -> float:
        """Takes tokens and returns 0, or takes none and returns the seconds after which to ask again."""
        left, wait_s = self._left(source, now_s), self.wait_s(source, now_s, tokens)
        _, then_s = self._buckets.pop(source, (left, now_s))
        self._buckets[source] = (left if wait_s else left - tokens, max(then_s, now_s))
        if len(self._buckets) > self._most_sources:
            self._buckets.popitem(last=False)
        return wait_s

    def wait_s(self, source: Hashable, now_s: float, tokens: float = 1.0) -> float:
        """The seconds after which there will be so many tokens; takes none."""
        return max(0.0, tokens - self._left(source, now_s)) / self._rate.per_second

    def _left(self, source: Hashable, now_s: float) -> float:
        left, then_s = self._buckets.get(source, (self._rate.burst, now_s))
        return min(self._rate.burst, left + max(0.0, now_s - then_s) * self._rate.per_second)


class Pace:
    """A rate that is never refused, only delayed: for work that was already done when it is counted."""

    def __init__(self, per_second: float, burst: float, most_sources: int = 65_536) -> None:
        self._per_second = per_second
        self._burst_s = burst / per_second
        self._most_sources = most_sources
        self._free_s: OrderedDict[Hashable, float] = OrderedDict()

    def delay_s(self, source: Hashable, amount: float, now_s: float) -> float:
        """Counts an amount, and returns the seconds to wait so that a source keeps to the rate."""
        free_s = max(self._free_s.pop(source, -math.inf), now_s - self._burst_s) + amount / self._per_second
        self._free_s[source] = free_s
        if len(self._free_s) > self._most_sources:
            self._free_s.popitem(last=False)
        return max(0.0, free_s - now_s)


class Quotas:
    """A bucket for each key and, as keys are free, one for each network; one without a network has the first alone."""

    def __init__(self, a_key: Rate, a_network: Rate) -> None:
        self._a_key = Quota(a_key)
        self._a_network = Quota(a_network)

    def take(self, key: Hashable, network: str | None, now_s: float) -> float:
        """Takes a token from each bucket and returns 0; or takes none, so that who is refused uses up nobody's share,
        and returns the seconds after which both have one."""
        wait_s = self._a_key.wait_s(key, now_s)
        if network is not None:
            wait_s = max(wait_s, self._a_network.wait_s(network, now_s))
        if not wait_s:
            self._a_key.take(key, now_s)
            if network is not None:
                self._a_network.take(network, now_s)
        return wait_s


class Paces:
    """A pace for each key, and one for each network in the same way."""

    def __init__(self, a_key: Rate, a_network: Rate) -> None:
        self._a_key = Pace(a_key.per_second, a_key.burst)
        self._a_network = Pace(a_network.per_second, a_network.burst)

    def delay_s(self, key: Hashable, network: str | None, amount: float, now_s: float) -> float:
        """Counts an amount, and returns the seconds to wait so that both keep to their rates."""
        delay_s = self._a_key.delay_s(key, amount, now_s)
        return delay_s if network is None else max(delay_s, self._a_network.delay_s(network, amount, now_s))
