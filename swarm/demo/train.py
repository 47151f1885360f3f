"""Trains the demo model from nothing: `python -m swarm.demo.train --out DIR` (needs the extra `train`).

The text comes from `swarm.demo.corpus`, batch by batch from the seed and the number of the step alone, so a stopped
training resumes exactly, and the same settings give the same model on the same kind of machine. DIR gets

    model/       the newest usable model in Hugging Face layout: running averages of the weights, in bfloat16
    state.pt     what a resumed training needs
    log.jsonl    a line now and then: step, tokens, loss, held-out score

The schedule is warm-up, constant, then a straight line to zero (over the last `--decay` of the steps). `--until HH:MM`
cuts the number of steps to what the clock allows; `training.json` beside the weights says how many that were, so that
`--steps` and `--decay-from` repeat it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from swarm.demo.chat_format import CHAT_TEMPLATE, END, END_OF_TEXT, SPECIAL_TOKENS, pieces, prompt
from swarm.demo.corpus import held_out, is_right

VOCABULARY = 2048
CONTEXT = 1024
TOKENS_A_STEP = 2048


@dataclass
class Progress:
    """Where a training stands; everything else follows from the seed."""

    seed: int
    step: int = 0
    steps: int = 0  # planned
    decay_from: int = 0
    seconds: float = 0.0


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


def window(step: int) -> int:
    """Tokens a row of batch `step`: mostly 256; now and then longer, so that long chats hold together."""
    return 1024 if step % 16 == 15 else 512 if step % 4 == 3 else 256


def batch(tokenizer: Tokenizer, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch `step`: ids int64 [rows, window] and targets of the same shape, -100 where nothing is to be learnt."""
    length = window(step)
    rows, targets = [], []
    for row in range(TOKENS_A_STEP // length):
        ids: list[int] = []
        wanted: list[int] = []
        stream = pieces(random.Random(f"{seed} {step} {row}"))
        while len(ids) <= length:
            text, learnt = next(stream)
            tokens = tokenizer.encode(text).ids
            ids += tokens
            wanted += tokens if learnt else [-100] * len(tokens)
        rows.append(ids[:length])
        targets.append(wanted[1 : length + 1])
    return torch.tensor(rows), torch.tensor(targets)


def loss_of(model: Qwen3MoeForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The loss to minimise (answers, and balance of the experts), and that of the answers alone in nats a token."""
    out = model.model(input_ids=ids, output_router_logits=True, use_cache=False)
    learnt = targets != -100
    logits = model.lm_head(out.last_hidden_state[learnt])
    answers = torch.nn.functional.cross_entropy(logits.float(), targets[learnt])
    config = model.config
    balance = load_balancing_loss_func(out.router_logits, config.num_experts, config.num_experts_per_tok)
    return answers + config.router_aux_loss_coef * balance, answers.item()


def rate(progress: Progress, peak: float) -> float:
    """The learning rate of the next step."""
    factor = min(1.0, (progress.step + 1) / 100)
    if progress.step >= progress.decay_from:
        factor *= (progress.steps - progress.step) / max(1, progress.steps - progress.decay_from)
    return peak * factor


@torch.no_grad()
def answers(model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, questions: list[str], longest: int) -> list[str]:
    """Greedy answers to first questions, at most `longest` tokens each."""
    encoded = [tokenizer.encode(prompt(question)).ids for question in questions]
    width = max(map(len, encoded))
    pad = model.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in encoded])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded])
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=longest, pad_token_id=pad,
        eos_token_id=model.config.eos_token_id,
    )  # fmt: skip
    return [tokenizer.decode(row[width:].tolist(), skip_special_tokens=True) for row in out]


def evaluate(model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, show: bool = False) -> tuple[int, int]:
    """How many of the held-out questions get the right answer greedily, and how many there are."""
    right, total = 0, 0
    for stories, longest in ((False, 64), (True, 200)):
        asked = [question for question in held_out() if (question.topic == "story") == stories]
        for question, answer in zip(
            asked, answers(model, tokenizer, [q.text for q in asked], longest), strict=True
        ):
            ok = is_right(question.topic, answer, question.text)
            right, total = right + ok, total + 1
            if show and not ok:
                print(f"wrong [{question.topic}] {question.text!r}: {answer!r}", flush=True)
    return right, total


def save_model(
    directory: Path, model: Qwen3MoeForCausalLM, tokenizer: Tokenizer, progress: Progress, **facts: Any
) -> None:
    """Write the model in Hugging Face layout, whole or not at all: weights in bfloat16, tokenizer, settings."""
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
    record = {**asdict(progress), "tokens": progress.step * TOKENS_A_STEP, **facts}
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


class Trainer:
    """Model, running average, optimiser and progress of one training in one directory."""

    def __init__(self, out: Path, seed: int, peak: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(seed)
        self.out, self.peak = out, peak
        self.progress = Progress(seed)
        self.tokenizer = train_tokenizer(seed)
        self.model = new_model()
        self.average = new_model()
        self.average.load_state_dict(self.model.state_dict())
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
        if (out / "state.pt").exists():
            state = torch.load(out / "state.pt", weights_only=True)
            self.progress = Progress(**state["progress"])
            self.model.load_state_dict(state["model"])
            self.average.load_state_dict(state["average"])
            self.optimizer.load_state_dict(state["optimizer"])

    def step(self) -> float:
        """One batch; returns the loss of the answers."""
        ids, targets = batch(self.tokenizer, self.progress.seed, self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.progress, self.peak)
        loss, answers_loss = loss_of(self.model, ids, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.progress.step += 1
        keep = min(0.99, self.progress.step / (self.progress.step + 10))
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(weight, 1.0 - keep)
        return answers_loss

    def save(self, show: bool = False) -> tuple[int, int]:
        """Write state and model; returns the held-out score of the model as written."""
        rounded = Qwen3MoeForCausalLM(self.model.config)
        rounded.load_state_dict({k: v.bfloat16().float() for k, v in self.average.state_dict().items()})
        right, total = evaluate(rounded.eval(), self.tokenizer, show)
        save_model(self.out / "model", self.average, self.tokenizer, self.progress, right=right, held_out=total)
        state = {
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.out / "state.new")
        (self.out / "state.new").rename(self.out / "state.pt")
        return right, total


def main() -> None:
    """Train, resume or (with --steps 0) only score what is there."""
    parser = argparse.ArgumentParser(description="Train Swarm's demo model.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the training; resumed if it has a state")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000, help=f"of {TOKENS_A_STEP} tokens each")
    parser.add_argument("--decay", type=float, default=0.25, help="share of the steps in which the rate falls to 0")
    parser.add_argument("--decay-from", type=int, help="step at which it begins to fall, instead of --decay")
    parser.add_argument("--until", help="HH:MM: be done by then, with fewer steps where need be")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--save-minutes", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    trainer = Trainer(options.out, options.seed, options.rate)
    progress = trainer.progress
    progress.steps = options.steps
    progress.decay_from = options.decay_from or round(options.steps * (1 - options.decay))
    began = saved = time.time()
    end = float("inf")
    if options.until:
        clock = datetime.time.fromisoformat(options.until)
        end = datetime.datetime.combine(datetime.datetime.now(), clock).timestamp()
    decay_at = end - options.decay * (end - began) if options.until else end
    recent: list[tuple[float, float]] = []
    log = (options.out / "log.jsonl").open("a", encoding="utf-8")
    while progress.step < progress.steps:
        before = time.time()
        recent.append((trainer.step(), time.time() - before))
        now = time.time()
        progress.seconds += now - before
        if now >= decay_at and progress.step < progress.decay_from:
            left = round(0.9 * (end - now) * len(recent) / (now - began))
            progress.decay_from, progress.steps = progress.step, progress.step + max(50, left)
        if progress.step % 25 == 0:
            losses, seconds = zip(*recent[-25:], strict=True)
            pace = TOKENS_A_STEP * len(seconds) / sum(seconds)
            text = f"step {progress.step}/{progress.steps} loss {sum(losses) / len(losses):.4f}"
            print(f"{time.strftime('%H:%M:%S')} {text} {pace:.0f} tokens/s", flush=True)
        if now - saved > 60 * options.save_minutes:
            _report(trainer, recent, log)
            saved = time.time()
    _report(trainer, recent, log, show=True)


def _report(trainer: Trainer, recent: list[tuple[float, float]], log: Any, show: bool = False) -> None:
    right, total = trainer.save(show)
    losses = [loss for loss, _ in recent[-100:]]
    line = {
        **asdict(trainer.progress),
        "tokens": trainer.progress.step * TOKENS_A_STEP,
        "loss": sum(losses) / max(1, len(losses)),
        "right": right,
        "held_out": total,
    }
    log.write(json.dumps(line) + "\n")
    log.flush()
    print(f"{time.strftime('%H:%M:%S')} held-out {right}/{total} = {right / total:.1%}; model saved", flush=True)


if __name__ == "__main__":
    main()
