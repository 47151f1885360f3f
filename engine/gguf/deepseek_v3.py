"""DeepSeek-V3 in GGUF files, where it is "deepseek2": latent attention and routers that choose within groups.

kv_b_proj comes as its halves by head, the one of keys transposed; older files have it whole.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

ROUTING = (
    "leading_dense_block_count", "expert_shared_count", "expert_group_count", "expert_group_used_count",
    "expert_shared_feed_forward_length", "nextn_predict_layers",
)  # fmt: skip
LATENT = (
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
)  # fmt: skip
SETTINGS = (*ROUTING, *LATENT)


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    if not facts.has("expert_gating_func"):
        raise ConfigError(
            f"{facts.read.where} does not say {facts.key('expert_gating_func')}, as files of DeepSeek-V2 do not; "
            "of its kind only DeepSeek-V3 and what is built like it is known"
        )
    return latent(facts)


def latent(facts: "Facts") -> Mapping[str, Any]:
    """Latent attention, with routers as `routing` reads them."""
    rope = facts.count("rope.dimension_count", least=0)
    wide = "_mla" if facts.has("attention.key_length_mla") else ""
    return {
        **routing(facts),
        "q_lora_rank": facts.count("attention.q_lora_rank") if facts.has("attention.q_lora_rank") else None,
        "kv_lora_rank": facts.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": facts.count(f"attention.key_length{wide}", least=rope + 1) - rope,
        "v_head_dim": facts.count(f"attention.value_length{wide}"),
    }


def routing(facts: "Facts") -> Mapping[str, Any]:
    """What the routers of GLM-4.5 and DeepSeek-V3 have in common."""
    read = facts.read
    return {
        "first_k_dense_replace": facts.count("leading_dense_block_count", default=0, least=0),
        "n_routed_experts": facts.count("expert_count"),
        "n_shared_experts": facts.count("expert_shared_count", default=0, least=0),
        "n_group": facts.count("expert_group_count", default=1),
        "topk_group": facts.count("expert_group_used_count", default=1),
        "norm_topk_prob": read.flag(facts.key("expert_weights_norm"), default=False),
        "routed_scaling_factor": read.number(facts.key("expert_weights_scale"), default=0.0) or 1.0,
    }
