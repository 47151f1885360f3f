"""Looking at a model directory before anybody is told of it: is it whole, and can the engine run it?"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.checkpoint import Checkpoint, config_in, read_json
from engine.errors import EngineError
from engine.gguf import presented
from engine.models import family_of
from engine.sampling import preferred
from engine.source import DirectorySource, Source
from engine.template import ChatTemplate
from engine.tokenizer import Tokenizer
from engine.weights import byte_ranges

GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What config.json and the headers of the weights tell of a model."""

    family: str
    experts_in_layer: tuple[int, ...]
    """Routed experts of each layer, 0 for a dense one; as long as the last layer that has any."""
    tensors: int
    weight_bytes: int
    formats: tuple[str, ...]
    """Stored number formats, the one with most bytes first."""
    trouble: tuple[str, ...] = ()
    """What those who chat with the model as it is will be told."""


def inspect(directory: Path, only: Collection[str] | None = None) -> ModelFacts:
    """Reads config.json, every header, the tokenizer, the template and generation_config.json, but not the weights.

    `only`: the files that are the model; None: all that lie there.

    Raises:
        EngineError: something is missing, cut short, hostile, or of a family that the engine does not know.
        OSError: a file cannot be read.
    """
    with DirectorySource(directory, only) as source:
        config_in(source, directory)
        checkpoint = Checkpoint.open(source)
        facts = facts_of(checkpoint)
        return replace(facts, trouble=tuple(_trouble(checkpoint.source)))


def chat_trouble(source: Source) -> tuple[str, ...]:
    """What those who chat with a model of somebody else's will be told, for what it says of tokens, template and
    generation. Blocks; OSError when that cannot be read."""
    try:
        return tuple(_trouble(presented(source)))
    except EngineError as error:
        return (str(error),)


def _trouble(source: Source) -> Iterator[str]:
    """What keeps a first question from being answered with the model's own settings, by the file at fault.

    EngineError when one of these files cannot be used at all.
    """
    tokenizer = Tokenizer.open(source)
    template = None if tokenizer is None else ChatTemplate.open(source, tokenizer)
    generation = read_json(source, GENERATION) or {}
    try:
        preferred(generation, {})
    except EngineError as error:
        yield f"{GENERATION}: {str(error).removeprefix(f'{GENERATION}: ')}"
    if template is not None:
        try:
            template.prompt([{"role": "user", "content": "Hello"}])
        except EngineError as error:
            yield f"the chat template: {error}"


def facts_of(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of an open checkpoint. EngineError, naming the tensor, when an expert is not there."""
    family = family_of(checkpoint.config)
    layout = family.experts(family.parse(checkpoint.config)).stored_in(checkpoint)
    for layer, expert in layout.all():
        byte_ranges(checkpoint, list(layout.refs(layer, expert)))
    counts = [0] * (max(layout.layers, default=-1) + 1)
    for layer in layout.layers:
        counts[layer] = layout.experts_per_layer
    by_format: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        by_format[tensor.dtype] = by_format.get(tensor.dtype, 0) + tensor.nbytes
    return ModelFacts(
        family=family.name,
        experts_in_layer=tuple(counts),
        tensors=len(checkpoint.tensors),
        weight_bytes=sum(by_format.values()),
        formats=tuple(sorted(by_format, key=lambda dtype: -by_format[dtype])),
    )
