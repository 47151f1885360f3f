"""One reply, token by token, and its text; and the bare logits of given tokens."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from engine.arrays import F32
from engine.batch import ReplyBatch
from engine.cache import State
from engine.doubts import forward, relied_upon
from engine.experts import Experts
from engine.models import Model, Segment
from engine.reply import BatchEvent, Reply, Token

LOGITS_ROWS = 512  # rows of a forward pass


def never() -> bool:
    """Nobody asks to stop."""
    return False


def generate(
    model: Model,
    experts: Experts,
    reply: Reply,
    cancelled: Callable[[], bool] = never,
    complete: Callable[[], bool] = never,
) -> Iterator[BatchEvent]:
    """Makes one reply alone; ends with Done unless `cancelled()`, asked between steps, says True.

    `complete()`, asked before each token, says that no more are wanted.
    """
    batch = ReplyBatch(model, experts)
    batch.add(reply)
    while len(batch):
        if cancelled():
            batch.remove(reply)
            return
        if complete():
            batch.end(reply, "stop")
        needless = 0
        for event in batch.step():
            if isinstance(event, Token) and complete():
                needless += 1
            else:
                yield event
        if needless:
            reply.leave_out(needless)


def logits(model: Model, experts: Experts, ids: Sequence[int]) -> F32:
    """Logits [len(ids), vocabulary] at every position of a sequence of tokens."""
    return relied_upon(model, experts, lambda state: _rows(model, experts, state, ids))


def greedy(model: Model, experts: Experts, ids: Sequence[int], count: int) -> tuple[list[int], F32]:
    """The `count` most probable next tokens, stop tokens not heeded, and the logits they were taken from."""

    def make(state: State) -> tuple[list[int], F32]:
        tokens: list[int] = []
        rows: list[F32] = []
        feed: Sequence[int] = ids
        while len(tokens) < count and experts.doubts.flaw(state) is None:
            for start in range(0, len(feed), LOGITS_ROWS):
                out = forward(model, [Segment(state, feed[start : start + LOGITS_ROWS])], experts)
            rows.append(out[-1])
            tokens.append(int(np.argmax(out[-1])))
            feed = tokens[-1:]
        return tokens, np.stack(rows) if rows else np.zeros((0, model.vocab_size), np.float32)

    return relied_upon(model, experts, make)


def continued(model: Model, experts: Experts, ids: Sequence[int], count: int) -> tuple[F32, list[int]]:
    """Logits [len(ids), vocabulary] at every position of a sequence, and the `count` most probable next tokens."""

    def make(state: State) -> tuple[F32, list[int]]:
        rows = _rows(model, experts, state, ids)
        tokens = [] if not count else [int(np.argmax(rows[-1]))]
        while len(tokens) < count and experts.doubts.flaw(state) is None:
            out = forward(model, [Segment(state, tokens[-1:])], experts)
            tokens.append(int(np.argmax(out[-1])))
        return rows, tokens

    return relied_upon(model, experts, make)


def _rows(model: Model, experts: Experts, state: State, ids: Sequence[int]) -> F32:
    rows = [
        forward(model, [Segment(state, ids[start : start + LOGITS_ROWS], "all")], experts)
        for start in range(0, len(ids), LOGITS_ROWS)
    ]
    return np.concatenate(rows) if rows else np.zeros((0, model.vocab_size), np.float32)


class StopTexts:
    """Passes text on until one of some texts occurs in it; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What can be shown now. After a stop text was found, nothing more."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            shown, self._held = self._held[:place], ""
            return shown
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown

    def end(self) -> str:
        """What was held back although no stop text came."""
        shown, self._held = self._held, ""
        return shown


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
