"""Reading a JSON object strictly: each field has a type and a range, and a wrong one is named."""

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.api.errors import bad

DEEPEST = 100  # lists and objects within each other


def refuse_odd(value: Any, name: str) -> None:
    """Refuses JSON that is nested too deep for whatever walks it later, or holds what is no text."""
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                whole_text(item, name)
            elif isinstance(item, Mapping):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise bad(f"{name} is nested more than {DEEPEST} deep.")


class Fields:
    """The fields of one JSON object; `path` says where it stands in the request."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, Mapping):
            raise bad(f"{path or 'The request body'} must be a JSON object.", path or None)
        self._value: Mapping[str, Any] = value
        self._path = path

    def name(self, key: str) -> str:
        """The full name of a field."""
        return f"{self._path}.{key}" if self._path else key

    def get(self, key: str) -> Any:
        """The field as it is; None when it is missing or null."""
        return self._value.get(key)

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._value.get(key) is not None

    def text(self, key: str, *, limit: int = 1 << 26) -> str | None:
        """A string without lone surrogates."""
        value = self.get(key)
        if value is None:
            return None
        return whole_text(value, self.name(key), limit)

    def need_text(self, key: str) -> str:
        """A string that must be there."""
        value = self.text(key)
        if value is None:
            raise bad(f"{self.name(key)} is missing; it must be a string.", self.name(key))
        return value

    def flag(self, key: str) -> bool:
        """A boolean, False when missing."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise bad(f"{self.name(key)} must be true or false.", self.name(key))
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        """A whole number within a range."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad(f"{self.name(key)} must be a whole number from {low} to {high}.", self.name(key))
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        """A finite number within a range."""
        value = self.get(key)
        if value is None:
            return None
        return finite(value, self.name(key), low, high)

    def choice(self, key: str, choices: Sequence[str]) -> str | None:
        """One of some words."""
        value = self.get(key)
        if value is not None and value not in choices:
            raise bad(f"{self.name(key)} must be one of {', '.join(choices)}.", self.name(key))
        return value if isinstance(value, str) else None

    def items(self, key: str, *, least: int = 0, most: int = 10_000) -> list[Any] | None:
        """A list of a bounded length."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise bad(f"{self.name(key)} must be a list of {least} to {most} items.", self.name(key))
        return value

    def everything(self) -> Mapping[str, Any]:
        """All fields as they are."""
        return self._value

    def object(self, key: str) -> "Fields | None":
        """An object within this one."""
        return Fields(self.get(key), self.name(key)) if self.has(key) else None


def whole_text(value: Any, name: str, limit: int = 1 << 26) -> str:
    """A string that can be encoded; an error names the field."""
    if not isinstance(value, str) or len(value) > limit:
        raise bad(f"{name} must be a string of at most {limit} characters.", name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad(f"{name} holds half a surrogate pair, which is no character.", name) from None
    return value


def finite(value: Any, name: str, low: float, high: float) -> float:
    """A finite number within a range; an error names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"{name} must be a number from {low:g} to {high:g}.", name)  # not a number is in no range
    return float(value)
