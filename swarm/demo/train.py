"""Trains the demo model from nothing: `python -m swarm.demo.train --out DIR` (needs the extra `train`).

The text comes from `swarm.demo.corpus`, batch by batch from the seed and the number of the step alone, so a
stopped training resumes exactly, and the same settings give the same model on the same kind of machine.
DIR gets

    model/       the newest usable model in Hugging Face layout: running averages of the weights, in bfloat16
    state.pt     what a resumed training needs
    log.jsonl    a line now and then: step, tokens, loss, held-out score

The learning rate warms up, stays, then falls in a straight line to zero over the last `--decay` of the steps.
`--until HH:MM` cuts the number of steps to what the clock allows; `training.json` beside the weights says how
many that were, so that `--steps` and `--decay-from` repeat it. The default of 7,000 steps is 14.3 M tokens;
two free cores with AVX-512 were measured to do about 5,000 tokens/s, so that is some 50 minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from swarm.demo.chat_format import Learn, pieces
from swarm.demo.corpus import held_out, newcomers, strangers
from swarm.demo.network import evaluate, new_model, save_model, train_tokenizer

TOKENS_A_STEP = 2048
DECIDING = 4.0
"""Weight of the first four tokens of an answer, which decide what is answered, and of copied words; others weigh 1."""


@dataclass
class Progress:
    """Where a training stands; everything else follows from the seed."""

    seed: int
    step: int = 0
    steps: int = 0  # planned
    decay_from: int = 0
    seconds: float = 0.0


def window(step: int) -> int:
    """Tokens a row of batch `step`: mostly few, so that many chats begin; sometimes many, for long chats."""
    return 1024 if step % 16 == 15 else 512 if step % 8 == 7 else 256 if step % 2 else 128


def batch(tokenizer: Tokenizer, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch `step`: ids int64 [rows, window + 1], and how much each counts as a target."""
    length = window(step) + 1
    rows, weights = [], []
    for row in range(TOKENS_A_STEP // (length - 1)):
        ids: list[int] = []
        counts: list[float] = []
        stream = pieces(random.Random(f"{seed} {step} {row}"))
        while len(ids) < length:
            text, learn = next(stream)
            tokens = tokenizer.encode(text).ids
            ids += tokens
            counts += [_weight(learn, place) for place in range(len(tokens))]
        rows.append(ids[:length])
        weights.append(counts[:length])
    return torch.tensor(rows), torch.tensor(weights)


def _weight(learn: Learn, place: int) -> float:
    """How much the token at `place` of a piece counts."""
    if learn == "nothing":
        return 0.0
    return DECIDING if learn == "copy" or (learn == "answer" and place < 4) else 1.0


def loss_of(
    model: Qwen3MoeForCausalLM, ids: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The loss to minimise (text, and balance of the experts), and of the text alone, in nats."""
    out = model.model(input_ids=ids[:, :-1], output_router_logits=True, use_cache=False)
    weights, targets = weights[:, 1:], ids[:, 1:]
    learnt = weights > 0
    logits = model.lm_head(out.last_hidden_state[learnt])
    losses = torch.nn.functional.cross_entropy(logits.float(), targets[learnt], reduction="none")
    text = (losses * weights[learnt]).sum() / weights.sum()
    config = model.config
    balance = load_balancing_loss_func(out.router_logits, config.num_experts, config.num_experts_per_tok)
    return text + config.router_aux_loss_coef * balance, text.item()


def rate(progress: Progress, peak: float) -> float:
    """The learning rate of the next step."""
    factor = min(1.0, (progress.step + 1) / 100)
    if progress.step >= progress.decay_from:
        factor *= (progress.steps - progress.step) / max(1, progress.steps - progress.decay_from)
    return peak * factor


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
        """One batch; returns the loss of its text."""
        ids, weights = batch(self.tokenizer, self.progress.seed, self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.progress, self.peak)
        loss, text_loss = loss_of(self.model, ids, weights)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.progress.step += 1
        keep = min(0.99, self.progress.step / (self.progress.step + 10))
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(weight, 1.0 - keep)
        return text_loss

    def facts(self) -> dict[str, Any]:
        """What repeats this training up to here."""
        return {**asdict(self.progress), "tokens": self.progress.step * TOKENS_A_STEP, "rate": self.peak}

    def save(self, last: bool = False) -> dict[str, Any]:
        """Write state and model; returns the facts with the score of the model as written.

        Only the `last` model is asked the newcomers' and strangers' questions, so that they guide no choice before.
        """
        rounded = Qwen3MoeForCausalLM(self.model.config)
        rounded.load_state_dict({k: v.bfloat16().float() for k, v in self.average.state_dict().items()})
        rounded.eval()
        asked = held_out()
        record = {
            **self.facts(),
            "right": evaluate(rounded, self.tokenizer, asked, last),
            "held_out": len(asked),
        }
        if last:
            for name, asked in (("newcomers", newcomers()), ("strangers", strangers())):
                right = evaluate(rounded, self.tokenizer, asked, last)
                record |= {f"{name}_right": right, name: len(asked)}
        save_model(self.out / "model", self.average, self.tokenizer, record)
        state = {
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.out / "state.new")
        (self.out / "state.new").rename(self.out / "state.pt")
        return record


def main() -> None:
    """Train, or resume, what the command line says."""
    parser = argparse.ArgumentParser(description="Train Swarm's demo model.")
    parser.add_argument("--out", type=Path, required=True, help="resumed if it has a state.pt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7000, help=f"of {TOKENS_A_STEP} tokens each")
    parser.add_argument("--decay", type=float, default=0.25, help="share of the steps with a falling rate")
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
        end = _next(datetime.time.fromisoformat(options.until))
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
    _report(trainer, recent, log, last=True)


def _next(clock: datetime.time) -> float:
    """When it is `clock` for the next time, in seconds since the epoch."""
    now = datetime.datetime.now()
    then = datetime.datetime.combine(now, clock)
    return (then if then > now else then + datetime.timedelta(days=1)).timestamp()


def _report(trainer: Trainer, recent: list[tuple[float, float]], log: Any, last: bool = False) -> None:
    losses = [loss for loss, _ in recent[-100:]]
    line = {**trainer.save(last), "loss": sum(losses) / max(1, len(losses))}
    log.write(json.dumps(line) + "\n")
    log.flush()
    print(f"{time.strftime('%H:%M:%S')} {line}; model saved", flush=True)


if __name__ == "__main__":
    main()
