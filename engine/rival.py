"""llama.cpp on the same shape, for comparison: through llama-cpp-python, in a process of its own.

`write_gguf` makes a GGUF file of a preset's shape with made-up blocks, fast: a kernel's speed does not depend on the
values. `python -m engine.rival FILE THREADS CONTEXT` loads it, prints "ready", and then answers lines on standard
input, "prefill COUNT" and "decode CONTEXT COUNT", with the seconds they took.
"""

import ctypes
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import SettingsError
from engine.synthetic import shapes

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ARCHITECTURES = {"olmoe": "olmoe", "qwen3_moe": "qwen3moe"}


def write_gguf(config: Mapping[str, Any], kind: str, path: Path, seed: int = 0) -> None:
    """Writes a GGUF file of this configuration; `kind` is "q8" (Q8_0) or "q4" (Q4_0). Norms and routers are f32."""
    try:
        import gguf
    except ImportError:
        raise SettingsError(
            "writing a GGUF file needs the package gguf; install swarm-moe[compare]"
        ) from None
    architecture = ARCHITECTURES[config["model_type"]]
    kinds = gguf.GGMLQuantizationType
    packed = kinds.Q8_0 if kind == "q8" else kinds.Q4_0
    writer = gguf.GGUFWriter(path, architecture)
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(inner)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    rng = np.random.default_rng(seed)
    block = rng.integers(0, 256, (1 << 16, 34 if kind == "q8" else 18)).astype(np.uint8)
    block[:, :2] = np.frombuffer(np.float16(0.0003 if kind == "q8" else 0.004).tobytes(), np.uint8)

    def quantised(rows: int, cols: int) -> Any:
        count = rows * cols // 32
        lines = np.resize(block, (count, block.shape[1]))
        return lines.reshape(rows, cols // 32 * block.shape[1])

    for name, shape in _tensors(config).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        elif name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, rng.standard_normal(shape, np.float32) * np.float32(0.02))
        else:
            rows = int(np.prod(shape[:-1]))
            data = quantised(rows, shape[-1]).reshape(*shape[:-1], -1)
            writer.add_tensor(name, data, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """llama.cpp's names and shapes (outermost first); experts of a layer are one tensor."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes(config).items():
        module = name.removesuffix(".weight")
        if module in WHOLE:
            found[f"{WHOLE[module]}.weight"] = shape
            continue
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        if part in NAMES:
            found[f"blk.{layer}.{NAMES[part]}.weight"] = shape
        elif part.startswith("mlp.experts.0."):
            kind = part.rpartition(".")[2].removesuffix("_proj")
            found[f"blk.{layer}.ffn_{kind}_exps.weight"] = (config["num_experts"], *shape)
    return found


class LlamaCpp:
    """A model loaded by llama.cpp, by its C interface: no tokenizer and no sampling in between."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._model or not self._context:
            raise SettingsError(f"llama.cpp could not load {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._held = 0

    def prefill(self, count: int) -> float:
        """Seconds for the first `count` tokens of a new sequence."""
        self._lib.llama_memory_clear(self._memory, True)
        begun = time.perf_counter()
        self._feed(self._ids(count))
        self._held = count
        return time.perf_counter() - begun

    def decode(self, context: int, count: int) -> float:
        """Seconds for `count` single tokens after `context` others."""
        if self._held < context:
            self.prefill(context)
        self._lib.llama_memory_seq_rm(self._memory, 0, context, -1)
        self._held = context
        ids = self._ids(context + count)[context:]
        begun = time.perf_counter()
        for token in ids:
            self._feed([token])
        return time.perf_counter() - begun

    def _feed(self, ids: list[int], rows: int = 512) -> None:
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            tokens = (self._lib.llama_token * len(part))(*part)
            if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(part))) != 0:
                raise SettingsError("llama.cpp failed to decode")

    def _ids(self, count: int) -> list[int]:
        drawn = np.random.default_rng(7).integers(0, self._vocabulary, count)
        return [int(token) for token in drawn]


def serve(path: Path, threads: int, context: int) -> None:
    """The process's loop; see the module's docstring."""
    rival = LlamaCpp(path, threads, context)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        given = [int(number) for number in numbers]
        print(rival.prefill(given[0]) if what == "prefill" else rival.decode(given[0], given[1]), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
