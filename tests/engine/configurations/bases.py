"""A small configuration of each family, from which the cases differ.

Sizes are odd on purpose: no multiples of 32, heads that are not hidden / heads wide, vocabularies that divide by
nothing.
"""

from typing import Any

GONE: Any = object()  # the value of a key that is to be left out

COMMON = {
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "vocab_size": 29,
    "max_position_embeddings": 64,
    "rope_theta": 100.0,
}
PLAIN = {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}
LATENT = {
    **COMMON, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 20, "kv_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "intermediate_size": 44,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
}  # fmt: skip
INDEXED = {**LATENT, "index_topk": 6, "index_head_dim": 16, "index_n_heads": 16, "num_hidden_layers": 3}
DELTA = {
    **COMMON, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "linear_key_head_dim": 12,
    "linear_value_head_dim": 20, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28, "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 3,
    "full_attention_interval": 3,
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "olmoe": {**PLAIN, "intermediate_size": 24, "num_experts": 6},
    "qwen3_moe": {**PLAIN, "intermediate_size": 44, "moe_intermediate_size": 20, "num_experts": 6, "head_dim": 12},
    "qwen2_moe": {
        **PLAIN, "intermediate_size": 44, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
        "num_experts": 6,
    },
    "mixtral": {**PLAIN, "intermediate_size": 20, "num_local_experts": 6, "head_dim": 14},
    "minimax_m2": {**PLAIN, "intermediate_size": 20, "num_local_experts": 6, "head_dim": 12, "rotary_dim": 8},
    "glm4_moe": {
        **PLAIN, "intermediate_size": 44, "moe_intermediate_size": 20, "n_routed_experts": 6, "head_dim": 12,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5,
    },
    "hy_v3": {
        **PLAIN, "intermediate_size": 44, "moe_intermediate_size": 20, "num_experts": 6, "head_dim": 12,
        "num_shared_experts": 1,
    },
    "gpt_oss": {
        **PLAIN, "intermediate_size": 20, "num_local_experts": 6, "head_dim": 12, "sliding_window": 5,
        "rope_scaling": GONE, "rope_parameters": {"rope_type": "default"},
    },
    "deepseek_v3": LATENT,
    "glm_moe_dsa": INDEXED,
    "deepseek_v32": INDEXED,
    "kimi_linear": {
        **{key: value for key, value in LATENT.items() if key not in ("n_shared_experts", "num_experts_per_tok")},
        "q_lora_rank": None, "num_experts": 6, "num_shared_experts": 1, "num_experts_per_token": 2,
        "moe_renormalize": True,
        "num_hidden_layers": 3, "model_max_length": 64, "pad_token_id": None,
        "linear_attn_config": {
            "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 12, "num_heads": 3,
            "short_conv_kernel_size": 4,
        },
    },
    "qwen3_next": {**DELTA, "intermediate_size": 44},
    "qwen3_5_moe_text": DELTA,
    "deepseek_v4": {
        **COMMON, "max_position_embeddings": 512, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 24, "qk_rope_head_dim": 8,
        "q_lora_rank": 20, "o_lora_rank": 12, "o_groups": 2, "moe_intermediate_size": 20, "n_routed_experts": 6,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "compress_ratios": [0, 4, 128], "num_hash_layers": 1,
        "num_hidden_layers": 3, "index_topk": 3, "index_head_dim": 16, "index_n_heads": 16, "hc_mult": 3,
        "hc_sinkhorn_iters": 5, "sliding_window": 6, "scoring_func": "sqrtsoftplus", "compress_rope_theta": 500.0,
        "routed_scaling_factor": 1.5, "swiglu_limit": 1.0,
    },
}  # fmt: skip
WRAPPED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the text part, and what is around it
    "qwen3_5_moe": (
        {**DELTA, "model_type": "qwen3_5_moe_text"},
        {
            "vision_config": {
                "model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1,
                "in_channels": 1, "patch_size": 2, "out_hidden_size": 40, "num_position_embeddings": 4,
            },
            "image_token_id": 27, "video_token_id": 28,
        },
    ),
    "kimi_k25": (
        {**LATENT, "model_type": "deepseek_v3"},
        {
            "vision_config": {
                "patch_size": 2, "pos_emb_height": 4, "pos_emb_width": 4, "num_attention_heads": 1,
                "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
            },
            "projection_hidden_size": 8, "image_token_id": 27, "video_token_id": 28, "tie_word_embeddings": False,
        },
    ),
    "glm5_next": (
        {
            **{key: value for key, value in INDEXED.items() if key not in ("rope_theta", "qk_rope_head_dim")},
            "model_type": "glm5_next_text", "index_kpool": 2, "hc_mult": 2, "hc_sinkhorn_iters": 5, "hc_eps": 1e-6,
            "swiglu_limit": 1.0, "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
            "indexer_types": ["full", "full", "full"], "mlp_layer_types": ["dense", "sparse", "sparse"],
            "linear_attn_config": {"gate_lower_bound": -5.0, "head_dim": 12, "num_heads": 3,
            "short_conv_kernel_size": 4},
            "pad_token_id": None, "qk_rope_head_dim": 0,
        },
        {
            "vision_config": {
                "model_type": "glm5_next_vision", "depth": 1, "hidden_size": 8, "intermediate_size": 8,
                "num_heads": 1,
                "in_channels": 1, "patch_size": 7, "image_size": 14, "out_hidden_size": 40,
                "projection_intermediate_size": 8,
            },
            "image_token_id": 26, "video_token_id": 27, "image_start_token_id": 25, "image_end_token_id": 24,
            "video_start_token_id": 23, "video_end_token_id": 22,
        },
    ),
    "inkling_mm_model": (
        {
            "vocab_size": 29, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 12,
            "num_key_value_heads": 2, "swa_num_attention_heads": 3, "swa_num_key_value_heads": 1, "swa_head_dim": 14,
            "sliding_window_size": 5, "d_rel": 6, "rel_extent": 9, "intermediate_size": 20, "n_routed_experts": 6,
            "dense_intermediate_size": 44, "dense_mlp_idx": 1, "n_shared_experts": 2, "num_experts_per_tok": 2,
            "local_layer_ids": [0, 2], "log_scaling_n_floor": 7, "log_scaling_alpha": 0.3, "model_max_length": 64,
            "logits_mup_width_multiplier": 4.0, "unpadded_vocab_size": 27, "route_scale": 2.0,
        },
        {
            "vision_config": {"patch_size": 2, "n_layers": 3, "hidden_size": 8, "num_attention_heads": 2},
            "audio_config": {"n_mel_bins": 2, "mel_vocab_size": 4}, "image_token_id": 27, "audio_token_id": 28,
            "image_bos_token_id": 27, "audio_bos_token_id": 28,
        },
    ),
}  # fmt: skip
