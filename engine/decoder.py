"""The frame that plain decoders share: embedding, layers of attention and feed-forward, norm, head.

A family's file says what its layers are; how rows pass through them stands here once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from engine.arrays import F32, I32
from engine.cache import Part, State
from engine.experts import Experts
from engine.layers import DenseMLP, Norm
from engine.loader import Loader
from engine.models import Batch, Model
from engine.rotary import Rotary

Router = Callable[[F32], tuple[I32, F32]]


class Sizes(Protocol):
    """What the frame needs to know of a family's configuration."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def tied(self) -> bool: ...


class FeedForward:
    """The second half of a layer: routed experts or a dense MLP, added to what was given.

    A family sets `index`, `feed_norm`, `router` (None: no experts) and `mlp`: the dense MLP, or what is computed
    for every token beside the experts, None where there is no such thing.
    """

    index: int
    feed_norm: Norm
    router: Router | None = None
    mlp: DenseMLP | None = None

    def beside(self, rows: F32) -> F32 | None:
        """What rows [N, hidden] get whatever the router says."""
        return None if self.mlp is None else self.mlp(rows)

    def transform(self, rows: F32, experts: Experts) -> F32:
        """What experts or the dense MLP make of normed rows [N, hidden]."""
        out = None if self.router is None else experts(self.index, rows, *self.router(rows))
        always = self.beside(rows)
        if out is None:
            return np.zeros_like(rows) if always is None else always
        return out if always is None else out + always

    def feed(self, x: F32, experts: Experts) -> F32:
        """x [N, hidden] plus what experts or the dense MLP make of it."""
        return x + self.transform(self.feed_norm(x), experts)

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        if self.router is not None:
            experts.prefetch(self.index, self.router(self.feed_norm(x))[0])


class Block(FeedForward, ABC):
    """One layer of a plain decoder: attention with rotary positions, then the feed-forward part."""

    @abstractmethod
    def new_part(self, dtype: np.dtype[np.generic]) -> Part:
        """This layer's memory of one sequence."""

    @abstractmethod
    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        """x [N, hidden] plus what attention makes of it."""


C = TypeVar("C", bound=Sizes)


class Decoder(Model):
    """A model of such layers. `rotary` turns the heads of all of them."""

    def __init__(
        self, config: C, load: Loader, layer: Callable[[C, Loader, int], Block], rotary: Rotary
    ) -> None:
        self.vocab_size, self.context_length = config.vocabulary, config.context
        self.layers_count = config.layers
        self.embedding = load.embedding("model.embed_tokens", config.vocabulary, config.hidden)
        self.rotary = rotary
        self.layers = [layer(config, load, index) for index in range(config.layers)]
        self.norm = Norm(load.vector("model.norm", config.hidden), config.epsilon)
        self.head = load.head(
            "lm_head", "model.embed_tokens", config.vocabulary, config.hidden, tied=config.tied
        )
        self.resident_bytes = load.resident_bytes
        self.cache_dtype = load.cache_dtype

    def new_state(self) -> State:
        return State([layer.new_part(self.cache_dtype) for layer in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions)
        for layer in self.layers:
            x = layer.attend(x, batch, self.rotary, angles)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(self.norm(batch.select(x)))
