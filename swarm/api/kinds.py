"""What types of JSON a schema allows, as far as it says: through references, choices, enumerations."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeAlias

from swarm.api.pointers import resolved

Kinds: TypeAlias = frozenset[str]
"""Types by their names in JSON Schema; "integer" is "number" here."""

ANY: Kinds = frozenset({"null", "boolean", "number", "string", "array", "object"})
_DEEPEST = 32  # references and choices within each other


def kinds_of(schema: Any, root: Any) -> Kinds:
    """The types that a schema within the document `root` allows; all of them where it does not say."""
    return _kinds(schema, root, {}, 0)


def _kinds(schema: Any, root: Any, met: dict[str, Kinds], depth: int) -> Kinds:
    """See `kinds_of`. `met`: what references stand for; anything as long as that is not known."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return ANY
    limits = [_named(schema["type"])] if "type" in schema else []
    if "const" in schema:
        limits.append(frozenset({_kind(schema["const"])}))
    if isinstance(schema.get("enum"), list):
        limits.append(frozenset(map(_kind, schema["enum"])))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in met:
            met[reference] = ANY
            met[reference] = _kinds(resolved(root, reference), root, met, depth + 1)
        limits.append(met[reference])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            limits.append(
                frozenset[str]().union(*(_kinds(each, root, met, depth + 1) for each in schema[key]))
            )
    if isinstance(schema.get("allOf"), list):
        limits += [_kinds(each, root, met, depth + 1) for each in schema["allOf"]]
    return reduce(frozenset.intersection, limits, ANY)


def _named(kind: Any) -> Kinds:
    names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    known = (
        frozenset("number" if name == "integer" else name for name in names if isinstance(name, str)) & ANY
    )
    return known or ANY


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
