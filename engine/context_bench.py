"""What a token costs after many others: `swarm bench context`.

Made-up models with the heads, latents and indexers of the families' releases in a few narrow layers. Routed experts,
which cost the same at every position, are left out, so that what grows shows. A state of many positions is not
computed but filled with random numbers: what they are changes no cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32, I32
from engine.bench import in_turns, summed_up
from engine.cache import KeyValue, Running, State
from engine.compressed import WindowAndEntries
from engine.doubts import Doubts
from engine.errors import SettingsError
from engine.made_up import MadeUp
from engine.models import Model, Segment, family_of
from engine.numerics import Weights

POSITIONS = (1024, 4096, 16384)
STEPS = 24  # tokens of one measured run

_COMMON = {
    "hidden_size": 1024, "vocab_size": 512, "max_position_embeddings": 1 << 20, "intermediate_size": 1024,
    "moe_intermediate_size": 256, "num_experts_per_tok": 2, "num_hidden_layers": 4,
}  # fmt: skip
_LATENT = {
    **_COMMON, "num_attention_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_INDEXED = {**_LATENT, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32}
_DELTA = {
    **_COMMON, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 8,
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
_KIMI = {
    **{key: value for key, value in _LATENT.items() if key != "q_lora_rank"}, "num_experts": 8,
    "linear_attn_config": {
        "full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 16, "head_dim": 128, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
_PLAIN = {**_COMMON, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}

SHAPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # by model type: how it attends, and a configuration
    "qwen3_moe": ("all keys", {**_PLAIN, "num_experts": 8}),
    "minimax_m2": ("all keys", {**_PLAIN, "num_local_experts": 8, "rotary_dim": 64}),
    "mixtral": ("window of 4096", {**_PLAIN, "num_local_experts": 8, "sliding_window": 4096}),
    "gpt_oss": (
        "window of 128, every second layer all keys",
        {**_PLAIN, "num_local_experts": 8, "head_dim": 64, "sliding_window": 128},
    ),
    "inkling_mm_model": (
        "window of 512, every sixth layer all keys",
        {
            **_PLAIN, "num_hidden_layers": 6, "swa_num_attention_heads": 16, "swa_num_key_value_heads": 4,
            "swa_head_dim": 128, "sliding_window_size": 512, "rel_extent": 1024, "n_routed_experts": 8,
        },
    ),
    "deepseek_v3": ("latents of all", _LATENT),
    "glm_moe_dsa": ("latents of 2048 chosen", {**_INDEXED, "index_topk_pattern": "FSFS"}),
    "glm5_next": (
        "delta rule, every fourth layer latents of 2048 chosen",
        {**_INDEXED, "qk_rope_head_dim": 0, "linear_num_heads": 16, "linear_head_dim": 128, "index_kpool": 16},
    ),
    "deepseek_v4": (
        "window of 128 and entries of 4 or 128 tokens, 512 chosen",
        {
            **_COMMON, "num_attention_heads": 16, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 512,
            "o_lora_rank": 256, "o_groups": 4, "n_routed_experts": 8, "compress_ratios": [0, 4, 128, 4],
            "index_topk": 512, "index_head_dim": 128, "index_n_heads": 32, "num_hash_layers": 0,
        },
    ),
    "kimi_linear": ("delta rule, every fourth layer latents of all", _KIMI),
    "kimi_k3": (
        "delta rule, every fourth layer latents of all",
        {**_KIMI, "num_experts_per_token": 2, "attn_res_block_size": 2, "routed_expert_hidden_size": 512},
    ),
    "qwen3_next": ("delta rule, every fourth layer all keys", _DELTA),
    "qwen3_5_moe_text": ("delta rule, every fourth layer all keys", _DELTA),
}  # fmt: skip


class NoExperts:
    """Stands for experts that cost nothing."""

    looks_ahead = False
    far = False

    def __init__(self) -> None:
        self.doubts = Doubts()

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return work()

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """See `engine.experts.Experts`."""
        return lambda: np.zeros_like(rows)

    def local_bank(self) -> None:
        """See `engine.experts.Experts`."""

    def prefetch(self, layer: int, ids: I32) -> None:
        """Nothing to fetch."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one token after `positions` others: seconds (median and quartiles of the runs), and bytes of memory."""

    positions: int
    median_s: float
    low_s: float
    high_s: float
    state_bytes: int


def model_of(model_type: str, weights: Weights = "auto") -> Model:
    """The made-up model. SettingsError for a type there is no shape of."""
    if model_type not in SHAPES:
        raise SettingsError(f"there is no made-up shape of {model_type!r}; there are {', '.join(SHAPES)}")
    config: dict[str, Any] = {"model_type": model_type, **SHAPES[model_type][1]}
    family = family_of(config)
    return family.build(family.parse(config), MadeUp(weights))


def filled(model: Model, positions: int) -> State:
    """A state of that many positions, made up."""
    state, random = model.new_state(), np.random.default_rng(1)
    while state.length < positions:
        state.prepare(min(512, positions - state.length))
        state.commit()
    for part in state.parts:
        if isinstance(part, Running):
            for array in part.now:
                array[...] = 0
        arrays = part.arrays if isinstance(part, KeyValue) else []
        for array in [part.array] if isinstance(part, WindowAndEntries) else arrays:
            line = random.standard_normal((min(len(array), 512), *array.shape[1:]), np.float32)
            for start in range(0, len(array), len(line)):
                array[start : start + len(line)] = line[: len(array) - start]
    return state


def costs(model: Model, positions: Sequence[int] = POSITIONS, runs: int = 5) -> list[Cost]:
    """What a token costs after each number of positions; the numbers take turns, so that drift hits all alike."""
    experts, states = NoExperts(), [filled(model, count) for count in positions]

    def step(state: State) -> None:
        for token in range(STEPS):
            model.forward([Segment(state, [token])], experts)

    seconds = in_turns([partial(step, state) for state in states], least_rounds=runs, least_s=0.0) / STEPS
    timings = map(summed_up, seconds.T)
    return [
        Cost(count, each.median_s, each.low_s, each.high_s, state.nbytes)
        for count, state, each in zip(positions, states, timings, strict=True)
    ]
