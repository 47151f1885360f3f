"""How a model asks for its routed experts, and where a checkpoint keeps them.

A model calls `experts.begin(layer, rows, ids, weights)` and does not know who computes: this process from memory,
this process from disk, or peers. `ExpertLayout` says where the matrices of expert (layer, e) lie, from the
configuration and the headers alone, so that whoever only runs experts need not build a model.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from engine.arrays import F32, I32
from engine.errors import Cancelled, ConfigError

if TYPE_CHECKING:
    from engine.doubts import Doubts
    from engine.expert_bank import ExpertBank
    from engine.kernels import Activation

MOST_EXPERTS = 1 << 18  # of a model, in all its layers: three times those of the largest there is


class Experts(Protocol):
    """Runs the routed experts of one layer for some rows. Implementations wrap each other."""

    @property
    def looks_ahead(self) -> bool:
        """Whether `prefetch` is of use: a model then guesses the next layer's experts and says so."""
        ...

    @property
    def far(self) -> bool:
        """Whether they are asked for at a distance: a pass of some rows then takes hardly longer than one of one."""
        ...

    @property
    def doubts(self) -> "Doubts":
        """Which of the passes so far turned out to be wrong."""
        ...

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """What `work` returns or raises: a whole pass of so many rows, which asks for experts; in any thread."""
        ...

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """rows [N, D], ids [N, k], weights [N, k] -> what gives, called once, the sum over k of weights · expert(rows),
        [N, D]. Experts elsewhere are asked at once, so what else there is to compute is best computed in between.

        The sum runs in the order of `ids`. Either call raises ExpertsUnavailable or Cancelled.
        """
        ...

    def local_bank(self) -> "ExpertBank | None":
        """What holds the experts, where all that are asked for are run in this process: a model may then take a row
        through several layers in one call. None otherwise. Raises Cancelled as `begin` does."""
        ...

    def prefetch(self, layer: int, ids: I32) -> None:
        """A hint that these experts of `layer` will probably be asked for next. Returns at once."""
        ...


class Stoppable:
    """Experts whose forward pass ends with Cancelled once `stops()` says so, in the thread of the pass: at the next
    layer, or before the next call that takes a row through several."""

    def __init__(self, experts: Experts, stops: Callable[[], bool]) -> None:
        self._experts = experts
        self._stops = stops

    @property
    def looks_ahead(self) -> bool:
        """See `Experts`."""
        return self._experts.looks_ahead

    @property
    def far(self) -> bool:
        """See `Experts`."""
        return self._experts.far

    @property
    def doubts(self) -> "Doubts":
        """See `Experts`."""
        return self._experts.doubts

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `Experts`."""
        return self._experts.run_pass(rows, work)

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """See `Experts`."""
        self._check()
        return self._experts.begin(layer, rows, ids, weights)

    def local_bank(self) -> "ExpertBank | None":
        """See `Experts`."""
        self._check()
        return self._experts.local_bank()

    def prefetch(self, layer: int, ids: I32) -> None:
        """See `Experts`."""
        self._experts.prefetch(layer, ids)

    def _check(self) -> None:
        if self._stops():
            raise Cancelled("the forward pass was stopped; it can begin anew")


@dataclass(frozen=True, slots=True)
class MatrixRef:
    """Where one matrix [outputs, inputs] lies: a module's weight, or part of a tensor that holds many.

    `name` is the module ("model.layers.0.mlp.experts.3.gate_proj"), whatever suffixes the stored format
    adds, or the bare tensor where releases omit ".weight". `index` picks from a leading dimension [experts,
    …]. Of the outputs, every `step`-th from `first` is taken, `count` in all (None: to the end).
    `transposed`: stored as [inputs, outputs].
    """

    name: str
    index: int | None = None
    first: int = 0
    step: int = 1
    count: int | None = None
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class ExpertRefs:
    """The matrices (and biases, where the family has them) of one expert."""

    gate: MatrixRef
    up: MatrixRef
    down: MatrixRef
    gate_bias: MatrixRef | None = None
    up_bias: MatrixRef | None = None
    down_bias: MatrixRef | None = None

    @classmethod
    def within(cls, name: str, parts: Sequence[str] = ("gate_proj", "up_proj", "down_proj")) -> "ExpertRefs":
        """Three matrices of their own below a name: gate, up and down."""
        return cls(*(MatrixRef(f"{name}.{part}") for part in parts))

    def __iter__(self) -> Iterator[MatrixRef]:
        for ref in (self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias):
            if ref is not None:
                yield ref


def mlp_experts(layer: int, expert: int) -> ExpertRefs:
    """Where most releases keep an expert."""
    return ExpertRefs.within(f"model.layers.{layer}.mlp.experts.{expert}")


def block_sparse_experts(layer: int, expert: int) -> ExpertRefs:
    """Where Mixtral and those named after it keep an expert."""
    return ExpertRefs.within(f"model.layers.{layer}.block_sparse_moe.experts.{expert}", ("w1", "w3", "w2"))


@dataclass(frozen=True)
class ExpertLayout:
    """All routed experts of a model: which layers have them, how many, how large, and where they lie.

    Whoever opens a model goes through all of them, so more than `MOST_EXPERTS` are a ConfigError.
    """

    hidden: int  # inputs and outputs of an expert (the latent width where experts are latent)
    intermediate: int
    activation: "Activation"
    experts_per_layer: int
    layers: Sequence[int]
    refs: Callable[[int, int], ExpertRefs]  # (layer, expert)
    others: Sequence[Callable[[int, int], ExpertRefs]] = ()  # where they lie in other releases of the family

    def __post_init__(self) -> None:
        if len(self.layers) * self.experts_per_layer > MOST_EXPERTS:
            raise ConfigError(
                f"config.json describes {len(self.layers):,} layers of {self.experts_per_layer:,} experts; "
                f"more than {MOST_EXPERTS:,} in all are not believable"
            )

    def stored_in(self, tensors: Container[str]) -> "ExpertLayout":
        """This layout with that one of `refs` and `others` which a checkpoint follows (none: the first)."""
        for refs in (self.refs, *self.others) if self.others and self.layers else ():
            name = refs(self.layers[0], 0).down.name
            if any(name + suffix in tensors for suffix in ("", ".weight", ".weight_packed", "_blocks")):
                return replace(self, refs=refs, others=())
        return self

    def all(self) -> Iterable[tuple[int, int]]:
        """Every (layer, expert)."""
        return ((layer, expert) for layer in self.layers for expert in range(self.experts_per_layer))
