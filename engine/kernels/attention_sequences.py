"""Attention of several sequences, each over a cache of its own, in one launch over (some key heads, tile of rows).

Blocks are computed and merged as in `attention_kernel`, so each sequence gets the bits that it gets alone.
"""

import numpy as np
from numba import prange

from engine.kernels.addresses import array_at
from engine.kernels.atomic import next_task
from engine.kernels.attention_kernel import BLOCK, RUN, TILE, block_of, clear, finish, merge, ranges
from engine.kernels.attention_tile import QUERIES
from engine.kernels.compile import kernel
from engine.kernels.half import narrow_into

FIRST, ROWS, KEYS, VALUES, CAPACITY, START = range(6)
"""The columns of a table of sequences: its first row and how many there are, the addresses of its keys and values,
the rows of both, and the position of the first of them."""


@kernel
def write_rows(table, like, start, k, v):  # type: ignore[no-untyped-def]
    """Writes each sequence's rows of k and v, f32 [N, heads, width], to its cache, from position start[row] on."""
    for s in range(len(table)):
        first, rows = table[s, FIRST], table[s, ROWS]
        for column, source in ((KEYS, k), (VALUES, v)):
            width = source.shape[1] * source.shape[2]
            cache = array_at(table[s, column], (table[s, CAPACITY] * width,), like)
            at = (start[first] - table[s, START]) * width
            narrow_into(
                source.reshape(-1)[first * width : (first + rows) * width], cache[at : at + rows * width]
            )


@kernel(parallel=True)
def attend_sequences(  # type: ignore[no-untyped-def]
    q, table, like, positions, kv_heads, dim, width, scale, window, sinks, bias, out, threads
):  # fmt: skip
    """q f32 [N · H, 16 · chunks] filled up with zeros; table int64 [S, 6]; `like`: an empty array of the caches'
    type; dim, width: of a key and of a value; out f32 [N · H, width]; the rest as in `attention`.
    """
    sequences, count = len(table), len(positions)
    heads = q.shape[0] // count
    shared = heads // kv_heads
    keys = np.empty((0, 0), np.int32)
    spans = np.empty((count, 2), np.int64)
    ranges(positions, window, keys, spans)
    tiles = np.zeros(sequences + 1, np.int64)  # of the sequences before
    most = 0
    for s in range(sequences):
        together = table[s, ROWS] * shared
        most = max(most, together)
        tiles[s + 1] = tiles[s] + (together + TILE - 1) // TILE
    direct = dim % 16 == 0 and width % 16 == 0
    wide = ((width + 15) // 16) * 16
    group = min(kv_heads, max(1, RUN // dim)) if direct else 1
    while group > 1 and (kv_heads + group - 1) // group * tiles[sequences] < 4 * threads:
        group = (group + 1) // 2
    head_groups = (kv_heads + group - 1) // group
    tasks = head_groups * tiles[sequences]
    lines = (min(TILE, most) + QUERIES - 1) // QUERIES * QUERIES if most > 1 else 1
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        index, tokens = np.empty(group * lines, np.int64), np.empty(TILE, np.int64)
        scores = np.zeros((group * lines, BLOCK), np.float32)
        wide_k = np.empty((0 if direct else BLOCK, q.shape[1]), np.float32)
        wide_v = np.empty((0 if direct else BLOCK, wide), np.float32)
        tops, sums = np.empty(group * lines, np.float32), np.empty(group * lines, np.float32)
        parts = np.empty((group * lines, wide), np.float32)
        run_tops, run_sums = np.empty(group * lines, np.float32), np.empty(group * lines, np.float32)
        while True:
            task = next_task(counter)
            if task >= tasks:
                break
            tile, head = task // head_groups, task % head_groups * group
            s = 0
            while tiles[s + 1] <= tile:
                s += 1
            some = min(group, kv_heads - head)
            begin = (tile - tiles[s]) * TILE
            rows = min(TILE, table[s, ROWS] * shared - begin)
            k = array_at(table[s, KEYS], (table[s, CAPACITY], kv_heads, dim), like)
            v = array_at(table[s, VALUES], (table[s, CAPACITY], kv_heads, width), like)
            low, high = 1 << 60, 0
            for t in range(rows):
                tokens[t] = table[s, FIRST] + (begin + t) // shared
                low, high = min(low, spans[tokens[t], 0]), max(high, spans[tokens[t], 1])
                for h in range(some):
                    place = h * lines + t
                    index[place] = tokens[t] * heads + (head + h) * shared + (begin + t) % shared
                    run_tops[place], run_sums[place] = np.float32(-np.inf), np.float32(0)
                    clear(out[index[place]])
            for block in range(low // BLOCK, (high + BLOCK - 1) // BLOCK):
                block_of(
                    q, k, v, index, tokens, rows, some, lines, block, head, table[s, START], dim, width, scale,
                    spans, positions, keys, bias, direct, scores, wide_k, wide_v, tops, sums, parts,
                )  # fmt: skip
                for h in range(some):
                    for place in range(h * lines, h * lines + rows):
                        run_tops[place], run_sums[place] = merge(
                            run_tops[place], run_sums[place], tops[place], sums[place], out[index[place]],
                            parts[place],
                        )  # fmt: skip
            for h in range(some):
                for place in range(h * lines, h * lines + rows):
                    sink = sinks[index[place] % heads] if len(sinks) else np.float32(0)
                    finish(run_tops[place], run_sums[place], sink, len(sinks) > 0, out[index[place]])
