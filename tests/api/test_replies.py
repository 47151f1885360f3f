"""What replies become: thoughts, tool calls, shared beginnings, long prompts beside short ones, several models."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.engine import Engine, Options
from engine.source import DirectorySource
from swarm.api.constraint import Grammar, compile_schema
from swarm.api.server import Settings
from swarm.api.shelf import Need
from tests.api.stage import ScriptedModel, Scripts, ask, in_process, says, until

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Basel"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def answer(asked: str) -> str:
    return {
        "think": "<think>\nLet me see.\n</think>\n\nForty-two.",
        "call": f"<think>A tool.</think>I look it up.\n\n{CALL}\n{CALL}",
        "many": "word " * 100,
        "forced": '{"name": "weather", "arguments": {"city": "Basel"}}',
    }.get(asked, f"You said {asked[:20]}.")


@pytest.fixture(scope="module")
def library(oracle: Path) -> Scripts:
    return Scripts(oracle / "qwen3_moe", {"a": answer, "b": lambda asked: "b", "c": lambda asked: "c"})


@pytest.fixture(scope="module")
def url(library: Scripts) -> Iterator[str]:
    with in_process(library, Settings(slots=4)) as it:
        yield it


def message(url: str, text: str, **more: Any) -> tuple[dict[str, Any], str]:
    made = ask(url, says(text, model="a", **more)).json()
    return made["choices"][0]["message"], made["choices"][0]["finish_reason"]


def streamed(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = ask(url, {**body, "stream": True}).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]


def test_thoughts_are_apart(url: str) -> None:
    made, finish = message(url, "think")
    assert (made["content"], made["reasoning_content"], finish) == ("Forty-two.", "Let me see.\n", "stop")
    deltas = [choice["delta"] for choice in streamed(url, says("think", model="a"))]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Forty-two."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Let me see.\n"


def test_tool_calls_are_parsed_back(url: str) -> None:
    made, finish = message(url, "call", tools=[TOOL])
    assert (made["content"], finish) == ("I look it up.", "tool_calls")
    assert [call["function"]["name"] for call in made["tool_calls"]] == ["weather", "weather"]
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"city": "Basel"}
    choices = streamed(url, says("call", model="a", tools=[TOOL]))
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert choices[-1]["finish_reason"] == "tool_calls"
    without, finish = message(url, "call", tools=[TOOL], tool_choice="none")
    assert CALL in without["content"]
    assert finish == "stop"


def test_one_call_when_more_are_not_wanted(url: str) -> None:
    made, finish = message(url, "call", tools=[TOOL], parallel_tool_calls=False)
    assert (len(made["tool_calls"]), made["content"], finish) == (1, "I look it up.", "tool_calls")


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
    ],
)
def test_a_call_can_be_forced(url: str, choice: Any) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Basel", "Bern"]}}, "required": ["city"]}
    closed = {**city, "additionalProperties": False}
    other, here = (
        {"type": "function", "function": {"name": name, "parameters": closed}}
        for name in ("other", "weather")
    )
    made, finish = message(url, "forced", tools=[other, here], tool_choice=choice)
    (call,) = made["tool_calls"]
    assert (made["content"], finish) == (None, "tool_calls")
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "weather",
        {"city": "Basel"},
    )
    unwilling, finish = message(url, "unwilling", tools=[other, here], tool_choice=choice)
    assert finish == "tool_calls"
    assert unwilling["tool_calls"][0]["function"]["name"] in ("other", "weather")
    choices = streamed(url, says("forced", model="a", tools=[here], tool_choice=choice))
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in calls] == ["weather"]
    assert all(not choice["delta"].get("content") for choice in choices)


def test_a_tools_answer_goes_back_to_the_model(url: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Basel"}'}}
    messages = [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    made = ask(url, {"model": "a", "messages": messages, "tools": [TOOL], "temperature": 0}).json()
    assert made["choices"][0]["message"]["content"] == "You said and?."


def test_a_shared_beginning_is_computed_once(url: str, library: Scripts) -> None:
    system = {"role": "system", "content": "Be brief. " * 40}
    message(url, "warm")
    model = library.engines["a"].model
    assert isinstance(model, ScriptedModel)
    model.rows.clear()
    answers: list[Any] = []

    def one(text: str) -> None:
        wish = {"model": "a", "messages": [system, {"role": "user", "content": text}], "temperature": 0}
        answers.append(ask(url, wish).json())

    threads = [threading.Thread(target=one, args=(f"question {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = sorted(made["choices"][0]["message"]["content"] for made in answers)
    assert said == [f"You said question {number}." for number in range(4)]
    prompts = [made["usage"]["prompt_tokens"] for made in answers]
    replies = [made["usage"]["completion_tokens"] for made in answers]
    cached = sum(made["usage"]["prompt_tokens_details"]["cached_tokens"] for made in answers)
    assert sum(model.rows) <= min(prompts) + 3 * 60 + sum(replies)
    assert cached >= 3 * (min(prompts) - 60)


def test_a_long_prompt_does_not_hold_up_a_stream(url: str, library: Scripts) -> None:
    message(url, "warm")
    model = library.engines["a"].model
    assert isinstance(model, ScriptedModel)
    model.rows.clear()
    model.gate = threading.Event()  # lets no step pass …
    choices: list[dict[str, Any]] = []
    stream = threading.Thread(target=lambda: choices.extend(streamed(url, says("many", model="a"))))
    longer = threading.Thread(target=lambda: ask(url, says("y " * 1500, model="a")))
    try:
        stream.start()
        until(lambda: len(model.rows) >= 1)
        longer.start()
        until(lambda: httpx2.get(url + "/health", timeout=20).json()["waiting"] >= 1)
    finally:
        model.gate.set()  # … until both are there: the long prompt joins right after the stream's
        stream.join()
        longer.join()
        model.gate = None
    long = [rows for rows in model.rows if rows > 60]
    assert sum(long) > 1500  # the long prompt was read while the stream had a hundred tokens to come
    assert max(long) <= 64 + 1
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "word " * 100


def test_models_share_the_memory_given(oracle: Path) -> None:
    library = Scripts(oracle / "qwen3_moe", {"a": answer, "b": lambda asked: "b", "c": lambda asked: "c"})
    size = 3_000_000
    library.need = lambda name: Need(size, 0)  # type: ignore[method-assign]
    library.resident_bytes = size
    with in_process(library, Settings(memory_bytes=int(2.5 * size))) as url:

        def loaded() -> set[str]:
            listed = httpx2.get(url + "/v1/models", timeout=60).json()["data"]
            return {model["id"] for model in listed if model["loaded"]}

        def used(name: str) -> set[str]:
            assert ask(url, says("x", model=name)).json()["model"] == name
            return loaded()

        assert used("a") == {"a"}
        assert used("b") == {"a", "b"}
        assert used("a") == {"a", "b"}
        assert used("c") == {"a", "c"}  # b was not used for longest
        assert used("b") == {"b", "c"}
        assert library.opened == ["a", "b", "c", "b"]
        library.need = lambda name: Need(3 * size, 0)  # type: ignore[method-assign]
        refused = ask(url, says("x", model="a"))
        assert refused.status_code == 503
        assert "needs at least 0.0 GB" in refused.json()["error"]["message"]
        assert "--memory" in refused.json()["error"]["message"]
        assert loaded() == {"b", "c"}
        assert library.opened == ["a", "b", "c", "b"]


def test_a_schema_holds_only_after_the_thoughts(oracle: Path) -> None:
    engine = Engine.open(DirectorySource(oracle / "qwen3_moe"), Options())
    tokenizer = engine.tokenizer
    grammar = compile_schema({"const": "x"})
    quote, other = tokenizer.encode('"')[0], tokenizer.encode("y")[0]
    end = min(engine.stop_ids)
    constraint = Grammar(engine).follow(grammar, "<think>\n")

    def free() -> tuple[bool, ...]:
        allowed = constraint.allowed()
        assert allowed is not None
        return tuple(bool(allowed[token]) for token in (quote, other, end))

    for _ in range(2):
        for token in tokenizer.encode("why?</think>"):
            assert free() == (True, True, False)
            constraint.accept(token)
        assert free() == (True, False, False)
        for token in tokenizer.encode('"x"'):
            constraint.accept(token)
        assert free() == (False, False, True)
        constraint.restart()
    at_once = Grammar(engine).follow(grammar, "").allowed()
    assert at_once is not None
    assert (bool(at_once[quote]), bool(at_once[other])) == (True, False)
    engine.close()
