"""Tool calls parsed back from a reply's text, for the marks that families use.

    <tool_call>{"name": …, "arguments": {…}}</tool_call>                      Hermes, Qwen, Hunyuan
    <tool_call><function=NAME><parameter=P>V</parameter></function></tool_call>          Qwen3-Coder, Qwen3.5
    <tool_call>NAME<arg_key>P</arg_key><arg_value>V</arg_value></tool_call>               GLM
    <minimax:tool_call><invoke name="N"><parameter name="P">V</parameter></invoke>…       MiniMax
    <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>   Kimi
    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>                            DeepSeek

What stands between such marks and cannot be parsed stays text.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.generate import overlap


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. `arguments`: a JSON object as text."""

    name: str
    arguments: str
    ident: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


Parser: TypeAlias = Callable[[str], list[ToolCall]]
Piece: TypeAlias = str | ToolCall

_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_INVOKE = re.compile(r'<invoke name="?([^">]+)"?>(.*?)</invoke>', re.DOTALL)
_NAMED = re.compile(r'<parameter name="?([^">]+)"?>(.*?)</parameter>', re.DOTALL)
_KIMI, _DEEPSEEK = "<|tool_call_argument_begin|>", "<｜tool▁sep｜>"


def _values(pairs: list[tuple[str, str]]) -> str:
    """Arguments given as text: what is JSON counts as that, the rest as strings."""
    found: dict[str, Any] = {}
    for name, text in pairs:
        try:
            found[name.strip()] = json.loads(text)
        except (ValueError, RecursionError):
            found[name.strip()] = text
    return json.dumps(found, ensure_ascii=False)


def _tagged(body: str) -> list[ToolCall]:
    """What stands in <tool_call>."""
    text = body.strip()
    if text.startswith("{"):
        return _json_call(text)
    functions = _FUNCTION.findall(text)
    if functions:
        return [ToolCall(name, _values(_PARAMETER.findall(inner))) for name, inner in functions]
    name = text.split("<", 1)[0].strip()
    return [ToolCall(name, _values(_ARGUMENT.findall(text)))] if name and "\n" not in name else []


def _json_call(text: str) -> list[ToolCall]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str):
        return []
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return [ToolCall(name, arguments)]


def _invoked(body: str) -> list[ToolCall]:
    return [ToolCall(name, _values(_NAMED.findall(inner))) for name, inner in _INVOKE.findall(body)]


def _separated(separator: str) -> Parser:
    def parse(body: str) -> list[ToolCall]:
        name, found, arguments = body.partition(separator)
        name = name.rpartition("<｜tool▁sep｜>")[2].strip()
        arguments = arguments.strip().removeprefix("```json").removesuffix("```").strip()
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            return []
        plain = re.fullmatch(r"(?:functions\.)?(.+?)(?::\d+)?", name)
        return [ToolCall(plain[1], arguments)] if found and plain else []

    return parse


MARKS: Mapping[str, tuple[str, Parser]] = {
    "<tool_call>": ("</tool_call>", _tagged),
    "<minimax:tool_call>": ("</minimax:tool_call>", _invoked),
    "<|tool_call_begin|>": ("<|tool_call_end|>", _separated(_KIMI)),
    "<｜tool▁call▁begin｜>": ("<｜tool▁call▁end｜>", _separated(_DEEPSEEK)),
}
WRAPPERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
)
TOKENS = (*MARKS, *(close for close, _ in MARKS.values()), *WRAPPERS, _KIMI, _DEEPSEEK)
"""Marks that may be special tokens, which leave no text by themselves."""


class ToolCalls:
    """Passes text on, except tool calls, which come out whole."""

    def __init__(self) -> None:
        self._held = ""
        self._open: str | None = None
        self.found = 0

    def push(self, text: str) -> Iterator[Piece]:
        """What more text lets go."""
        self._held += text
        yield from self._release(final=False)

    def end(self) -> Iterator[Piece]:
        """What was held back; a call that was not closed counts when it can be parsed."""
        yield from self._release(final=True)
        if self._open is not None:
            yield from self._closed(self._open, self._held)
        elif self._held:
            yield self._held
        self._open, self._held = None, ""

    def _release(self, *, final: bool) -> Iterator[Piece]:
        while True:
            if self._open is not None:
                place = self._held.find(MARKS[self._open][0])
                if place < 0:
                    return
                mark, body = self._open, self._held[:place]
                self._held = self._held[place + len(MARKS[mark][0]) :]
                self._open = None
                yield from self._closed(mark, body)
                continue
            for wrapper in WRAPPERS:
                self._held = self._held.replace(wrapper, "")
            places = [(place, mark) for mark in MARKS if (place := self._held.find(mark)) >= 0]
            if not places:
                break
            place, self._open = min(places)
            before, self._held = self._held[:place], self._held[place + len(self._open) :]
            if before.strip():
                yield before.rstrip()
        keep = 0 if final else max(overlap(self._held, mark) for mark in (*MARKS, *WRAPPERS))
        # White space before a call, or after one, belongs to the marks.
        solid = len(self._held) - keep
        if not final or self.found:
            solid = len(self._held[:solid].rstrip())
        text, self._held = self._held[:solid], self._held[solid:]
        if self.found and final:
            self._held = ""
        if text:
            yield text

    def _closed(self, mark: str, body: str) -> Iterator[Piece]:
        close, parse = MARKS[mark]
        calls = parse(body)
        self.found += len(calls)
        if calls:
            yield from calls
        else:
            yield mark + body + (close if self._open is None else "")
