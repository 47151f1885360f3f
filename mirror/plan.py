"""From whom to fetch, whom to leave out, when to ask a second one, and how far to read ahead. Pure: no IO, no
clock; the time comes in as an argument, in seconds of any monotonic clock.

A `Ledger` remembers each replica by its key:

- Time. A request's seconds, divided by how many that replica had in hand when it began, are averaged. The
  next request goes where it should be done first: average × (requests in hand + 1). Those within a quarter of
  the best are equals, and the one that gave the fewest bytes so far is taken. What was measured long ago
  counts as unknown, and the unknown count as the best known, so that everybody is tried.
- Lies. Wrong bytes are a strike. The third strike within an hour bans for ten minutes, and each further ban
  for twice as long. Wrong bytes once may be a bad disk; the replica that gave them is not asked for that
  chunk again.
- Silence. A replica that fails is left out for a second, then two, four and so on up to a minute; for four
  seconds at most while there is nobody else. However many requests a lost connection takes with it, it is one
  failure: those that were under way when a replica failed say nothing new by failing too. One that is too slow
  three times running, while others were not, gets a ban as well, of a minute, doubling.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from swarm.pauses import pause_s


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of the rules above."""

    strikes: int = 3
    strike_memory_s: float = 3600.0
    ban_s: float = 600.0
    slow_strikes: int = 3
    slow_ban_s: float = 60.0
    longest_ban_s: float = 86_400.0
    leave_out_s: float = 1.0
    longest_leave_out_s: float = 60.0
    longest_alone_s: float = 4.0
    """For how long one that failed is left out while nobody else can be asked."""
    equal_within: float = 1.25
    measured_for_s: float = 60.0
    first_hedge_s: float = 1.0
    """When to ask a second replica as long as little is known of how long a chunk takes."""
    least_hedge_s: float = 0.05
    hedge_factor: float = 1.5
    deadline_s: float = 60.0
    """A request that takes longer has failed."""


class Candidate(Protocol):
    """What the ledger asks of a replica: who it is, and whether others are to be asked before it."""

    @property
    def key(self) -> Hashable:
        """What it is known by, for as long as it lives."""
        ...

    @property
    def tier(self) -> int:
        """Replicas of a higher tier are asked only when no lower one can be."""
        ...


C = TypeVar("C", bound=Candidate)


@dataclass(slots=True)
class Standing:
    """What is remembered of one replica."""

    service_s: float | None = None
    measured_at_s: float = 0.0
    in_hand: int = 0
    given_bytes: int = 0
    strikes: deque[float] = field(default_factory=deque)
    bans: int = 0
    banned_until_s: float = float("-inf")
    failures: int = 0
    failed_at_s: float = float("-inf")
    slow: int = 0
    slow_bans: int = 0
    out_until_s: float = float("-inf")
    """It failed."""
    waits_until_s: float = float("-inf")
    """It asked for patience."""

    def usable(self, now_s: float) -> bool:
        """Whether it may be asked."""
        return now_s >= max(self.banned_until_s, self.waits_until_s, self.out_until_s)

    def alone_at_s(self, longest_alone_s: float) -> float:
        """When it may be asked, unless it is banned, while there is nobody else."""
        return max(self.waits_until_s, min(self.out_until_s, self.failed_at_s + longest_alone_s))


class Ledger:
    """Standings of all replicas, by key. One may serve several mirrors."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._standings: dict[Hashable, Standing] = {}
        self._recent_s: deque[float] = deque(maxlen=128)

    def standing(self, key: Hashable) -> Standing:
        """What is remembered of a replica; a clean sheet for a new one."""
        return self._standings.setdefault(key, Standing())

    def banned(self, now_s: float) -> dict[Hashable, float]:
        """Who is banned, and for how many seconds more."""
        return {
            key: standing.banned_until_s - now_s
            for key, standing in self._standings.items()
            if standing.banned_until_s > now_s
        }

    def choose(
        self, candidates: Sequence[C], now_s: float, excluded: frozenset[Hashable] = frozenset()
    ) -> C | None:
        """The replica to ask next; None when all are excluded, banned or left out."""
        allowed = [candidate for candidate in candidates if candidate.key not in excluded]
        usable = [candidate for candidate in allowed if self.standing(candidate.key).usable(now_s)]
        if not usable:
            usable = [one for one in allowed if self.opens_in_s([one], now_s) == 0.0]
        if not usable:
            return None
        tier = min(candidate.tier for candidate in usable)
        usable = [candidate for candidate in usable if candidate.tier == tier]
        known = {c.key: self._service_s(c.key, now_s) for c in usable}
        best_s = min((s for s in known.values() if s is not None), default=1.0)
        expected = {
            key: (best_s if s is None else s) * (self.standing(key).in_hand + 1) for key, s in known.items()
        }
        bound_s = min(expected.values()) * self.policy.equal_within
        equals = [candidate for candidate in usable if expected[candidate.key] <= bound_s]
        return min(equals, key=lambda candidate: self._load(candidate.key))

    def opens_in_s(self, candidates: Sequence[Candidate], now_s: float) -> float | None:
        """When the first of those that are left out for a while may be asked again; None when none ever may.

        Bans are not waited for.
        """
        waits = [
            standing.alone_at_s(self.policy.longest_alone_s) - now_s
            for standing in (self.standing(candidate.key) for candidate in candidates)
            if now_s >= standing.banned_until_s
        ]
        return max(min(waits), 0.0) if waits else None

    def hedge_after_s(self) -> float:
        """How long to wait for a chunk before a second replica is asked for it: beyond the 95th
        percentile."""
        if len(self._recent_s) < 8:
            return self.policy.first_hedge_s
        ordered = sorted(self._recent_s)
        p95_s = ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]
        return max(self.policy.least_hedge_s, self.policy.hedge_factor * p95_s)

    def began(self, key: Hashable) -> int:
        """A request goes out; how many that replica now has in hand, for `gave`."""
        standing = self.standing(key)
        standing.in_hand += 1
        return standing.in_hand

    def ended(self, key: Hashable) -> None:
        """A request is over, whatever came of it."""
        self.standing(key).in_hand -= 1

    def gave(self, key: Hashable, size: int, seconds: float, in_hand: int, now_s: float) -> None:
        """A replica gave the right bytes."""
        standing = self.standing(key)
        service_s = seconds / in_hand
        known_s = self._service_s(key, now_s)
        standing.service_s = service_s if known_s is None else 0.75 * known_s + 0.25 * service_s
        standing.measured_at_s = now_s
        standing.given_bytes += size
        standing.failures = standing.slow = 0
        self._recent_s.append(seconds)

    def lied(self, key: Hashable, now_s: float) -> float:
        """A replica gave wrong bytes; for how many seconds that bans it, 0 when it does not."""
        policy, standing = self.policy, self.standing(key)
        standing.strikes.append(now_s)
        while standing.strikes[0] < now_s - policy.strike_memory_s:
            standing.strikes.popleft()
        if len(standing.strikes) < policy.strikes:
            return 0.0
        standing.strikes.clear()
        ban_s = pause_s(policy.ban_s, standing.bans, policy.longest_ban_s)
        standing.bans += 1
        standing.banned_until_s = now_s + ban_s
        return ban_s

    def failed(self, key: Hashable, now_s: float, began_s: float | None = None) -> None:
        """A replica could not be asked or did not answer.

        began_s: when the request went out; one from before the last failure is part of that.
        """
        policy, standing = self.policy, self.standing(key)
        if began_s is not None and began_s <= standing.failed_at_s:
            return
        out_s = pause_s(policy.leave_out_s, standing.failures, policy.longest_leave_out_s)
        standing.failures += 1
        standing.failed_at_s = now_s
        standing.out_until_s = max(standing.out_until_s, now_s + out_s)

    def was_busy(self, key: Hashable, now_s: float, retry_after_s: float) -> None:
        """A replica said itself when to come back."""
        wait_s = min(max(retry_after_s, 0.0), self.policy.longest_ban_s)
        standing = self.standing(key)
        standing.waits_until_s = max(standing.waits_until_s, now_s + wait_s)

    def moved(self, key: Hashable) -> None:
        """A replica is somewhere else now: what failed where it was is forgotten."""
        standing = self.standing(key)
        standing.failures, standing.out_until_s = 0, float("-inf")

    def was_slow(self, key: Hashable, seconds: float, in_hand: int, now_s: float) -> float:
        """A replica was still busy when another had answered; for how many seconds that bans it, 0 if not."""
        policy, standing = self.policy, self.standing(key)
        standing.service_s = max(seconds / in_hand, standing.service_s or 0.0)
        standing.measured_at_s = now_s
        standing.slow += 1
        if standing.slow < policy.slow_strikes:
            return 0.0
        standing.slow = 0
        ban_s = pause_s(policy.slow_ban_s, standing.slow_bans, policy.longest_ban_s)
        standing.slow_bans += 1
        standing.banned_until_s = max(standing.banned_until_s, now_s + ban_s)
        return ban_s

    def _service_s(self, key: Hashable, now_s: float) -> float | None:
        standing = self.standing(key)
        fresh = now_s - standing.measured_at_s <= self.policy.measured_for_s
        return standing.service_s if fresh else None

    def _load(self, key: Hashable) -> tuple[int, int]:
        standing = self.standing(key)
        return standing.in_hand, standing.given_bytes


class Readahead:
    """How far to read ahead of one reader of one file.

    Reading that goes on where it stopped doubles the window, from `least` to `most` bytes; a jump closes it.
    """

    def __init__(self, least: int = 2 << 20, most: int = 32 << 20) -> None:
        self._least, self._most = least, most
        self._window = 0
        self._next = 0
        self._asked = 0

    def advance(self, offset: int, length: int, size: int) -> tuple[int, int]:
        """Says that [offset, offset + length) of a file of `size` bytes is read now; the (start, stop) to
        fetch beyond it, empty when there is nothing new to fetch.

        Reads that come a little out of order, as several kernel threads send them, still run forward.
        """
        stop = offset + length
        if abs(offset - self._next) > self._window:
            self._window, self._asked = (self._least if offset == 0 else 0), stop
        elif stop + self._window // 2 < self._asked:
            self._next = stop
            return stop, stop
        else:
            self._window = min(max(2 * self._window, self._least), self._most)
        self._next = stop
        start = max(self._asked, stop)
        ahead = min(stop + self._window, size)
        if ahead <= start:
            return start, start
        self._asked = ahead
        return start, ahead
