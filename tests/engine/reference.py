"""The reference folders as tests use them: opened engines, golden answers, and distances between
distributions."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from engine.arrays import F32
from engine.cache import State
from engine.engine import Engine, Options
from engine.models import Segment
from engine.numerics import Weights
from engine.source import DirectorySource


@dataclass(frozen=True)
class Golden:
    """A folder's answers; see its README."""

    prompt: list[int]
    logits: F32
    greedy: list[int]
    step_logits: F32
    atol: float


@lru_cache(maxsize=4)
def opened(folder: Path, weights: Weights = "native") -> Engine:
    """A folder's engine; the last few stay open."""
    return Engine.open(DirectorySource(folder), Options(weights=weights))


@lru_cache(maxsize=4)
def golden(folder: Path) -> Golden:
    """A folder's answers."""
    arrays = load_file(folder / "golden.safetensors")
    atol = json.loads((folder / "golden.json").read_text())["atol"]
    return Golden(
        arrays["prompt"].tolist(),
        arrays["logits"],
        arrays["greedy"].tolist(),
        arrays["step_logits"],
        float(atol),
    )


def feed(engine: Engine, state: State, tokens: list[int]) -> F32:
    """Logits at each of `tokens`, fed to `state` in one pass."""
    return engine.model.forward([Segment(state, tokens, "all")], engine.experts)


def divergence(reference: F32, other: F32) -> float:
    """Mean Kullback-Leibler divergence in nats of softmax(other) from softmax(reference), rows being
    positions."""

    def log_softmax(x: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        wide = x.astype(np.float64)
        wide -= wide.max(-1, keepdims=True)
        return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))

    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(-1).mean())
