"""The page about clients: every block of docs/api.md runs against a server, by curl, Python and llm."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.stage import Scripts, idle, in_process, until
from tests.conftest import missing

ROOT = Path(__file__).resolve().parents[2]
MODEL = "Qwen3-30B-A3B"
BLOCK = re.compile(r"<!-- test: (?P<name>\w+) -->\n```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = {found["name"]: (found["kind"], found["text"]) for found in BLOCK.finditer(TEXT)}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Basel"}}\n</tool_call>'


def answer(asked: str) -> str:
    """A user who asks for the weather is told after the tool was; who asks for a city gets one in JSON."""
    if "weather" in asked:
        return "It is sunny." if "Sunny in Basel" in asked else CALL
    return '{"name": "Basel", "inhabitants": 177654}' if asked == "Basel" else "Hello, you."


@pytest.fixture(scope="module")
def url(oracle: Path) -> Iterator[str]:
    with in_process(Scripts(oracle / "qwen3_moe", {MODEL: answer})) as it:
        yield it


def run(name: str, url: str, folder: Path) -> str:
    """What a block prints."""
    kind, text = BLOCKS[name]
    text = text.replace("http://127.0.0.1:8000", url)
    program = (
        [sys.executable, "-W", "error", "-c"] if kind == "python" else ["bash", "-euo", "pipefail", "-c"]
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*program, text], capture_output=True, text=True, timeout=120, cwd=folder, check=False,
        env={**os.environ, "PATH": path, "LLM_USER_PATH": str(folder), "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def events(text: str) -> list[dict[str, object]]:
    """The events of a stream."""
    parts = text.strip().split("\n\n")
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_every_block_is_tested() -> None:
    tested = {"serve", "models", "stream", "completion", "python", "schema", "tools", "yaml", "llm"}
    assert set(BLOCKS) == tested
    assert TEXT.count("```") == 2 * len(tested)
    assert BLOCKS["serve"][1].startswith("swarm api swarm://…")


def test_curl(url: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    assert json.loads(run("models", url, tmp_path))["data"][0]["id"] == MODEL
    told = events(run("stream", url, tmp_path))
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in told[:-1]) == "Hello, you."  # type: ignore[index]
    assert told[-1]["usage"]["completion_tokens"] > 0  # type: ignore[index]
    assert json.loads(run("completion", url, tmp_path))["choices"][0]["finish_reason"] == "stop"


def test_python(url: str, tmp_path: Path) -> None:
    assert run("python", url, tmp_path) == "Hello, you."
    assert run("schema", url, tmp_path) == "name='Basel' inhabitants=177654\n"
    assert run("tools", url, tmp_path) == "It is sunny.\n"
    assert idle(url)


def test_llm(url: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        missing("llm is not installed")
    known = BLOCKS["yaml"][1].replace("http://127.0.0.1:8000", url)
    (tmp_path / "extra-openai-models.yaml").write_text(known, encoding="utf-8")
    said, city, weather = run("llm", url, tmp_path).splitlines()
    assert said == "Hello, you."
    assert json.loads(city) == {"name": "Basel", "inhabitants": 177654}
    assert weather.endswith("It is sunny.")
    until(lambda: idle(url))


def test_llm_says_what_went_wrong(url: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        missing("llm is not installed")
    known = f"- model_id: swarm\n  model_name: other\n  api_base: {url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(known, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "swarm", "Hello"], capture_output=True, text=True, check=False,
        timeout=120, env={**os.environ, "LLM_USER_PATH": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"no model 'other'; there is {MODEL}" in done.stderr
