"""Attention in one launch over (key head, tile of rows) or, when those are few, over (some key heads, tile of
rows, block of keys).

Both ways compute the same per block (`block_of`) and merge blocks in increasing order (`merge`).
"""

import numpy as np
from numba import prange

from engine.kernels.atomic import mark_done, next_task, wait_for
from engine.kernels.attention_tile import AHEAD, QUERIES, ask_for, score_tile, value_tile
from engine.kernels.compile import kernel
from engine.kernels.lanes import cache_value, lane_max, lane_sum
from engine.kernels.scalar import exp

BLOCK = 128  # keys
TILE = 16  # rows of a task, a multiple of QUERIES
TOGETHER = 8  # keys that all heads of a task take in turn: they lie side by side in the cache
RUN = 2048  # elements of a cache, side by side, worth reading together


@kernel
def ranges(positions, window, keys, spans):  # type: ignore[no-untyped-def]
    """Which keys (or places in `keys`) each row sees: int64 [N, 2], from and to. Returns the blocks that
    matter.
    """
    low, high = 1 << 60, 0
    for n in range(len(positions)):
        if keys.shape[0] > 0:
            count = 0
            while count < keys.shape[1] and keys[n, count] >= 0:
                count += 1
            spans[n, 0], spans[n, 1] = 0, count
        else:
            spans[n, 0] = max(0, positions[n] + 1 - window) if window > 0 else 0
            spans[n, 1] = positions[n] + 1
        low, high = min(low, spans[n, 0]), max(high, spans[n, 1])
    return low // BLOCK, (high + BLOCK - 1) // BLOCK


@kernel
def _gather(cache, rows, low, high, start, head, width, out):  # type: ignore[no-untyped-def]
    """Rows low … high of the cache (or of what `rows` names) as f32, filled up with zeros: out [BLOCK, 16 ·
    chunks].
    """
    for j in range(low, high):
        at = (rows[j] if len(rows) > 0 else j) - start
        for i in range(out.shape[1]):
            out[j - low, i] = cache_value(cache[at, head, i]) if i < width else np.float32(0)


@kernel
def _scores(q, k, index, rows, heads, lines, low, high, block, head, start, scale, direct, wide_k, scores):  # type: ignore[no-untyped-def]
    """Scores of the keys low … high for some heads: scores [heads · lines, BLOCK], a key at its place in the
    block.
    """
    step = BLOCK if heads == 1 else TOGETHER
    chunks = q.shape[1] // 16
    for key in range(low, high, step):
        count = min(step, high - key)
        for h in range(heads):
            for t in range(0, rows, QUERIES):
                line = h * lines + t
                some, out = min(QUERIES, rows - t), scores[line:, key - block * BLOCK :]
                if direct:
                    at = ((key - start) * k.shape[1] + head + h) * k.shape[2]
                    stride = k.shape[1] * k.shape[2]
                    score_tile(q, index, line, some, k, at, stride, count, chunks, scale, out, BLOCK)
                else:
                    score_tile(q, index, line, some, wide_k, 0, chunks * 16, count, chunks, scale, out, BLOCK)


@kernel
def _values(v, rows, heads, lines, low, high, block, head, start, direct, wide_v, scores, parts):  # type: ignore[no-untyped-def]
    """Sums of the values low … high for some heads, weighted by what is in `scores`: parts [heads · lines, …]."""
    step = BLOCK if heads == 1 else TOGETHER
    wide = parts.shape[1]
    chunks = wide // 16
    for key in range(low, high, step):
        count = min(step, high - key)
        for h in range(heads):
            for t in range(0, rows, QUERIES):
                some, line = min(QUERIES, rows - t), (h * lines + t) * wide
                weight = (h * lines + t) * BLOCK + key - block * BLOCK
                if direct:
                    at = ((key - start) * v.shape[1] + head + h) * v.shape[2]
                    stride = v.shape[1] * v.shape[2]
                    value_tile(
                        scores,
                        weight,
                        BLOCK,
                        some,
                        v,
                        at,
                        stride,
                        count,
                        chunks,
                        parts,
                        line,
                        wide,
                        key == low,
                    )
                else:
                    value_tile(
                        scores, weight, BLOCK, some, wide_v, 0, wide, count, chunks, parts, line, wide, True
                    )


@kernel
def block_of(  # type: ignore[no-untyped-def]
    q, k, v, index, tokens, rows, heads, lines, block, head, start, dim, width, scale, spans, positions, keys,
    bias, direct, scores, wide_k, wide_v, tops, sums, parts,
):  # fmt: skip
    """One block of keys for `rows` rows of each of the key heads head … head + heads: maximum, sum and weighted
    values a row (sum 0: sees none). Row t of the h-th head is line h · lines + t of `index`, of `scores` and of what is
    given back.
    """
    low, high = block * BLOCK + BLOCK, block * BLOCK
    for t in range(rows):
        span = spans[tokens[t]]
        low, high = min(low, max(span[0], block * BLOCK)), max(high, min(span[1], block * BLOCK + BLOCK))
        for h in range(heads):
            tops[h * lines + t], sums[h * lines + t] = np.float32(-np.inf), np.float32(0)
    if low >= high:
        return
    chosen = keys[tokens[0]] if keys.shape[0] > 0 else keys.reshape(-1)
    if direct:
        soon, keys_wide, values_wide = (
            min(AHEAD, high - low),
            k.shape[1] * k.shape[2],
            v.shape[1] * v.shape[2],
        )
        ask_for(k, (low - start) * keys_wide + head * k.shape[2], heads * k.shape[2], soon, keys_wide)
        ask_for(v, (low - start) * values_wide + head * v.shape[2], heads * v.shape[2], soon, values_wide)
    else:
        _gather(k, chosen, low, high, start, head, dim, wide_k)
        _gather(v, chosen, low, high, start, head, width, wide_v)
    _scores(q, k, index, rows, heads, lines, low, high, block, head, start, scale, direct, wide_k, scores)
    for h in range(heads):
        for t in range(rows):
            n, place = tokens[t], h * lines + t
            begin = max(spans[n, 0] - block * BLOCK, 0)
            end = min(spans[n, 1] - block * BLOCK, BLOCK)
            line = scores[place]
            if begin >= end:
                line[:] = np.float32(0)
                continue
            if bias.shape[2] > 0:
                own = index[place] % bias.shape[1]
                for j in range(begin, end):
                    key = chosen[block * BLOCK + j] if len(chosen) > 0 else block * BLOCK + j
                    if positions[n] - key < bias.shape[2]:
                        line[j] += bias[n, own, positions[n] - key]
            best = lane_max(scores, place * BLOCK + begin, end - begin)
            line[:begin] = np.float32(0)
            line[end:] = np.float32(0)
            seen = line[begin:end]
            for j in range(len(seen)):
                seen[j] = exp(seen[j] - best)
            tops[place], sums[place] = best, lane_sum(line, 0, BLOCK)
    _values(v, rows, heads, lines, low, high, block, head, start, direct, wide_v, scores, parts)


@kernel
def merge(top, total, new_top, new_total, out, part):  # type: ignore[no-untyped-def]
    """Adds a block's sums to a row's running ones; returns its maximum and its sum."""
    if new_total == np.float32(0):
        return top, total
    best = max(top, new_top)
    old_factor, new_factor = exp(top - best), exp(new_top - best)
    for i in range(len(out)):
        out[i] = out[i] * old_factor + part[i] * new_factor
    return best, total * old_factor + new_total * new_factor


@kernel
def clear(line):  # type: ignore[no-untyped-def]
    for i in range(len(line)):
        line[i] = np.float32(0)


@kernel
def finish(top, total, sink, has_sink, out):  # type: ignore[no-untyped-def]
    if has_sink:
        best = max(top, sink)
        factor = exp(top - best)
        total = total * factor + exp(sink - best)
        for i in range(len(out)):
            out[i] = (out[i] * factor) / total
    else:
        for i in range(len(out)):
            out[i] /= total


@kernel
def merge_blocks(tops, sums, parts, line, sinks, head, out):  # type: ignore[no-untyped-def]
    """out [width] = line `line` of all blocks (tops and sums [blocks, lines], parts [blocks, lines, width]) merged in
    increasing order, with the sink of `head` where there are any."""
    top, total = np.float32(-np.inf), np.float32(0)
    clear(out)
    for block in range(len(tops)):
        top, total = merge(top, total, tops[block, line], sums[block, line], out, parts[block, line])
    sink = sinks[head] if len(sinks) > 0 else np.float32(0)
    finish(top, total, sink, len(sinks) > 0, out)


@kernel(parallel=True)
def attend(q, k, v, positions, start, dim, width, scale, window, sinks, keys, bias, out, threads):  # type: ignore[no-untyped-def]
    """q f32 [N · H, 16 · chunks] filled up with zeros; out f32 [N · H, width]; the rest as in `attention`."""
    count, kv_heads = len(positions), k.shape[1]
    heads = q.shape[0] // count
    shared = heads // kv_heads
    spans = np.empty((count, 2), np.int64)
    lowest, highest = ranges(positions, window, keys, spans)
    # Rows of a key head, a token's heads side by side; with chosen keys, a tile holds rows of one token only.
    a_tile = min(TILE, shared) if keys.shape[0] > 0 else TILE
    together = count * shared if keys.shape[0] == 0 else shared
    tiles = ((together + a_tile - 1) // a_tile) * (1 if keys.shape[0] == 0 else count)
    per_token = (shared + a_tile - 1) // a_tile
    blocks = highest - lowest
    direct = dim % 16 == 0 and width % 16 == 0 and keys.shape[0] == 0
    wide = ((width + 15) // 16) * 16
    # With few rows, blocks are shared out too, and a task takes as many heads as lie in a good stretch of memory.
    split = kv_heads * tiles < 4 * threads or (direct and tiles == 1)
    group = min(kv_heads, max(1, RUN // k.shape[2])) if split and direct else 1
    while group > 1 and (kv_heads + group - 1) // group * tiles * blocks < 4 * threads:
        group = (group + 1) // 2  # enough tasks for all
    head_groups = (kv_heads + group - 1) // group
    pieces = blocks if split else 1
    tasks = head_groups * tiles * pieces
    # Rows of a tile in the arrays below.
    lines = (min(TILE, together) + QUERIES - 1) // QUERIES * QUERIES if together > 1 else 1
    room = kv_heads * tiles * lines if split else 0
    all_tops = np.empty((blocks if split else 0, room), np.float32)
    all_sums = np.empty((blocks if split else 0, room), np.float32)
    all_parts = np.empty((blocks if split else 0, room, wide), np.float32)
    counter = np.zeros(3, np.int64)
    later, done = counter[1:], counter[2:]
    for _ in prange(threads):
        index, tokens = np.empty(group * TILE, np.int64), np.empty(TILE, np.int64)
        scores = np.zeros((group * lines, BLOCK), np.float32)
        wide_k = np.empty((0 if direct else BLOCK, q.shape[1]), np.float32)
        wide_v = np.empty((0 if direct else BLOCK, wide), np.float32)
        tops, sums = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
        parts = np.empty((TILE, wide), np.float32)
        run_tops, run_sums = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
        while True:
            task = next_task(counter)
            if task >= tasks:
                break
            piece, place = task // (head_groups * tiles), task % (head_groups * tiles)
            tile, head = place // head_groups, place % head_groups * group
            some = min(group, kv_heads - head)
            if keys.shape[0] > 0:
                begin = (tile // per_token) * shared + (tile % per_token) * a_tile
                end = min(begin + a_tile, (tile // per_token + 1) * shared)
            else:
                begin, end = tile * a_tile, min(tile * a_tile + a_tile, together)
            rows = end - begin
            first_block, last_block = highest, lowest
            for t in range(rows):
                tokens[t] = (begin + t) // shared
                for h in range(some):
                    index[h * lines + t] = tokens[t] * heads + (head + h) * shared + (begin + t) % shared
                first_block = min(first_block, spans[tokens[t], 0] // BLOCK)
                last_block = max(last_block, (spans[tokens[t], 1] + BLOCK - 1) // BLOCK)
            if split:
                first, last = (tile * kv_heads + head) * lines, (tile * kv_heads + head + some) * lines
                block_of(
                    q, k, v, index, tokens, rows, some, lines, lowest + piece, head, start, dim, width, scale,
                    spans, positions, keys, bias, direct, scores, wide_k, wide_v,
                    all_tops[piece, first:last], all_sums[piece, first:last], all_parts[piece, first:last],
                )  # fmt: skip
                mark_done(done, 0, 1)
                continue
            for t in range(rows):
                run_tops[t], run_sums[t] = np.float32(-np.inf), np.float32(0)
                clear(out[index[t]])
            for block in range(first_block, last_block):
                block_of(
                    q, k, v, index, tokens, rows, 1, lines, block, head, start, dim, width, scale,
                    spans, positions, keys, bias, direct, scores, wide_k, wide_v, tops, sums, parts,
                )  # fmt: skip
                for t in range(rows):
                    run_tops[t], run_sums[t] = merge(
                        run_tops[t], run_sums[t], tops[t], sums[t], out[index[t]], parts[t]
                    )
            for t in range(rows):
                sink = sinks[index[t] % heads] if len(sinks) else np.float32(0)
                finish(run_tops[t], run_sums[t], sink, len(sinks) > 0, out[index[t]])
        while split:
            place = next_task(later)
            if place >= kv_heads * tiles:
                break
            wait_for(done, 0, tasks)
            tile, head = place // kv_heads, place % kv_heads
            if keys.shape[0] > 0:
                begin = (tile // per_token) * shared + (tile % per_token) * a_tile
                end = min(begin + a_tile, (tile // per_token + 1) * shared)
            else:
                begin, end = tile * a_tile, min(tile * a_tile + a_tile, together)
            for t in range(end - begin):
                row = (begin + t) // shared * heads + head * shared + (begin + t) % shared
                merge_blocks(all_tops, all_sums, all_parts, place * lines + t, sinks, row % heads, out[row])
