"""Checkpoints with random weights in the layout of released OLMoE models: real in all but what they say.

For demonstrations without the trained model, for tests that move many bytes, and for measuring.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SYLLABLES = [
    f"{space}{consonant}{vowel}" for space in ("", " ") for consonant in "bdfglmnprstv" for vowel in "aeiou"
]
_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of an OLMoE model."""

    hidden: int = 64
    intermediate: int = 48
    layers: int = 2
    experts: int = 8
    experts_per_token: int = 2
    heads: int = 4
    context: int = 1024

    @property
    def vocabulary(self) -> int:
        """Tokens: special ones, bytes, syllables; rounded up to a multiple of 64."""
        return -(-(len(_SPECIAL) + 256 + len(_SYLLABLES)) // 64) * 64


def write_checkpoint(directory: Path, shape: Shape | None = None, seed: int = 0) -> None:
    """Writes a model directory: configuration, bfloat16 weights, tokenizer and chat template.

    Args:
        directory: Where; made when it is not there.
        shape: The sizes; by default a model of less than a megabyte.
        seed: The same seed gives the same bytes.
    """
    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(shape))
    _write_json(
        directory / "generation_config.json", {"eos_token_id": [0, 2], "do_sample": False, "temperature": 0.0}
    )
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": _TEMPLATE,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": shape.context,
        },
    )
    with (directory / "model.safetensors").open("wb") as file:
        _write_weights(file, shape, np.random.default_rng(seed))


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "vocab_size": shape.vocabulary,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "norm_topk_prob": False,
        "attention_bias": False,
        "clip_qkv": None,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, sorted by name as the releases store them."""
    hidden, intermediate = shape.hidden, shape.intermediate
    found: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (shape.vocabulary, hidden),
        "model.embed_tokens.weight": (shape.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
            found[f"{prefix}.{norm}.weight"] = (hidden,)
        for projection in "qkvo":
            found[f"{prefix}.self_attn.{projection}_proj.weight"] = (hidden, hidden)
        found[f"{prefix}.mlp.gate.weight"] = (shape.experts, hidden)
        for expert in range(shape.experts):
            found[f"{prefix}.mlp.experts.{expert}.gate_proj.weight"] = (intermediate, hidden)
            found[f"{prefix}.mlp.experts.{expert}.up_proj.weight"] = (intermediate, hidden)
            found[f"{prefix}.mlp.experts.{expert}.down_proj.weight"] = (hidden, intermediate)
    yield from sorted(found.items())


def _write_weights(file: BinaryIO, shape: Shape, random: np.random.Generator) -> None:
    """The safetensors format: length of a JSON header, the header, then the tensors one after another."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, sides in _tensors(shape):
        count = int(np.prod(sides)) * 2
        header[name] = {"dtype": "BF16", "shape": list(sides), "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name, sides in _tensors(shape):
        file.write(_bfloat16(_values(name, sides, random)).tobytes())


def _values(name: str, sides: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float32]:
    if len(sides) == 1:
        return 1 + 0.1 * random.standard_normal(sides, np.float32)
    values = random.standard_normal(sides, np.float32) * np.float32(1.5 / np.sqrt(sides[1]))
    if name == "lm_head.weight":
        # So that it answers in syllables, and never in halves of characters or with an early end.
        values[: len(_SPECIAL) + 256] = 0
        values[len(_SPECIAL) + 256 + len(_SYLLABLES) :] = 0
    return values


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _tokenizer() -> dict[str, object]:
    """A byte-level tokenizer.json: every byte is a token; syllables are tokens that only the model writes."""
    tokens = [
        *_SPECIAL,
        *(_byte_letter(byte) for byte in range(256)),
        *(s.replace(" ", "Ġ") for s in _SYLLABLES),
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [],
        },
    }


def _byte_letter(byte: int) -> str:
    """The printable letter that byte-level tokenizers write for a byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + [other for other in range(256) if other not in printable].index(byte))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
