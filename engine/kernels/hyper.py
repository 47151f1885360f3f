"""Hyper-connections: several residual streams, mixed before and after each layer by weights of their own.

From a token's streams a linear layer makes (2 + M) · M raw weights, M being the number of streams. They become,
by `stream_weights`, `pre` (how the streams are added up to a layer's input), `post` (how its output is spread over
them) and `comb` (how they are mixed among themselves: brought near to a doubly stochastic matrix by Sinkhorn's
alternating divisions). Manifold-constrained hyper-connections, arXiv 2512.24880. Sums over streams are by fma, in
increasing order.
"""

import numpy as np
from numba import prange

from engine.arrays import F32, aligned
from engine.kernels.compile import kernel
from engine.kernels.scalar import exp, fused, sigmoid
from engine.kernels.threads import launch


@kernel
def _weights(raw, base, scale, floor, rounds, pre, post, comb):  # type: ignore[no-untyped-def]
    count, streams = pre.shape
    one = np.float32(1)
    for n in range(count):
        for m in range(streams):
            pre[n, m] = sigmoid(raw[n, m] * scale[0] + base[m]) + floor
            place = streams + m
            post[n, m] = np.float32(2) * sigmoid(raw[n, place] * scale[1] + base[place])
        mixed = comb[n]
        for j in range(streams):
            top = np.float32(-np.inf)
            for k in range(streams):
                place = (2 + j) * streams + k
                mixed[j, k] = raw[n, place] * scale[2] + base[place]
                top = max(top, mixed[j, k])
            total = np.float32(0)
            for k in range(streams):
                mixed[j, k] = exp(mixed[j, k] - top)
                total += mixed[j, k]
            for k in range(streams):
                mixed[j, k] = mixed[j, k] / total + floor
        for turn in range(2 * rounds - 1):
            for a in range(streams):  # columns first, then rows and columns in turn
                total = np.float32(0)
                for b in range(streams):
                    total += mixed[b, a] if turn % 2 == 0 else mixed[a, b]
                share = one / (total + floor)
                for b in range(streams):
                    if turn % 2 == 0:
                        mixed[b, a] *= share
                    else:
                        mixed[a, b] *= share


def stream_weights(raw: F32, base: F32, scale: F32, floor: float, rounds: int) -> tuple[F32, F32, F32]:
    """Raw weights [N, (2 + M) · M] to pre [N, M], post [N, M] and comb [N, M, M].

    `base` f32 [(2 + M) · M] is added after the three kinds were multiplied by scale[0], scale[1], scale[2]. `floor`
    keeps weights and sums away from zero; `rounds` >= 1 of Sinkhorn's divisions.
    """
    streams = round((len(base) + 1) ** 0.5) - 1
    fits = (2 + streams) * streams == len(base) and raw.shape[1:] == base.shape and scale.shape == (3,)
    if not fits or rounds < 1:
        raise ValueError(
            f"raw weights {list(raw.shape)}, base {list(base.shape)} and scale {list(scale.shape)} do not fit, "
            f"or {rounds} rounds are too few"
        )
    pre, post = aligned((len(raw), streams), np.float32), aligned((len(raw), streams), np.float32)
    comb = aligned((len(raw), streams, streams), np.float32)
    _weights(np.ascontiguousarray(raw), base, scale, np.float32(floor), rounds, pre, post, comb)
    return pre, post, comb


@kernel(parallel=True)
def _collapse(x, weights, out, threads):  # type: ignore[no-untyped-def]
    count = len(x)
    for part in prange(threads):
        for n in range(part * count // threads, (part + 1) * count // threads):
            line = out[n]
            line[:] = np.float32(0)
            for m in range(x.shape[1]):
                weight, stream = weights[n, m], x[n, m]
                for d in range(len(line)):
                    line[d] = fused(weight, stream[d], line[d])


def collapse(x: F32, weights: F32) -> F32:
    """Σ over m of weights[n, m] · x[n, m]: streams f32 [N, M, D], weights [N, M] -> [N, D]."""
    out = aligned((len(x), x.shape[2]), np.float32)
    with launch(x.size) as count:
        _collapse(np.ascontiguousarray(x), weights, out, count)
    return out


@kernel(parallel=True)
def _spread(x, y, post, comb, out, threads):  # type: ignore[no-untyped-def]
    count, streams = post.shape
    for part in prange(threads):
        for n in range(part * count // threads, (part + 1) * count // threads):
            for k in range(streams):
                line, given, weight = out[n, k], y[n], post[n, k]
                for d in range(len(line)):
                    line[d] = weight * given[d]
                for j in range(streams):
                    share, stream = comb[n, j, k], x[n, j]
                    for d in range(len(line)):
                        line[d] = fused(share, stream[d], line[d])


def spread(x: F32, y: F32, post: F32, comb: F32) -> F32:
    """post[n, k] · y[n] + Σ over j of comb[n, j, k] · x[n, j]: the streams [N, M, D] after a layer gave y [N, D]."""
    out = aligned(x.shape, np.float32)
    with launch(x.size * x.shape[1]) as count:
        _spread(np.ascontiguousarray(x), np.ascontiguousarray(y), post, comb, out, count)
    return out
