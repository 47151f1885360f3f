"""What GGUF files say of rotary embedding, as the `rope_parameters` of a config.json."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.gguf.architectures import Facts


def share(facts: "Facts", dim: int) -> Mapping[str, Any]:
    """How much of heads of `dim` dimensions is turned, where not all of it is."""
    return {"partial_rotary_factor": facts.count("rope.dimension_count", default=dim, most=dim) / dim}


def rotary(facts: "Facts") -> Mapping[str, Any]:
    """The base, and how far beyond its training context a model was stretched. ConfigError."""
    read = facts.read
    found: dict[str, Any] = {"rope_theta": read.number(facts.key("rope.freq_base"), default=10000.0)}
    kind = read.text(facts.key("rope.scaling.type"), default="none")
    if kind == "none":
        return {**found, "rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"{read.where} asks for rotary scaling of the type {kind!r}, which is not known")
    facts.require("rope.scaling.attn_factor", 1.0)
    found |= {"rope_type": kind, "factor": read.number(facts.key("rope.scaling.factor"))}
    if kind == "yarn":
        found["original_max_position_embeddings"] = facts.count("rope.scaling.original_context_length")
        found["truncate"] = facts.name != "gpt-oss"  # as its configuration says, and no file does
        stretch = read.number(facts.key("rope.scaling.yarn_log_multiplier"), default=0.0)
        if stretch:  # written as a tenth of what both mscale keys of the configuration are
            found["mscale"] = found["mscale_all_dim"] = float(np.float32(stretch) / np.float32(0.1))
        for beta in ("beta_fast", "beta_slow"):
            value = read.number(facts.key(f"rope.scaling.yarn_{beta}"), default=None)
            found |= {} if value is None else {beta: value}
    return found
