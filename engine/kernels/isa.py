"""Which instructions the integer kernels are written in, decided once from the CPU that Numba compiles for.

Numba compiles for the host, or for what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say. A CPU named there without
features counts by its name alone ("generic", "haswell", …); features, where given, count as well.
"""

import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding
from numba.core import config as untyped_config

config: Any = untyped_config

__all__ = ["ISAS", "Isa", "isa"]


@dataclass(frozen=True, slots=True)
class Isa:
    """A way to write the integer kernels. `lanes` rows fit a register; `tokens` share each load of
    weights.
    """

    name: str
    lanes: int
    tokens: int
    half: bool  # whether f16 is converted by an instruction


ISAS = {
    isa.name: isa
    for isa in (
        Isa("avx512vnni", 16, 12, True),
        Isa("avxvnni", 8, 4, True),
        Isa("avx2", 8, 4, True),
        Isa("sse2", 4, 2, False),
        Isa("neon", 4, 4, True),
        Isa("portable", 4, 2, False),
    )
}

BY_NAME = {
    "haswell": "avx2", "broadwell": "avx2", "skylake": "avx2", "skylake-avx512": "avx2", "x86-64-v3": "avx2",
    "x86-64-v4": "avx2", "znver1": "avx2", "znver2": "avx2", "znver3": "avx2", "core-avx2": "avx2",
    "alderlake": "avxvnni", "raptorlake": "avxvnni", "meteorlake": "avxvnni", "arrowlake": "avxvnni",
    "lunarlake": "avxvnni", "sierraforest": "avxvnni", "gracemont": "avxvnni",
    "cascadelake": "avx512vnni", "cooperlake": "avx512vnni", "icelake-client": "avx512vnni",
    "icelake-server": "avx512vnni", "tigerlake": "avx512vnni", "rocketlake": "avx512vnni",
    "sapphirerapids": "avx512vnni", "emeraldrapids": "avx512vnni", "graniterapids": "avx512vnni",
    "znver4": "avx512vnni", "znver5": "avx512vnni",
    "apple-m1": "neon", "apple-m2": "neon", "apple-m3": "neon", "apple-m4": "neon", "neoverse-n1": "neon",
    "neoverse-n2": "neon", "neoverse-v1": "neon", "neoverse-v2": "neon", "cortex-a76": "neon",
    "cortex-a78": "neon",
}  # fmt: skip


def _by_features(features: frozenset[str], x86: bool) -> str:
    if not x86:
        return "neon" if "dotprod" in features else "portable"
    if {"avx512vnni", "avx512bw", "avx512vl"} <= features:
        return "avx512vnni"
    if {"avx2", "fma", "f16c"} <= features:
        return "avxvnni" if "avxvnni" in features else "avx2"
    return "sse2"


@cache
def isa() -> Isa:
    """The Isa for the CPU that Numba compiles for."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    named, given = config.CPU_NAME, config.CPU_FEATURES
    if named is None and given is None:
        named = binding.get_host_cpu_name()
        features = frozenset(name for name, on in binding.get_host_cpu_features().items() if on)
    else:
        features = frozenset(part[1:] for part in (given or "").split(",") if part.startswith("+"))
    found = _by_features(features, x86)
    if found in ("sse2", "portable") and not (given and "-avx2" in given):
        found = BY_NAME.get(named or "", found)
    return ISAS[found]
