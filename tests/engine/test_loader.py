"""What a family is given: heads tied and shipped, tensors left over, formats found, configurations read
strictly."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.checkpoint import Checkpoint
from engine.config import Reader, text_part
from engine.engine import Engine, Options
from engine.errors import CheckpointError, ConfigError, EngineError, SettingsError
from engine.experts import MatrixRef
from engine.generate import logits
from engine.source import DirectorySource
from engine.weights import Outline, Shelf, storage
from tests.engine.test_checkpoint import MemorySource, shard

PROMPT = [5, 6, 7]


def changed(
    oracle: Path,
    target: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    name: str = "olmoe-f32",
) -> Path:
    """A copy of a reference folder after `change(config, tensors)`."""
    config = json.loads((oracle / name / "config.json").read_text())
    tensors = load_file(oracle / name / "model.safetensors")
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors")
    return target


def answer(folder: Path) -> Any:
    with Engine.open(DirectorySource(folder), Options("native")) as engine:
        return logits(engine.model, engine.experts, PROMPT)


def test_a_shipped_head_is_used_though_the_config_ties_it(oracle: Path, tmp_path: Path) -> None:
    folder = changed(oracle, tmp_path, lambda config, tensors: config.update(tie_word_embeddings=True))
    np.testing.assert_array_equal(answer(folder), answer(oracle / "olmoe-f32"))


def test_a_tied_head_is_the_embeddings(oracle: Path, tmp_path: Path) -> None:
    (tmp_path / "tied").mkdir()
    (tmp_path / "shipped").mkdir()

    def tie(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = True
        del tensors["lm_head.weight"]

    def ship(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    tied, shipped = changed(oracle, tmp_path / "tied", tie), changed(oracle, tmp_path / "shipped", ship)
    np.testing.assert_array_equal(answer(tied), answer(shipped))


def test_no_head_and_no_tie_is_an_error(oracle: Path, tmp_path: Path) -> None:
    folder = changed(oracle, tmp_path, lambda config, tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"no lm_head\.weight.*does not tie"):
        answer(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda config, tensors: tensors.update(
                {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}
            ),
            "q_proj.bias' that this family's reader does not know",
        ),
        (lambda config, tensors: tensors.pop("model.norm.weight"), "'model.norm' is in none"),
        (lambda config, tensors: tensors.pop("model.layers.1.mlp.experts.2.up_proj.weight"), None),
        (lambda config, tensors: config.update(hidden_size=32), r"config\.json makes it"),
        (lambda config, tensors: config.update(num_attention_heads=8), r"config\.json makes it|elements"),
        (lambda config, tensors: config.update(hidden_act="prelu"), "hidden_act = 'prelu'"),
        (lambda config, tensors: config.update(sliding_window=8), "sliding_window = 8"),
        (lambda config, tensors: config.update(num_hidden_layers="4"), "num_hidden_layers is '4'"),
        (lambda config, tensors: config.pop("hidden_size"), "does not say hidden_size"),
        (lambda config, tensors: config.update(num_experts_per_tok=99), "num_experts_per_tok|99"),
    ],
)
def test_what_does_not_fit_is_named(
    oracle: Path, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], says: str | None
) -> None:
    folder = changed(oracle, tmp_path, change)
    with pytest.raises((CheckpointError, ConfigError), match=says or "none of the model's files"):
        answer(folder)


def test_progress_reaches_the_end(oracle: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Engine.open(
        DirectorySource(oracle / "olmoe"), Options("q8"), lambda *now: seen.append(now)
    ) as engine:
        assert seen[-1][0] == seen[-1][1]
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert engine.model.resident_bytes > 0
    with pytest.raises(SettingsError, match="weights are auto, native, q8, q4"):
        Options("q5")  # type: ignore[arg-type]


F32 = np.arange(12, dtype=np.float32).reshape(3, 4)


def checkpoint(tensors: dict[str, Any], dtypes: dict[str, str] | None = None) -> Checkpoint:
    return Checkpoint.open(MemorySource({"config.json": b"{}", "model.safetensors": shard(tensors, dtypes)}))


def test_parts_of_fused_tensors() -> None:
    fused = np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)
    shelf = Shelf(checkpoint({"e.gate_up_proj": fused}))
    np.testing.assert_array_equal(
        shelf.matrix(MatrixRef("e.gate_up_proj", 1, first=3, count=3), 3, 4).f32(), fused[1, 3:]
    )
    np.testing.assert_array_equal(
        shelf.matrix(MatrixRef("e.gate_up_proj", 0, first=1, step=2), 3, 4).f32(), fused[0, 1::2]
    )
    np.testing.assert_array_equal(
        shelf.matrix(MatrixRef("e.gate_up_proj", 1, first=1, step=2, transposed=True), 2, 6).f32(),
        fused[1].T[1::2],
    )
    np.testing.assert_array_equal(
        Shelf(checkpoint({"b": np.arange(12, dtype=np.float32).reshape(2, 6)})).vector(
            MatrixRef("b", 1, 1, 2, 3), 3
        ),
        [7, 9, 11],
    )


def test_what_is_shared_is_read_once() -> None:
    source = MemorySource({"config.json": b"{}", "model.safetensors": shard({"m.weight": F32})})
    opened = Checkpoint.open(source)
    source.reads.clear()
    shelf = Shelf(opened)
    shelf.matrix(MatrixRef("m", first=0, count=1), 1, 4)
    shelf.matrix(MatrixRef("m", first=1, count=2), 2, 4)
    assert len(source.reads) == 1
    source.reads.clear()
    assert Outline(opened).matrix(MatrixRef("m"), 3, 4).rows == 3
    assert source.reads == []


BYTES = F32.astype(np.uint8)
E4M3 = {"m.weight": "F8_E4M3"}
ONE, PER_ROW = np.ones((1, 1), np.float32), np.ones((3, 1), np.float32)


@pytest.mark.parametrize(
    ("tensors", "dtypes", "kind", "cols"),
    [
        ({"m.weight": F32}, {}, "f32", 4),
        ({"m": F32}, {}, "f32", 4),
        ({"m.weight": F32.astype(np.float16)}, {}, "f16", 4),
        ({"m.weight": F32.astype(np.uint16)}, {}, "bf16", 4),
        ({"m.weight": BYTES, "m.weight_scale_inv": ONE}, E4M3, "fp8", 4),
        ({"m.weight": BYTES, "m.weight_scale": PER_ROW}, E4M3, "fp8", 4),
        (
            {"m.weight": np.zeros((3, 32), np.uint8), "m.scale": np.zeros((3, 2), np.uint8)},
            {"m.weight": "I8", "m.scale": "F8_E8M0"},
            "mxfp4",
            64,
        ),
        (
            {"m_blocks": np.zeros((3, 2, 16), np.uint8), "m_scales": np.zeros((3, 2), np.uint8)},
            {},
            "mxfp4",
            64,
        ),
        ({"m.weight_packed": np.zeros((3, 4), np.int32), "m.weight_scale": PER_ROW}, {}, "int4", 32),
        (
            {"m.weight_packed": np.zeros((3, 16), np.uint8), "m.weight_scale": np.zeros((3, 1), np.uint8)},
            {},
            "mxfp4",
            32,
        ),
    ],
)
def test_formats_are_told_by_their_tensors(
    tensors: dict[str, Any], dtypes: dict[str, str], kind: str, cols: int
) -> None:
    opened = checkpoint(tensors, dtypes)
    assert storage(opened, "m").kind == kind
    assert set(storage(opened, "m").names) == set(tensors)
    assert Shelf(opened).matrix(MatrixRef("m"), 3, cols).f32().shape == (3, cols)


@pytest.mark.parametrize(
    ("tensors", "dtypes", "says"),
    [
        ({"m.weight": F32.astype(np.uint8)}, {"m.weight": "F8_E4M3"}, "stored as F8_E4M3"),
        ({"m.weight": F32.astype(np.int32)}, {}, "stored as I32"),
        ({"m.weight": F32, "m.weight_scale": F32}, {}, "stored as F32 with"),
        ({"m.weight_packed": F32, "m.weight_scale": F32}, {}, "packed as F32"),
        ({"m.weight_packed": F32, "m.weight_zero_point": F32}, {}, "weight_zero_point"),
        ({"m.qweight": F32.astype(np.int32)}, {}, "'qweight'"),
        ({"m.weight_packed": F32.astype(np.int32)}, {}, "m.weight_scale' is in none"),
    ],
)
def test_formats_that_are_not_read_are_named(
    tensors: dict[str, Any], dtypes: dict[str, str], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        storage(checkpoint(tensors, dtypes), "m")


def test_configurations_are_read_strictly() -> None:
    read = Reader(
        {"n": 3, "x": 1.5, "f": True, "t": "a", "l": [1, 2], "o": {"n": 1}, "none": None, "big": 1 << 40}
    )
    assert (read.count("absent", "n"), read.number("x"), read.number("n")) == (3, 1.5, 3.0)
    assert (read.flag("f"), read.text("t"), read.counts("l"), read.part("o").count("n")) == (
        True,
        "a",
        (1, 2),
        1,
    )
    assert (read.number("none", default=None), read.count("none", default=7)) == (None, 7)
    assert "none" not in read
    assert "n" in read
    for wrong in (
        lambda: read.count("x"), lambda: read.count("f"), lambda: read.count("big"), lambda: read.number("t"),
        lambda: read.flag("n"), lambda: read.text("n"), lambda: read.counts("l", least=2),
        lambda: read.texts("l"),
        lambda: read.part("n"), lambda: read.count("none"), lambda: Reader({"x": float("inf")}).number("x"),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            wrong()
    assert text_part({"a": 1, "tie_word_embeddings": True, "text_config": {"b": 2}}) == {
        "b": 2,
        "tie_word_embeddings": True,
    }
    assert text_part({"a": 1}) == {"a": 1}


def test_large_matrices_are_read_row_by_row() -> None:
    source = MemorySource({"config.json": b"{}", "model.safetensors": shard({"m.weight": F32})})
    opened = Checkpoint.open(source)
    source.reads.clear()
    matrix = Shelf(opened).rows(MatrixRef("m"), 3, 4)
    assert source.reads == []
    np.testing.assert_array_equal(matrix.take(1, 1, 2).f32(), F32[1:])
    np.testing.assert_array_equal(matrix.take(0, 2).f32(), F32[::2])
    assert [length for _, _, length in source.reads] == [32, 48]
    np.testing.assert_array_equal(matrix.f32(), F32)
    assert Shelf(opened).rows(MatrixRef("m", first=1, count=1), 1, 4).rows == 1
    with pytest.raises(CheckpointError, match="3 x 4"):
        Shelf(opened).rows(MatrixRef("m"), 4, 3)


class Reconfigured(MemorySource):
    """A folder with another config.json."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        super().__init__({"config.json": json.dumps(config).encode()})
        self._folder = DirectorySource(folder)

    def files(self) -> Mapping[str, int]:
        return {**self._folder.files(), **super().files()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        if path in super().files():
            return super().read(path, offset, length)
        return bytes(self._folder.read(path, offset, length))


STRANGE: tuple[Any, ...] = (
    None,
    -1,
    0,
    7,
    1 << 20,
    1 << 40,
    -2.5,
    1e30,
    "x",
    True,
    [],
    [-1],
    {},
    {"type": "yarn"},
)


@pytest.mark.parametrize("name", ["olmoe-f32", "qwen3_moe-yarn"])
def test_strange_configurations_end_in_a_typed_error_or_an_answer(oracle: Path, name: str) -> None:
    luck = random.Random(11)
    base = json.loads((oracle / name / "config.json").read_text())
    places = [(key,) for key in base] + [("rope_scaling", key) for key in base["rope_scaling"] or ()]
    refused = 0
    for place in luck.sample([(place, value) for place in places for value in STRANGE], 60):
        config = json.loads(json.dumps(base))
        inner = config
        for key in place[0][:-1]:
            inner = inner[key]
        inner[place[0][-1]] = place[1]
        try:
            with Engine.open(Reconfigured(oracle / name, config), Options("native")) as engine:
                logits(engine.model, engine.experts, PROMPT)
        except EngineError:
            refused += 1
    assert 5 < refused < 60
