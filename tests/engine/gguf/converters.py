"""What converters do beyond renaming, for architectures whose settings and weights are not stored as in most.

`METADATA`: settings of an architecture from a configuration. `changed`: a weight as the file has it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.arrays import F32

Config = Mapping[str, Any]
# The linear_attn_config of the folder kimi_k3, with as many heads as latent attention has: files know of one number.
WITH_ANOTHER_HEAD = {
    "full_attn_layers": [4, 5],
    "kda_layers": [1, 2, 3],
    "gate_lower_bound": -5.0,
    "head_dim": 16,
    "num_heads": 4,
    "short_conv_kernel_size": 4,
    "use_full_rank_gate": True,
}
# Of which folder llama.cpp's answers are, if not of that of their name.
FOLDER = {"deepseek_v32": "glm_moe_dsa"}
# Configurations changed so that llama.cpp computes what they say. It rounds the bounds of yarn's ramp, which gpt-oss is
# trained without; gives the norms of latents the epsilon of the others; and turns indexers by Hadamard matrices, of
# which it has none below 64 dimensions (see `widened`). Its GLM-5 and DeepSeek-V3.2 do run the indexer.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "gpt_oss-mxfp4": {"sliding_window": 8, "rope_scaling": None},
    "kimi_linear": {"rms_norm_eps": 1e-6},
    "glm_moe_dsa": {"rms_norm_eps": 1e-6, "index_head_dim": 64},
    "deepseek_v32": {
        "model_type": "deepseek_v32",
        "num_hidden_layers": 2,  # in which no indexer is shared
        "mlp_layer_types": ["dense", "sparse"],
        "indexer_types": ["full", "full"],
        "indexer_rope_interleave": False,
        "rms_norm_eps": 1e-6,
        "index_head_dim": 64,
    },
    "deepseek_v4": {"index_head_dim": 64},
    "kimi_k3": {"rms_norm_eps": 1e-6, "linear_attn_config": WITH_ANOTHER_HEAD},
}
# Weights that are stored as something else, which the engine therefore knows by another name.
CHANGED = {
    "self_attn.A_log": "ssm_a",
    "self_attention_res_proj": "attn_res_score",
    "mlp_res_proj": "ffn_res_score",
    "model.output_attn_res_proj": "output_res_score",
}
# Kept in f32 whatever the rest of a file is in.
EXACT = (
    *("ffn_gate_inp", "ssm_a", "indexer.proj", "attn_compressor_ape", "indexer_compressor_ape"),
    *(f"ssm_conv1d_{part}" for part in ("q", "k", "v")),
    *(f"{place}_fn" for place in ("hc_attn", "hc_ffn", "output_hc")),
)


def routing(config: Config) -> dict[str, Any]:
    """Routers of GLM-4.5 and DeepSeek-V3."""
    return {
        "expert_gating_func": 2,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
    }


def latent(config: Config) -> dict[str, Any]:
    """Latent attention."""
    rope, nope, rank = (config[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "kv_lora_rank"))
    found = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
    }
    return {**found, "attention.q_lora_rank": config["q_lora_rank"]} if config["q_lora_rank"] else found


def indexer(config: Config) -> dict[str, Any]:
    """The indexer's sizes."""
    return {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }


def delta(config: Config, first: int) -> dict[str, Any]:
    """Delta attention, in the layers with no key heads; the configuration counts layers from `first`."""
    given, layers = config["linear_attn_config"], range(config["num_hidden_layers"])
    found = {
        "attention.head_count_kv": [int(layer + first in given["full_attn_layers"]) for layer in layers],
        "ssm.conv_kernel": given["short_conv_kernel_size"],
        "kda.head_dim": given["head_dim"],
    }
    bound = given.get("gate_lower_bound")
    return found if bound is None else {**found, "kda.gate_lower_bound": bound}


def kimi_linear(config: Config) -> dict[str, Any]:
    """No word of groups and of weights being normed."""
    return {
        **latent(config),
        **delta(config, 1),
        "expert_gating_func": 2,
        "expert_shared_count": config["num_shared_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "leading_dense_block_count": config["first_k_dense_replace"],
    }


def kimi_k3(config: Config) -> dict[str, Any]:
    """Kimi Linear's, and what is new."""
    return {
        **kimi_linear(config),
        "expert_weights_norm": config["moe_renormalize"],
        "expert_latent_length": config["routed_expert_hidden_size"],
        "activation.situ_beta": config["activation_situ_beta"],
        "activation.situ_linear_beta": config["activation_situ_linear_beta"],
        "attn_res.block_size": config["attn_res_block_size"],
    }


def glm5_next(config: Config) -> dict[str, Any]:
    """GLM-5's and Kimi Linear's, pools of keys and streams."""
    layers, limit = config["num_hidden_layers"], float(config["swiglu_limit"])
    return {
        **glm_dsa(config),
        **delta(config, 0),
        **streams(config),
        "attention.layer_norm_epsilon": 1e-6,
        "attention.indexer.kpool": config["index_kpool"],
        "attention.indexer.kpool_select_tail": config["index_kpool_always_select_tail"],
        "swiglu_clamp_exp": [limit] * layers,
        "swiglu_clamp_shexp": [limit] * layers,
    }


def streams(config: Config) -> dict[str, Any]:
    """Hyper-connections."""
    return {
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": config["hc_eps"],
    }


def glm_dsa(config: Config) -> dict[str, Any]:
    """DeepSeek-V3.2's, and which layers have an indexer."""
    full = [kind == "full" for kind in config["indexer_types"]]
    return {**deepseek32(config), "attention.indexer.types": full}


def deepseek32(config: Config) -> dict[str, Any]:
    """DeepSeek-V3's, with an indexer."""
    return {**routing(config), **latent(config), **indexer(config)}


def deepseek4(config: Config) -> dict[str, Any]:
    """The clamp of activations by layer, ratios beyond the last layer."""
    layers, limit = config["num_hidden_layers"], config["swiglu_limit"]
    return {
        **indexer(config),
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.sliding_window": config["sliding_window"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.compress_ratios": config["compress_ratios"],
        "attention.compress_rope_freq_base": float(config["compress_rope_theta"]),
        "embedding_length_out": config["hidden_size"] * config["hc_mult"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_gating_func": 4,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "hash_layer_count": config["num_hash_layers"],
        **streams(config),
        "rope.dimension_count": config["qk_rope_head_dim"],
        "swiglu_clamp_exp": [float(limit)] * layers,
        "swiglu_clamp_shexp": [float(limit)] * layers,
    }


def hy_v3(config: Config) -> dict[str, Any]:
    """No word of dense layers."""
    return {
        "expert_gating_func": 2,
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["num_shared_experts"],
        "expert_weights_norm": config["route_norm"],
        "expert_weights_scale": float(config["router_scaling_factor"]),
    }


METADATA: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    "kimi-linear": kimi_linear,
    "kimi-k3": kimi_k3,
    "glm5-next": glm5_next,
    "glm-dsa": glm_dsa,
    "deepseek32": deepseek32,
    "deepseek4": deepseek4,
    "hy_v3": hy_v3,
}


def changed(part: str, values: F32, heads: int) -> F32:
    """A tensor of a layer, by what follows the layer's number in its name in the file."""
    if part == "ssm_a":
        return -np.exp(values if values.ndim > 1 else values[:heads])
    if part.startswith("ssm_conv1d_"):
        return values.reshape(1, len(values), 1, values.shape[-1])
    return values


def widened(name: str, values: F32, dim: int) -> F32:
    """A weight of indexers of `dim` dimensions a head, for heads of twice as many; other weights as they are."""
    if ".indexer." not in name or ".weights_proj" in name:
        return values
    rows = values.T if name.endswith(".ape") else values
    heads = rows.reshape(-1, dim, *rows.shape[1:])
    rows = np.concatenate([heads, heads[:, ::-1]], 1).reshape(-1, *rows.shape[1:])
    return rows.T if name.endswith(".ape") else rows


def with_another_head(name: str, values: F32, heads: int, width: int) -> F32:
    """A weight of delta attention of this many heads of this width, with one head more; other weights as they are."""
    if name.endswith(".A_log"):
        return np.insert(values, heads, values[0])[: len(values)]
    size = heads if name.endswith(".b_proj.weight") else heads * width
    if ".self_attn." not in name or size not in values.shape:
        return values
    sides = np.moveaxis(values, values.shape.index(size), 0)
    added = sides[: size // heads][::-1]
    return np.ascontiguousarray(np.moveaxis(np.concatenate([sides, added]), 0, values.shape.index(size)))
