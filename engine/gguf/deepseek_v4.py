"""DeepSeek-V4 in GGUF files, where it is "deepseek4". Checkpoints, too, have names of its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

STREAMS = ("hyper_connection.count", "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon")
STREAM_NAMES = {
    f"hc_{place}_{part}.weight": f"hc_{place}_{part}"
    for place in ("attn", "ffn")
    for part in ("fn", "base", "scale")
}
COUNTS = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.output_group_count": "o_groups",
    "attention.output_lora_rank": "o_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "expert_count": "n_routed_experts",
}
NUMBERS = {
    "rope.freq_base": "rope_theta",
    "attention.compress_rope_freq_base": "compress_rope_theta",
    "expert_weights_scale": "routed_scaling_factor",
}
CLAMPS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")  # of routed and of shared experts, by layer
SETTINGS = (
    *COUNTS,
    *NUMBERS,
    *CLAMPS,
    *STREAMS,
    "attention.compress_ratios",
    "embedding_length_out",  # of all streams together
    "expert_shared_count",
    "hash_layer_count",
)
OUTSIDE = {
    "token_embd": "embed",
    "output_norm": "norm",
    "output": "head",
    **{f"output_hc_{part}.weight": f"hc_head_{part}" for part in ("fn", "base", "scale")},
}
COMPRESSOR = {"kv": "wkv", "gate": "wgate", "ape.weight": "ape", "norm": "norm"}
EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}
NAMES = {
    "attn_norm": "attn_norm",
    "attn_sinks.weight": "attn.attn_sink",
    "attn_q_a": "attn.wq_a",
    "attn_q_a_norm": "attn.q_norm",
    "attn_q_b": "attn.wq_b",
    "attn_kv": "attn.wkv",
    "attn_kv_a_norm": "attn.kv_norm",
    "attn_output_a": "attn.wo_a",
    "attn_output_b": "attn.wo_b",
    **{f"attn_compressor_{ours}": f"attn.compressor.{theirs}" for ours, theirs in COMPRESSOR.items()},
    "indexer.attn_q_b": "attn.indexer.wq_b",
    "indexer.proj": "attn.indexer.weights_proj",
    **{
        f"indexer_compressor_{ours}": f"attn.indexer.compressor.{theirs}"
        for ours, theirs in COMPRESSOR.items()
    },
    **STREAM_NAMES,
    "ffn_norm": "ffn_norm",
    "ffn_gate_inp": "ffn.gate",
    "ffn_gate_tid2eid.weight": "ffn.gate.tid2eid",
    "exp_probs_b.bias": "ffn.gate.bias",
    **{f"ffn_{ours}_exps": f"ffn.experts.{{}}.{theirs}" for ours, theirs in EXPERT.items()},
    **{f"ffn_{ours}_shexp": f"ffn.shared_experts.{theirs}" for ours, theirs in EXPERT.items()},
}


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    facts.require("expert_weights_norm", True)
    facts.require("expert_shared_count", 1)
    facts.require(
        "embedding_length_out", facts.count("embedding_length") * facts.count("hyper_connection.count")
    )
    rotated, width = facts.count("rope.dimension_count"), facts.count("attention.key_length")
    return {
        **{theirs: facts.count(ours) for ours, theirs in COUNTS.items()},
        **{theirs: facts.read.number(facts.key(ours)) for ours, theirs in NUMBERS.items()},
        "partial_rotary_factor": rotated / width,
        "compress_ratios": facts.by_layer("attention.compress_ratios"),
        "num_hash_layers": facts.count("hash_layer_count", least=0),
        "swiglu_limit": limit(facts),
        **streams(facts),
    }


def streams(facts: "Facts") -> Mapping[str, Any]:
    """Hyper-connections."""
    return {
        "hc_mult": facts.count("hyper_connection.count"),
        "hc_sinkhorn_iters": facts.count("hyper_connection.sinkhorn_iterations"),
        "hc_eps": facts.read.number(facts.key("hyper_connection.epsilon")),
    }


def limit(facts: "Facts") -> float:
    """Where the activations of all experts are cut off; 0 for nowhere."""
    limits = {value for setting in CLAMPS if facts.has(setting) for value in facts.by_layer(setting)}
    if len(limits) != 1:
        raise ConfigError(
            f"{facts.read.where}: {facts.key(CLAMPS[0])} and {CLAMPS[1]} do not give one number for all layers"
        )
    return float(limits.pop())
