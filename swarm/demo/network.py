"""The demo model itself: its tokenizer, its shape, how it answers, and how it is written to disk."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from swarm.demo.chat_format import CHAT_TEMPLATE, END, END_OF_TEXT, SPECIAL_TOKENS, pieces, prompt
from swarm.demo.corpus import Question, is_right

VOCABULARY = 2048
CONTEXT = 1024


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE tokenizer of VOCABULARY tokens, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    stream = pieces(random.Random(f"{seed} tokenizer"))
    between = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    texts = [part for _ in range(60_000) for part in between.split(next(stream)[0])]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def new_model() -> Qwen3MoeForCausalLM:
    """The model with fresh weights: 5.5 M parameters, of which 2 M work on a token."""
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        moe_intermediate_size=128,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        use_sliding_window=False,
        initializer_range=0.02,
        router_aux_loss_coef=0.01,
        pad_token_id=SPECIAL_TOKENS.index(END_OF_TEXT),
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END),
    )
    return Qwen3MoeForCausalLM(config)


def answers(model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, prompts: list[str], longest: int) -> list[str]:
    """Greedy answers, at most `longest` tokens each."""
    encoded = [tokenizer.encode(text).ids for text in prompts]
    width = max(map(len, encoded))
    pad = model.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in encoded])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded])
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=longest, pad_token_id=pad,
        eos_token_id=model.config.eos_token_id,
    )  # fmt: skip
    return [tokenizer.decode(row[width:].tolist(), skip_special_tokens=True) for row in out]


def evaluate(
    model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, questions: tuple[Question, ...], show: bool = False
) -> int:
    """How many of `questions` get the right answer greedily."""
    right = 0
    for depth in range(1 + max(len(question.before) for question in questions)):
        for stories, longest in ((False, 64), (True, 200)):
            asked = [q for q in questions if (q.topic == "story") == stories and len(q.before) == depth]
            for question, answer in zip(asked, _answered(model, tokenizer, asked, longest), strict=True):
                ok = is_right(question.topic, answer, question.text)
                right += ok
                if show and not ok:
                    print(f"wrong [{question.topic}] {question.text!r}: {answer!r}", flush=True)
    return right


def _answered(
    model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, questions: list[Question], longest: int
) -> list[str]:
    """The answers to questions of equal depth, each after the model's own answers to what was asked before."""
    if not questions:
        return []
    said: list[list[tuple[str, str]]] = [[] for _ in questions]
    for turn in range(len(questions[0].before)):
        earlier = [question.before[turn] for question in questions]
        prompts = [prompt(asked, told) for asked, told in zip(earlier, said, strict=True)]
        for told, pair in zip(
            said, zip(earlier, answers(model, tokenizer, prompts, 200), strict=True), strict=True
        ):
            told.append(pair)
    return answers(
        model, tokenizer, [prompt(q.text, t) for q, t in zip(questions, said, strict=True)], longest
    )


def save_model(
    directory: Path, model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, record: dict[str, Any]
) -> None:
    """Write the model in Hugging Face layout, whole or not at all, with `record` as training.json."""
    fresh = directory.with_name(directory.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    half = Qwen3MoeForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id, do_sample=False
    )
    half.save_pretrained(fresh)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(fresh, save_jinja_files=False)
    _spell_as_released(fresh)
    (fresh / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    old = directory.with_name(directory.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    fresh.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _spell_as_released(directory: Path) -> None:
    """Rewrite what transformers 5 renamed to the spelling of Qwen's releases, which every version reads."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["num_experts"] = config.pop("num_local_experts", None) or config["num_experts"]
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens", list(SPECIAL_TOKENS))
    settings.pop("backend", None)
    for name, content in (("config.json", config), ("tokenizer_config.json", settings)):
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    (directory / "model.safetensors").chmod(0o644)
