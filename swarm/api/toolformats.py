"""How families write tool calls: the marks around them, and what stands between.

    <tool_call>{"name": …, "arguments": {…}}</tool_call>                                Hermes, Qwen
    <tool_call><function=NAME><parameter=P>V</parameter></function></tool_call>          Qwen3-Coder, Qwen3.5
    <tool_call>NAME<arg_key>P</arg_key><arg_value>V</arg_value></tool_call>              GLM
    <tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>                          Hunyuan A13B
    <tool_calls><tool_call>NAME<tool_sep><arg_key>P</arg_key>…</tool_call></tool_calls>  Hunyuan 3
    <minimax:tool_call><invoke name="N"><parameter name="P">V</parameter></invoke>…      MiniMax
    <｜DSML｜function_calls><｜DSML｜invoke name="N"><｜DSML｜parameter name="P" string="true">V…   DeepSeek V3.2, V4
    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>                           DeepSeek V3.1
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME ```json {…} ```<｜tool▁call▁end｜>       DeepSeek V3, R1
    <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>  Kimi
    [TOOL_CALLS] [{"name": …, "arguments": {…}}, …] to the end of the reply              Mistral, Mixtral
    [TOOL_CALLS]NAME[ARGS]{…} to the end of the reply                                    later Mistral

Where arguments are text, the tool's own schema tells strings from numbers. gpt-oss is in `swarm.api.harmony`.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from swarm.api.kinds import ANY, Kinds, kinds_of


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. `arguments`: a JSON object as text."""

    name: str
    arguments: str
    ident: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)


Schemas: TypeAlias = Mapping[str, Mapping[str, Kinds]]
"""The types of each parameter, by tool and parameter: what `schemas` makes of a request's tools."""
Parser: TypeAlias = Callable[[str, Schemas], list[ToolCall]]
"""Makes calls of what stands between two marks; of what cannot be parsed none."""

_TEXT: Kinds = frozenset({"string"})
_NAME = re.compile(r"[\w.:/-]{1,256}")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_INVOKE = re.compile(r'<(?:｜DSML｜)?invoke name="?([^">]+)"?>(.*?)</(?:｜DSML｜)?invoke>', re.DOTALL)
_NAMED = re.compile(
    r'<(?:｜DSML｜)?parameter name="?([^">]+?)"?(?: string="(true|false)")?>(.*?)</(?:｜DSML｜)?parameter>',
    re.DOTALL,
)
_FENCED = re.compile(r"\s*([^\s`]+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
_KIMI, _DEEPSEEK, _MISTRAL, _ARGS = "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "[TOOL_CALLS]", "[ARGS]"
_CALL_ID, _DSML, _HUNYUAN = "[CALL_ID]", "｜DSML｜", "<tool_sep>"


def schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The types of each parameter of each tool, as far as they are said."""
    found: dict[str, Mapping[str, Kinds]] = {}
    for tool in tools:
        function = tool["function"]
        root = function.get("parameters") or {}
        properties = root.get("properties")
        found[function["name"]] = (
            {name: kinds_of(schema, root) for name, schema in properties.items()}
            if isinstance(properties, Mapping)
            else {}
        )
    return found


def json_call(text: str, _: Schemas | None = None) -> list[ToolCall]:
    """A call as a JSON object with name and arguments."""
    return _json_calls(_parsed(text))


def _json_calls(value: Any) -> list[ToolCall]:
    """The call that a JSON object is, or the calls in a list."""
    if isinstance(value, list):
        return [call for item in value for call in _json_calls(item)]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return []
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return [ToolCall(value["name"], arguments)]


def _parsed(text: str) -> Any:
    """A JSON value; None when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str, kinds: Kinds) -> Any:
    """An argument given as text. Where it may be a string and something else, only what no string looks like is
    something else: null, a list, an object."""
    if kinds == _TEXT:
        return text
    value = _parsed(text)
    if "string" in kinds and kinds != ANY:
        other = "array" if isinstance(value, list) else "object" if isinstance(value, dict) else None
        other = "null" if text.strip() == "null" else other
        return value if other in kinds else text
    return text if value is None and text.strip() != "null" else value


def _call(name: str, arguments: Iterable[tuple[str, str]], known: Schemas) -> list[ToolCall]:
    name = name.strip()
    if not _NAME.fullmatch(name):
        return []
    kinds = known.get(name, {})
    values = {key.strip(): _value(text, kinds.get(key.strip(), ANY)) for key, text in arguments}
    return [ToolCall(name, json.dumps(values, ensure_ascii=False))]


def _tagged(body: str, known: Schemas) -> list[ToolCall]:
    """What stands in <tool_call>."""
    text = body.strip()
    if text.startswith("{"):
        return json_call(text)
    functions = _FUNCTION.findall(text)
    if functions:
        return [call for name, inner in functions for call in _call(name, _PARAMETER.findall(inner), known)]
    return _call(text.split("<", 1)[0], _ARGUMENT.findall(text), known)


def _tagged_all(body: str, known: Schemas) -> list[ToolCall]:
    """What stands in <tool_calls>."""
    bodies = _TAGGED.findall(body)
    if bodies:
        return [call for inner in bodies for call in _tagged(inner, known)]
    return _json_calls(_parsed(body))


def _invoked(body: str, known: Schemas) -> list[ToolCall]:
    """<invoke>s; DSML says itself what is a string."""
    calls = []
    for name, inner in _INVOKE.findall(body):
        values = {}
        for key, kind, text in _NAMED.findall(inner):
            kinds = _TEXT if kind == "true" else ANY if kind else known.get(name, {}).get(key, ANY)
            values[key] = _value(text if kind else text.strip("\n"), kinds)
        calls.append(ToolCall(name, json.dumps(values, ensure_ascii=False)))
    return calls


def _deepseek(body: str, _: Schemas) -> list[ToolCall]:
    name, _found, arguments = body.partition(_DEEPSEEK)
    fenced = _FENCED.fullmatch(arguments)
    if fenced is not None:
        name, arguments = fenced[1], fenced[2]
    return _with_json(name, arguments)


def _kimi(body: str, _: Schemas) -> list[ToolCall]:
    """Kimi's template wants its own id back: functions.NAME:NUMBER."""
    ident, _found, arguments = body.partition(_KIMI)
    plain = re.fullmatch(r"(?:functions\.)?(.+?)(?::\d+)?", ident.strip())
    return _with_json(plain[1], arguments, ident.strip()) if plain else []


def _mistral(body: str, _: Schemas) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for part in body.split(_MISTRAL):
        name, found, arguments = part.partition(_ARGS)
        if found:
            calls += _with_json(name.partition(_CALL_ID)[0], arguments)
        elif part.strip().startswith(("[", "{")):
            calls += _json_calls(_parsed(part))
        else:
            name, found, arguments = part.partition("{")
            calls += _with_json(name, found + arguments)
    return calls


def _with_json(name: str, arguments: str, ident: str | None = None) -> list[ToolCall]:
    name, arguments = name.strip(), arguments.strip()
    if not _NAME.fullmatch(name) or not isinstance(_parsed(arguments), dict):
        return []
    return [ToolCall(name, arguments) if ident is None else ToolCall(name, arguments, ident)]


MARKS: Mapping[str, tuple[str | None, Parser]] = {
    "<tool_call>": ("</tool_call>", _tagged),
    "<tool_calls>": ("</tool_calls>", _tagged_all),
    "<minimax:tool_call>": ("</minimax:tool_call>", _invoked),
    f"<{_DSML}function_calls>": (f"</{_DSML}function_calls>", _invoked),
    f"<{_DSML}tool_calls>": (f"</{_DSML}tool_calls>", _invoked),
    "<|tool_call_begin|>": ("<|tool_call_end|>", _kimi),
    "<｜tool▁call▁begin｜>": ("<｜tool▁call▁end｜>", _deepseek),
    _MISTRAL: (None, _mistral),
}
"""By the mark that opens a call: the one that closes it, None for the end of the reply, and what reads it."""
WRAPPERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
)
"""What stands around all calls and says nothing."""
TOKENS = (
    *MARKS,
    *(close for close, _ in MARKS.values() if close is not None),
    *WRAPPERS,
    *(_KIMI, _DEEPSEEK, _ARGS, _CALL_ID, _DSML, _HUNYUAN),
    *(f"<{end}{tag}>" for tag in ("arg_key", "arg_value") for end in ("", "/")),
)
"""Marks that may be special tokens, which leave no text by themselves."""
