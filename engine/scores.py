"""How probable the tokens of a given text are, read in pieces so that others may compute in between.

scores = Scores(model, experts, ids, top=5)
while not scores.step(): …
scores.result
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.batch import WAIT_S
from engine.cache import State
from engine.doubts import MOST_REDOS, forward
from engine.errors import FalsifiedTooOften
from engine.experts import Experts
from engine.models import Model, Segment
from engine.sampling import log_probabilities, top_tokens

MOST_ROWS = 512  # of a piece, …
LOGITS = 1 << 24  # … which has at most so many logits


@dataclass(frozen=True, slots=True)
class Score:
    """A token's natural log probability after those before it, None for the first; and the likeliest in its place."""

    token: int
    logprob: float | None
    alternatives: tuple[tuple[int, float], ...]


class Scores:
    """The tokens of one text; `top` alternatives to each. One thread at a time."""

    def __init__(
        self,
        model: Model,
        experts: Experts,
        ids: Sequence[int],
        top: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ids = ids
        self.result: list[Score] = []
        self.state: State
        self._model = model
        self._experts = experts
        self._top = top
        self._clock = clock
        self._redos = 0
        self._begin()

    def step(self, most_rows: int = MOST_ROWS) -> bool:
        """Reads a piece; whether all is read and checked. FalsifiedTooOften."""
        doubts = self._experts.doubts
        flaw = doubts.flaw(self.state)
        if flaw is not None:
            self._redos += 1
            if self._redos > MOST_REDOS:
                raise FalsifiedTooOften(
                    f"the answer was falsified {self._redos} times, the last time because {flaw.reason}; ask again"
                )
            self._begin()
        if self.state.length < len(self.ids):
            self._read(max(1, min(most_rows, LOGITS // self._model.vocab_size)))
            return False
        if doubts.settled(self._last_pass) or self._clock() - self._read_s > doubts.patience_s:
            return doubts.flaw(self.state) is None
        doubts.wait(self._last_pass, WAIT_S)
        return False

    def _begin(self) -> None:
        self.state = self._model.new_state()
        self.result = [Score(self.ids[0], None, ())]

    def _read(self, rows: int) -> None:
        start = self.state.length
        piece = self.ids[start : start + rows]
        logits = forward(self._model, [Segment(self.state, piece, "all")], self._experts)
        self._last_pass, self._read_s = self._experts.doubts.current, self._clock()
        for token, row in zip(self.ids[start + 1 : start + rows + 1], logits, strict=False):
            values = log_probabilities(row)
            self.result.append(Score(token, float(values[token]), tuple(top_tokens(values, self._top))))
