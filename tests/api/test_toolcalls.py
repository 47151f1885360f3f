"""Tool calls as families write them: each format whole, in every two pieces and letter by letter; cut off; damaged."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from engine.thinking import Channels
from swarm.api.harmony import Harmony
from swarm.api.toolcalls import ForcedCall, Piece, ToolCalls
from swarm.api.toolformats import TOKENS, ToolCall, schemas

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "zip": {"type": "string"}, "o": {"type": "object"}},
            },
        },
    }
]
ONE = ToolCall("f", '{"a": 1}')
FULL: dict[str, Any] = {"a": 1, "zip": "8001", "o": {"b": ["x<y", "ü"]}}
TEXT = json.dumps(FULL, ensure_ascii=False)
OBJECT = json.dumps(FULL["o"], ensure_ascii=False)
CALL = ToolCall("f", TEXT)
QWEN = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in
               (("a", 1), ("zip", "8001"), ("o", OBJECT)))  # fmt: skip
GLM = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in
              (("a", 1), ("zip", "8001"), ("o", OBJECT)))  # fmt: skip
MINIMAX = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in
                  (("a", 1), ("zip", "8001"), ("o", OBJECT)))  # fmt: skip
D = "｜DSML｜"
DSML = "".join(f'<{D}parameter name="{key}" string="{kind}">{value}</{D}parameter>\n' for key, kind, value in
               (("a", "false", 1), ("zip", "true", "8001"), ("o", "false", OBJECT)))  # fmt: skip
HERMES = f'<tool_call>\n{{"name": "f", "arguments": {TEXT}}}\n</tool_call>'
KIMI = f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{TEXT}<|tool_call_end|>"
V3 = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{TEXT}\n```<｜tool▁call▁end｜>"
V31 = f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"
FORMATS = {
    "hermes": f"{HERMES}\n{HERMES}",
    "qwen-coder": "\n".join([f"<tool_call>\n<function=f>\n{QWEN}</function>\n</tool_call>"] * 2),
    "glm": "\n".join([f"<tool_call>f\n{GLM}</tool_call>"] * 2),
    "hunyuan": f"<tool_calls>\n{f'<tool_call>f<tool_sep>{chr(10)}{GLM}</tool_call>{chr(10)}' * 2}</tool_calls>",
    "hunyuan-a13b": f'<tool_calls>[{{"name": "f", "arguments": {TEXT}}}, {{"name": "f", "arguments": {TEXT}}}]'
    "</tool_calls>",
    "minimax": f'<minimax:tool_call>\n{f"""<invoke name="f">{MINIMAX}</invoke>{chr(10)}""" * 2}</minimax:tool_call>',
    "kimi": f"<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>",
    "deepseek-v3": f"<｜tool▁calls▁begin｜>{V3}\n{V3}<｜tool▁calls▁end｜>",
    "deepseek-v3.1": f"<｜tool▁calls▁begin｜>{V31}{V31}<｜tool▁calls▁end｜>",
    "deepseek-v3.2": f'<{D}function_calls>\n{f"""<{D}invoke name="f">{DSML}</{D}invoke>{chr(10)}""" * 2}'
    f"</{D}function_calls>",
    "deepseek-v4": f'<{D}tool_calls>\n{f"""<{D}invoke name="f">{DSML}</{D}invoke>{chr(10)}""" * 2}</{D}tool_calls>',
    "mistral": f'[TOOL_CALLS] [{{"name": "f", "arguments": {TEXT}}}, {{"name": "f", "arguments": {TEXT}}}]',
    "mistral-args": f"[TOOL_CALLS]f[ARGS]{TEXT}" * 2,
    "mistral-id": f"[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{TEXT}" * 2,
    "mistral-bare": f"[TOOL_CALLS]f{TEXT}" * 2,
}


def read(pieces: Iterable[str]) -> list[Piece]:
    """What comes of pieces of text, neighbouring texts joined, arguments in one spelling."""
    calls = ToolCalls(schemas(TOOLS))
    return joined([*(found for piece in pieces for found in calls.push(piece)), *calls.end()])


def joined(found: Iterable[Piece]) -> list[Piece]:
    told: list[Piece] = []
    for piece in found:
        if isinstance(piece, ToolCall):
            told.append(ToolCall(piece.name, json.dumps(json.loads(piece.arguments), ensure_ascii=False)))
        elif told and isinstance(told[-1], str):
            told[-1] += piece
        else:
            told.append(piece)
    return told


def cuts(text: str) -> Iterable[Sequence[str]]:
    """A text whole, letter by letter, and in every two pieces."""
    yield [text]
    yield list(text)
    for place in range(1, len(text)):
        yield text[:place], text[place:]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_however_it_is_cut(name: str) -> None:
    text = f"I look it up. {FORMATS[name]}"
    for pieces in cuts(text):
        assert read(pieces) == ["I look it up.", CALL, CALL], pieces


@pytest.mark.parametrize("name", [name for name in FORMATS if "mistral" not in name])
def test_text_may_stand_between_and_after(name: str) -> None:
    for pieces in ([f"{FORMATS[name]} And so on."], list(f"{FORMATS[name]} And so on.")):
        found = read(pieces)
        assert found[:2] == [CALL, CALL]
        assert "".join(piece for piece in found[2:] if isinstance(piece, str)).strip() == "And so on."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [ONE]),  # cut off where nothing is lost
        ("<tool_call>{broken</tool_call>", ["<tool_call>{broken</tool_call>"]),
        ("<tool_call>{broken", ["<tool_call>{broken"]),
        ("<tool_call>no name, a sentence</tool_call>", ["<tool_call>no name, a sentence</tool_call>"]),
        ('<tool_call>["f"]</tool_call>', ['<tool_call>["f"]</tool_call>']),
        ("[TOOL_CALLS] nothing", ["[TOOL_CALLS] nothing"]),
        (
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
            ["<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>"],
        ),
        ("a < b <tool", ["a < b <tool"]),
        ("[TOOL", ["[TOOL"]),
        (
            "<tool_call>f<arg_key>unknown</arg_key><arg_value>007</arg_value></tool_call>",
            [ToolCall("f", '{"unknown": "007"}')],
        ),
        ("<tool_call>f\n</tool_call>", [ToolCall("f", "{}")]),
        (f"<tool_call>{'[' * 100_000}</tool_call>", [f"<tool_call>{'[' * 100_000}</tool_call>"]),
    ],
)
def test_what_is_no_call_stays_text(text: str, expected: list[Piece]) -> None:
    assert read([text]) == expected
    if len(text) < 1000:
        assert read(list(text)) == expected


def test_kimi_gets_its_own_id_back() -> None:
    found = list(ToolCalls().push(KIMI))
    assert [call.ident for call in found if isinstance(call, ToolCall)] == ["functions.f:0"]


def test_marks_that_may_be_special_tokens_are_all_known() -> None:
    for text in FORMATS.values():
        for mark in ("<tool_sep>", "[ARGS]", "[CALL_ID]", "<arg_key>", "</arg_value>", D, "</tool_calls>"):
            assert mark not in text or mark in TOKENS


def test_a_forced_call_comes_whole_or_as_text() -> None:
    text = f'{{"name": "f", "arguments": {TEXT}}}'
    for pieces, expected in (([*text], [CALL]), ([text[:-1]], [text[:-1]])):
        call = ForcedCall()
        assert [found for piece in pieces for found in call.push(piece)] == []
        assert joined(call.end()) == expected


MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")


class Tokens:
    """A tokenizer that knows the marks."""

    def id_of(self, text: str) -> int | None:
        return MARKS.index(text) if text in MARKS else None


def spoken(text: str, *, opened: bool = True) -> tuple[list[Piece], str, bool]:
    """What comes of a reply, marks as tokens and the rest letter by letter: pieces, thoughts, whether it calls."""
    harmony = Harmony(Channels(Tokens(), opened=opened))  # type: ignore[arg-type]
    found: list[tuple[Piece, bool]] = []
    while text:
        mark = next((mark for mark in MARKS if text.startswith(mark)), None)
        if mark is None:
            found += harmony.push(-1, text[0])
        else:
            found += harmony.push(MARKS.index(mark), "")
        text = text[len(mark or text[0]) :]
    found += harmony.end()
    thoughts = "".join(piece for piece, aside in found if aside and isinstance(piece, str))
    return joined(piece for piece, aside in found if not aside), thoughts, harmony.called


ASKED = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{TEXT}<|call|>"


@pytest.mark.parametrize(
    ("text", "told", "thoughts", "called"),
    [
        ("<|channel|>final<|message|>Hi<|return|>", ["Hi"], "", False),
        (
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{ASKED}",
            [CALL],
            "Hm.",
            True,
        ),
        (f"{ASKED}<|start|>assistant{ASKED}", [CALL, CALL], "", True),
        (f" to=functions.f<|channel|>commentary json<|message|>{TEXT}<|call|>", [CALL], "", True),
        (f"<|channel|>commentary to=functions.f<|message|>{TEXT}", [CALL], "", False),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", [ToolCall("f", "{}")], "", True),
        ("<|channel|>commentary to=functions.f<|message|>{cut", [], "{cut", False),
        ("<|channel|>commentary to=python<|message|>1+1<|call|>", [], "1+1", True),
        ("<|channel|>commentary<|message|>First I look.<|end|>", [], "First I look.", False),
        ("No header at all", ["No header at all"], "", False),
        ("<|channel|>anal", [], "", False),
    ],
)
def test_channels_of_gpt_oss(text: str, told: list[Piece], thoughts: str, called: bool) -> None:
    assert spoken(text) == (told, thoughts, called)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "8001", "8001"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "null", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"$ref": "#/$defs/Zip"}, "8001", "8001"),
        ({"allOf": [{"$ref": "#/$defs/Zip"}], "description": "x"}, "8001", "8001"),
        ({"$ref": "#/$defs/Loop"}, "8001", 8001),
        ({"anyOf": [{"$ref": "#/$defs/Wide"}] * 40}, "8001", 8001),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "5"}, "5", "5"),
        ({"const": None}, "null", None),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, "[1]", "[1]"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "5", 5),
        ({"type": "any"}, "5", 5),
        ({}, "5", 5),
        (True, "x", "x"),
    ],
)
def test_the_types_of_arguments(schema: Any, text: str, expected: Any) -> None:
    definitions = {
        "Zip": {"type": "string"},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Wide": {"anyOf": [{"$ref": "#/$defs/Wide"}, {"items": {"$ref": "#/$defs/Wide"}}] * 40},
    }
    parameters = {"$defs": definitions, "type": "object", "properties": {"p": schema}}
    known = schemas([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    for written in (
        f"<tool_call><function=f>\n<parameter=p>\n{text}\n</parameter>\n</function></tool_call>",
        f"<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        f'<minimax:tool_call><invoke name="f"><parameter name="p">{text}</parameter></invoke></minimax:tool_call>',
    ):
        (call,) = ToolCalls(known).push(written)
        assert isinstance(call, ToolCall)
        assert json.loads(call.arguments) == {"p": expected}
