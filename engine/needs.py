"""The memory that a model will take, from its headers alone."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

from engine.checkpoint import Checkpoint
from engine.errors import EngineError
from engine.expert_reader import ExpertReader
from engine.experts import MatrixRef
from engine.kernels.packing import choose
from engine.loader import dense_tensors, module_of
from engine.models import family_of
from engine.numerics import Weights
from engine.source import Source
from engine.weights import Outline

MARGIN = 1.05  # for what families fold, stack and fill up


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of the dense weights, of all routed experts, and of those of the largest layer, as they are kept."""

    dense: int
    experts: int
    layer: int


def needs_of(source: Source, weights: Weights) -> Needs:
    """What a checkpoint takes in a number format: experts exactly, dense weights within some percent.

    Raises EngineError and OSError as opening it does, as far as its headers and configuration tell.
    """
    checkpoint = Checkpoint.open(source)
    family = family_of(checkpoint.config)
    config = family.parse(checkpoint.config)
    layout = family.experts(config).stored_in(checkpoint)
    outline = Outline(checkpoint)
    reader = ExpertReader(checkpoint, layout, weights)
    layers = [reader.shape(layer).nbytes * layout.experts_per_layer for layer in layout.layers]
    modules: Counter[str] = Counter()
    for name in dense_tensors(checkpoint, layout, partial(family.skips, config)):
        modules[module_of(name)] += checkpoint.info(name).nbytes
    tied = not any(name.startswith("lm_head") for name in modules)
    dense = sum(_dense(outline, name, stored, weights, tied=tied) for name, stored in modules.items())
    return Needs(int(dense * MARGIN), sum(layers), max(layers, default=0))


def _dense(outline: Outline, name: str, stored_bytes: int, weights: Weights, *, tied: bool) -> int:
    """Bytes of a module that is no expert: a matrix in its packed form, embeddings as stored, all else as f32."""
    try:
        matrix = outline.whole(MatrixRef(name))
    except (EngineError, ValueError):  # a vector, a convolution, several in one tensor
        return 2 * stored_bytes
    packed = choose(matrix, weights).nbytes(matrix.rows, matrix.cols)
    if "embed" not in name:
        return packed
    return stored_bytes + (packed if tied else 0)
