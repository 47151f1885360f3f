"""One class a stored format: its geometry, a plain decode to f32, and its integers where it stores
integers.
"""

from engine.formats.codes import bf16_to_f32, e4m3_to_f32, e8m0_to_f32, f32_to_bf16
from engine.formats.fp8 import FP8Matrix, scales_to_f32
from engine.formats.gguf import MXFP4Blocks, Q4Blocks, Q8Blocks
from engine.formats.grouped_bytes import BYTES, Coding, GroupedBytes
from engine.formats.groups import GROUP, Groups, round_q4, round_q8
from engine.formats.int4 import Int4Matrix
from engine.formats.mxfp4 import MXFP4Matrix
from engine.formats.stored import BF16Matrix, F16Matrix, F32Matrix, FormatError, StoredMatrix

__all__ = [
    "BYTES", "GROUP", "BF16Matrix", "Coding", "F16Matrix", "F32Matrix", "FP8Matrix", "FormatError", "GroupedBytes",
    "Groups", "Int4Matrix", "MXFP4Blocks", "MXFP4Matrix", "Q4Blocks", "Q8Blocks", "StoredMatrix", "bf16_to_f32",
    "e4m3_to_f32", "e8m0_to_f32", "f32_to_bf16", "round_q4", "round_q8", "scales_to_f32",
]  # fmt: skip
