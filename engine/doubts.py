"""Forward passes that turn out to be wrong after their outcome was used.

Experts may run where nobody is trusted, and be found out only later. So passes are numbered, a state notes
which pass computed which of its positions (`State.passes`), and whoever finds out withdraws passes, from any
thread. What a state holds from its first withdrawn pass on has then to be forgotten and computed again
(`engine.batch` does so, and takes back what was said on the strength of it). While a check of a pass is open,
a reply that rests on it is not complete.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from engine.arrays import F32
from engine.cache import State
from engine.errors import FalsifiedTooOften

if TYPE_CHECKING:
    from engine.experts import Experts
    from engine.models import Model, Segment

MOST_REDOS = 16
"""How often one reply is computed again before it is given up."""
PATIENCE_S = 10.0

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Passes `first` to `last` are not to be relied on; `reason` names who is at fault."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Flaw:
    """A state is wrong from `position` on."""

    position: int
    reason: str


class Doubts:
    """The passes of one model's experts. One thread computes; any may withdraw, open and close."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        """How long a reply that is said waits for open checks."""
        self.current = 0
        """The newest pass; 0 before the first."""
        self._withdrawn: tuple[Withdrawn, ...] = ()
        self._open: Counter[int] = Counter()
        self._changed = threading.Condition()

    def begin(self) -> int:
        """A pass begins; gives its number."""
        self.current += 1
        return self.current

    def withdraw(self, first: int, last: int, reason: str) -> None:
        """What passes `first` to `last` computed was partly wrong."""
        with self._changed:
            self._withdrawn = (*self._withdrawn, Withdrawn(first, last, reason))
            self._changed.notify_all()

    def open(self, number: int) -> None:
        """A check of a pass goes on although its outcome is used already."""
        with self._changed:
            self._open[number] += 1

    def close(self, number: int) -> None:
        """A check that was opened is done; what it found was withdrawn before."""
        with self._changed:
            self._open[number] -= 1
            if not self._open[number]:
                del self._open[number]
            self._changed.notify_all()

    def settled(self, number: int) -> bool:
        """Whether no check of a pass up to `number` is open."""
        if not self._open:
            return True
        with self._changed:
            return all(other > number for other in self._open)

    def wait(self, number: int, timeout_s: float) -> bool:
        """Waits until `settled`, or something is withdrawn; whether it is settled."""
        withdrawn = self._withdrawn
        with self._changed:
            self._changed.wait_for(
                lambda: self._withdrawn is not withdrawn or all(other > number for other in self._open),
                timeout_s,
            )
        return self.settled(number)

    def flaw(self, state: State) -> Flaw | None:
        """The first position of a state that cannot be relied on; None when all can."""
        found: Flaw | None = None
        for withdrawn in self._withdrawn:
            index = bisect_left(state.passes, withdrawn.first, key=lambda noted: noted[1])
            if index < len(state.passes):
                position, number = state.passes[index]
                if number <= withdrawn.last and (found is None or position < found.position):
                    found = Flaw(position, withdrawn.reason)
        return found


def forward(model: "Model", segments: "Sequence[Segment]", experts: "Experts") -> F32:
    """`model.forward`, with the states noting the pass; float32 [n, vocabulary]."""
    number = experts.doubts.begin()
    before = [segment.state.length for segment in segments]
    logits = model.forward(segments, experts)
    for segment, position in zip(segments, before, strict=True):
        passes = segment.state.passes  # none: a new sequence, or one that was read again in this pass
        passes.append((position if passes else 0, number))
    return logits


def relied_upon(model: "Model", experts: "Experts", make: Callable[[State], Made]) -> Made:
    """What `make` computes with a fresh state; made again when it turns out to rest on wrong passes."""
    reason = ""
    for _ in range(MOST_REDOS):
        state = model.new_state()
        made = make(state)
        experts.doubts.wait(experts.doubts.current, experts.doubts.patience_s)
        flaw = experts.doubts.flaw(state)
        if flaw is None:
            return made
        reason = flaw.reason
    raise FalsifiedTooOften(
        f"the answer was falsified {MOST_REDOS} times, the last time because {reason}; ask again"
    )
