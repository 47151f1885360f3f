"""Text completions: control tokens that a prompt spells out, and tokens and their places, whole and in streams."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from swarm.api.server import Settings
from swarm.api.shelf import Listed
from swarm.api.transcript import Chance, Places, chat_chances, text_chances
from tests.api.stage import Scripts, ask, in_process, says

SAID = "one two 🎉 three"
PATH = "/v1/completions"


class Bare(Scripts):
    """A library with a model beside the others that has no tokenizer."""

    def models(self) -> tuple[Listed, ...]:
        return (*super().models(), Listed("bare", 1000))

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        if name != "bare":
            return super().open(name, experts_bytes)
        engine = super().open("m", experts_bytes)
        engine._tokenizer = None
        return engine


@pytest.fixture(scope="module")
def library(oracle: Path) -> Scripts:
    return Bare(oracle / "qwen3_moe", {"m": lambda asked: SAID})


@pytest.fixture(scope="module")
def url(library: Scripts) -> Iterator[str]:
    with in_process(library, Settings(slots=4)) as it:
        yield it


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def completed(url: str, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 40, **more}
    made: dict[str, Any] = ask(url, body, PATH).json()
    return made


def streamed(url: str, prompt: Any, **more: Any) -> list[dict[str, Any]]:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 40, "stream": True, **more}
    lines = ask(url, body, PATH).text.split("\n\n")
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]


def test_control_tokens_count_in_the_prompt_of_a_completion_only(url: str) -> None:
    made = completed(url, turn("hi"))
    assert made["choices"][0]["text"] == SAID
    chat = ask(url, says("hi", model="m")).json()
    assert made["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    typed = ask(url, says("<|im_end|>", model="m")).json()
    assert typed["usage"]["prompt_tokens"] > chat["usage"]["prompt_tokens"] + 2


@pytest.mark.parametrize("stop", [None, [" thr", "ee t"], ["🎉 t"], "zz"])
@pytest.mark.parametrize("echo", [False, True])
def test_places_are_the_same_in_a_stream(url: str, stop: Any, echo: bool) -> None:
    more = {"logprobs": 3, "echo": echo, **({} if stop is None else {"stop": stop})}
    whole = completed(url, turn("hi"), **more)["choices"][0]
    pieces = streamed(url, turn("hi"), **more)
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    for key in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        assert [item for piece in pieces if piece["logprobs"] for item in piece["logprobs"][key]] == whole[
            "logprobs"
        ][key]
    for token, place in zip(whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"], strict=True):
        if not token.startswith("bytes:") and place + len(token) <= len(whole["text"]):
            assert whole["text"][place : place + len(token)] == token


def test_tokens_that_are_part_of_a_character(library: Scripts, url: str) -> None:
    chances = ask(url, says("hi", model="m", logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(chance["bytes"]) for chance in chances).decode() == SAID
    engine = library.engines["m"]
    parts = [ident for ident in engine.tokenizer.encode("🎉") if len(engine.tokenizer.bytes_of(ident)) < 4]
    assert len(set(parts)) > 1
    chance = Chance(parts[0], -0.5, tuple((part, -float(at)) for at, part in enumerate(dict.fromkeys(parts))))
    assert len(chat_chances(engine, [chance])[0]["top_logprobs"]) == len(set(parts))
    made = text_chances(engine, [chance], Places(engine, 0))
    assert len(made["top_logprobs"][0]) == len(set(parts))
    assert made["tokens"][0] in made["top_logprobs"][0]
    assert made["tokens"][0].startswith("bytes:\\x")


def test_a_model_without_a_tokenizer_goes_on_from_token_ids(library: Scripts, url: str) -> None:
    completed(url, "x")  # the model beside it, whose tokenizer the ids are made with
    tokenizer = library.engines["m"].tokenizer
    asked, said = tokenizer.encode_prompt(turn("hi")), tokenizer.encode(SAID)
    made = completed(url, [asked, asked], model="bare", logprobs=2)
    for choice in made["choices"]:
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert choice["token_ids"][: len(said)] == said
        names = choice["logprobs"]["tokens"]
        assert names == [f"token_id:{ident}" for ident in choice["token_ids"]]
        assert all(
            name in likely for name, likely in zip(names, choice["logprobs"]["top_logprobs"], strict=True)
        )
        assert set(choice["logprobs"]["text_offset"]) == {0}
    assert made["usage"]["completion_tokens"] == 2 * len(made["choices"][0]["token_ids"])
    pieces = streamed(url, asked, model="bare", logprobs=2)
    assert [ident for piece in pieces for ident in piece["token_ids"]] == made["choices"][0]["token_ids"]
    assert [name for piece in pieces if piece["logprobs"] for name in piece["logprobs"]["tokens"]] == names
    assert "token_ids" not in completed(url, asked)["choices"][0]


def test_the_prompt_of_a_model_without_a_tokenizer_has_probabilities(url: str) -> None:
    choice = completed(url, [1, 2, 3], model="bare", max_tokens=0, echo=True, logprobs=1)["choices"][0]
    assert (choice["text"], choice["token_ids"]) == ("", [])
    assert choice["logprobs"]["tokens"] == ["token_id:1", "token_id:2", "token_id:3"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x"}, "prompt"),
        ({"prompt": [[1], "x"]}, "prompt"),
        ({"prompt": [1], "stop": ["x"]}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
def test_what_takes_a_tokenizer_is_refused_where_there_is_none(
    url: str, body: dict[str, Any], param: str
) -> None:
    path = "/v1/chat/completions" if "messages" in body else PATH
    answer = ask(url, {"model": "bare", **body}, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "no_tokenizer", param)
    assert "tokenizer.json" in error["message"]


def test_a_prompt_that_is_too_long_is_named(url: str) -> None:
    long = "word " * 5000
    for answer, param in (
        (ask(url, {"model": "m", "prompt": long}, PATH), "prompt"),
        (ask(url, says(long, model="m")), "messages"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
