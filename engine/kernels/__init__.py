"""Exact kernels: the same bits on every CPU, whatever the batch. Importing this compiles nothing.

Matrices and experts: `pack`, `matmul`, `matmul_parts`, `ExpertShape`, `pack_expert`, `run_experts`,
`run_mlp`, `combine`. Rows: `quantize_rows`, `Rows`. The rest takes and gives f32 arrays. Device functions for
kernels of one's own are in `scalar`, `lanes`, `activation` and `atomic`; decorate such kernels with
`compile.kernel`.
"""

from engine.kernels.activation import Activation
from engine.kernels.attention import attention, sequence_attention, takes_sequences
from engine.kernels.compile import device, kernel, on_compile
from engine.kernels.elementwise import (
    activation,
    erf,
    exp,
    gelu,
    gelu_tanh,
    log,
    log1p,
    log_sigmoid,
    sigmoid,
    silu,
    softplus,
    tanh,
    topk,
)  # fmt: skip
from engine.kernels.experts import ExpertRows, ExpertShape, combine, pack_expert, run_experts, run_mlp
from engine.kernels.half import narrow
from engine.kernels.matrix import Matrix, matmul, matmul_parts, pack, stackable
from engine.kernels.norms import dots, l2_normalize, layer_norm, rms_norm, softmax, sums
from engine.kernels.packing import LAYOUT_VERSION, Packing, Weights, choose
from engine.kernels.rope import inverse_frequencies, inverse_rope, powers, rope, rope_tables
from engine.kernels.row_attention import RowAttention
from engine.kernels.row_experts import RowExperts
from engine.kernels.row_layers import RowLayer, RowLayers
from engine.kernels.row_linear import RowLinear, RowNorm
from engine.kernels.row_route import RowRoute
from engine.kernels.rows import Rows, quantize_rows
from engine.kernels.threads import apart, expect_pauses, physical_cores, set_threads, threads, waiting

__all__ = [
    "LAYOUT_VERSION", "Activation", "ExpertRows", "ExpertShape", "Matrix", "Packing", "RowAttention",
    "RowExperts", "RowLayer", "RowLayers", "RowLinear", "RowNorm", "RowRoute", "Rows", "Weights",
    "activation", "apart", "attention", "choose", "combine", "device", "dots", "erf", "exp", "expect_pauses", "gelu",
    "gelu_tanh", "inverse_frequencies", "inverse_rope", "kernel", "l2_normalize", "layer_norm", "log",
    "log1p", "log_sigmoid", "matmul", "matmul_parts", "narrow", "on_compile", "pack", "pack_expert",
    "physical_cores", "powers", "quantize_rows", "rms_norm", "rope", "rope_tables", "run_experts",
    "run_mlp", "sequence_attention", "set_threads", "sigmoid", "silu", "softmax", "softplus", "stackable",
    "sums", "takes_sequences", "tanh", "threads", "topk", "waiting",
]  # fmt: skip
