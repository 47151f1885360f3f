"""Whether some text can be a whole value of a JSON schema, or each would have to hold another for ever.

    {"$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}}}

The definitions that can end are found from those that refer to no other on. What is not understood here counts as
able to end, so nothing is refused wrongly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from swarm.api.pointers import resolved

_PASSES = 32  # over the definitions; a chain takes one where it stands in order, either way around


def can_end(schema: Mapping[str, Any]) -> bool:
    """Whether a value of the schema can be finite."""
    references = list(dict.fromkeys(_references(schema)))
    ending: set[str] = set()
    for _ in range(_PASSES):
        references.reverse()
        before = len(ending)
        for reference in references:
            if reference not in ending and _ends(resolved(schema, reference, True), ending):
                ending.add(reference)
        if len(ending) == before:
            return _ends(schema, ending)
    return True


def _references(value: Any) -> Iterator[str]:
    """Every reference in a document, and what merely looks like one."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


def _ends(schema: Any, ending: set[str]) -> bool:
    """Whether a value can be finite when those of the references `ending` can."""
    if not isinstance(schema, Mapping):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in ending:
        return False
    if not all(_ends(part, ending) for part in _parts(schema)):
        return False
    return all(
        any(_ends(choice, ending) for choice in choices)
        for key in ("anyOf", "oneOf")
        if isinstance(choices := schema.get(key), list) and choices
    )


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas that a value must follow as well, or hold a value of."""
    every = schema.get("allOf")
    if isinstance(every, list):
        yield from every
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            yield from (properties.get(name) for name in required if isinstance(name, str))
    elif kind in ("array", ["array"]):
        first, least = schema.get("prefixItems"), schema.get("minItems")
        first = first if isinstance(first, list) else []
        if isinstance(least, int):
            yield from first[:least]
            if least > len(first):
                yield schema.get("items")
