"""What is wrong with a model directory is said before anybody is told of it."""

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import CheckpointError, ConfigError, TemplateError, TokenizerError
from swarm.peers.inspect import inspect


@pytest.fixture
def folder(oracle: Path, tmp_path: Path) -> Path:
    """A checkpoint that may be damaged."""
    return shutil.copytree(oracle / "qwen3_moe", tmp_path / "model")


def test_a_whole_directory_passes(folder: Path) -> None:
    facts = inspect(folder)
    assert facts.family == "Qwen3-MoE"
    assert sum(facts.experts_in_layer) > 0
    assert facts.trouble == ()


def test_experts_that_only_the_configuration_knows_are_named(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    count = config["num_hidden_layers"]
    path.write_text(json.dumps({**config, "num_hidden_layers": count + 1}))
    with pytest.raises(CheckpointError, match=rf"model\.layers\.{count}\.mlp\.experts\.0"):
        inspect(folder)


@pytest.mark.parametrize(
    "content", ["{}", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"]
)
def test_a_tokenizer_that_cannot_be_used_is_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises((TokenizerError, CheckpointError), match=r"tokenizer\.json"):
        inspect(folder)


@pytest.mark.parametrize(
    "content", ["{", "[]", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"]
)
def test_generation_settings_with_which_nobody_can_open_the_model_are_refused(
    folder: Path, content: str
) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises((CheckpointError, ConfigError), match=r"generation_config\.json"):
        inspect(folder)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"do_sample": True, "top_k": -1}, "top_k"),
        ({"do_sample": True, "temperature": "warm"}, "temperature"),
        ({"do_sample": "yes"}, "do_sample"),
        ({"repetition_penalty": 0}, "repeat_penalty"),
    ],
)
def test_generation_settings_that_chats_cannot_use_are_named(
    folder: Path, settings: dict[str, object], key: str
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (trouble,) = inspect(folder).trouble
    assert trouble.startswith("generation_config.json: ")
    assert trouble.count("generation_config.json") == 1
    assert key in trouble


def test_a_template_that_no_question_fits_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only the operator may speak') }}")
    (trouble,) = inspect(folder).trouble
    assert trouble.startswith("the chat template: ")
    assert "only the operator may speak" in trouble


def test_a_template_that_is_none_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for")
    with pytest.raises(TemplateError):
        inspect(folder)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds no config.json"):
        inspect(tmp_path)
