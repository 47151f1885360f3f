"""Bodies of requests: what is understood, and that whatever is wrong is named."""

from typing import Any

import pytest

from swarm.api.constraint import compile_schema
from swarm.api.errors import ApiError
from swarm.api.wishes import parse_chat, parse_text

HI = [{"role": "user", "content": "hi"}]


def test_a_chat_with_everything() -> None:
    wish = parse_chat(
        {
            "model": "m",
            "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, *HI],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": -1,
            "seed": -1,
            "stop": "x",
            "n": 2,
            "max_tokens": 7,
            "max_completion_tokens": 9,
            "logit_bias": {"5": -3},
            "logprobs": True,
            "top_logprobs": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_object"},
            "user": "ignored",
            "chat_template_kwargs": {"enable_thinking": False},
        }
    )
    assert wish.messages[0] == {"role": "system", "content": "a"}
    assert wish.common.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "seed": (1 << 64) - 1,
        "logit_bias": {5: -3.0},
    }
    assert (wish.common.max_tokens, wish.common.choices, wish.common.stop) == (9, 2, ("x",))
    assert (wish.common.logprobs, wish.common.include_usage) == (4, True)
    assert wish.schema == {"type": "object"}
    assert wish.template == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], None),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "bogus", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": HI, "temperature": float("nan")}, "temperature"),
        ({"messages": HI, "temperature": True}, "temperature"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "n": 10**9}, "n"),
        ({"messages": HI, "stop": [1]}, "stop"),
        ({"messages": HI, "logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": HI, "logit_bias": {"1": 1e9}}, "logit_bias.1"),
        ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HI, "stream": "yes"}, "stream"),
        ({"messages": HI, "stream_options": {}}, "stream_options"),
        ({"messages": HI, "tools": [{"type": "code"}]}, "tools"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HI, "functions": [1]}, "functions"),
        ({"messages": HI, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HI, "response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_what_is_wrong_with_a_chat_is_named(body: Any, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_prompts_of_a_text_completion() -> None:
    assert parse_text({"prompt": "a"}).prompts == ("a",)
    assert parse_text({"prompt": [1, 2]}).prompts == ((1, 2),)
    assert parse_text({"prompt": ["a", [3]]}).prompts == ("a", (3,))
    assert parse_text({"prompt": "a"}).common.max_tokens == 16
    for wrong in (None, [], {}, [[]], [None], 5):
        with pytest.raises(ApiError):
            parse_text({"prompt": wrong})
    with pytest.raises(ApiError):
        parse_text({"prompt": "a", "suffix": "b"})


@pytest.mark.parametrize("schema", [{"type": 5}, {"$ref": "http://elsewhere.example/x"}, {"enum": []}])
def test_schemas_that_cannot_be_followed(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        compile_schema(schema)
