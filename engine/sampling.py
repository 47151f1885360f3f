"""From logits to a token: biases, penalties, temperature, cuts and the draw, the same on every machine.

The order is: constraint, logit bias, repeat penalty, presence and frequency penalties, temperature, top-k,
top-p, min-p, draw. Arithmetic is f32 and f64 elementwise with our own `exp`; sums run in token order; ties
go to the lower id. Luck is a function of (seed, how many tokens were drawn before), so a reply can be
repeated and no draw depends on another's history.

Tokens less than e⁻³⁰ times as probable as the best are never drawn: it keeps a draw from sorting the whole
vocabulary.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.arrays import F32, Array
from engine.config import Reader
from engine.errors import SettingsError
from engine.kernels import exp, log

NEGLIGIBLE = 30.0  # nats below the best token
MASK64 = (1 << 64) - 1
LN2 = 0.6931471805599453
LARGEST_BIAS = 1e9


class Constraint(Protocol):
    """What a grammar allows next. One instance a sequence."""

    def allowed(self) -> Array | None:
        """bool [V], True where a token may come next; None when anything may."""
        ...

    def accept(self, token: int) -> None:
        """`token` was taken."""
        ...

    def restart(self) -> None:
        """No token was taken."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. The defaults are greedy: the most probable token.

    temperature: 0 is greedy; else logits are divided by it. top_k: 0 is off. top_p, min_p: probabilities in
    [0, 1]. repeat_penalty: divides positive and multiplies negative logits of tokens in the last
    `repeat_window` tokens, prompt included (−1: all of them). presence_penalty, frequency_penalty:
    subtracted once, or once an occurrence, for tokens of the reply. logit_bias: added, by token id. seed:
    luck; the caller picks one when the user gave none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_window: int = -1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repeat_penalty", 0.01, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"{name} is {value}; it must lie between {low:g} and {high:g}")
        if self.top_k < 0:
            raise SettingsError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if self.repeat_window < -1:
            raise SettingsError(f"repeat_window is {self.repeat_window}; it must be -1 (all) or more")
        if not 0 <= self.seed <= MASK64:
            raise SettingsError(f"seed is {self.seed}; it must lie between 0 and 2^64 - 1")
        if not all(abs(bias) <= LARGEST_BIAS for bias in self.logit_bias.values()):
            raise SettingsError(f"logit_bias holds a value that is not finite, or beyond {LARGEST_BIAS:,.0f}")

    @property
    def greedy(self) -> bool:
        """Whether no luck is involved."""
        return self.temperature == 0.0 or self.top_k == 1


def preferred(generation: Mapping[str, Any], said: Mapping[str, Any]) -> Sampling:
    """What a user said, by `Sampling`'s names; elsewhere the model's generation_config.json; luck of our own.

    ConfigError for what is no number there, SettingsError for one out of its range.
    """
    read = Reader(generation, "generation_config.json")
    values: dict[str, Any] = {"temperature": 0.0}
    if read.flag("do_sample", default=False):
        values["temperature"] = read.number("temperature", default=1.0)
        values["top_k"] = int(read.number("top_k", default=50))
        values["top_p"] = read.number("top_p", default=1.0)
        values["min_p"] = read.number("min_p", default=0.0)
    values["repeat_penalty"] = read.number("repetition_penalty", default=1.0)
    values.update(said)
    values.setdefault("seed", secrets.randbits(63))
    return Sampling(**values)


class Sampler:
    """Chooses the tokens of one sequence."""

    def __init__(
        self, settings: Sampling, prompt: Sequence[int] = (), constraint: Constraint | None = None
    ) -> None:
        self.settings = settings
        self.constraint = constraint
        self._prompt = list(prompt) if settings.repeat_penalty != 1.0 else []
        self._drawn: list[int] = []
        self._counts: Counter[int] = Counter()
        self._changes = bool(
            settings.logit_bias
            or settings.repeat_penalty != 1.0
            or settings.presence_penalty
            or settings.frequency_penalty
            or constraint is not None
        )

    def choose(self, logits: F32) -> int:
        """The next token for logits [V], which stay as they are. Remembers it."""
        settings = self.settings
        scores = self._adjusted(logits) if self._changes else logits
        if settings.greedy:
            token = int(np.argmax(scores))
        else:
            tokens, probabilities = candidates(scores, settings)
            token = int(tokens[draw(probabilities, uniform(settings.seed, len(self._drawn)))])
        self._drawn.append(token)
        self._counts[token] += 1
        if self.constraint is not None:
            self.constraint.accept(token)
        return token

    @property
    def drawn(self) -> int:
        """How many tokens were chosen."""
        return len(self._drawn)

    def rewind(self, count: int) -> None:
        """Forgets all but the first `count` tokens; what is chosen next has the luck it had then."""
        if count >= len(self._drawn):
            return
        del self._drawn[count:]
        self._counts = Counter(self._drawn)
        if self.constraint is not None:
            self.constraint.restart()
            for token in self._drawn:
                self.constraint.accept(token)

    def _adjusted(self, logits: F32) -> F32:
        settings = self.settings
        scores = logits.copy()
        if self.constraint is not None:
            allowed = self.constraint.allowed()
            if allowed is not None:
                scores[: len(allowed)][~allowed[: len(scores)]] = -np.inf
        for token, bias in settings.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += np.float32(bias)
        if settings.repeat_penalty != 1.0:
            seen = self._seen(len(scores))
            penalty = np.float32(settings.repeat_penalty)
            old = scores[seen]
            scores[seen] = np.where(old > 0, old / penalty, old * penalty)
        if self._counts and (settings.presence_penalty or settings.frequency_penalty):
            tokens = np.fromiter(self._counts, np.intp)
            counts = np.fromiter(self._counts.values(), np.float32)
            scores[tokens] -= (
                np.float32(settings.presence_penalty) + np.float32(settings.frequency_penalty) * counts
            )
        return scores

    def _seen(self, vocabulary: int) -> Array:
        history = self._prompt + self._drawn
        window = self.settings.repeat_window
        recent = history if window < 0 else history[len(history) - min(window, len(history)) :]
        seen = np.unique(np.array(recent, np.intp))
        return seen[seen < vocabulary]


def is_computed(logits: F32) -> bool:
    """Whether logits [V] have a largest number: damaged weights make NaN and infinity."""
    return bool(np.isfinite(logits.max()))


def candidates(scores: F32, settings: Sampling) -> tuple[Array, Array]:
    """Tokens that may be drawn, most probable first, and their f64 weights (not normalised) after all
    cuts."""
    best = scores.max()
    temperature = np.float32(settings.temperature)
    cut = best - np.float32(NEGLIGIBLE) * temperature
    if settings.top_k and settings.top_k < len(scores):
        cut = max(cut, np.partition(scores, len(scores) - settings.top_k)[len(scores) - settings.top_k])
    tokens = np.flatnonzero(scores >= cut)
    tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
    if settings.top_k:
        tokens = tokens[: settings.top_k]
    weights = exp((scores[tokens] - best) / temperature).astype(np.float64)
    if settings.top_p < 1.0:
        sums = np.cumsum(weights)
        keep = int(np.searchsorted(sums, settings.top_p * sums[-1])) + 1
        tokens, weights = tokens[:keep], weights[:keep]
    if settings.min_p > 0.0:
        keep = max(int(np.count_nonzero(weights >= settings.min_p * weights[0])), 1)
        tokens, weights = tokens[:keep], weights[:keep]
    return tokens, weights


def draw(weights: Array, luck: float) -> int:
    """The index at which the running sum of f64 weights passes `luck` (in [0, 1)) of the whole."""
    sums = np.cumsum(weights)
    return min(int(np.searchsorted(sums, luck * sums[-1], side="right")), len(weights) - 1)


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) that depends on (seed, counter) only: two rounds of SplitMix64's mixing."""
    mixed = _mix((_mix((seed + 0x9E3779B97F4A7C15) & MASK64) + counter * 0xD1342543DE82EF95) & MASK64)
    return (mixed >> 11) / (1 << 53)


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014), a bijection of 64 bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def log_probabilities(logits: F32) -> Array:
    """Natural logarithms of softmax(logits [V]), float64 [V]; the same on every machine."""
    shifted = logits - logits.max()
    total = np.cumsum(exp(shifted).astype(np.float64))[-1]
    # log() is f32: split off the power of two, so that the sum's logarithm is good to f64's needs here.
    fraction, power = np.frexp(total)
    logarithm = float(log(np.array([fraction], np.float32))[0]) + int(power) * LN2
    return np.asarray(shifted.astype(np.float64) - logarithm)


def top_tokens(values: Array, count: int) -> Iterable[tuple[int, float]]:
    """The `count` largest entries as (index, value), ties to the lower index."""
    count = min(count, len(values))
    if count <= 0:
        return []
    cut = np.partition(values, len(values) - count)[len(values) - count]
    found = np.flatnonzero(values >= cut)
    found = found[np.argsort(-values[found], kind="stable")][:count]
    return [(int(index), float(values[index])) for index in found]
