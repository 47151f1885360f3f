"""Makes the reference answers in tests/engine/gguf: what llama.cpp says of the files that `writer` makes.

    python -m tests.engine.make_gguf REFERENCE_FOLDERS [NAME …]

Needs llama-cpp-python and gguf, which the tests do not. A file NAME.npz has, for each format, the logits of
llama.cpp at `positions` of the folder's prompt; words.npz the ids that it makes of `TEXTS` with each way to cut words.
llama.cpp rounds activations when weights are blocks; to have the answers of the weights alone, the tensors are decoded
by the package gguf first and given to it in f32, with keys and values in f32 too.
"""

import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

from engine.arrays import F32, Array
from engine.gguf.tokenizer import PATTERNS
from tests.engine.gguf.converters import CHANGES, FOLDER
from tests.engine.gguf.writer import config_of, gguf_bytes, metadata_of, write_folder

HERE = Path(__file__).parent / "gguf"
FORMATS = ("F32", "F16", "Q8_0", "Q4_0")
FOLDERS = (
    "olmoe", "qwen3_moe", "qwen3_moe-yarn", "qwen2_moe", "mixtral", "gpt_oss-mxfp4", "glm4_moe", "glm4_moe-air",
    "minimax_m2", "deepseek_v3", "qwen3_next", "qwen3_5_moe", "kimi_linear", "glm_moe_dsa", "deepseek_v32",
    "deepseek_v4", "hy_v3", "kimi_k3", "glm5_next",
)  # fmt: skip
ALL_FORMATS = (
    "olmoe", "qwen3_moe", "qwen3_next", "qwen3_5_moe", "kimi_linear", "glm_moe_dsa", "deepseek_v4",
)  # fmt: skip
POSITIONS = 5
TEXTS = (
    "Hello, world! It's 1234567 o'clock; we'LL see.",
    "  Two  spaces,\ta tab\n\n and lines \r\n  ",
    "Zażółć gęślą jaźń — 東京は夜の七時 🙂🙃 ½",
    "def f(x):\n    return x**2 + 0x1F  # comment",
)


class Llama:
    """A file opened by llama.cpp."""

    def __init__(self, path: Path) -> None:
        self._quiet = llama_cpp.llama_log_callback(lambda level, message, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)

    def logits(self, prompt: list[int]) -> F32:
        """Logits at every position, fed one by one."""
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = 512, 2, 2
        options.type_k = options.type_v = 0  # F32
        options.flash_attn_type = 0
        options.swa_full = True
        context = llama_cpp.llama_init_from_model(self._model, options)
        size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        rows = []
        for token in prompt:
            batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
            if llama_cpp.llama_decode(context, batch):
                raise SystemExit("llama.cpp cannot decode")
            rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (size,)).copy())
        llama_cpp.llama_free(context)
        return np.stack(rows).astype(np.float32)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), room, len(room), False, False)
        return list(room[:count])


def decoded(folder: Path, kind: str, path: Path, **changes: Any) -> None:
    """Writes the folder in a format, and then again with every tensor decoded to f32."""
    write_folder(folder, kind, path, **changes)
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.I32:
            tensors[tensor.name] = ("I32", tensor.data.shape, tensor.data.tobytes())
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        tensors[tensor.name] = ("F32", values.shape, values.tobytes())
    path.write_bytes(gguf_bytes(metadata_of(config_of(folder, changes)), tensors))


def words(folder: Path) -> None:
    """Writes words.npz, with the vocabulary of one folder."""
    arrays: dict[str, Array] = {}
    for name in PATTERNS:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.gguf"
            write_folder(folder, "F16", path, name)
            model = Llama(path)
            for number, text in enumerate(TEXTS):
                arrays[f"{name}.{number}"] = np.array(model.ids(text), np.int32)
    np.savez_compressed(HERE / "words.npz", **arrays)  # type: ignore[arg-type]


def main(oracle: Path, names: Sequence[str]) -> None:
    """Writes the files: those of the named folders, or "words", or all."""
    if not names or "words" in names:
        words(oracle / "qwen3_moe")
    for name in [name for name in names if name != "words"] or (FOLDERS if not names else ()):
        folder = oracle / FOLDER.get(name, name)
        prompt = load_file(folder / "golden.safetensors")["prompt"].tolist()
        positions = np.linspace(0, len(prompt) - 1, POSITIONS).round().astype(np.int32)
        arrays: dict[str, Array] = {"prompt": np.array(prompt, np.int32), "positions": positions}
        for kind in FORMATS if name in ALL_FORMATS else ("F32", "Q8_0"):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "model.gguf"
                decoded(folder, kind, path, **CHANGES.get(name, {}))
                model = Llama(path)
                arrays[f"logits.{kind}"] = model.logits(prompt)[positions]
        np.savez_compressed(HERE / f"{name}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
