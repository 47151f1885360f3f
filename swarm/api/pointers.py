"""References within a JSON schema: where they point, and what becomes of them when the schema is moved."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values that are no schemas."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with schemas by names that are no keywords."""


def resolved(root: Any, reference: str, missing: Any = None) -> Any:
    """What a reference into a document, such as #/$defs/Name, stands for; `missing` when it points nowhere in it."""
    if reference != "#" and not reference.startswith("#/"):
        return missing
    found = root
    for part in unquote(reference).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and len(part) < 10 and int(part) < len(found):
            found = found[int(part)]
        else:
            return missing
    return found


def moved(schema: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The schema with references that hold when it stands at `place` of another document, such as #/properties/a."""
    whole = {key: value for key, value in schema.items() if key != "$id"}  # else they would be relative to it
    result: Mapping[str, Any] = _moved(whole, place)
    return result


def _moved(value: Any, place: str, *, named: bool = False) -> Any:
    if isinstance(value, list):
        return [_moved(item, place) for item in value]
    if not isinstance(value, Mapping):
        return value
    result = {}
    for key, inner in value.items():
        if named:
            result[key] = _moved(inner, place)
        elif key == "$ref" and isinstance(inner, str) and (inner == "#" or inner.startswith("#/")):
            result[key] = place + inner[1:]
        else:
            result[key] = inner if key in _DATA else _moved(inner, place, named=key in _NAMED)
    return result
