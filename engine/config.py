"""Reading config.json strictly: each value has a type, a range and, where releases leave it out, a
default."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, overload

from engine.errors import ConfigError

T = TypeVar("T")
REQUIRED: Any = object()
LARGEST = 1 << 31  # no count in a configuration is larger
LARGEST_NUMBER = 3.5e38  # … and no number: all are computed with in f32
# Of numbers that others are divided by, or whose powers are taken.
SMALLEST_DIVISOR, LARGEST_DIVISOR = 1e-12, 1e12
# … and of these, over which a reader loops before any weight is seen, none comes near:
MOST = {
    "num_hidden_layers": 1 << 12,
    "num_experts": 1 << 16,
    "num_local_experts": 1 << 16,
    "n_routed_experts": 1 << 16,
    "head_dim": 1 << 16,
    "qk_rope_head_dim": 1 << 16,
    "hc_sinkhorn_iters": 1 << 10,
}

# How many experts a token goes to, and from how many they are chosen.
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
CHOSEN_FROM = ("num_experts", "num_local_experts", "n_routed_experts")


def finite(value: object) -> float | None:
    """A JSON number as a float; None for all else, infinities, NaN and what no float can hold among it."""
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Reader:
    """Values of one JSON object. ConfigError names the key and what is wrong with it."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def count(self, *keys: str, default: Any = REQUIRED, least: int = 1, most: int = LARGEST) -> int:
        """A whole number of `least` … `most`, under the first of these keys that is set."""
        value = self._first(keys, default)
        most = min(most, MOST.get(keys[0], LARGEST))
        if keys[0] in CHOSEN:
            pools = [self.values.get(key) for key in CHOSEN_FROM]
            most = min([most, *(pool for pool in pools if type(pool) is int and pool > 0)])
        if type(value) is not int or not least <= value <= most:
            limits = f"at least {least}" if most == LARGEST else f"{least} to {most}"
            raise self._wrong(keys[0], value, f"a whole number of {limits}")
        return value

    def divisor(self, *keys: str, of: int, default: Any = REQUIRED) -> int:
        """A whole number by which `of` can be divided (key and value heads by which query heads are shared,
        groups …)."""
        value = self.count(*keys, default=default)
        if of % value:
            raise self._wrong(keys[0], value, f"a divisor of {of}")
        return value

    @overload
    def number(self, *keys: str) -> float: ...
    @overload
    def number(self, *keys: str, default: float) -> float: ...
    @overload
    def number(self, *keys: str, default: None) -> float | None: ...
    def number(self, *keys: str, default: Any = REQUIRED) -> float | None:
        """A number of at most ±`LARGEST_NUMBER`; None only if that is the default."""
        value = self._first(keys, default)
        if value is None:
            return None
        number = finite(value)
        if number is None or abs(number) > LARGEST_NUMBER:
            raise self._wrong(keys[0], value, "a number")
        return number

    def scale(self, *keys: str, default: float, zero: float | None = None) -> float:
        """A number above 0 that others can be divided by. `zero`: what 0 stands for, where it may be given."""
        value = self.number(*keys, default=default)
        if value == 0.0 and zero is not None:
            return zero
        if not SMALLEST_DIVISOR <= value <= LARGEST_DIVISOR:
            raise self._wrong(keys[0], value, f"a number of {SMALLEST_DIVISOR:g} to {LARGEST_DIVISOR:g}")
        return value

    def flag(self, *keys: str, default: Any = REQUIRED) -> bool:
        """true or false."""
        value = self._first(keys, default)
        if type(value) is not bool:
            raise self._wrong(keys[0], value, "true or false")
        return value

    def text(self, *keys: str, default: Any = REQUIRED) -> str:
        """A text."""
        value = self._first(keys, default)
        if not isinstance(value, str):
            raise self._wrong(keys[0], value, "a text")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self._first((key,), REQUIRED)
        found = [finite(item) for item in value] if isinstance(value, list | tuple) else [None]
        numbers = tuple(item for item in found if item is not None)
        if len(numbers) < len(found):
            raise self._wrong(key, value, "a list of numbers")
        return numbers

    def counts(self, key: str, default: Any = REQUIRED, *, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers of at least `least`."""
        value = self._first((key,), default)
        if not isinstance(value, list | tuple) or not all(type(i) is int and i >= least for i in value):
            raise self._wrong(key, value, f"a list of whole numbers of at least {least}")
        return tuple(value)

    def texts(self, key: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """A list of texts."""
        value = self._first((key,), default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of texts")
        return tuple(value)

    def kinds(
        self,
        key: str,
        layers: int,
        usual: Sequence[str],
        known: Collection[str],
        *,
        spellings: Mapping[str, str] | None = None,
        longer: bool = False,
    ) -> tuple[str, ...]:
        """The kind of each layer, one of `known`: a list of texts, or what is `usual`.

        spellings: other words for kinds. longer: the list may go on beyond the layers.
        """
        found = tuple((spellings or {}).get(kind, kind) for kind in self.texts(key, usual))
        found = found[:layers] if longer else found
        if len(found) != layers or not {*found} <= {*known}:
            raise ConfigError(f"{self.where}: {key} does not name one known kind for each of {layers} layers")
        return found

    def part(self, key: str) -> "Reader":
        """An object within the object."""
        value = self._first((key,), REQUIRED)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Reader(value, f"{self.where}: {key}")

    def refuse(self, **understood: object) -> None:
        """Refuses features the family does not compute.

        Each keyword is a key with the only value (or tuple of values) that is understood; absent and null
        pass.
        """
        for key, values in understood.items():
            value = self.values.get(key)
            options = values if isinstance(values, tuple) else (values,)
            if value is not None and value not in options:
                raise ConfigError(
                    f"{self.where} asks for {key} = {repr(value)[:80]}, which this family's reader does not know"
                )

    def _first(self, keys: Sequence[str], default: Any) -> Any:
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        if default is REQUIRED:
            raise ConfigError(
                f"{self.where} does not say {' or '.join(keys)}; it belongs to another kind of model"
            )
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} is {repr(value)[:80]}; {wanted} is expected")


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of a multimodal configuration, completed by what only the whole says, or what the whole
    decides (whether its head is tied); else the whole."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    inherited = {key: config[key] for key in ("quantization_config", "eos_token_id") if key in config}
    decided = {key: config[key] for key in ("tie_word_embeddings",) if config.get(key) is not None}
    return {**inherited, **text, **decided}
