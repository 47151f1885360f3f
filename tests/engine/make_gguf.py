"""Makes the reference answers in tests/engine/gguf: what llama.cpp says of the files that `writer` makes.

    python -m tests.engine.make_gguf REFERENCE_FOLDERS

Needs llama-cpp-python, which the tests do not. A file FOLDER.npz has, for each format, the logits of llama.cpp at
`positions` of the folder's prompt (keys and values in f32, as here with native weights) and, where the folder has a
tokenizer, the ids that llama.cpp makes of `texts`.
"""

import ctypes
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from safetensors.numpy import load_file

from engine.arrays import F32
from tests.engine.gguf.writer import write_folder

HERE = Path(__file__).parent / "gguf"
FORMATS = ("F32", "F16", "Q8_0", "Q4_0")
WORDS = {"olmoe": "gpt-2", "qwen3_moe": "qwen2"}
FOLDERS = ("olmoe", "qwen3_moe", "qwen3_moe-yarn", "qwen2_moe", "mixtral", "gpt_oss-mxfp4")
POSITIONS = 5
CHANGES = {"gpt_oss-mxfp4": {"swiglu_limit": 7.0, "sliding_window": 8}}
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
        options.n_ctx, options.n_threads, options.n_threads_batch = 256, 2, 2
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


def main(oracle: Path) -> None:
    """Writes all the files."""
    for name in FOLDERS:
        prompt = load_file(oracle / name / "golden.safetensors")["prompt"].tolist()
        positions = np.linspace(0, len(prompt) - 1, POSITIONS).round().astype(np.int32)
        arrays = {"prompt": np.array(prompt, np.int32), "positions": positions}
        for kind in FORMATS if name in WORDS else ("F32", "Q8_0"):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "model.gguf"
                write_folder(oracle / name, kind, path, WORDS.get(name), **CHANGES.get(name, {}))
                model = Llama(path)
                arrays[f"logits.{kind}"] = model.logits(prompt)[positions]
                if name in WORDS:
                    for number, text in enumerate(TEXTS):
                        arrays[f"ids.{number}"] = np.array(model.ids(text), np.int32)
        np.savez_compressed(HERE / f"{name}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
