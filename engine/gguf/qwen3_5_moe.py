"""Qwen3.5-MoE and Qwen3.6-MoE in GGUF files: Qwen3-Next's, but with the projections apart as they were, and with the
value heads of linear attention in another order.

A checkpoint has the value heads of one key head after one another; the converter goes through all key heads in turn,
in every tensor that has a side of value heads: rows of in_proj_qkv, in_proj_z, in_proj_a, in_proj_b and conv1d,
dt_bias, A, and the columns of out_proj. Nothing has to be put back, which blocks could not be if a head is narrower
than they are: `linear_value_heads_tiled` says which key head is whose.

Multi-token prediction is in layers past the last (`nextn_predict_layers`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ConfigError
from engine.gguf import qwen3_next
from engine.gguf.names import NEXTN

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts

NAMES = {
    **{ours: theirs for ours, theirs in qwen3_next.NAMES.items() if ours not in ("ssm_in", "ssm_ba")},
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    **NEXTN,
}
SETTINGS = (*qwen3_next.SETTINGS, "rope.dimension_sections", "nextn_predict_layers")


def settings(facts: "Facts") -> Mapping[str, Any]:
    """The configuration beyond what all architectures have. ConfigError."""
    facts.require("expert_weights_norm", True)
    _check_sections(facts)
    return {**qwen3_next.settings(facts), "linear_value_heads_tiled": True}


def _check_sections(facts: "Facts") -> None:
    """How many pairs of dimensions follow time, height and width. In text these are one position, so that it does not
    matter which pair follows which; but each pair that is turned must follow one of them."""
    key = facts.key("rope.dimension_sections")
    turned = facts.count("rope.dimension_count")
    given = np.asarray(facts.read.values.get(key, [turned // 2, 0, 0, 0]))
    if given.dtype.kind not in "iu" or given.shape != (4,) or min(given) < 0:
        raise ConfigError(f"{facts.read.where}: {key} is {str(given)[:80]}; four whole numbers are expected")
    if given[3] or 2 * sum(given.tolist()) != turned:
        raise ConfigError(
            f"{facts.read.where}: {key} is {given.tolist()}, which does not give each of {turned // 2} pairs of "
            "dimensions to time, height or width"
        )
