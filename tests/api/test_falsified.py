"""Replies over HTTP that rest on answers found wrong later: right when they are whole, honest when they are streams."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, Options
from engine.experts import Experts
from engine.source import DirectorySource
from swarm.api.server import Settings
from tests.api.stage import Scripts, ask, in_process, says
from tests.engine.liars import LIE, Liar

BODY = says("Hello, what do you know of the sea?", max_tokens=14, temperature=0.7, seed=3)


@dataclass
class Twisted(Scripts):
    """One real model, whose experts are made by `twist`."""

    twist: Callable[[Experts], Experts] = field(default=lambda experts: experts)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        engine = Engine.open(DirectorySource(self.folder), Options())
        engine.experts = self.twist(engine.experts)
        return engine


@pytest.fixture
def folder(oracle: Path) -> Path:
    return oracle / "qwen3_moe"


@contextmanager
def served(folder: Path, twist: Callable[[Experts], Experts] = lambda experts: experts) -> Iterator[str]:
    with in_process(Twisted(folder, {"a": str}, twist=twist), Settings(slots=2)) as url:
        yield url


def loud(experts: Experts) -> Liar:
    return Liar(experts, [4, 5], [9])


def whole(url: str, **more: Any) -> dict[str, Any]:
    made = ask(url, {**BODY, **more})
    assert made.status_code == 200, made.text
    answer: dict[str, Any] = made.json()
    return answer


def streamed(url: str, **more: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text that was sent, and all events."""
    lines = ask(url, {**BODY, **more, "stream": True}).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    return "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if "choices" in event
    ), events


def test_whole_replies_are_right(folder: Path) -> None:
    with served(folder) as url:
        right = whole(url, logprobs=True, top_logprobs=2)
        plain = whole(url)
    for twist in (loud, lambda experts: Liar(experts, [1], [2]), lambda experts: Liar(experts, [12], [14])):
        with served(folder, twist) as url:
            made = whole(url, logprobs=True, top_logprobs=2)
            assert made["choices"] == right["choices"]
            assert made["usage"]["completion_tokens"] == right["usage"]["completion_tokens"] == 14
            # What is kept of the prompt was not computed by the liar.
            assert whole(url)["choices"] == plain["choices"]


def test_a_stream_that_said_something_wrong_ends_with_an_error(folder: Path) -> None:
    with served(folder, loud) as url:
        _, events = streamed(url)
        error = events[-1]["error"]
        assert error["code"] == "falsified"
        assert LIE in error["message"]
        text, events = streamed(url)
    with served(folder) as url:
        assert text == whole(url)["choices"][0]["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stream_that_said_nothing_wrong_goes_on(folder: Path) -> None:
    with served(folder) as url:
        right, _ = streamed(url)
    with served(folder, lambda experts: Liar(experts, [4, 5], [9], size=-1.0)) as url:
        text, events = streamed(url)
    assert text == right
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("more", [{"echo": True}, {"logprobs": 1}])
def test_texts_are_right_and_so_is_what_stops_them(folder: Path, more: dict[str, Any]) -> None:
    body = {"prompt": "Hello", "max_tokens": 14, "temperature": 0.7, "seed": 3, **more}
    with served(folder) as url:
        right = ask(url, body, "/v1/completions").json()["choices"][0]
    with served(folder, lambda experts: Liar(experts, range(4, 99))) as url:
        lied = ask(url, body, "/v1/completions").json()["choices"][0]["text"]
    stop = next(lied[at : at + 2] for at in range(9, len(lied)) if lied[at : at + 2] not in right["text"])
    with served(folder, lambda experts: found_at_the_end(experts, range(4, 99))) as url:
        assert ask(url, {**body, "stop": stop}, "/v1/completions").json()["choices"][0] == right


def test_probabilities_of_a_prompt_are_right(folder: Path) -> None:
    body = {"prompt": "Hello, sea", "max_tokens": 0, "echo": True, "logprobs": 1}
    with served(folder) as url:
        right = ask(url, body, "/v1/completions").json()["choices"]
    with served(folder, lambda experts: Liar(experts, [1])) as url:
        assert ask(url, body, "/v1/completions").json()["choices"] != right
    with served(folder, lambda experts: found_at_the_end(experts, [1])) as url:
        assert ask(url, body, "/v1/completions").json()["choices"] == right


def found_at_the_end(experts: Experts, lies: Iterable[int]) -> Liar:
    liar = Liar(experts, lies)
    liar.wait_for_it()
    return liar
