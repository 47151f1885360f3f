"""GLM-5 and DeepSeek-V3.2 in GGUF files, where they are "glm-dsa" and "deepseek32": DeepSeek-V3 with an indexer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError
from engine.gguf import deepseek_v3
from engine.gguf.names import DEEPSEEK, GLM4

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

INDEXERS = "attention.indexer.types"  # by layer: one of its own, or the choice of the layer before
SHARING_CONTEXT = 1 << 20  # releases with at least this context have layers that share
SETTINGS = (
    *deepseek_v3.SETTINGS, "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
    INDEXERS,
)  # fmt: skip
NAMES = {
    **GLM4,
    **DEEPSEEK,
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
}


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    return {**deepseek_v3.latent(facts), **_indexers(facts)}


def _indexers(facts: "Facts") -> Mapping[str, Any]:
    """Their sizes, and which layers have one: as the file says, or, in older files, by the tensors that are there."""
    without = facts.layers_without("indexer.attn_k")
    own = [layer not in without for layer in range(facts.layers)]
    if facts.has(INDEXERS):
        own = facts.by_layer(INDEXERS)
    elif not without and facts.count("context_length") >= SHARING_CONTEXT:
        raise ConfigError(
            f"{facts.read.where} has an indexer in every layer and does not say {facts.key(INDEXERS)}; with its "
            "context some layers should share, and which ones is not known"
        )
    return {
        "index_n_heads": facts.count("attention.indexer.head_count"),
        "index_head_dim": facts.count("attention.indexer.key_length"),
        "index_topk": facts.count("attention.indexer.top_k"),
        "indexer_types": ["full" if full else "shared" for full in own],
    }
