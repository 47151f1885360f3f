"""`swarm models --families`: what is listed is what the engine's tables and the reference folders say."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from engine.checkpoint import Checkpoint
from engine.models import FAMILIES, families, family_of
from engine.source import DirectorySource
from engine.weights import FORMATS, storage
from swarm.cli.frame import run
from tests.engine.test_families import FOLDERS


def test_verified_formats_are_those_of_the_reference_folders(oracle: Path) -> None:
    stored: dict[str, set[str]] = defaultdict(set)
    for name in FOLDERS:
        with DirectorySource(oracle / name) as source:
            checkpoint = Checkpoint.open(source)
            family = family_of(checkpoint.config)
            layout = family.experts(family.parse(checkpoint.config)).stored_in(checkpoint.tensors)
            refs = layout.refs(layout.layers[0], 0)
            for matrix in (refs.gate, refs.up, refs.down):
                stored[family.name].add(storage(checkpoint, matrix.name).kind)
    assert {family.name: family.verified for family in families()} == {
        name: tuple(sorted(kinds)) for name, kinds in stored.items()
    }
    assert set().union(*stored.values()) <= set(FORMATS)


def test_families_and_formats_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--families", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    listed = {line["family"]: line for line in lines if "family" in line}
    assert sorted(kind for line in listed.values() for kind in line["model_types"]) == sorted(FAMILIES)
    assert listed["Mixtral"] == {
        "family": "Mixtral",
        "model_types": ["mixtral"],
        "gguf_architectures": ["llama"],
        "verified": ["bf16"],
    }
    formats = {(line["files"], line["format"]) for line in lines if "format" in line}
    assert {("safetensors", "fp8"), ("gguf", "Q8_0")} < formats
    assert run(["models", "--families"]) == 0
    shown = capsys.readouterr().out
    for family in families():
        assert family.name in shown
        assert all(kind in shown for kind in family.model_types)


@pytest.mark.parametrize("target", [["--offline"], ["--tracker", "localhost"]])
def test_families_are_no_question_to_a_swarm(
    target: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "--families", *target]) == 2
    assert "no swarm is asked" in capsys.readouterr().err
