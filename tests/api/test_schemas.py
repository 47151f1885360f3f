"""Replies that follow JSON schemas: what cannot be followed is refused, or breaks off with an error; never silently."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from swarm.api.endless import can_end
from swarm.api.pointers import moved, resolved
from swarm.api.server import Settings
from tests.api.stage import Scripts, ask, in_process, says

TOO_COMPLEX = {"type": "string", "pattern": "^(([a-z]{1,500}){1,500}){1,500}$"}
LONG = json.dumps("ab" * 200)
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}


@pytest.fixture(scope="module")
def url(oracle: Path) -> Iterator[str]:
    with in_process(Scripts(oracle / "qwen3_moe", {"m": lambda asked: asked}), Settings(slots=4)) as it:
        yield it


def following(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def test_a_union_of_many_objects(url: str) -> None:
    union = {
        "anyOf": [
            {"type": "object", "properties": {f"k{i}_{j}": {"type": "string"} for j in range(3)}}
            for i in range(300)
        ]
    }
    made = ask(url, says('{"k1_0":"ab"}', **following(union))).json()["choices"][0]
    assert (made["message"]["content"], made["finish_reason"]) == ('{"k1_0":"ab"}', "stop")


def test_a_reply_that_breaks_off_is_an_error(url: str) -> None:
    answer = ask(url, says(LONG, **following(TOO_COMPLEX)))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "schema_too_complex",
        "response_format",
    )
    stream = ask(url, says(LONG, stream=True, **following(TOO_COMPLEX))).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in stream[:-2]]
    assert events[-1]["error"]["code"] == "schema_too_complex"
    assert not any(choice["finish_reason"] for event in events[:-1] for choice in event["choices"])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": TOO_COMPLEX}}}}
    call = f'{{"name":"f","arguments":{{"a":{LONG}}}}}'
    error = ask(url, says(call, tools=[tool], tool_choice="required")).json()["error"]
    assert (error["code"], error["param"]) == ("schema_too_complex", "tools")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    ],
)
def test_what_never_ends_is_refused(url: str, schema: Any) -> None:
    answer = ask(url, says("x", **following(schema)))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"Node": {**NODE, "required": []}}, "$ref": "#/$defs/Node"},
        {"$defs": {"Node": NODE}, "anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/nowhere"},
        {"const": {"$ref": "#"}},
        {
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(200)}
            | {"d200": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
    ],
)
def test_what_can_end(schema: Any) -> None:
    assert can_end(schema)


def test_forced_calls_with_definitions(url: str) -> None:
    place = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    closed = {"additionalProperties": False, "required": ["p"]}
    for names in (["f"], ["f", "g"]):
        tools = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "parameters": {
                        "$defs": {"P": place},
                        "type": "object",
                        "properties": {"p": {"$ref": "#/$defs/P"}},
                        **closed,
                    },
                },
            }
            for name in names
        ]
        text = f'{{"name":"{names[-1]}","arguments":{{"p":{{"x":5}}}}}}'
        made = ask(url, says(text, tools=tools, tool_choice="required")).json()
        (call,) = made["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"p": {"x": 5}}


def test_references_move_with_their_schema() -> None:
    schema = {
        "$id": "urn:x",
        "properties": {
            "$ref": {"$ref": "#"},
            "a": {"$ref": "#/$defs/A~1b"},
            "const": {"$ref": "#/$defs/A~1b"},
        },
        "$defs": {"A/b": {"const": {"$ref": "#"}}},
    }
    root = {"inner": [moved(schema, "#/inner/0")]}
    inner = root["inner"][0]
    assert resolved(root, inner["properties"]["$ref"]["$ref"]) is inner
    for name in ("a", "const"):
        assert resolved(root, inner["properties"][name]["$ref"]) is inner["$defs"]["A/b"]
    assert inner["$defs"]["A/b"] == {"const": {"$ref": "#"}}
    assert "$id" not in inner
    assert resolved(root, "#/inner/1", "none") == resolved(root, "http://x/#/inner", "none") == "none"


@dataclass
class Endless(Scripts):
    """A library of models without a token that ends a reply."""

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        engine = super().open(name, experts_bytes)
        engine.stop_ids = frozenset()
        return engine


def test_a_model_without_an_end_ends_with_the_schema(oracle: Path) -> None:
    with in_process(Endless(oracle / "qwen3_moe", {"m": lambda asked: asked})) as url:
        made = ask(url, says('"abc"', max_tokens=200, **following({"const": "abc"}))).json()
        choice = made["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ('"abc"', "stop")
        assert made["usage"]["completion_tokens"] < 10
        broken = ask(url, says(LONG, max_tokens=2000, **following(TOO_COMPLEX))).json()
        assert broken["error"]["code"] == "schema_too_complex"
