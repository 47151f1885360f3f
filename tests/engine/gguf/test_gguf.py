"""Models given as GGUF files: the reference's answers, llama.cpp's answers (see make_gguf.py), tokenizer and template.

Native weights are compared: the stored values, computed in f32 by both, so that only the order of sums differs
(measured: at most 2e-5 in logits of standard deviation 2.5).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from engine.checkpoint import Checkpoint, read_json
from engine.engine import Engine, Options
from engine.errors import CheckpointError, ConfigError, EngineError, TokenizerError, UnknownFamily
from engine.experts import MatrixRef
from engine.formats import Q4Blocks, Q8Blocks
from engine.generate import greedy
from engine.gguf import presented
from engine.gguf.tokenizer import PATTERNS, tokenizer_files
from engine.source import DirectorySource
from engine.tokenizer import Tokenizer
from engine.weights import Shelf, storage
from tests.engine.gguf.converters import CHANGES, FOLDER
from tests.engine.gguf.writer import (
    config_of,
    gguf_bytes,
    metadata_of,
    tensors_of,
    tokenizer_of,
    write_folder,
)
from tests.engine.reference import feed, golden, opened

HERE = Path(__file__).parent
TEXTS = (
    "Hello, world! It's 1234567 o'clock; we'LL see.",
    "  Two  spaces,\ta tab\n\n and lines \r\n  ",
    "Zażółć gęślą jaźń — 東京は夜の七時 🙂🙃 ½",
    "def f(x):\n    return x**2 + 0x1F  # comment",
)
CLOSE = 1e-4


@pytest.mark.parametrize(
    "name",
    [
        *(
            "olmoe",
            "qwen3_moe",
            "qwen3_moe-yarn",
            "qwen2_moe",
            "mixtral",
            "glm4_moe",
            "glm4_moe-air",
            "minimax_m2",
        ),
        *("deepseek_v3", "deepseek_v3-plain", "qwen3_next", "qwen3_5_moe"),
        *("kimi_linear", "glm_moe_dsa", "deepseek_v4", "deepseek_v4-fp4", "glm5_next", "hy_v3", "hy_v3-tied"),
    ],
)
def test_a_file_of_f32_gives_the_answers_of_the_reference(oracle: Path, tmp_path: Path, name: str) -> None:
    write_folder(oracle / name, "F32", tmp_path / "model.gguf")
    answers = golden(oracle / name)
    with DirectorySource(tmp_path / "model.gguf") as source:
        engine = Engine.open(source, Options(weights="native"))
        logits = feed(engine, engine.model.new_state(), answers.prompt)
        assert np.abs(logits - answers.logits).max() <= answers.atol
        assert greedy(engine.model, engine.experts, answers.prompt, len(answers.greedy))[0] == answers.greedy


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, kind)
            for name in ("olmoe", "qwen3_moe", "qwen3_next", "qwen3_5_moe")
            for kind in ("F32", "F16", "Q8_0", "Q4_0")
        ),
        *((name, kind) for name in ("qwen3_moe-yarn", "qwen2_moe", "mixtral") for kind in ("F32", "Q8_0")),
        *(
            (name, kind)
            for name in ("gpt_oss-mxfp4", "glm4_moe", "glm4_moe-air", "minimax_m2", "deepseek_v3")
            for kind in ("F32", "Q8_0")
        ),
        *(
            (name, kind)
            for name in ("deepseek_v32", "glm5_next", "hy_v3", "kimi_k3")
            for kind in ("F32", "Q8_0")
        ),
        *(
            (name, kind)
            for name in ("kimi_linear", "glm_moe_dsa", "deepseek_v4")
            for kind in ("F32", "F16", "Q8_0", "Q4_0")
        ),
    ],
)
def test_logits_are_those_of_llama_cpp(oracle: Path, tmp_path: Path, name: str, kind: str) -> None:
    with np.load(HERE / f"{name}.npz") as answers:
        prompt, positions, expected = (answers[key] for key in ("prompt", "positions", f"logits.{kind}"))
    write_folder(oracle / FOLDER.get(name, name), kind, tmp_path / "model.gguf", **CHANGES.get(name, {}))
    with DirectorySource(tmp_path) as source:
        engine = Engine.open(source, Options(weights="native"))
        logits = feed(engine, engine.model.new_state(), prompt.tolist())[positions]
        assert np.abs(logits - expected).max() <= CLOSE


def logits_of(path: Path, prompt: list[int]) -> Any:
    with DirectorySource(path) as source:
        engine = Engine.open(source, Options(weights="native"))
        return feed(engine, engine.model.new_state(), prompt)


def test_latent_attention_of_older_files_has_its_keys_and_values_in_one_matrix(
    oracle: Path, tmp_path: Path
) -> None:
    folder, file = oracle / "deepseek_v3", tmp_path / "model.gguf"
    tensors, metadata = tensors_of(folder, "F32"), metadata_of(config_of(folder, {}))
    with DirectorySource(folder) as source:
        checkpoint = Checkpoint.open(source)
        for layer in range(4):
            del tensors[f"blk.{layer}.attn_k_b.weight"], tensors[f"blk.{layer}.attn_v_b.weight"]
            values = checkpoint.f32(f"model.layers.{layer}.self_attn.kv_b_proj.weight")
            tensors[f"blk.{layer}.attn_kv_b.weight"] = ("F32", values.shape, values.tobytes())
    metadata["deepseek2.attention.key_length"] = metadata.pop("deepseek2.attention.key_length_mla")
    metadata["deepseek2.attention.value_length"] = metadata.pop("deepseek2.attention.value_length_mla")
    file.write_bytes(gguf_bytes(metadata, tensors))
    answers = golden(folder)
    assert np.abs(logits_of(file, answers.prompt) - answers.logits).max() <= answers.atol


def test_deepseek_v2_is_refused_by_name(oracle: Path, tmp_path: Path) -> None:
    folder, file = oracle / "deepseek_v3", tmp_path / "model.gguf"
    metadata = metadata_of(config_of(folder, {}))
    for said in ({}, {"deepseek2.expert_gating_func": 1}):
        del metadata["deepseek2.expert_gating_func"]
        metadata |= said
        file.write_bytes(gguf_bytes(metadata, tensors_of(folder, "F16")))
        with DirectorySource(file) as source, pytest.raises(ConfigError, match="expert_gating_func"):
            Checkpoint.open(source)
        metadata["deepseek2.expert_gating_func"] = 2


@pytest.mark.parametrize("words", PATTERNS)
def test_tokens_are_those_of_llama_cpp(oracle: Path, words: str) -> None:
    files = tokenizer_files("model.gguf", tokenizer_of(oracle / "qwen3_moe", words))
    tokenizer = Tokenizer(files["tokenizer.json"], files["tokenizer_config.json"])
    with np.load(HERE / "words.npz") as answers:
        for number, text in enumerate(TEXTS):
            ids = tokenizer.encode(text)
            assert ids == answers[f"{words}.{number}"].tolist()
            assert tokenizer.decode(ids) == text


def test_marks_are_part_of_words_where_the_model_takes_them_so() -> None:
    def words(pre: str) -> list[str]:
        tokens = ["x", *(chr(code) for code in range(33, 127) if chr(code) != "x")]
        metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [],
        }
        library = LibraryTokenizer.from_str(tokenizer_files("model.gguf", metadata)["tokenizer.json"])
        text = "नमस्ते q\u0301!\u0301?"
        return [text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)]

    assert words("qwen35") == ["नमस्ते", " q\u0301", "!\u0301", "?"]
    assert words("qwen2") == ["नमस", "्त", "े", " q", "\u0301!\u0301?"]


def test_tokenizer_template_and_stop_tokens_are_those_of_the_checkpoint(oracle: Path, tmp_path: Path) -> None:
    write_folder(oracle / "qwen3_moe", "Q8_0", tmp_path / "model.gguf", "qwen2")
    own = opened(oracle / "qwen3_moe", "auto")
    with DirectorySource(tmp_path) as source:
        engine = Engine.open(source)
        for text in TEXTS:
            assert engine.tokenizer.encode(text) == own.tokenizer.encode(text)
        for chat in json.loads((oracle / "qwen3_moe" / "golden_chat.json").read_text()):
            assert engine.template.prompt(chat["messages"]) == own.template.prompt(chat["messages"])
        assert engine.stop_ids == own.stop_ids


@pytest.mark.parametrize("folder", ["qwen3_moe", "qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize(("kind", "stored", "blocks"), [("Q8_0", "q8", Q8Blocks), ("Q4_0", "q4", Q4Blocks)])
def test_blocks_of_experts_are_taken_as_they_are(
    oracle: Path, tmp_path: Path, folder: str, kind: str, stored: str, blocks: type[Q8Blocks]
) -> None:
    write_folder(oracle / folder, kind, tmp_path / "model.gguf")
    held = tensors_of(oracle / folder, kind)["blk.1.ffn_up_exps.weight"][2]
    with DirectorySource(tmp_path) as source:
        checkpoint = Checkpoint.open(source)
        name = "model.layers.1.mlp.experts.3.up_proj"
        assert storage(checkpoint, name).kind == stored
        matrix = Shelf(checkpoint).matrix(MatrixRef(name), 32, 64)
        assert isinstance(matrix, blocks)
        assert matrix.blocks.tobytes() == held[len(held) // 8 * 3 : len(held) // 8 * 4]
        shape = Engine.open(source).bank.shape(1)
        assert stored in str(shape)


def test_rows_of_interleaved_heads_can_be_read_in_part(oracle: Path, tmp_path: Path) -> None:
    write_folder(oracle / "mixtral", "F16", tmp_path / "model.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    with DirectorySource(tmp_path) as source, DirectorySource(oracle / "mixtral") as original:
        checkpoint = Checkpoint.open(source)
        whole = checkpoint.f32(name)
        assert np.abs(whole - Checkpoint.open(original).f32(name)).max() < 1e-4
        for first in range(0, 64, 5):
            for count in (0, 1, min(7, 64 - first), 64 - first):
                assert np.array_equal(checkpoint.f32(name, first, count), whole[first : first + count])


def parts(folder: Path, directory: Path) -> list[Path]:
    """The folder's file in three parts; metadata in the first."""
    tensors = list(tensors_of(folder, "F16").items())
    metadata = metadata_of(json.loads((folder / "config.json").read_text()))
    files = []
    for number in range(3):
        said = {"split.no": number, "split.count": 3, "split.tensors.count": len(tensors)}
        files.append(directory / f"model-F16-{number + 1:05}-of-00003.gguf")
        files[-1].write_bytes(gguf_bytes(said if number else {**metadata, **said}, dict(tensors[number::3])))
    return files


@pytest.mark.parametrize("name", ["olmoe", "qwen3_next", "qwen3_5_moe"])
def test_a_file_in_parts_is_one_model_by_any_of_its_parts(oracle: Path, tmp_path: Path, name: str) -> None:
    files = parts(oracle / name, tmp_path)
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    write_folder(oracle / name, "F16", tmp_path / "single.gguf")
    with DirectorySource(files[1]) as source, DirectorySource(tmp_path / "single.gguf") as single:
        assert sorted(source.files()) == [path.name for path in files]
        split, whole = Checkpoint.open(source), Checkpoint.open(single)
        assert split.tensors.keys() == whole.tensors.keys()
        assert all(np.array_equal(split.raw(name), whole.raw(name)) for name in whole.tensors)
    with DirectorySource(tmp_path) as source, pytest.raises(CheckpointError, match="cannot tell which"):
        Checkpoint.open(source)


def test_a_missing_or_foreign_part_is_named(oracle: Path, tmp_path: Path) -> None:
    files = parts(oracle / "olmoe", tmp_path)
    files[2].write_bytes(files[1].read_bytes())
    with DirectorySource(files[0]) as source, pytest.raises(CheckpointError, match=r"00003.*part 1 of 3"):
        Checkpoint.open(source)
    files[2].unlink()
    with (
        DirectorySource(files[0]) as source,
        pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf missing"),
    ):
        Checkpoint.open(source)


def test_safetensors_beside_a_gguf_file_count(oracle: Path, tmp_path: Path) -> None:
    for path in ("config.json", "model.safetensors"):
        (tmp_path / path).symlink_to(oracle / "olmoe" / path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with DirectorySource(tmp_path) as source:
        assert presented(source) is source
        assert Checkpoint.open(source).config["model_type"] == "olmoe"


def test_what_a_file_stands_for_can_be_read_as_files(oracle: Path, tmp_path: Path) -> None:
    write_folder(oracle / "qwen3_moe", "Q8_0", tmp_path / "model.gguf", "qwen2")
    with DirectorySource(tmp_path) as source:
        seen = presented(source)
        assert presented(seen) is seen
        config = read_json(seen, "config.json")
        assert config is not None
        assert (config["torch_dtype"], config["num_experts"]) == ("q8_0", 8)
        size = seen.files()["config.json"]
        with pytest.raises(OSError, match="asked for"):
            seen.read("config.json", 1, size)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"general.architecture": "gemma3"}, UnknownFamily, "'gemma3' is not known"),
        ({"qwen3moe.attention.new_thing": 1}, ConfigError, "new_thing, which is not understood"),
        ({"qwen3moe.expert_gating_func": 2}, ConfigError, "expert_gating_func = 2"),
        ({"qwen3moe.rope.scaling.type": "longrope"}, ConfigError, "'longrope'"),
        ({"qwen3moe.rope.dimension_count": 8}, ConfigError, "dimension_count = 8"),
        ({"qwen3moe.attention.head_count": [1, 2]}, ConfigError, "head_count"),
        ({"qwen3moe.expert_count": 16}, CheckpointError, "not that of 16 experts"),
        ({"qwen3moe.block_count": 3}, CheckpointError, "model.layers.3"),
        ({"qwen3moe.embedding_length": 128}, CheckpointError, "128"),
    ],
)
def test_what_is_not_understood_or_does_not_fit_is_refused(
    oracle: Path, tmp_path: Path, changes: dict[str, Any], error: type[EngineError], said: str
) -> None:
    config = json.loads((oracle / "qwen3_moe" / "config.json").read_text())
    tensors = tensors_of(oracle / "qwen3_moe", "F16")
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({**metadata_of(config), **changes}, tensors))
    with DirectorySource(tmp_path) as source, pytest.raises(error, match=said):
        Engine.open(source)


def test_an_unknown_tensor_is_refused_by_name(oracle: Path, tmp_path: Path) -> None:
    config = json.loads((oracle / "qwen3_moe" / "config.json").read_text())
    tensors = {**tensors_of(oracle / "qwen3_moe", "F16"), "blk.0.ssm_a.weight": ("F32", (4,), bytes(16))}
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(metadata_of(config), tensors))
    with DirectorySource(tmp_path) as source, pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a\.weight"):
        Checkpoint.open(source)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "'unheard-of', which is not known"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "no merge"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "cannot be used"),
        ({"tokenizer.ggml.token_type": [1]}, "a type"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "every token once"),
    ],
)
def test_tokenizers_that_are_not_understood_are_refused(
    oracle: Path, changes: dict[str, Any], said: str
) -> None:
    metadata = {**tokenizer_of(oracle / "qwen3_moe", "qwen2"), **changes}
    with pytest.raises(TokenizerError, match=said):
        tokenizer_files("model.gguf", metadata)


def test_a_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes() -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces + words,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.scores": [0.0] * len(pieces) + [-9, -9, -9, -9, -3, -1, -2, -4, -5],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    files = tokenizer_files("model.gguf", metadata)
    tokenizer = Tokenizer(files["tokenizer.json"], files["tokenizer_config.json"])
    spelled = [(pieces + words)[ident] for ident in tokenizer.encode("abc aé")]
    assert spelled == ["▁a", "bc", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.encode("b", add_special=True)[0] == 1
    assert tokenizer.decode(tokenizer.encode("abc aé")) == "abc aé"
    assert tokenizer.end_ids == {2}
