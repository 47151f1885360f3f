"""The version of the numeric definition, and which parts of a model it rounds.

Two machines that agree on this version, on the bytes of the model and on the weights format compute the same
bits. Whatever changes a bit of any result must raise `NUMERICS_VERSION`.

What `--weights` changes:

- The matrices of linear layers (attention, dense and shared MLPs, routed experts, latent projections) and the
  output head are rounded to the integer format. Weights that are stored as integers in groups of 32 (int4,
  MXFP4, Q8_0, Q4_0) are taken as they are under `auto`.
- Router matrices, gates with a handful of outputs, hyper-connections, convolutions, norms, biases and other
  vectors stay f32 and on the float path, whatever the choice (a family says `load.exact` for those).
- Embedding rows are looked up in the stored dtype and never rounded; a tied head is a rounded copy of them.
- The cache holds f16 on the integer path and f32 with `native`.
"""

from typing import Literal, TypeAlias, get_args

NUMERICS_VERSION = 1

Weights: TypeAlias = Literal["auto", "native", "q8", "q4"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
