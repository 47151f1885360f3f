"""GLM-5.3 in GGUF files, where it is "glm5-next": Kimi Linear's delta attention, GLM-5's indexer, DeepSeek-V4's
streams."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ConfigError
from engine.gguf import deepseek_v4, glm_moe_dsa, kimi_linear

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

SETTINGS = (
    *glm_moe_dsa.SETTINGS, *kimi_linear.DELTA, *deepseek_v4.CLAMPS, *deepseek_v4.STREAMS, "kda.gate_lower_bound",
    "attention.indexer.kpool", "attention.indexer.kpool_select_tail", "attention.layer_norm_epsilon",
)  # fmt: skip
PREFIX = "model.language_model"
OUTSIDE = {"token_embd": f"{PREFIX}.embed_tokens", "output_norm": f"{PREFIX}.norm", "output": "lm_head"}
NAMES = {
    **glm_moe_dsa.NAMES,
    **kimi_linear.DELTA_NAMES,
    **deepseek_v4.STREAM_NAMES,
    **{
        f"indexer_compressor_{part}.weight": f"self_attn.indexer.index_kpool_compress_{part}"
        for part in ("gate", "ape")
    },
}
INDEX_EPSILON = float(np.float32(1e-6))


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    facts.require("attention.layer_norm_epsilon", INDEX_EPSILON)
    facts.require("attention.indexer.kpool_select_tail", True)
    limit = deepseek_v4.limit(facts)
    if limit <= 0:
        raise ConfigError(f"{facts.read.where} does not clamp activations, which models of this kind do")
    delta = kimi_linear.delta(facts)
    bound = facts.read.number(facts.key("kda.gate_lower_bound"))
    latent = glm_moe_dsa.settings(facts)
    dense = latent["first_k_dense_replace"]
    return {
        **latent,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(facts.layers)],
        **delta,
        "linear_attn_config": {**delta["linear_attn_config"], "gate_lower_bound": bound},
        **deepseek_v4.streams(facts),
        "index_kpool": facts.count("attention.indexer.kpool"),
        "swiglu_limit": limit,
    }
