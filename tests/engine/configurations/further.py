"""Cases for what few releases say: rotation that depends on the length, other gatings, silence, rare spellings."""

from typing import Any

from tests.engine.configurations.bases import BASES, GONE

Changes = dict[str, dict[str, Any]]
PAIRS = {  # that are turned, of each head
    "olmoe": 5, "qwen3_moe": 6, "qwen2_moe": 5, "mixtral": 7, "minimax_m2": 4, "glm4_moe": 3, "hy_v3": 6, "gpt_oss": 6,
    "deepseek_v3": 4, "glm_moe_dsa": 4, "deepseek_v32": 4, "qwen3_next": 3, "qwen3_5_moe_text": 3,
}  # fmt: skip
GATINGS = (
    "swish", "relu2", "relu6", "leaky_relu", "hardswish", "quick_gelu", "gelu_10", "gelu_new", "gelu_fast",
    "gelu_accurate", "gelu_python", "gelu_python_tanh", "mish", "tanh", "sigmoid", "laplace", "sqrtsoftplus", "linear",
)  # fmt: skip
HEADS_SILENT = {"num_attention_heads": GONE, "num_key_value_heads": GONE}
YARN_NESTED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}
SHARE = {"partial_rotary_factor": 0.25}


def long_rope(family: str, original: int, **more: Any) -> dict[str, Any]:
    """Rotary scaling by lists, long ones beyond `original` positions."""
    pairs = PAIRS[family]
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [2 + pair for pair in range(pairs)],
        "original_max_position_embeddings": original,
        **more,
    }


OWN: dict[str, Changes] = {
    "mixtral": {
        **{f"act-{name}": {"hidden_act": name} for name in GATINGS},
        "longrope-factor": {"rope_scaling": long_rope("mixtral", 8, factor=3.0)},
        "longrope-attention": {"rope_scaling": long_rope("mixtral", 8, attention_factor=1.3)},
        "longrope-beside": {
            "rope_scaling": long_rope("mixtral", 64), "original_max_position_embeddings": 8, "sliding_window": 5,
        },
        "longrope-edge": {"rope_scaling": long_rope("mixtral", 14)},
        "truncate-null": {
            "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "truncate": None},
        },
        "theta-one": {"rope_theta": 1},
        "theta-half": {"rope_theta": 0.5, "rope_scaling": {"type": "linear", "factor": 2}},
        "part-unread": {"partial_rotary_factor": 0.5},
        "heads-silent": {**HEADS_SILENT, "hidden_size": 64},
        "wide-heads": {"head_dim": 80, "hidden_size": 50, "intermediate_size": 24, "vocab_size": 37},
        "only-expert": {"num_local_experts": 1, "num_experts_per_tok": 1},
    },
    "olmoe": {"heads-silent": {**HEADS_SILENT, "hidden_size": 64}},
    "qwen2_moe": {"heads-silent": {**HEADS_SILENT, "hidden_size": 64}},
    "qwen3_moe": {"heads-silent": {**HEADS_SILENT, "hidden_size": 64}},
    "glm4_moe": {"heads-silent": HEADS_SILENT},
    "hy_v3": {
        "heads-silent": HEADS_SILENT,
        "dense-unread": {"first_k_dense_replace": 0},
        "types-longer": {"mlp_layer_types": ["sparse", "dense", "sparse"]},
    },
    "gpt_oss": {
        "heads-silent": HEADS_SILENT,
        "rope-empty": {"rope_parameters": {}},
        "rope-both-empty": {"rope_parameters": GONE, "rope_scaling": {}, "max_position_embeddings": 131072},
    },
    "minimax_m2": {
        "heads-silent": HEADS_SILENT,
        "rotary-beside": {"rotary_dim": 8, "partial_rotary_factor": 0.5},
    },
    "deepseek_v3": {
        "null-flags": {"norm_topk_prob": None, "rope_interleave": None},
        "dynamic-mscale": {"rope_scaling": {"type": "dynamic", "factor": 4.0, "mscale_all_dim": 0.7}},
    },
    "deepseek_v4": {
        "main-silent": {
            "rope_parameters": {"main": {"type": "linear", "factor": 2.0}, "compress": {"rope_type": "default"}},
        },
        "main-shares": {
            "rope_parameters": {"main": SHARE, "compress": {**SHARE, "rope_theta": 70.0, "rope_type": "default"}},
        },
        "main-yarn": {"rope_scaling": {"main": YARN_NESTED, "compress": YARN_NESTED}},
        "flat-share": {"rope_scaling": {**YARN_NESTED, "partial_rotary_factor": 0.5}},
        "rotary-odd": {"qk_rope_head_dim": 5},
        "rotary-silent": {"qk_rope_head_dim": GONE},
        "mlp-bias": {"mlp_bias": True},
    },
}  # fmt: skip
OWN_WRAPPED: dict[str, Changes] = {
    "glm5_next": {
        "act-relu": {"hidden_act": "relu"},
        "types-silent": {
            "mlp_layer_types": GONE, "num_hidden_layers": 4, "indexer_types": ["full"] * 4,
            "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "linear_attention"],
        },
    },
    "inkling_mm_model": {"act-relu": {"hidden_act": "relu"}},
}  # fmt: skip


def further(family: str) -> Changes:
    """The changes of a family's base, by name."""
    changes: Changes = dict(OWN.get(family, {}))
    if family != "gpt_oss":
        changes["act-relu"] = {"hidden_act": "relu"}
    if family in PAIRS:
        spelling = {"rope_parameters": GONE} if "rope_parameters" in BASES[family] else {}
        for name, original in (("longrope", 8), ("longrope-within", 32)):
            changes[name] = {"rope_scaling": long_rope(family, original), **spelling}
    return changes
