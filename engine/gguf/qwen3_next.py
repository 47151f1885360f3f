"""Qwen3-Next in GGUF files: what they call its parts, and what the converter makes of the weights.

- Norms have 1 added, that of linear attention excepted: `norm_weights_hold_one` in the configuration.
- A = −exp(A_log) stands in place of A_log.
- in_proj_qkvz, which goes by key head, is cut into in_proj_qkv, all questions, then all keys, then all values, and
  in_proj_z. The oldest files have it whole (ssm_in).
- The convolution has lost its middle side of 1.

in_proj_ba is as it was, and so is q_proj, where each head's question is followed by its gate. Multi-token prediction
is left out.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.gguf.names import ATTENTION, HEAD_NORMS, SHARED, SPARSE

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

NAMES = {
    **ATTENTION,
    **HEAD_NORMS,
    **SPARSE,
    **SHARED,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
SETTINGS = (
    "expert_shared_feed_forward_length", "full_attention_interval", "ssm.conv_kernel", "ssm.state_size",
    "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
)  # fmt: skip


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    values = facts.count("ssm.inner_size")
    heads = facts.read.divisor(facts.key("ssm.time_step_rank"), of=values)
    return {
        "norm_topk_prob": True,
        "norm_weights_hold_one": True,
        "shared_expert_intermediate_size": facts.shared_width(),
        "full_attention_interval": facts.count("full_attention_interval", default=4),
        "linear_conv_kernel_dim": facts.count("ssm.conv_kernel"),
        "linear_key_head_dim": facts.count("ssm.state_size"),
        "linear_num_key_heads": facts.count("ssm.group_count"),
        "linear_value_head_dim": values // heads,
        "linear_num_value_heads": heads,
    }
