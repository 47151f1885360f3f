"""The official client against a real process with reference models."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from engine.chat import ChatSettings, Conversation, Finished
from engine.engine import Engine
from engine.generate import generate, logits
from engine.reply import Reply
from engine.sampling import Sampling, log_probabilities, top_tokens
from swarm.api.spelling import token_name
from tests.api.stage import api_process, idle, until
from tests.engine.reference import opened

HELLO: Any = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, oracle: Path) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with api_process(
        home, "--local", oracle / "qwen3_moe", "--local", oracle / "olmoe", "--slots", "4"
    ) as it:
        yield it


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as it:
        yield it


@pytest.fixture(scope="module")
def engine(oracle: Path) -> Engine:
    return opened(oracle / "qwen3_moe", "auto")


def spoken(engine: Engine, messages: Any, count: int) -> str:
    """What `swarm chat` would answer, greedily."""
    conversation = Conversation(engine)
    conversation.messages = list(messages)
    events = list(conversation.reply(ChatSettings(max_tokens=count)))
    assert isinstance(events[-1], Finished)
    return events[-1].text


def test_models(client: openai.OpenAI) -> None:
    assert sorted(model.id for model in client.models.list()) == ["olmoe", "qwen3_moe"]
    assert client.models.retrieve("olmoe").owned_by == "local"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_whole_and_streamed_are_what_chat_says(client: openai.OpenAI, engine: Engine) -> None:
    expected = spoken(engine, HELLO, 24)
    whole = client.chat.completions.create(model="qwen3_moe", messages=HELLO, temperature=0, max_tokens=24)
    choice = whole.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (
        expected,
        "assistant",
        "length",
    )
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (24, whole.usage.prompt_tokens + 24)
    stream = client.chat.completions.create(
        model="qwen3_moe",
        messages=HELLO,
        temperature=0,
        max_completion_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_text_completions(client: openai.OpenAI, engine: Engine) -> None:
    ids = engine.tokenizer.encode("Once upon a time", add_special=True)
    reply = Reply(list(ids), engine.model.new_state(), Sampling(), engine.stop_ids, max_tokens=12)
    list(generate(engine.model, engine.experts, reply))
    expected = engine.tokenizer.decode(reply.generated)
    made = client.completions.create(
        model="qwen3_moe",
        prompt=["Once upon a time", "Hi"],
        temperature=0,
        max_tokens=12,
        logprobs=2,
        echo=True,
    )
    assert made.choices[0].text == "Once upon a time" + expected
    assert [choice.index for choice in made.choices] == [0, 1]
    probabilities = made.choices[0].logprobs
    assert probabilities is not None
    assert probabilities.tokens is not None
    assert len(probabilities.tokens) == len(ids) + 12
    by_ids = client.completions.create(model="qwen3_moe", prompt=ids, temperature=0, max_tokens=12)
    assert by_ids.choices[0].text == expected
    pieces = client.completions.create(
        model="qwen3_moe", prompt=ids, temperature=0, max_tokens=12, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == expected


@pytest.mark.parametrize("count", [0, 3])
def test_probabilities_of_a_prompt(client: openai.OpenAI, engine: Engine, count: int) -> None:
    text = "Once upon a time, in a 🎉"
    ids = engine.tokenizer.encode(text)
    rows = [log_probabilities(row) for row in logits(engine.model, engine.experts, ids)]
    for prompt in (text, ids):
        made = client.completions.create(
            model="qwen3_moe", prompt=prompt, temperature=0, max_tokens=count, logprobs=2, echo=True
        )
        chosen, found = made.choices[0], made.choices[0].logprobs
        assert found is not None
        assert found.token_logprobs is not None
        assert found.top_logprobs is not None
        assert found.text_offset is not None
        assert found.token_logprobs[: len(ids)] == [
            None,
            *(float(row[ident]) for row, ident in zip(rows, ids[1:], strict=False)),
        ]
        assert len(found.token_logprobs) == len(found.text_offset) == len(ids) + count
        assert list(found.top_logprobs[1].values()) == [value for _, value in top_tokens(rows[0], 2)]
        assert (chosen.text[: len(text)], chosen.finish_reason) == (text, "length")
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(ids), count)
        pieces = client.completions.create(
            model="qwen3_moe",
            prompt=prompt,
            temperature=0,
            max_tokens=count,
            logprobs=2,
            echo=True,
            stream=True,
        )
        said = [(piece.choices[0].text, piece.choices[0].logprobs) for piece in pieces]
        assert "".join(piece for piece, _ in said) == chosen.text
        for key in ("tokens", "token_logprobs", "text_offset"):
            assert [item for _, part in said if part for item in getattr(part, key)] == getattr(found, key)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="qwen3_moe", prompt=text, max_tokens=0)


def test_eight_mixed_requests_are_each_as_alone(client: openai.OpenAI, engine: Engine, oracle: Path) -> None:
    other = opened(oracle / "olmoe", "auto")
    asked = [(f"Question {number}: " + "why? " * (number * 9), 5 + 3 * number) for number in range(8)]

    def one(number: int) -> tuple[str | None, str | None]:
        text, count = asked[number]
        model = "olmoe" if number % 4 == 3 else "qwen3_moe"
        made = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=count
        )
        noisy = client.chat.completions.create(
            model="qwen3_moe", messages=HELLO, temperature=1.3, seed=number, max_tokens=8
        )
        return made.choices[0].message.content, noisy.choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, range(8)))
    for number, (text, count) in enumerate(asked):
        speaker = other if number % 4 == 3 else engine
        assert together[number][0] == spoken(speaker, [{"role": "user", "content": text}], count)
    assert [one(number) for number in range(8)] == together


def test_choices_seed_and_probabilities(client: openai.OpenAI) -> None:
    def drawn(seed: int, **more: Any) -> list[str | None]:
        made = client.chat.completions.create(
            model="qwen3_moe", messages=HELLO, temperature=1, seed=seed, n=3, max_tokens=8, **more
        )
        return [choice.message.content for choice in made.choices]

    assert drawn(5) == drawn(5) != drawn(6)
    assert len(set(drawn(5))) == 3
    made = client.chat.completions.create(
        model="qwen3_moe",
        messages=HELLO,
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=3,
        extra_body={"top_k": 5, "min_p": 0.1},
    )
    probabilities = made.choices[0].logprobs
    assert probabilities is not None
    assert probabilities.content is not None
    assert len(probabilities.content) == 5
    for entry in probabilities.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def forced(client: openai.OpenAI, token: int) -> str:
    """The first token's text where a bias leaves only one token, and that all that follow are the same."""
    made = client.chat.completions.create(
        model="qwen3_moe", messages=HELLO, temperature=0, max_tokens=5, logit_bias={f"{token}": 100},
        logprobs=True,
    )  # fmt: skip
    probabilities = made.choices[0].logprobs
    assert probabilities is not None
    assert probabilities.content is not None
    texts = [entry.token for entry in probabilities.content]
    assert texts == [texts[0]] * 5
    return texts[0]


def test_a_bias_bans_and_forces(client: openai.OpenAI, engine: Engine) -> None:
    ident = 300
    assert forced(client, ident) == engine.tokenizer.text_of(ident)
    prompt = [5, 6, 7]
    best, second = np.argsort(-logits(engine.model, engine.experts, prompt)[-1])[:2].tolist()

    def first(**more: Any) -> str | None:
        made = client.completions.create(
            model="qwen3_moe", prompt=prompt, temperature=0, max_tokens=1, logprobs=0, **more
        )
        assert made.choices[0].logprobs is not None
        return (made.choices[0].logprobs.tokens or [None])[0]

    assert first() == token_name(engine, best)
    assert first(logit_bias={str(best): -100}) == token_name(engine, second) != first()


def test_stop(client: openai.OpenAI, engine: Engine) -> None:
    text = spoken(engine, HELLO, 24)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    made = client.chat.completions.create(
        model="qwen3_moe", messages=HELLO, temperature=0, max_tokens=24, stop=[stop, "never said"]
    )
    assert made.choices[0].message.content == text[: text.index(stop)]
    assert made.choices[0].finish_reason == "stop"


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "sex": {"enum": ["f", "m"]}},
        "required": ["age", "sex"],
        "additionalProperties": False,
    }
    for temperature in (0.0, 1.5):
        made = client.chat.completions.create(
            model="qwen3_moe",
            messages=HELLO,
            temperature=temperature,
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        )
        value = json.loads(made.choices[0].message.content or "")
        assert 0 <= value["age"] <= 99
        assert value["sex"] in ("f", "m")
        assert made.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(
            model="qwen3_moe",
            messages=HELLO,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}},  # type: ignore[dict-item]
        )


def test_a_client_that_leaves_frees_its_slot(client: openai.OpenAI, url: str) -> None:
    for _ in range(6):  # more than there are slots
        stream = client.chat.completions.create(
            model="qwen3_moe",
            messages=HELLO,
            temperature=1,
            stream=True,
            max_tokens=900,
            logit_bias={"2": -100},
        )
        next(iter(stream))
        stream.close()
    until(lambda: idle(url))


def test_errors_are_in_openais_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'") as missing:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="olmoe", messages=HELLO, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="olmoe", messages=[{"role": "user", "content": "x " * 5000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model="qwen3_moe", messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}]
        )
