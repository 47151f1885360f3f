"""The messages of a conversation, as clients send them and as templates want them."""

import json
from collections.abc import Mapping
from typing import Any

from swarm.api.errors import bad
from swarm.api.fields import Fields, refuse_odd

ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_message(value: Any, path: str) -> Mapping[str, Any]:
    """One message; `path` says where it stands. ApiError: what is wrong with it."""
    fields = Fields(value, path)
    role = fields.choice("role", ROLES) or fields.need_text("role")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(fields)
    for key in ("name", "tool_call_id"):
        text = fields.text(key)
        if text is not None:
            message[key] = text
    calls = fields.items("tool_calls")
    if calls:
        message["tool_calls"] = [
            _call(item, f"{path}.tool_calls[{index}]") for index, item in enumerate(calls)
        ]
    thought = fields.text("reasoning_content") or fields.text("reasoning")
    if thought:
        message["reasoning_content"] = thought
        if not (calls and message["content"]):
            message["thinking"] = thought  # gpt-oss's name for it; it takes no other text beside a call
    return message


def with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the arguments of its calls as text, for templates that do not take objects."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _content(fields: Fields) -> str:
    content, name = fields.get("content"), fields.name("content")
    if content is None or isinstance(content, str):
        return fields.text("content") or ""
    if not isinstance(content, list):
        raise bad(f"{name} must be a string or a list of text parts.", name)
    parts = []
    for index, item in enumerate(content):
        part = Fields(item, f"{name}[{index}]")
        if part.get("type") != "text":
            raise bad(f"{part.name('type')} must be text; these models read nothing else.", name)
        parts.append(part.need_text("text"))
    return "\n".join(parts)


def _call(value: Any, path: str) -> Mapping[str, Any]:
    """A tool call as most templates want it: arguments as an object."""
    fields = Fields(value, path)
    function = fields.object("function")
    if function is None:
        raise bad(f"{path}.function is missing.", path)
    arguments: Any = function.text("arguments") or "{}"
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        refuse_odd(parsed, function.name("arguments"))
        arguments = parsed
    return {
        "id": fields.text("id") or "",
        "type": "function",
        "function": {"name": function.need_text("name"), "arguments": arguments},
    }
