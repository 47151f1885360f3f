"""A share of a layer's pairs, and the tries to have it computed."""

import math
from dataclasses import dataclass, field

import trio

from engine.arrays import Array
from swarm.peers.here import Here
from swarm.peers.pace import much_slower_s
from swarm.peers.partner import Answer, Call, Remote
from swarm.peers.tale import Hop


@dataclass(eq=False, slots=True)
class Attempt:
    """One donor's try at a share: a call without a task, or a task in a scope."""

    remote: Remote
    hop: Hop
    started: float
    deadline: float
    call: Call | None = None
    scope: trio.CancelScope | None = None
    lingers: bool = False
    """Whether it goes on although others were quicker, to see how long it takes."""
    over: bool = False
    """Whether it was answered, failed or was taken back."""

    @property
    def is_open(self) -> bool:
        """Whether a call without a task waits for its reply."""
        return self.call is not None and not self.call.ended

    def cancel(self) -> None:
        """Takes it back."""
        if self.scope is not None:
            self.scope.cancel()
        elif self.is_open and self.call is not None:
            self.call.end()
            self.timed()

    def timed(self) -> None:
        """It is over; notes how long it took."""
        self.over = True
        if self.lingers:
            self.lingers, self.remote.overdue_since = False, None
        self.hop.ms = 1000 * (trio.current_time() - self.started)

    def outrun(self) -> None:
        """Somebody else was quicker: it is taken back, unless it shall tell how long its donor takes.

        That is one at a time of each donor, and only one that was late or would be the donor's first.
        """
        if self.over:
            return
        remote = self.remote
        tells = self.hop.cause != "hedge" or not remote.pace.measured
        if tells and not remote.banned and remote.overdue_since is None:
            self.lingers, remote.overdue_since = True, self.started
        else:
            self.cancel()


@dataclass(eq=False, slots=True)
class Share:
    """Pairs that are asked of one donor, or of two while hedging."""

    pairs: Array
    experts: frozenset[int]
    tried: set[Remote]
    waits: int
    started: float = 0.0
    """When it was asked for."""
    late_at: float = math.inf
    """When to see whether it would be quicker elsewhere."""
    hedge_at: float = math.inf
    """When it is late, however quick others are."""
    running: dict[Remote, Attempt] = field(default_factory=dict)
    here: bool = False
    """Whether it runs in this process."""
    used: Answer | None = None
    took_s: float = 0.0
    """What the quickest took."""
    done: bool = False
    compared: bool = False
    """Whether an answer that comes too late is checked all the same."""

    def due_at(self, other: Remote | Here) -> float:
        """When it is late, given that it can be had elsewhere as well."""
        known_s = much_slower_s(other.takes_s(len(self.pairs))) if other.pace.measured else 0.0
        return min(self.hedge_at, self.started + known_s)

    def outrun(self) -> None:
        """Something was quicker than all that run."""
        for attempt in list(self.running.values()):
            attempt.outrun()

    def take_back(self, but_for_awaited: bool = False) -> None:
        """Takes back all that run; but for what is still awaited although others were quicker."""
        for attempt in list(self.running.values()):
            if not (but_for_awaited and (self.compared or attempt.lingers)):
                attempt.cancel()

    @property
    def is_awaited(self) -> bool:
        """Whether answers are waited for although it is done."""
        return self.compared or any(attempt.lingers for attempt in self.running.values())
