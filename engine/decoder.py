"""What decoders share: the frame of embedding, layers, norm and head, and how rows pass through plain layers.

A family's file says what its layers are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, Part, State
from engine.experts import Experts
from engine.kernels import RowLayer
from engine.layers import DenseMLP, Norm
from engine.loader import Loader
from engine.models import Batch, Model
from engine.rotary import Rotary
from engine.router import Router
from engine.single import SingleRow


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

    def transform(self, x: F32, experts: Experts) -> F32:
        """What experts or the dense MLP make of rows x [N, hidden], normed before."""
        if self.router is None:
            always = self.beside(self.feed_norm(x))
            return np.zeros_like(x) if always is None else always
        rows, ids, weights = self.router.normed(x, self.feed_norm)
        routed = experts.begin(self.index, rows, ids, weights)
        always = self.beside(rows)
        return routed() if always is None else routed() + always

    def feed(self, x: F32, experts: Experts) -> F32:
        """x [N, hidden] plus what experts or the dense MLP make of it."""
        return x + self.transform(x, experts)

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

    def one_row(self) -> RowLayer | None:
        """What the layer is made of, where that is attention and experts alone, as kernels take a single row through
        several; None where they cannot."""
        return None


L = TypeVar("L")
C = TypeVar("C", bound=Sizes)


class Frame(Model, Generic[L]):
    """What stands around the layers, of whatever kind they are: embedding, last norm and head."""

    def __init__(
        self,
        config: Sizes,
        load: Loader,
        layer: Callable[[int], L],
        *,
        base: str = "model",
        head: str = "lm_head",
        plus_one: bool = False,
    ) -> None:
        """layer: makes the layer of a number. base, head: what tensors are called. plus_one: see `Norm`."""
        embedding = f"{base}.embed_tokens"
        self.vocab_size, self.context_length = config.vocabulary, config.context
        self.embedding = load.embedding(embedding, config.vocabulary, config.hidden)
        self.layers = [layer(index) for index in range(config.layers)]
        self.norm = Norm(load.vector(f"{base}.norm", config.hidden), config.epsilon, plus_one=plus_one)
        self.head = load.head(head, embedding, config.vocabulary, config.hidden, tied=config.tied)
        self.resident_bytes = load.resident_bytes
        self.cache_dtype = load.cache_dtype


class Decoder(Frame[Block]):
    """A model of plain layers. `rotary` turns the heads of all of them."""

    def __init__(
        self, config: C, load: Loader, layer: Callable[[C, Loader, int], Block], rotary: Rotary
    ) -> None:
        self.rotary, self.switches_at = rotary, rotary.switches_at
        super().__init__(config, load, partial(layer, config, load))
        self._single = SingleRow([layer.one_row() for layer in self.layers])

    def new_state(self) -> State:
        return State([layer.new_part(self.cache_dtype) for layer in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions, batch.stretched)
        bank = experts.local_bank() if len(batch) == 1 else None
        at = 0
        while at < len(self.layers):
            if (
                bank is not None
                and (several := self._single.from_layer(at, self.cache_dtype, bank)) is not None
            ):
                parts = cast(list[KeyValue], batch.states[0].parts[at : at + len(several)])
                turning = angles, self.rotary.first, self.rotary.interleaved
                x = several(x, *turning, [part.place for part in parts], batch.positions)
                bank.count_hits(len(several) * several.chosen)
                at += len(several)
                continue
            layer = self.layers[at]
            x = layer.attend(x, batch, self.rotary, angles)
            if experts.looks_ahead and at + 1 < len(self.layers):
                self.layers[at + 1].guess(x, experts)
            x = layer.feed(x, experts)
            at += 1
        return self.head(batch.select(x), self.norm)
