"""Prompts that are read for the probabilities of their tokens: a piece a turn, beside the replies."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.engine import Engine
from engine.scores import Score, Scores

ROWS_SHARED = 64  # of a piece while replies are made


@dataclass(eq=False)
class Reading:
    """A prompt to be read. `tell` is called in the compute thread, with the scores or why there are none, and must not
    wait."""

    engine: Engine
    scores: Scores
    tell: Callable[[list[Score] | Exception], None]
    cancelled: bool = False


@dataclass
class Readings:
    """Readings under way, first come, first served."""

    waiting: deque[Reading] = field(default_factory=deque)

    def drop_cancelled(self) -> None:
        """Forgets what nobody waits for any more."""
        for reading in [each for each in self.waiting if each.cancelled]:
            self.waiting.remove(reading)

    def step(self, *, shared: bool) -> Reading | None:
        """Reads a piece of the first; gives it when it is read in full. `shared`: whether replies wait meanwhile."""
        if not self.waiting:
            return None
        reading = self.waiting[0]
        try:
            if not (reading.scores.step(ROWS_SHARED) if shared else reading.scores.step()):
                return None
        except Exception as error:  # noqa: BLE001  the boundary: a fault ends this reading, not the server
            self.waiting.popleft()
            reading.tell(error)
            return None
        self.waiting.popleft()
        reading.tell(reading.scores.result)
        return reading
