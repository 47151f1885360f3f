"""Makes the answers in tests/engine/configurations: what transformers says of the checkpoints that the tests draw.

    python -m tests.engine.make_configurations [--keep FOLDER] [NAME …]

Needs torch and transformers, which the tests do not. Made are the answers of cases that are new or changed, and of
those named: the checkpoint's tensors as transformers saves them, logits at some positions of the prompt (float32,
eager attention, no cache), and the tolerance: ten times the distance to the same pass in float64, at least 1e-4.
"""

import argparse
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.configurations.answers import ANSWERS, Answer, load_answers, save_answers
from tests.engine.configurations.cases import CASES, Case
from tests.engine.configurations.checkpoint import write

WRAPPED = {
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "glm5_next": "Glm5NextForConditionalGeneration",
    "inkling_mm_model": "InklingForConditionalGeneration",
}
# Multimodal releases whose small copies transformers cannot load: their text model is asked alone. What is before its
# tensors' names, and others that the checkpoint has.
ALONE = {
    "kimi_k25": ("language_model.", {"vision_tower.encoder.weight": [8, 8], "mm_projector.weight": [8, 8]})
}


def model_of(config: dict[str, Any], folder: Path | None) -> Any:
    """The model of a configuration in float32, with the weights of `folder` or none in particular."""
    named = WRAPPED.get(config["model_type"])
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    kind = getattr(transformers, named) if named else AutoModelForCausalLM
    if folder is not None:
        return kind.from_pretrained(folder, **options).eval()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(place)
    return kind._from_config(parsed, **options) if named else kind.from_config(parsed, **options)


def shapes_of(config: dict[str, Any], *, saved: bool = False) -> dict[str, list[int]]:
    """The tensors of the configuration's checkpoint, named as the family's releases name them, or as transformers
    saved them."""
    with tempfile.TemporaryDirectory() as place:
        model_of(config, None).save_pretrained(place)
        shapes = {}
        for file in sorted(Path(place).glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    shapes[name] = list(tensors.get_slice(name).get_shape())
    return {name if saved else released(name, config): shape for name, shape in shapes.items()}


def released(name: str, config: dict[str, Any]) -> str:
    """A tensor's name in the family's releases, where transformers saves it under another."""
    if config["model_type"] != "deepseek_v4":
        return name
    for ours, theirs in (
        ("embed_tokens", "embed"),
        (".attn.norm.", ".attn.kv_norm."),
        ("hc_head.hc_", "hc_head_"),
    ):
        name = name.replace(ours, theirs)
    return name.removeprefix("model.")


def answer(name: str, case: Case, keep: Path | None) -> Answer:
    """What the reference says of one case."""
    before, others = ALONE.get(case.config["model_type"], ("", {}))
    config = case.text if before else case.config
    shapes = shapes_of(config, saved=case.saved)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) if keep is None else keep / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, config, shapes, case.shards)
        model = model_of(config, folder)
        ids = torch.tensor(case.prompt())[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float().numpy()
            wide = model.double()(input_ids=ids, use_cache=False).logits[0].double().numpy()
    noise = float(np.abs(wide - logits).max())
    if noise > 1e-3:
        raise SystemExit(f"{name}: float32 and float64 differ by {noise:.1e}; draw other weights")
    print(f"{name}: {len(shapes)} tensors, deviation {logits.std():.2f}, noise {noise:.1e}", flush=True)
    shapes = {f"{before}{tensor}": shape for tensor, shape in shapes.items()} | others
    return Answer(asked(case), shapes, max(1e-4, 10 * noise), logits[case.positions()])


def asked(case: Case) -> int:
    """A number that changes with the case."""
    kept = [case.config, case.length, *([case.saved] if case.saved else [])]
    return zlib.crc32(json.dumps(kept).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder in which the checkpoints stay")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    before = load_answers() if ANSWERS.exists() else {}
    answers = {}
    for name, case in CASES.items():
        known = before.get(name)
        changed = known is None or known.asked != asked(case)
        answers[name] = answer(name, case, options.keep) if changed or name in options.names else known
    save_answers(answers)


if __name__ == "__main__":
    main()
