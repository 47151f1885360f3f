"""The families: one file each, found by the `model_type` of config.json.

A family file reads from top to bottom: its configuration (strict: what it does not know it refuses), where
its routed experts lie, its layers, and at the end `FAMILY`. To add one, write the file, named by the
`model_type`, and add its reference folders to the table in tests/engine/test_families.py.
"""

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from engine.arrays import F32, I32, Flags, joined
from engine.cache import State
from engine.errors import ContextFull, UnknownFamily
from engine.experts import ExpertLayout, Experts
from engine.kernels import apart

if TYPE_CHECKING:
    from engine.loader import Loader

# Model types that have another one's file.
OTHERS: Mapping[str, str] = {
    "deepseek_v32": "glm_moe_dsa",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "qwen3_5_moe_text": "qwen3_5_moe",
}
# Family file by model type, from the files' names, so that listing them loads none.
FAMILIES: Mapping[str, str] = {
    **{module.name: module.name for module in pkgutil.iter_modules(__path__)},
    **OTHERS,
}

REREAD_ROWS = 512  # of a forward pass, where a sequence is read again

C = TypeVar("C")


@dataclass(slots=True)
class Segment:
    """Consecutive new tokens of one sequence. `logits` tells of which of them logits are wanted."""

    state: State
    tokens: Sequence[int] | npt.NDArray[Any]
    logits: Literal["none", "last", "all"] = "last"


class Batch:
    """The rows of one forward pass: the tokens of all its segments, one below the other.

    tokens, positions: int32 [N]; `slices[i]` are the rows of `segments[i]`; `furthest`: the largest
    position; `wanted`: the rows whose logits are asked for; `stretched` bool [N]: which rows belong to
    sequences longer than `Model.switches_at`.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.states = [segment.state for segment in segments]
        counts = [len(segment.tokens) for segment in segments]
        ends = list(accumulate(counts))
        self.slices = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self.tokens: I32 = joined([np.asarray(segment.tokens, np.int32) for segment in segments])
        starts = [state.length for state in self.states]
        self.positions: I32 = joined(
            [
                np.arange(start, start + count, dtype=np.int32)
                for start, count in zip(starts, counts, strict=True)
            ]
        )
        self.furthest = max(
            (start + count - 1 for start, count in zip(starts, counts, strict=True)), default=0
        )
        self.stretched: Flags = joined(
            [np.full(count, state.stretched) for state, count in zip(self.states, counts, strict=True)]
        )
        wanted: list[int] = []
        for segment, rows in zip(segments, self.slices, strict=True):
            if segment.logits == "all":
                wanted.extend(range(rows.start, rows.stop))
            elif segment.logits == "last":
                wanted.append(rows.stop - 1)
        self.wanted = np.array(wanted, np.intp)

    def __len__(self) -> int:
        return len(self.tokens)

    def parts(self, index: int) -> list[Any]:
        """Part `index` of each sequence's state, in the order of the segments."""
        return [state.parts[index] for state in self.states]

    def select(self, rows: F32) -> F32:
        """Of rows [N, D], those whose logits are wanted."""
        return rows if len(self.wanted) == len(rows) else np.ascontiguousarray(rows[self.wanted])


class Model(ABC):
    """A built model: dense weights in memory, experts elsewhere. One instance, one thread at a time."""

    vocab_size: int  # columns of the logits
    context_length: int  # positions the configuration allows
    resident_bytes: int  # memory of the dense weights
    switches_at: int | None = None
    """The length beyond which all positions of a sequence are turned by other angles."""

    @abstractmethod
    def new_state(self) -> State:
        """The memory of a new, empty sequence."""

    @abstractmethod
    def run(self, batch: Batch, experts: Experts) -> F32:
        """The forward pass proper: logits [len(batch.wanted), vocab_size], writing to the batch's states."""

    def forward(self, segments: Sequence[Segment], experts: Experts) -> F32:
        """Feeds the segments' tokens to their states; returns the logits asked for, [n, vocab_size], in
        that order.

        Each row is bit for bit what it would be alone. When anything raises, all states are as before. A sequence
        that passes `switches_at` is read again from its first token, so that what follows is what a single pass
        over all of it gives.
        """
        segments = [segment for segment in segments if len(segment.tokens)]
        if not segments:
            return np.zeros((0, self.vocab_size), np.float32)
        for segment in segments:
            end = segment.state.length + len(segment.tokens)
            if end > self.context_length:
                raise ContextFull(
                    f"{end:,} tokens do not fit the model's context of {self.context_length:,}; "
                    "start a new conversation"
                )
        fitting = [self._fitting(segment, experts) for segment in segments]
        for segment in fitting:
            segment.state.prepare(len(segment.tokens))
        batch = Batch(fitting)

        def run() -> F32:
            with apart():
                return self.run(batch, experts)

        logits = experts.run_pass(len(batch.tokens), run)
        for segment, before in zip(fitting, segments, strict=True):
            segment.state.commit()
            if self.switches_at is not None:
                segment.state.tokens.extend(int(token) for token in segment.tokens)
            if segment.state is not before.state:
                before.state.become(segment.state)
        return logits

    def _fitting(self, segment: Segment, experts: Experts) -> Segment:
        """The segment; or one on another state of the same tokens, read as a sequence of the length to come."""
        state = segment.state
        stretched = self.switches_at is not None and state.length + len(segment.tokens) > self.switches_at
        if state.stretched == stretched:
            return segment
        other = self.new_state()
        other.stretched = stretched
        for start in range(0, state.length, REREAD_ROWS):
            known = Segment(other, state.tokens[start : start + REREAD_ROWS], "none")
            other.prepare(len(known.tokens))
            self.run(Batch([known]), experts)
            other.commit()
        other.tokens = list(state.tokens)
        return replace(segment, state=other)


@dataclass(frozen=True)
class Family(Generic[C]):
    """What the rest of the engine needs to know of a family.

    `parse`: config.json to the family's own frozen configuration; ConfigError for anything unknown.
    `experts`: where the routed experts lie; needs no weights and no model. `skips`: names of tensors that a
    text decoder leaves out knowingly (multi-token prediction, vision, audio). `build`: the model, its
    weights taken from the loader. `verified`: in which stored formats (`engine.weights.FORMATS`) of its
    routed experts it is held to reference answers; a test compares that with the folders.
    """

    name: str
    model_types: tuple[str, ...]
    parse: Callable[[Mapping[str, Any]], C]
    experts: Callable[[C], ExpertLayout]
    build: "Callable[[C, Loader], Model]"
    skips: Callable[[C, str], bool] = lambda config, name: False
    verified: tuple[str, ...] = ()


@cache
def _family(module: str) -> Family[Any]:
    family: Family[Any] = importlib.import_module(f"engine.models.{module}").FAMILY
    return family


def family_of(config: Mapping[str, Any]) -> Family[Any]:
    """The family of a config.json (of its text part when the whole is unknown). Raises UnknownFamily."""
    text = config.get("text_config")
    candidates = [config.get("model_type"), text.get("model_type") if isinstance(text, Mapping) else None]
    for model_type in candidates:
        if isinstance(model_type, str) and model_type in FAMILIES:
            return _family(FAMILIES[model_type])
    named = next((str(model_type)[:80] for model_type in candidates if model_type), None)
    what = f"the model type {named!r} is not known" if named else "config.json names no model_type"
    raise UnknownFamily(f"{what}; known are {', '.join(sorted(FAMILIES))}")


def families() -> list[Family[Any]]:
    """All families, by name."""
    return [_family(module) for module in sorted(set(FAMILIES.values()))]


def beyond(name: str, layers: int) -> bool:
    """Whether a tensor belongs to a layer past the last, where releases keep multi-token prediction."""
    match = re.match(r"(?:model\.)?layers\.(\d+)\.", name)
    return match is not None and int(match[1]) >= layers
