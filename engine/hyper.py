"""Hyper-connections around a layer: several residual streams in place of one (see `kernels.hyper`)."""

from dataclasses import dataclass

import numpy as np

from engine.arrays import F32
from engine.kernels import rms_norm, sigmoid
from engine.kernels.hyper import collapse, spread, stream_weights
from engine.loader import Loader


@dataclass(frozen=True, slots=True)
class HyperShape:
    """`epsilon` of the norm before the weights are made; `floor` and `rounds` as in `stream_weights`."""

    hidden: int
    streams: int
    rounds: int
    floor: float
    epsilon: float

    def enter(self, rows: F32) -> F32:
        """rows [N, D] -> the same in every stream, [N, M, D]."""
        return np.repeat(rows[:, None], self.streams, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """How a layer's output goes back to the streams: post [N, M], comb [N, M, M]."""

    post: F32
    comb: F32

    def __call__(self, x: F32, y: F32) -> F32:
        """Streams x [N, M, D] and the layer's output y [N, D] -> streams [N, M, D]."""
        return spread(x, y, self.post, self.comb)


class HyperConnection:
    """One layer's way in and out of the streams; `name` is that of its tensors without `_fn`, `_base`, `_scale`."""

    def __init__(self, load: Loader, name: str, shape: HyperShape) -> None:
        weights = (2 + shape.streams) * shape.streams
        self.shape = shape
        self.raw = load.linear(f"{name}_fn", weights, shape.streams * shape.hidden, exact=True)
        self.base = load.vector(f"{name}_base", weights)
        self.scale = load.vector(f"{name}_scale", 3)

    def __call__(self, x: F32) -> tuple[F32, Mix]:
        """Streams [N, M, D] -> the layer's input [N, D], and what to do with its output."""
        s = self.shape
        raw = self.raw(rms_norm(x.reshape(len(x), -1), None, s.epsilon))
        pre, post, comb = stream_weights(raw, self.base, self.scale, s.floor, s.rounds)
        return collapse(x, pre), Mix(post, comb)


class HyperHead:
    """After the last layer: one row out of the streams, weighted by what they are."""

    def __init__(self, load: Loader, name: str, shape: HyperShape) -> None:
        self.shape = shape
        self.raw = load.linear(f"{name}_fn", shape.streams, shape.streams * shape.hidden, exact=True)
        self.base = load.vector(f"{name}_base", shape.streams)
        self.scale = load.vector(f"{name}_scale", 1)

    def __call__(self, x: F32) -> F32:
        """Streams [N, M, D] -> [N, D]."""
        raw = self.raw(rms_norm(x.reshape(len(x), -1), None, self.shape.epsilon))
        return collapse(x, sigmoid(raw * self.scale + self.base) + np.float32(self.shape.floor))
