"""Kimi K3 in GGUF files, where it is "kimi-k3": Kimi Linear's, with more to a layer.

Of attention over depth the norm's weights and the projection that follows it are stored as their product. Experts are
those of a latent (`expert_latent_length`). The gates of delta attention and of latent attention have each their name,
where checkpoints have one for both.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.gguf import deepseek_v3, kimi_linear
from engine.gguf.names import WHOLE

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

SETTINGS = (
    *kimi_linear.SETTINGS, "kda.gate_lower_bound", "expert_latent_length", "attn_res.block_size",
    "activation.situ_beta", "activation.situ_linear_beta",
)  # fmt: skip
OUTSIDE = {**WHOLE, "output_res_score": "model.output_attn_res_score"}
NAMES = {
    **kimi_linear.NAMES,
    "attn_gate": "self_attn.g_proj",
    "ssm_g": "self_attn.g_proj",
    "attn_res_score": "self_attention_res_score",
    "ffn_res_score": "mlp_res_score",
    **{f"ffn_routed_{part}": f"block_sparse_moe.routed_expert_{part}_proj" for part in ("down", "up")},
    "ffn_routed_norm": "block_sparse_moe.routed_expert_norm",
}


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    delta, number = kimi_linear.delta(facts), facts.read.number
    return {
        **deepseek_v3.latent(facts),
        **delta,
        "linear_attn_config": {
            **delta["linear_attn_config"],
            "gate_lower_bound": number(facts.key("kda.gate_lower_bound"), default=None),
            "use_full_rank_gate": facts.anywhere("ssm_g"),
        },
        "mla_use_output_gate": facts.anywhere("attn_gate"),
        "attn_res_block_size": facts.count("attn_res.block_size", default=0, least=0) or None,
        "routed_expert_hidden_size": facts.count("expert_latent_length", default=0, least=0) or None,
        "latent_moe_use_norm": facts.anywhere("ffn_routed_norm"),
        "activation_situ_beta": number(facts.key("activation.situ_beta")),
        "activation_situ_linear_beta": number(facts.key("activation.situ_linear_beta")),
    }
