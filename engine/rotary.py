"""Rotary position embedding as configurations spell it: which frequencies, scaled how, over which dimensions.

Frequencies and angles are f64 and computed from our own logarithm, power and sine; the tables are f32.
Scaling kinds and their formulas are those of `transformers.modeling_rope_utils`; "yarn" is Peng et al. 2023
(arXiv 2309.00071), "longrope" Ding et al. 2024 (arXiv 2402.13753): frequencies divided by one list of factors
while a sequence stays within the original context, and by another, at all of its positions, once it is longer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np

from engine.arrays import F32, I32, Array, Flags
from engine.config import LARGEST, Reader
from engine.errors import ConfigError
from engine.kernels import inverse_frequencies, rope, rope_tables

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "mrope", "proportional")
FIRST_ROWS = 512  # rows of the tables at first; doubled whenever they run out


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """What a configuration says of rotary embedding. `kind` and numbers as in `transformers`; defaults
    where it is silent."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0  # positions the model was first trained for
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    partial: float = 1.0  # share of a head's dimensions that are rotated
    short_factors: tuple[float, ...] = ()  # longrope's, one a pair
    long_factors: tuple[float, ...] = ()

    @classmethod
    def of(cls, config: Reader, theta: float = 10000.0, context: int = 0) -> Self:
        """From `rope_scaling` (which wins) or `rope_parameters`, and from `rope_theta` beside them.

        `context`: positions of the model itself. ConfigError for kinds of scaling that are not known.
        """
        key = next((key for key in ("rope_scaling", "rope_parameters") if config.values.get(key)), None)
        given: Mapping[str, Any] = config.part(key).values if key else {}
        scaling = Reader(given, f"{config.where}: {key}")
        kind = scaling.text("rope_type", "type", default="default")
        if kind not in KINDS:
            raise ConfigError(
                f"{scaling.where} asks for rotary scaling of the type {kind!r}; known are {', '.join(KINDS)}"
            )
        nested = next((name for name, value in given.items() if isinstance(value, Mapping)), None)
        if nested:
            raise ConfigError(f"{scaling.where} scales {nested!r} layers apart, which this family does not")
        own = scaling.scale("rope_theta", default=config.scale("rope_theta", default=theta))
        original = config.count(
            "original_max_position_embeddings",
            default=scaling.count("original_max_position_embeddings", default=max(context, 1)),
        )
        stretches = kind in ("yarn", "longrope") and context
        factor = scaling.scale("factor", default=context / original if stretches else 1.0)
        if (kind == "yarn" and own == 1.0) or (kind == "longrope" and original == 1):
            raise ConfigError(
                f"{scaling.where}: rotary base {own:g}, of {original} positions first, makes no frequencies of "
                f"the type {kind!r}"
            )
        lists = [
            scaling.numbers(f"{name}_factor") if kind == "longrope" else () for name in ("short", "long")
        ]
        return cls(
            theta=own,
            kind="default" if kind == "mrope" else kind,
            factor=factor,
            original_context=original,
            attention_factor=scaling.number("attention_factor", default=None),
            beta_fast=scaling.scale("beta_fast", default=32.0, zero=32.0),
            beta_slow=scaling.scale("beta_slow", default=1.0, zero=1.0),
            mscale=scaling.scale("mscale", default=0.0, zero=0.0),
            mscale_all_dim=scaling.scale("mscale_all_dim", default=0.0, zero=0.0),
            truncate=scaling.flag("truncate", default="truncate" not in given),
            low_frequency_factor=scaling.number("low_freq_factor", default=1.0),
            high_frequency_factor=scaling.number("high_freq_factor", default=4.0),
            partial=scaling.number(
                "partial_rotary_factor", default=config.number("partial_rotary_factor", default=1.0)
            ),
            short_factors=lists[0],
            long_factors=lists[1],
        )

    def context(self, configured: int) -> int:
        """Positions that can be used: those configured, or those that the scaling stretches the original
        ones to. ConfigError when these are more than can be counted."""
        stretched = self.original_context * self.factor if self.kind == "yarn" else 0.0
        if stretched > LARGEST:
            raise ConfigError(
                f"config.json stretches {self.original_context:,} positions by {self.factor:g}; no context is that long"
            )
        return max(configured, int(stretched))

    @staticmethod
    def kind_of(scaling: Mapping[str, Any]) -> str:
        """The kind of scaling that an object names."""
        return Reader(scaling).text("rope_type", "type", default="default")

    @property
    def switches_at(self) -> int | None:
        """The length beyond which a sequence is turned by `long_factors`, all of it; None for other kinds."""
        return self.original_context if self.kind == "longrope" else None

    def frequencies(self, width: int, share: float = 1.0, *, long: bool = False) -> Array:
        """Radians a position for each pair of dimensions that are turned, f64 [pairs].

        `width`: dimensions that could be turned; `share`: how many of them are, where the family turns a part.
        An odd number of them counts as one more, as in the reference. `long`: of sequences beyond `switches_at`.
        """
        if self.kind not in ("default", "proportional") and share != self.partial:
            raise ConfigError(
                f"config.json scales the rotation of {self.partial:g} of each head (partial_rotary_factor); "
                "this family turns whole heads"
            )
        share = self.partial if self.kind == "proportional" else share
        dim = int(width * share)
        pairs = (dim + 1) // 2
        if pairs < 1 or 2 * pairs > width:
            raise ConfigError(
                f"config.json turns {dim} of {width} dimensions of a head by position; they must be pairs"
            )
        if self.kind == "proportional":  # all pairs are turned, those beyond the share by nothing
            turned = int(width * share // 2)
            plain = inverse_frequencies(width, self.theta) / self.factor
            return np.where(np.arange(width // 2) < turned, plain, 0.0)
        plain = inverse_frequencies(dim, self.theta)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "longrope":
            factors = self.long_factors if long else self.short_factors
            if len(factors) != pairs or min(factors) <= 0.0:
                raise ConfigError(
                    f"config.json: {'long' if long else 'short'}_factor has {len(factors)} numbers; "
                    f"{pairs} above 0 are expected, one for each pair of dimensions"
                )
            return np.asarray(plain / np.array(factors), np.float64)
        if self.kind == "yarn":
            keep = 1.0 - self._ramp(dim)
            return plain / self.factor * (1.0 - keep) + plain * keep
        return plain

    def score_scale(self) -> float:
        """What latent attention multiplies its scores by: mscale² where `mscale_all_dim` is set."""
        stretched = yarn_scale(self.factor, self.mscale_all_dim) if self.kind != "default" else 1.0
        return stretched * stretched if self.mscale_all_dim else 1.0

    def table_scale(self) -> float:
        """What cosines and sines are multiplied by: 1 but for yarn and longrope."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            return 1.0 if self.factor <= 1.0 else math.sqrt(1.0 + ln(self.factor) / ln(self.original_context))
        if self.mscale and self.mscale_all_dim:
            return yarn_scale(self.factor, self.mscale) / yarn_scale(self.factor, self.mscale_all_dim)
        return yarn_scale(self.factor, 1.0)

    def _ramp(self, dim: int) -> Array:
        """0 for pairs that turn often within the original context (kept), 1 for those that turn seldom
        (stretched)."""

        def pair(turns: float) -> float:
            return dim * ln(self.original_context / (turns * 2 * math.pi)) / (2 * ln(self.theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, dim - 1.0)
        if low == high:
            high += 0.001
        ramp: Array = np.clip((np.arange((dim + 1) // 2) - low) / (high - low), 0.0, 1.0)
        return ramp

    def _llama3(self, plain: Array) -> Array:
        turns = self.original_context * plain / (2 * math.pi)  # within the original context
        span = (self.high_frequency_factor - self.low_frequency_factor) or 1.0
        smooth = (turns - self.low_frequency_factor) / span
        blended = (1 - smooth) * plain / self.factor + smooth * plain
        low = np.where(turns < self.low_frequency_factor, plain / self.factor, blended)
        return np.asarray(np.where(turns > self.high_frequency_factor, plain, low), np.float64)


def ln(value: float) -> float:
    """The natural logarithm, rounded from 28 decimal digits: the same on every machine, which math.log is
    not."""
    return float(Decimal(value).ln())


def yarn_scale(factor: float, mscale: float) -> float:
    """0.1 · mscale · ln(factor) + 1, at least 1."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * ln(factor) + 1.0


class Tables:
    """cos and sin of positions, growing as positions come. `frequencies` f64 [d / 2]; `scale` multiplies all."""

    def __init__(self, frequencies: Array, scale: float) -> None:
        self._frequencies = frequencies
        self._scale = scale
        self._cos: F32 = np.zeros((0, len(frequencies)), np.float32)
        self._sin = self._cos

    def at(self, positions: I32) -> tuple[F32, F32]:
        """cos and sin, f32 [N, d / 2] each."""
        last = int(positions.max(initial=0))
        if last >= len(self._cos):
            rows = max(FIRST_ROWS, 2 * len(self._cos), last + 1)
            self._cos, self._sin = rope_tables(np.arange(rows), self._frequencies, self._scale)
        return self._cos[positions], self._sin[positions]


class Rotary:
    """Turns heads by their positions. `switches_at`: the length beyond which sequences are `stretched`, if any."""

    def __init__(
        self,
        frequencies: Array,
        scale: float = 1.0,
        *,
        interleaved: bool = False,
        first: int = 0,
        stretched: Array | None = None,
        switches_at: int | None = None,
    ) -> None:
        """`frequencies` f64 [d / 2], `stretched` those of sequences longer than `switches_at`; dimensions `first`
        … `first` + d are turned; `interleaved`: pairs (2i, 2i + 1)."""
        self.switches_at = switches_at
        self._plain = Tables(frequencies, scale)
        self._stretched = None if stretched is None else Tables(stretched, scale)
        self.interleaved = interleaved
        self.first = first

    @classmethod
    def of(
        cls,
        settings: RopeSettings,
        width: int,
        share: float = 1.0,
        *,
        interleaved: bool = False,
        first: int = 0,
    ) -> Self:
        """For `share` of `width` dimensions."""
        switches_at = settings.switches_at
        return cls(
            settings.frequencies(width, share),
            settings.table_scale(),
            interleaved=interleaved,
            first=first,
            stretched=None if switches_at is None else settings.frequencies(width, share, long=True),
            switches_at=switches_at,
        )

    def angles(self, positions: I32, stretched: Flags | None = None) -> tuple[F32, F32]:
        """cos and sin at these positions, f32 [N, d / 2]: once a forward pass, for all its layers.

        `stretched` bool [N]: which rows belong to sequences longer than `switches_at`; None: none do.
        """
        cos, sin = self._plain.at(positions)
        if self._stretched is None or stretched is None or not stretched.any():
            return cos, sin
        cos[stretched], sin[stretched] = self._stretched.at(positions[stretched])
        return cos, sin

    def turn(self, x: F32, angles: tuple[F32, F32]) -> F32:
        """x [N, heads, D] turned by `angles(positions)`; a new array."""
        return rope(x, *angles, interleaved=self.interleaved, first=self.first)
