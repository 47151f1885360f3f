"""Tencent Hy3 in GGUF files, where it is "hy_v3". Dense layers are those with no router."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError
from engine.gguf.names import GLM4

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

SETTINGS = ("expert_shared_feed_forward_length", "nextn_predict_layers")
NAMES = {
    **{ours: theirs for ours, theirs in GLM4.items() if ours != "post_attention_norm"},
    "ffn_gate_inp": "mlp.router.gate",
    "exp_probs_b": "mlp.expert_bias",  # with a suffix or without
    **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    facts.require("expert_weights_norm", True)
    expert = facts.count("expert_feed_forward_length")
    shared = facts.count("expert_shared_feed_forward_length", default=expert)
    if shared % expert:
        raise ConfigError(f"{facts.read.where}: shared experts of {shared} are not whole ones of {expert}")
    dense = facts.layers_without("ffn_gate_inp")
    return {
        "num_shared_experts": shared // expert,
        "router_scaling_factor": facts.read.number(facts.key("expert_weights_scale"), default=0.0) or 1.0,
        "mlp_layer_types": ["dense" if layer in dense else "sparse" for layer in range(facts.layers)],
    }
