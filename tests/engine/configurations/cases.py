"""Configurations beyond those of the reference folders: what each family's config.json can say, one by one.

`CASES` are held to answers of transformers (see make_configurations.py), `REFUSED` have to be refused by name.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engine.configurations import further
from tests.engine.configurations.bases import BASES, GONE, WRAPPED


@dataclass(frozen=True)
class Case:
    """A config.json, how long a prompt it is held to, in how many files its weights lie, and whether their tensors
    have the names that transformers saves, where those are not the releases'."""

    config: dict[str, Any]
    length: int = 14
    shards: int = 1
    saved: bool = False

    @property
    def text(self) -> dict[str, Any]:
        """What describes the text model."""
        text: dict[str, Any] = self.config.get("text_config", self.config)
        return text

    def prompt(self) -> list[int]:
        """Tokens, the same ones wherever they are drawn."""
        most = self.text.get("unpadded_vocab_size", self.text["vocab_size"])
        return np.random.default_rng(self.length).integers(0, most, self.length).tolist()

    def positions(self) -> list[int]:
        """Of which tokens the logits are kept: some, the last among them."""
        return np.linspace(1, self.length - 1, 5).astype(int).tolist()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
# Ways to scale rotation that any family can name, in old spelling and new.
ROTATIONS: dict[str, dict[str, Any]] = {
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN},
    "yarn-factor": {"rope_scaling": {**YARN, "attention_factor": 0.8, "beta_fast": 4.0, "beta_slow": 0.5}},
    "yarn-mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "yarn-straight": {"rope_scaling": {**YARN, "truncate": False}},
    "new": {"rope_theta": GONE, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "new-yarn": {"rope_theta": GONE, "rope_parameters": {**YARN, "rope_theta": 50.0}},
    "both": {"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_parameters": {"rope_type": "default"}},
    "context": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 8},
    "proportional": {
        "rope_theta": GONE,
        "partial_rotary_factor": GONE,
        "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 30.0},
    },
    "new-silent": {"rope_theta": GONE, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
}
# What several families can say, by the key that tells that they can.
ANYWHERE: dict[str, dict[str, Any]] = {
    "base": {},
    "tied": {"tie_word_embeddings": True},
    "f16": {"torch_dtype": "float16"},
    "f32": {"dtype": "float32"},
    "epsilon": {"rms_norm_eps": 0.03},
    "gelu": {"hidden_act": "gelu"},
    "gelu-tanh": {"hidden_act": "gelu_pytorch_tanh"},
}
PLAINLY: dict[str, dict[str, Any]] = {
    "one-kv-head": {"num_key_value_heads": 1},
    "all-kv-heads": {"num_key_value_heads": 4},
    "one-expert": {"num_experts_per_tok": 1},
    "all-experts": {"num_experts_per_tok": 6},
}
LATENTLY: dict[str, dict[str, Any]] = {
    "one-expert": {"num_experts_per_tok": 1},
    "all-experts": {"num_experts_per_tok": 6},
    "bias": {"attention_bias": True},
    "groups": {"n_group": 3, "topk_group": 2, "num_experts_per_tok": 3},
    "unnormalised": {"norm_topk_prob": False, "routed_scaling_factor": 0.7},
    "two-shared": {"n_shared_experts": 2},
    "none-shared": {"n_shared_experts": 0},
    "all-sparse": {"first_k_dense_replace": 0},
    "two-dense": {"first_k_dense_replace": 2, "num_hidden_layers": 3},
    "heads": {"num_attention_heads": 3, "num_key_value_heads": 3, "qk_nope_head_dim": 7, "v_head_dim": 5},
}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "olmoe": {
        "clip": {"clip_qkv": 0.6, "attention_bias": True},
        "normalised": {"norm_topk_prob": True},
        "kv-silent": {"num_key_value_heads": GONE},
    },
    "qwen3_moe": {
        "bias": {"attention_bias": True, "norm_topk_prob": True},
        "head-dim-silent": {"head_dim": GONE},
        "window": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "window-off": {"use_sliding_window": False, "sliding_window": 4},
        "some-dense": {"mlp_only_layers": [0], "num_hidden_layers": 3},
        "step": {"decoder_sparse_step": 2, "num_hidden_layers": 3},
        "no-experts": {"num_experts": 0},
    },
    "qwen2_moe": {
        "no-bias": {"qkv_bias": False, "norm_topk_prob": True},
        "head-dim": {"head_dim": 14},
        "window": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_hidden_layers": 3},
        "window-types": {
            "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"],
        },
        "some-dense": {"mlp_only_layers": [0], "num_hidden_layers": 3},
        "step": {"decoder_sparse_step": 2, "num_hidden_layers": 3},
        "no-experts": {"num_experts": 0},
    },
    "mixtral": {
        "head-dim-silent": {"head_dim": GONE},
        "head-dim-null": {"head_dim": None, "sliding_window": None},
        "window": {"sliding_window": 4},
        "window-one": {"sliding_window": 1},
    },
    "minimax_m2": {
        "rotary-whole": {"rotary_dim": 12},
        "rotary-silent": {"rotary_dim": GONE},
        "rotary-new": {
            "rotary_dim": GONE, "rope_theta": GONE,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.5},
        },
        "rotary-both": {
            "rope_theta": GONE,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.5},
        },
        "rotary-odd": {"rotary_dim": 7},
    },
    "glm4_moe": {
        "bias": {"attention_bias": True, "use_qk_norm": True},
        "rotary-silent": {"partial_rotary_factor": GONE},
        "rotary-odd": {"partial_rotary_factor": 0.45},
        "rotary-whole": {"partial_rotary_factor": 1.0},
        "rotary-new": {
            "partial_rotary_factor": GONE, "rope_theta": GONE,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.75},
        },
        "rotary-both": {
            "rope_theta": GONE,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.75},
        },
        "groups": {"n_group": 3, "topk_group": 2, "num_experts_per_tok": 3},
        "unnormalised": {"norm_topk_prob": False, "routed_scaling_factor": 0.7},
        "two-shared": {"n_shared_experts": 2},
        "none-shared": {"n_shared_experts": 0},
        "all-sparse": {"first_k_dense_replace": 0},
        "all-dense": {"first_k_dense_replace": 5},
    },
    "hy_v3": {
        "bias": {"attention_bias": True},
        "mlp-bias": {"mlp_bias": True},
        "two-shared": {"num_shared_experts": 2, "router_scaling_factor": 0.6},
        "none-shared": {"num_shared_experts": 0},
        "types": {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3},
    },
    "gpt_oss": {
        "no-bias": {"attention_bias": False},
        "yarn-silent": {"rope_parameters": GONE, "max_position_embeddings": 131072},
        "limits": {"swiglu_limit": 0.5, "swiglu_alpha": 0.9},
        "all-full": {"layer_types": ["full_attention", "full_attention"]},
        "window-types": {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "num_hidden_layers": 3,
        },
    },
    "deepseek_v3": {
        **LATENTLY,
        "one-step-query": {"q_lora_rank": None},
        "halves": {"rope_interleave": False},
    },
    "glm_moe_dsa": {
        **LATENTLY,
        "few-keys": {"index_topk": 1},
        "frequency": {"index_topk_freq": 3, "index_skip_topk_offset": 1, "num_hidden_layers": 5},
        "pattern": {"index_topk_pattern": "FSSF", "num_hidden_layers": 4},
        "types": {"mlp_layer_types": ["sparse", "dense", "sparse"], "indexer_types": ["full", "shared", "full"]},
        "num-experts": {"num_experts": 8, "n_routed_experts": GONE},
    },
    "deepseek_v32": {
        **LATENTLY,
        "few-keys": {"index_topk": 2},
    },
    "kimi_linear": {
        "ranked": {"q_lora_rank": 20},
        "bias": {"attention_bias": True},
        "types": {"linear_attn_config": {"head_dim": 12, "num_heads": 3}, "num_hidden_layers": 5},
        "long-filter": {
            "linear_attn_config": {
                "full_attn_layers": [1], "kda_layers": [2, 3], "head_dim": 20, "num_heads": 1,
                "short_conv_kernel_size": 6,
            },
        },
        "groups": {"num_expert_group": 3, "topk_group": 2, "num_experts_per_token": 3},
        "unnormalised": {"moe_renormalize": False, "routed_scaling_factor": 0.7},
        "two-shared": {"num_shared_experts": 2},
        "none-shared": {"num_shared_experts": 0},
        "all-sparse": {"first_k_dense_replace": 0},
        "two-dense": {"first_k_dense_replace": 2},
    },
    "qwen3_next": {
        "bias": {"attention_bias": True, "norm_topk_prob": False},
        "types": {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "filter": {"linear_conv_kernel_dim": 2, "linear_num_value_heads": 2},
        "rotary-whole": {"partial_rotary_factor": 1.0},
        "rotary-new": {
            "rope_theta": GONE,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.5},
        },
        "some-dense": {"mlp_only_layers": [1]},
        "step": {"decoder_sparse_step": 2},
        "no-experts": {"num_experts": 0},
    },
    "qwen3_5_moe_text": {
        "bias": {"attention_bias": True},
        "types": {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "filter": {"linear_conv_kernel_dim": 2, "linear_num_value_heads": 2},
        "rotary-new": {
            "rope_theta": GONE,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
    },
    "deepseek_v4": {
        "few-keys": {"index_topk": 1},
        "sigmoid": {"scoring_func": "sigmoid"},
        "main": {
            "rope_parameters": {
                "main": {"rope_type": "linear", "factor": 2.0, "rope_theta": 70.0},
                "compress": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
        "yarn-short": {"rope_scaling": {"type": "yarn", "factor": 4}},
        "types": {
            "compress_ratios": GONE, "layer_types": [
                "compressed_sparse_attention", "sliding_attention", "heavily_compressed_attention",
            ],
            "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 10},
            "mlp_layer_types": ["moe", "hash_moe", "moe"],
        },
        "streams": {"hc_mult": 1, "hc_sinkhorn_iters": 1},
        "yarn": {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16}},
        "unhashed": {"num_hash_layers": 0, "swiglu_limit": 20.0},
        "window": {"sliding_window": 3, "compress_ratios": [0, 0, 4]},
    },
}  # fmt: skip
OWN_WRAPPED: dict[str, dict[str, dict[str, Any]]] = {
    "kimi_k25": {"base": {}, "bias": {"attention_bias": True, "q_lora_rank": None, "rope_scaling": YARN}},
    "qwen3_5_moe": {
        "base": {},
        "bias": {"attention_bias": True, "num_key_value_heads": 1},
        "types": {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
    },
    "glm5_next": {
        "base": {},
        "bias": {"attention_bias": True, "rms_norm_eps": 0.01},
        "types": {
            "layer_types": ["indexed_attention", "deepseek_sparse_attention", "linear_attention"],
            "indexer_types": ["full", "shared", "full"], "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
        "one-pool": {"index_kpool": 1, "hc_mult": 1},
        "wide-pool": {"index_kpool": 6, "hc_sinkhorn_iters": 1},
        "unbounded": {
            "linear_attn_config": {"gate_lower_bound": None, "safe_gate": False, "head_dim": 8, "num_heads": 5},
        },
        "safe": {"linear_attn_config": {"gate_lower_bound": None, "head_dim": 8, "num_heads": 5}},
        "beside": {
            "linear_attn_config": GONE, "linear_head_dim": 8, "linear_num_heads": 2, "linear_lower_bound": -2.0,
        },
        "groups": {"n_group": 3, "topk_group": 2, "norm_topk_prob": False, "n_shared_experts": 2},
        "limits": {"swiglu_limit": 0.3, "first_k_dense_replace": GONE},
        "pattern": {"indexer_types": GONE, "index_topk_pattern": "FFS"},
        "none-shared": {"n_shared_experts": 0},
    },
    "inkling_mm_model": {
        "base": {},
        "padded": {"unpadded_vocab_size": GONE},
        "types": {
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "mlp_layer_types": ["sparse", "dense", "sparse"],
            "moe_intermediate_size": 12, "dense_intermediate_size": GONE,
        },
        "filter": {"sconv_kernel_size": 2, "sliding_window_size": 3, "rel_extent": 30},
        "unscaled": {"log_scaling_n_floor": None, "rms_norm_eps": 0.02},
        "one-shared": {"n_shared_experts": 1, "num_experts_per_tok": 6},
        "heads": {"num_key_value_heads": 4, "swa_num_key_value_heads": 3, "local_layer_ids": [1]},
        "silent": {"local_layer_ids": GONE, "num_hidden_layers": 7, "dense_mlp_idx": GONE},
    },
}  # fmt: skip
LENGTHS = {"deepseek_v4": 150}  # a prompt in which an entry of the heavily compressed layers closes
UNTURNED = ("kimi_linear", "deepseek_v4")  # no positions, or two rotations of their own


def merged(family: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """The family's base with changes."""
    config: dict[str, Any] = {"model_type": family, **BASES[family]}
    for change in changes:
        config |= change
    return {key: value for key, value in config.items() if value is not GONE}


def wrapped(family: str, change: dict[str, Any]) -> dict[str, Any]:
    """The family's multimodal base, its text part changed."""
    text, around = WRAPPED[family]
    changed = {key: value for key, value in {**text, **change}.items() if value is not GONE}
    return {"model_type": family, **around, "text_config": changed}


def _cases() -> dict[str, Case]:
    cases = {}
    for family, own in OWN_WRAPPED.items():
        for name, change in {**own, **further.OWN_WRAPPED.get(family, {})}.items():
            cases[f"{family}-{name}"] = Case(wrapped(family, change), 22 if family == "glm5_next" else 14)
    for family, own in OWN.items():
        changes = {
            name: change for name, change in ANYWHERE.items() if "gelu" not in name or family != "gpt_oss"
        }
        if "kv_lora_rank" not in BASES[family] and family != "deepseek_v4":
            changes |= PLAINLY
        if family not in UNTURNED:
            changes |= ROTATIONS
        for name, change in {**changes, **own, **further.further(family)}.items():
            shards = 3 if name == "f16" else 1
            cases[f"{family}-{name}"] = Case(merged(family, change), LENGTHS.get(family, 14), shards)
    cases["deepseek_v4-saved"] = Case(merged("deepseek_v4"), LENGTHS["deepseek_v4"], saved=True)
    whole = wrapped("qwen3_5_moe", {"tie_word_embeddings": False})
    cases["qwen3_5_moe-tied-as-a-whole"] = Case({**whole, "tie_word_embeddings": True})
    return cases


CASES = _cases()
LONG = {"rope_scaling": further.long_rope("deepseek_v3", 8)}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        (family, change, says)
        for family in OWN
        for change, says in (
            ({"hidden_act": "prelu"}, "hidden_act = 'prelu'"),
            ({"rope_scaling": {"rope_type": "longrope", "short_factor": 1}}, "short_factor is 1"),
            ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "'su'"),
            (
                {"rope_parameters": {"full_attention": {"rope_theta": 9.0}}, "rope_scaling": GONE},
                "'full_attention'",
            ),
        )
        if family not in ("kimi_linear", "gpt_oss") or "hidden_act" in change
    ),
    ("deepseek_v4", LONG, "longrope"),
    ("deepseek_v4", {"rope_parameters": {"main": {}, "compress": {}}}, "partial_rotary_factor"),
    ("glm5_next", {"swiglu_limit": 0.0}, "swiglu_limit is 0"),
    ("glm_moe_dsa", {"rope_interleave": False}, "rope_interleave = False"),
    ("deepseek_v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave = True"),
    ("gpt_oss", {"sliding_window": None}, "sliding_window is null"),
    ("qwen2_moe", {"layer_types": ["sliding_attention"] * 2}, "use_sliding_window turns off"),
    ("mixtral", {"num_key_value_heads": 3}, "a divisor of 4"),
    ("deepseek_v3", {"n_group": 4}, "a divisor of 6"),
    ("deepseek_v3", {"n_group": 2, "topk_group": 3}, "topk_group is 3"),
]
