"""Experts that are wrong now and then, and are found out later."""

from collections.abc import Callable, Iterable

import numpy as np

from engine.arrays import F32, I32
from engine.doubts import Doubts
from engine.experts import Experts

LIE = "donor 12 lied"


class Liar:
    """Experts that give wrong outputs in some passes; in `found` of them it comes to light which were wrong."""

    looks_ahead = False
    far = False

    def __init__(
        self, experts: Experts, lies: Iterable[int], found: Iterable[int] = (), size: float = 9.0
    ) -> None:
        self.experts, self.lies, self.found, self.size = experts, set(lies), set(found), size
        self.doubts = Doubts()

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return work()

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        return lambda: self._lied(layer, rows, ids, weights)

    def _lied(self, layer: int, rows: F32, ids: I32, weights: F32) -> F32:
        number = self.doubts.current
        if number in self.found:
            self.found.discard(number)
            self.convict()
        right = self.experts.begin(layer, rows, ids, weights)()
        return np.asarray(right * np.float32(-self.size)) if number in self.lies else right

    def convict(self) -> None:
        """It comes to light."""
        self.doubts.withdraw(min(self.lies), max(self.lies), LIE)

    def wait_for_it(self) -> None:
        """It comes to light when a reply that is complete waits for its checks."""
        self.doubts.open(1)
        self.doubts.wait = self._judged  # type: ignore[method-assign]

    def _judged(self, number: int, timeout_s: float) -> bool:
        if self.lies:
            self.lies &= set(range(number + 1))
            self.convict()
            self.lies.clear()
            self.doubts.close(1)
        return True

    def local_bank(self) -> None:
        """See `engine.experts.Experts`."""

    def prefetch(self, layer: int, ids: I32) -> None:
        raise AssertionError("nobody looks ahead here")
