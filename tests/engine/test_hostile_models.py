"""What a model's small files can say, value by value: each ends in a typed error or is understood, and soon."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import Checkpoint
from engine.config import LARGEST_NUMBER, Reader
from engine.engine import stop_ids
from engine.errors import CheckpointError, ConfigError, EngineError, TokenizerError
from engine.experts import MOST_EXPERTS
from engine.models import family_of
from engine.rotary import RopeSettings
from engine.sampling import Sampling, preferred
from engine.template import ChatTemplate
from engine.tokenizer import Tokenizer
from tests.engine.configurations.bases import BASES, GONE, WRAPPED
from tests.engine.gguf import writer
from tests.engine.test_checkpoint import MemorySource

LONGEST_S = 5.0  # of one attempt, compiling kernels left out
HUGE = 10**400  # no float can hold it
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 4096, 65536, 2**31, 2**32 + 1, 2**63, HUGE, 0.5, -2.5, 1e-320, 1e308, float("nan"),
    float("inf"), "", "x", "\ud800", [], [1, 2], [HUGE], [None], ["x"], [[1]], {}, {"a": 1},
)  # fmt: skip
ROTATIONS = [
    {
        "rope_type": kind, "factor": factor, "original_max_position_embeddings": original, "beta_fast": fast,
        "beta_slow": slow, "mscale": scale, "mscale_all_dim": all_dim, "short_factor": [1.0] * 6,
        "long_factor": [1.0] * 6,
    }
    for kind in ("yarn", "longrope", "linear", "dynamic", "llama3", "proportional")
    for factor in (4, 1e-300, 1e300)
    for original in (1, 4096)
    for fast, slow in ((32, 1), (-1, 1), (1e-320, -1))
    for scale, all_dim in ((0, 0), (-10, 1), (1, -10))
]  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: {"model_type": name, **base} for name, base in BASES.items()},
    **{name: {"model_type": name, **whole, "text_config": text} for name, (text, whole) in WRAPPED.items()},
}


def ends_well(attempt: Callable[[], object]) -> bool:
    """Whether what was tried was understood. Fails for untyped errors and for what takes too long."""
    started = time.process_time()
    try:
        attempt()
    except EngineError:
        return False
    finally:
        assert time.process_time() - started < LONGEST_S
    return True


def variants(values: Mapping[str, Any], *more: str) -> Iterator[dict[str, Any]]:
    """The object with each of its values, also of objects in it, and `more` ones, replaced by each strange one."""
    for key, old in [*values.items(), *((key, None) for key in more if key not in values)]:
        if isinstance(old, Mapping):
            yield from ({**values, key: inner} for inner in variants(old))
        yield from ({**values, key: strange} for strange in STRANGE)


def read_config(config: Mapping[str, Any]) -> None:
    """All that is made of a configuration before weights are looked at."""
    family = family_of(config)
    parsed = family.parse(config)
    family.skips(parsed, "model.layers.5.x")
    layout = family.experts(parsed)
    assert len(layout.layers) * layout.experts_per_layer <= MOST_EXPERTS
    rope = getattr(parsed, "rope", None)
    if isinstance(rope, RopeSettings):
        rope.table_scale()
        rope.score_scale()
        for long in (False, True):
            rope.frequencies(getattr(parsed, "head_dim", 8), rope.partial, long=long)


def try_all(config: Mapping[str, Any]) -> None:
    """Reads the configuration as it is, and with each strange value in each place."""
    read_config(config)
    more = (
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "mlp_layer_types",
        "mlp_only_layers",
        "head_dim",
    )
    scaled = ({**config, key: scaling} for scaling in ROTATIONS for key in more[:2])
    found = [ends_well(partial(read_config, changed)) for changed in (*variants(config, *more), *scaled)]
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_configuration_is_understood_or_refused(name: str) -> None:
    try_all({key: value for key, value in CONFIGS[name].items() if value is not GONE})


@pytest.mark.parametrize("name", ["kimi_k3", "deepseek_v3-fp8", "gpt_oss-mxfp4", "qwen3_moe-yarn"])
def test_any_configuration_like_a_release_is_understood_or_refused(oracle: Path, name: str) -> None:
    try_all(json.loads((oracle / name / "config.json").read_text()))


@pytest.mark.parametrize("value", [2**31 + 1, 2**32, 2**32 + 29, 2**63, 2**64 + 29, HUGE])
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_experts", "num_hidden_layers"])
def test_counts_beyond_32_bits_are_refused_by_name(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} is"):
        read_config({**CONFIGS["olmoe"], key: value})


def test_numbers_that_no_float_holds_are_refused() -> None:
    read = Reader({"huge": HUGE, "far": 2 * LARGEST_NUMBER, "list": [1, HUGE], "small": 1e-20, "none": 0.0})
    for wrong in (
        lambda: read.number("huge"),
        lambda: read.number("far"),
        lambda: read.numbers("list"),
        lambda: read.scale("small", default=1.0),
        lambda: read.scale("none", default=1.0),
    ):
        with pytest.raises(ConfigError):
            wrong()
    assert read.scale("none", default=1.0, zero=32.0) == 32.0


def test_more_experts_than_any_model_has_are_refused_though_neither_number_is_strange() -> None:
    with pytest.raises(ConfigError, match=r"4,096 layers of 65,536 experts"):
        read_config({**CONFIGS["olmoe"], "num_hidden_layers": 4096, "num_experts": 65536})


def test_a_context_stretched_beyond_counting_is_refused() -> None:
    stretched = {"rope_type": "yarn", "factor": 1e6, "original_max_position_embeddings": 1 << 20}
    with pytest.raises(ConfigError, match="no context is that long"):
        read_config({**CONFIGS["olmoe"], "rope_scaling": stretched})


GENERATION = {
    "do_sample": True, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1,
    "eos_token_id": [1, 2],
}  # fmt: skip


def test_any_generation_config_is_understood_or_refused() -> None:
    def read(generation: Mapping[str, Any]) -> None:
        sampling: Sampling = preferred(generation, {})
        assert sampling.temperature >= 0
        stop_ids({"eos_token_id": [1, None, "x"]}, generation, None)

    found = [ends_well(partial(read, value)) for value in variants(GENERATION)]
    assert any(found)
    with pytest.raises(ConfigError, match=r"generation_config.json: temperature"):
        preferred({"do_sample": True, "temperature": HUGE}, {})


def open_texts(source: MemorySource) -> None:
    """All that is made of a model's tokenizer and template."""
    checked = Checkpoint.open(source).source if "model.gguf" in source.files() else source
    tokenizer = Tokenizer.open(checked)
    if tokenizer is None:
        return
    template = ChatTemplate.open(checked, tokenizer)
    tokenizer.encode("hello <|im_end|>", add_special=True)
    if template is not None:
        template.prompt([{"role": "user", "content": "hi <|im_end|>"}])
    stop_ids({}, {}, tokenizer)


def files(definition: object, settings: object) -> MemorySource:
    named = {"tokenizer.json": definition, "tokenizer_config.json": settings}
    return MemorySource({path: json.dumps(content).encode() for path, content in named.items()})


def test_any_tokenizer_is_understood_or_refused(oracle: Path) -> None:
    definition = json.loads((oracle / "qwen3_moe" / "tokenizer.json").read_text())
    settings = json.loads((oracle / "qwen3_moe" / "tokenizer_config.json").read_text())
    top = {key: value for key, value in definition.items() if key != "model"}
    model = {key: value for key, value in definition["model"].items() if key not in ("vocab", "merges")}
    changed = [{**definition, key: value} for key in top for value in STRANGE]
    changed += [{key: value for key, value in definition.items() if key != gone} for gone in definition]
    changed += [
        {**definition, "model": {**definition["model"], key: value}}
        for key in (*model, "vocab", "merges")
        for value in STRANGE
    ]
    pairs = [(definition, settings), *((variant, settings) for variant in changed)]
    pairs += [(definition, variant) for variant in variants(settings, "eos_token", "added_tokens_decoder")]
    pairs += [(definition, {**settings, "chat_template": [{"name": 5, "template": "x"}, {"template": 5}]})]
    found = [ends_well(partial(open_texts, files(*pair))) for pair in pairs]
    assert found[0]
    assert not all(found)


def test_text_that_is_no_text_is_refused(oracle: Path) -> None:
    source = MemorySource({"tokenizer.json": (oracle / "qwen3_moe" / "tokenizer.json").read_bytes()})
    tokenizer = Tokenizer.open(source)
    assert tokenizer is not None
    for read in (tokenizer.encode, tokenizer.encode_rendered):
        with pytest.raises(TokenizerError, match="half a surrogate pair"):
            read("a\ud800")
    assert tokenizer.id_of("\ud800") is None


EMBEDDING = {"token_embd.weight": ("F32", (29, 40), bytes(29 * 40 * 4))}
IN_GGUF: tuple[Any, ...] = (
    True, 0, 1, 5, 2**31 - 1, 2**32 - 1, 1.5, float("nan"), float("inf"), "", "x", [], ["a", "b"], [1, 2], [0.5],
    [True, False],
)  # fmt: skip
FURTHER = (
    "split.count", "split.no", "split.tensors.count", "tokenizer.ggml.model", "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template",
    "general.alignment",
)  # fmt: skip


def read_gguf(metadata: Mapping[str, Any]) -> None:
    source = MemorySource({"model.gguf": writer.gguf_bytes(metadata, EMBEDDING)})
    read_config(Checkpoint.open(source).config)
    open_texts(source)


@pytest.mark.parametrize(
    "name", ["olmoe", "gpt_oss", "deepseek_v3", "deepseek_v4", "glm5_next", "kimi_k3", "hy_v3", "qwen3_5_moe"]
)
def test_any_metadata_of_a_gguf_file_is_understood_or_refused(oracle: Path, name: str) -> None:
    metadata = writer.metadata_of(writer.config_of(oracle / name, {}))
    changes = [{key: value} for key in (*metadata, *FURTHER) for value in IN_GGUF]
    found = [ends_well(partial(read_gguf, {**metadata, **change})) for change in changes]
    assert not all(found)


def test_any_tokenizer_in_a_gguf_file_is_understood_or_refused(oracle: Path) -> None:
    tokenizer = writer.tokenizer_of(oracle / "olmoe", "olmo")
    metadata = writer.metadata_of(writer.config_of(oracle / "olmoe", {}), tokenizer)
    scored = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [0.5] * len(tokenizer["tokenizer.ggml.tokens"]),
    }
    keys = [key for key in (*tokenizer, *FURTHER) if key != "general.alignment"]
    changes = [
        {**base, key: value} for base in ({}, scored) for key in dict.fromkeys(keys) for value in IN_GGUF
    ]
    found = [ends_well(partial(read_gguf, {**metadata, **change})) for change in [{}, scored, *changes]]
    assert found[:2] == [True, True]
    assert not all(found)


def test_a_gguf_file_cannot_claim_endless_layers(oracle: Path) -> None:
    metadata = writer.metadata_of(writer.config_of(oracle / "olmoe", {}))
    with pytest.raises(ConfigError, match="block_count"):
        read_gguf({**metadata, "olmoe.block_count": 2**31 - 1})


def test_a_token_that_could_be_merged_in_endless_ways_is_refused(oracle: Path) -> None:
    tokenizer = writer.tokenizer_of(oracle / "olmoe", "olmo")
    tokens = [*tokenizer["tokenizer.ggml.tokens"][:-1], "x" * 5000]
    scored = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5] * len(tokens)}
    metadata = writer.metadata_of(writer.config_of(oracle / "olmoe", {}), {**tokenizer, **scored})
    with pytest.raises((TokenizerError, CheckpointError), match="a token of 5,000 characters"):
        read_gguf({**metadata, "tokenizer.ggml.tokens": tokens})
