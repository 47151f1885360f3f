"""Which experts a token goes to, and with what weights.

Logits are computed on the float path from f32 weights, whatever the weights format. Ties go to the lower
index.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import F32, I32
from engine.kernels import RowRoute, sigmoid, softmax, softplus, sums, topk
from engine.layers import Linear, Norm


class Router(ABC):
    """Chooses experts for rows by their logits alone."""

    alone: RowRoute | None
    """What does it for a single row in one call, norm included, where it can be."""

    @abstractmethod
    def __call__(self, x: F32) -> tuple[I32, F32]:
        """x [N, D] -> ids int32 [N, k], best first, and weights f32 [N, k]."""

    def normed(self, x: F32, norm: Norm) -> tuple[F32, I32, F32]:
        """x [N, D] -> x normed, and the choice for that."""
        if self.alone is not None and len(x) == 1:
            return self.alone(x, norm.alone)
        rows = norm(x)
        return rows, *self(rows)


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxRouter(Router):
    """The k largest of softmax(logits); `normalise` divides their weights by their sum."""

    logits: Linear
    k: int
    normalise: bool
    alone: RowRoute | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gate, alone = self.logits, None
        if RowRoute.serves(gate.matrix):
            alone = RowRoute(gate.matrix, gate.bias, self.k, normalise=self.normalise)
        object.__setattr__(self, "alone", alone)

    def __call__(self, x: F32) -> tuple[I32, F32]:
        """x [N, D] -> ids int32 [N, k], best first, and weights f32 [N, k]."""
        ids, weights = topk(softmax(self.logits(x)), self.k)
        if self.normalise:
            weights = weights / sums(weights)[:, None]
        return ids, weights


def grouped(scores: F32, groups: int, kept: int, best: int = 2) -> F32:
    """Scores [N, E] with −∞ outside the `kept` best of `groups` equal groups; a group's worth is the sum of
    its `best` best."""
    count = scores.shape[1] // groups
    split = scores.reshape(-1, groups, count)
    tops = topk(np.ascontiguousarray(split.reshape(-1, count)), min(best, count))[1]
    chosen = topk(sums(tops).reshape(-1, groups), kept)[0]
    mask = np.zeros((len(scores), groups), np.bool_)
    np.put_along_axis(mask, chosen.astype(np.intp), True, 1)
    return np.where(mask[:, :, None], split, np.float32(-np.inf)).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class SigmoidRouter(Router):
    """The k largest of sigmoid(logits) + `correction`, within the best `groups_kept` of `groups` groups.

    `correction` f32 [E] steers the choice alone: the weights are the scores without it, with `normalise`
    divided by their sum, and times `scale` (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    logits: Linear
    k: int
    correction: F32 | None = None
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    alone: RowRoute | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gate, alone = self.logits, None
        if self.groups_kept >= self.groups and RowRoute.serves(gate.matrix):
            alone = RowRoute(
                gate.matrix, gate.bias, self.k, sigmoids=True, correction=self.correction,
                normalise=self.normalise, factor=self.scale,
            )  # fmt: skip
        object.__setattr__(self, "alone", alone)

    def __call__(self, x: F32) -> tuple[I32, F32]:
        """x [N, D] -> ids int32 [N, k], best first, and weights f32 [N, k]."""
        scores = sigmoid(self.logits(x))
        choice = scores if self.correction is None else scores + self.correction
        if self.groups_kept < self.groups:
            choice = grouped(choice, self.groups, self.groups_kept)
        ids = topk(choice, self.k)[0]
        weights = np.take_along_axis(scores, ids.astype(np.intp), 1)
        if self.normalise:
            weights = weights / (sums(weights) + np.float32(1e-20))[:, None]
        return ids, weights * np.float32(self.scale)


SCORES: Mapping[str, Callable[[F32], F32]] = {
    "sqrtsoftplus": lambda logits: np.sqrt(softplus(logits)),
    "sigmoid": sigmoid,
    "softmax": softmax,
}


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRouter:
    """The k largest of score(logits) + `correction`, or those that `table` int32 [vocabulary, k] gives the token.

    The weights are the scores without the correction, divided by their sum, times `scale` (DeepSeek-V4).
    """

    logits: Linear
    k: int
    score: Callable[[F32], F32]
    scale: float
    correction: F32 | None = None
    table: I32 | None = None

    def __call__(self, x: F32, tokens: I32) -> tuple[I32, F32]:
        """x [N, D], tokens [N] -> ids int32 [N, k] and weights f32 [N, k]."""
        scores = self.score(self.logits(x))
        if self.table is not None:
            ids: I32 = self.table[tokens]
        else:
            ids = topk(scores if self.correction is None else scores + self.correction, self.k)[0]
        weights = np.take_along_axis(scores, ids.astype(np.intp), 1)
        weights = weights / (sums(weights) + np.float32(1e-20))[:, None]
        return ids, weights * np.float32(self.scale)
