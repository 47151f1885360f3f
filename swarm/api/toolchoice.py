"""Which tools a reply may call, and whether it must."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from swarm.api.errors import bad
from swarm.api.fields import Fields
from swarm.api.pointers import moved

MOST_TOOLS = 512
LONGEST_NAME = 256
Tools: TypeAlias = tuple[Mapping[str, Any], ...]


def chosen_tools(fields: Fields) -> tuple[Tools, tuple[str, ...]]:
    """The tools that a reply may call, and the names of those of which it must call one. ApiError."""
    tools = _tools(fields)
    names = tuple(tool["function"]["name"] for tool in tools)
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping):
        return _chosen_object(Fields(choice, "tool_choice"), tools)
    match choice:
        case "none":
            return (), ()
        case None | "auto":
            return tools, ()
        case "required" if tools:
            return tools, names
        case "required":
            raise bad("tool_choice is required, but there are no tools.", "tool_choice")
    raise bad("tool_choice must be none, auto, required or name a function.", "tool_choice")


def call_schema(tools: Tools, names: Sequence[str]) -> Mapping[str, Any]:
    """The JSON schema of a call of one of some tools."""
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in names]
    if len(functions) == 1:
        return _one_call(functions[0], "#")
    return {"anyOf": [_one_call(function, f"#/anyOf/{at}") for at, function in enumerate(functions)]}


def _one_call(function: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The schema of a call of one tool, which stands at `place` of the whole."""
    arguments = moved(function.get("parameters") or {}, f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": {"type": "object", **arguments},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _chosen_object(choice: Fields, tools: Tools) -> tuple[Tools, tuple[str, ...]]:
    kind = choice.choice("type", ("function", "allowed_tools"))
    if kind == "function":
        name = _named(choice, tools)
        return tools, (name,)
    allowed = choice.object("allowed_tools")
    if kind is None or allowed is None:
        raise bad("tool_choice must say type: function, or type: allowed_tools and which.", "tool_choice")
    mode = allowed.choice("mode", ("auto", "required"))
    given = allowed.items("tools", least=1, most=MOST_TOOLS) or []
    names = [_named(Fields(item, "tool_choice.allowed_tools.tools"), tools) for item in given]
    kept = tuple(tool for tool in tools if tool["function"]["name"] in names)
    return kept, tuple(names) if mode == "required" else ()


def _named(fields: Fields, tools: Tools) -> str:
    """The tool that {"function": {"name": …}} names."""
    function = fields.object("function")
    name = function.need_text("name") if function is not None else None
    if name not in [tool["function"]["name"] for tool in tools]:
        raise bad(f"tool_choice names {str(name)[:LONGEST_NAME]!r}, which is not among tools.", "tool_choice")
    assert name is not None
    return name


def _tools(fields: Fields) -> Tools:
    tools = fields.items("tools", most=MOST_TOOLS) or []
    for index, item in enumerate(tools):
        tool = Fields(item, f"tools[{index}]")
        if tool.get("type") != "function":
            raise bad(f"{tool.name('type')} must be function.", "tools")
        function = tool.object("function")
        if function is None:
            raise bad(f"{tool.name('function')} is missing.", "tools")
        name = function.need_text("name")
        if not 1 <= len(name) <= LONGEST_NAME:
            raise bad(f"{function.name('name')} must have 1 to {LONGEST_NAME} characters.", "tools")
        function.text("description")
        function.object("parameters")
    return tuple(tools)
