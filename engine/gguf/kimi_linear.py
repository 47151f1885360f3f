"""Kimi Linear in GGUF files, where it is "kimi-linear".

Layers of delta attention are those with no key heads. The decay's rate is stored as it acts, −exp(A_log), and there is
no word of the router's groups, of which the only release has one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.gguf import deepseek_v3
from engine.gguf.names import DEEPSEEK, MIXTRAL

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

DELTA = ("ssm.conv_kernel", "kda.head_dim")
DELTA_NAMES = {
    **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in ("q", "k", "v")},
    **{f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_a": "self_attn.A",
    "ssm_beta": "self_attn.b_proj",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ssm_norm": "self_attn.o_norm",
}
SETTINGS = (*deepseek_v3.SETTINGS, *DELTA)
NAMES = {
    **DEEPSEEK,
    **MIXTRAL,
    **DELTA_NAMES,
    "exp_probs_b": "block_sparse_moe.gate.e_score_correction_bias",
    **{
        f"ffn_{part}_shexp": f"block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up", "down")
    },
}


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    facts.require("expert_weights_norm", True)
    return {**deepseek_v3.latent(facts), "norm_topk_prob": True, **delta(facts)}


def delta(facts: "Facts") -> Mapping[str, Any]:
    """Which layers have delta attention, and its shape."""
    heads = facts.by_layer("attention.head_count_kv")
    return {
        "layer_types": ["full_attention" if count else "linear_attention" for count in heads],
        "linear_attn_config": {
            "num_heads": facts.count("attention.head_count"),
            "head_dim": facts.count("kda.head_dim"),
            "short_conv_kernel_size": facts.count("ssm.conv_kernel"),
        },
    }
