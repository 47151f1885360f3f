"""Clumsy and hostile clients: wrong values in every field, broken bodies, odd HTTP; each is told what is wrong."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from swarm.api.errors import ApiError
from swarm.api.server import Settings
from swarm.api.wishes import parse_chat, parse_text
from tests.api.stage import Scripts, ask, idle, in_process, says, until

HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "function": {"name": "f"}}
FIELDS = (
    *("model", "messages", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "max_tokens"),
    *("max_completion_tokens", "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options"),
    *("response_format", "tools", "tool_choice", "parallel_tool_calls", "user", "chat_template_kwargs"),
    *("reasoning_effort", "presence_penalty", "frequency_penalty", "repetition_penalty", "modalities"),
    *("functions", "prompt", "best_of", "suffix", "echo", "never_heard_of"),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        1e308,
        -1e308,
        10**400,
        2**63,
        -(2**63) - 1,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "\0", "\ud800", "none", "required", [], [1], ["x"], [None], [[]], ["x"] * 200, {}, {"a": 1}),
    *({"1": 1}, {"1": None}, {"tools": 1}, {"self": 1}, {"messages": []}, {"type": []}, {"type": "function"}),
    *({"type": "function", "function": 1}, {"type": "json_schema", "json_schema": {"schema": 1}}, FUNCTION),
    *([FUNCTION], [{"type": "function", "function": {"name": ""}}], [{"type": "function"}]),
    *(
        [{"role": "user"}],
        [{"role": 1}],
        [{"role": "user", "content": [1]}],
        [{"role": "user", "content": {}}],
    ),
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    *([{"role": "assistant", "tool_calls": value}] for value in (1, [1], [{}], [{"function": {"name": 5}}])),
)


def status(parse: Callable[[Any], object], body: Any) -> int:
    """What a body is answered with as far as reading it goes."""
    try:
        parse(body)
    except ApiError as refused:
        return refused.status
    return 200


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_a_field_is_more_than_refused(field: str) -> None:
    for value in VALUES:
        assert status(parse_chat, {"messages": HI, field: value}) in (200, 400)
        assert status(parse_text, {"prompt": "hi", field: value}) in (200, 400)


@pytest.fixture(scope="module")
def url(oracle: Path) -> Iterator[str]:
    with in_process(
        Scripts(oracle / "qwen3_moe", {"m": lambda asked: "word " * 30}), Settings(slots=4)
    ) as it:
        yield it


def sent(url: str, data: bytes) -> bytes:
    """Everything that a server answers to some bytes, until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as link:
        link.sendall(data)
        received = b""
        while more := link.recv(65536):
            received += more
    return received


def post(body: bytes, head: str = "", version: str = "1.1") -> bytes:
    """A request whose connection ends with its answer."""
    lines = (
        f"POST /v1/chat/completions HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    )
    return lines.encode() + body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_connection_is_closed_when_that_was_asked(url: str, stream: bool, version: str) -> None:
    answer = sent(url, post(json.dumps(says("x", stream=stream)).encode(), version=version))
    assert answer.startswith(b"HTTP/1.1 200")
    assert (b"[DONE]" if stream else b'"finish_reason":"stop"') in answer


def test_a_connection_serves_one_request_after_the_other(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=60) as client:
        for stream in (True, False, True, False):
            answer = client.post("/v1/chat/completions", json=says("x", stream=stream))
            assert answer.status_code == 200
    body = json.dumps(says("x")).encode()
    both = sent(url, post(body).replace(b"Connection: close\r\n", b"") + post(body))  # sent before any answer
    assert both.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"\xff\xfe{",
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b"null",
            b"[]",
            b'"x"',
            b'{"messages": [] "n": 1}',
        ),
        *(json.dumps(says("x")).encode() + b"\0", b'{"n": ' + b"9" * 10_000 + b"}", b'{"messages": NaN}'),
        b'{"messages": [{"role": "user", "content": "x"}], "messages": []}',
    ],
)
def test_broken_bodies(url: str, body: bytes) -> None:
    answer = sent(url, post(body))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [90, 400, 950])
def test_deep_nesting(url: str, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    tool = f'[{{"type": "function", "function": {{"name": "f", "parameters": {deep}}}}}]'
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}
    expected = 200 if depth < 100 else 400
    for body in (
        f'{{"messages": {json.dumps(HI)}, "max_tokens": 1, "tools": {tool}}}',
        json.dumps({"messages": [call, *HI], "max_tokens": 1}),
    ):
        assert sent(url, post(body.encode())).startswith(b"HTTP/1.1 %d" % expected)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"\ud800": 1}}}]},
        {"messages": [{"role": "user", "content": "".join(map(chr, range(0x100000, 0x10F000)))}]},
    ],
)
def test_what_is_no_text(url: str, more: dict[str, Any]) -> None:
    answer = sent(url, post(json.dumps({**says("x"), **more}).encode()))
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"HELLO\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\x00\x01", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /health HTTP/1.0\r\n\r\n", 403),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
         b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", 403),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
        (b"HEAD /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (post(b"{}").replace(b"application/json", b"text/plain"), 415),
        (post(b"{}", "Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 2\r\n", b"") + b"ZZ\r\n", 400),
    ],
)  # fmt: skip
def test_odd_http(url: str, request_: bytes, expected: int) -> None:
    answer = sent(url, request_)
    assert answer.startswith(b"HTTP/1.1 %d" % expected)
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        for schema in (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            {"enum": []},
            {"$ref": "#/nowhere"},
            {"type": "string", "pattern": "("},
            {"type": "integer", "minimum": 5, "maximum": 4},
        )
    ]
    + [
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
         "tool_choice": "required"},
        {"tools": [FUNCTION], "tool_choice": "required", "response_format": {"type": "json_object"}},
        {"messages": [{"role": "bogus role!", "content": "x"}]},
        {"chat_template_kwargs": {"messages": []}},
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(url: str, more: dict[str, Any]) -> None:
    answer = ask(url, {**says("x"), **more})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_what_sounds_odd_is_done(url: str) -> None:
    made = ask(url, says("x", seed=-(2**63), n=128, max_tokens=1, stop=["z"] * 16, temperature=1)).json()
    assert len(made["choices"]) == 128
    roles = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]
    odd = {"messages": roles, "max_tokens": 1, "logprobs": True, "top_logprobs": 20, "metadata": {"a": "b"}}
    chances = ask(url, odd).json()["choices"][0]["logprobs"]["content"]
    assert len(chances[0]["top_logprobs"]) == 20
    until(lambda: idle(url))


def test_hundreds_of_idle_connections_hold_nobody_up(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
    try:
        for link in slow:
            link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        assert ask(url, says("x", max_tokens=2)).status_code == 200
    finally:
        for link in slow:
            link.close()
