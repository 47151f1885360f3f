"""A row through several layers in one call: attention, router and experts of each, one after another.

What a launch costs is not the launch itself: between two layers' weights, which sweep all caches, every line of code
and of the interpreter's data comes from memory again. Here a thread goes from task to task and from layer to layer by
itself. Rows are so short that each thread norms, rounds, rotates and sums them for itself instead of waiting for
another to do it; what is shared out are panels of matrices, blocks of keys and the experts' tasks.

A thread waits for tasks, never for threads: where only one runs, it does everything. One that comes late finds
nothing to do and follows, so what a layer's threads read of each other stays as it is until the call ends.

Each step is that of `row_linear`, `row_attention`, `row_route` and `row_experts`, bit for bit.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from engine.arrays import F32, I32, Array
from engine.kernels.addresses import array_at, carray
from engine.kernels.atomic import mark_done, next_task, wait_for
from engine.kernels.attention_tile import QUERIES
from engine.kernels.compile import device, routine
from engine.kernels.experts import combine_rounded
from engine.kernels.float_tile import FLOAT_ROWS
from engine.kernels.row_attention import ATTENTION_COUNTERS, attend_share, turn_row
from engine.kernels.row_experts import experts_share
from engine.kernels.row_linear import normed_row, panels_share, rounded_row
from engine.kernels.row_route import choose, logits_share

BYTES, CHARS, SHORTS = np.empty(0, np.uint8), np.empty(0, np.int8), np.empty(0, np.int16)
INTS, LONGS, FLOATS = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float32)

COLUMNS = 19
"""Of a table of layers, int64 [layers, COLUMNS]: addresses of what a layer is made of, and what its cache is."""
(
    ATTENTION_NORM, PROJECTIONS, PROJECTIONS_BIAS, Q_NORM, K_NORM, SINKS, OUTPUT, OUTPUT_BIAS, FEED_NORM, ROUTER,
    ROUTER_BIAS, CORRECTION, WINDOW, ARENA, SLOTS, KEYS, VALUES, CAPACITY, START,
) = range(COLUMNS)  # fmt: skip

APART = 8  # counters from one to the next, so that each is alone in its cache line
PROJECTED, PROJECTED_BACK, ROUTED, COMPUTED = range(0, 4 * APART, APART)
"""Where the tasks of a layer that are done are counted; `GIVEN` further on, those given out."""
GIVEN = 4 * APART
ATTENDED = 2 * GIVEN + APART  # after those of the experts' second half
EXPERTS = ATTENDED + ATTENTION_COUNTERS  # a counter an expert


class Sizes(NamedTuple):
    """What all layers of a call have in common. Lengths are 0 where there is no such thing."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    projections: int  # panels, and bytes of one
    projections_panel: int
    output: int
    output_panel: int
    projections_bias: int
    output_bias: int
    attention_norm: int
    q_norm: int
    k_norm: int
    sinks: int
    feed_norm: int
    router_panel: int
    router_block: int
    experts: int
    chosen: int
    router_bias: int
    correction: int
    sigmoids: int  # 0 or 1
    normalise: int


class Layers(NamedTuple):
    """The layers of a call. places: those of `Matrix`; layout, code and parameters: those of `ExpertShape`."""

    table: Array  # int64 [layers, COLUMNS]
    norms: F32  # [layers, 8]: epsilon and what is added to the weight, of the four norms
    places: Array
    output_places: Array
    layout: Array
    code: int
    parameters: F32
    factors: F32  # [2]: of attention's scores, of the router's weights


class Token(NamedTuple):
    """Where the row stands: its angles (see `rope`) and its position int32 [1]."""

    cos: F32
    sin: F32
    first: int
    interleaved: bool
    position: I32


ROOM_TYPES = (
    np.float32, np.float32, np.float32, np.float32, np.int16, np.float32, np.int8, np.float32, np.int32, np.float32,
    np.float32, np.float32, np.int64,
)  # fmt: skip


class Room(NamedTuple):
    """What threads tell each other, of ROOM_TYPES. That with a line a layer is read by late ones too."""

    projected: F32  # [layers, width of the projections]
    seen: F32  # [layers, heads · dim]
    attended: F32  # [layers, hidden]
    logits: F32  # [layers, experts filled up to whole panels]
    made: Array  # int16 [layers, chosen, hidden], with scales f32 [layers, chosen, blocks]
    made_scale: F32
    h: Array  # int8 [chosen, inner filled up], with scales f32 and sums int32 [chosen, blocks]
    h_scale: F32
    h_sums: I32
    tops: F32  # [blocks of keys, lines of all heads]
    sums: F32
    parts: F32  # [blocks of keys, lines of all heads, dim]
    tally: Array  # int64 [layers + 1, EXPERTS + chosen], zeros


# A call is told to the kernels in one array of numbers, int64: arguments by the dozen would take longer to hand over
# than a layer's norms, and minutes to compile.
SIZES = len(Sizes._fields)
(
    LAYERS, CODE, PARAMETERS, HALF, FIRST, INTERLEAVED, INNER, BLOCKS, X, TABLE, NORMS, PLACES, OUTPUT_PLACES,
    LAYOUT, PARAMETERS_AT, FACTORS, COS, SIN, POSITION, OUT, ROOM,
) = range(SIZES, SIZES + 21)  # fmt: skip
CALL = ROOM + len(Room._fields)
"""How many numbers: those of `Sizes`, counts, then addresses."""


@device
def _sizes(c):  # type: ignore[no-untyped-def]
    return Sizes(
        c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11], c[12], c[13], c[14], c[15], c[16],
        c[17], c[18], c[19], c[20], c[21], c[22],
    )  # fmt: skip


@device
def _layers(c, s):  # type: ignore[no-untyped-def]
    return Layers(
        array_at(c[TABLE], (c[LAYERS], COLUMNS), LONGS), array_at(c[NORMS], (c[LAYERS], 8), FLOATS),
        array_at(c[PLACES], (s.projections, 4), LONGS), array_at(c[OUTPUT_PLACES], (s.output, 4), LONGS),
        array_at(c[LAYOUT], (11,), LONGS), c[CODE], array_at(c[PARAMETERS_AT], (c[PARAMETERS],), FLOATS),
        array_at(c[FACTORS], (2,), FLOATS),
    )  # fmt: skip


@device
def _token(c):  # type: ignore[no-untyped-def]
    return Token(
        array_at(c[COS], (1, c[HALF]), FLOATS), array_at(c[SIN], (1, c[HALF]), FLOATS), c[FIRST], c[INTERLEAVED] != 0,
        array_at(c[POSITION], (1,), INTS),
    )  # fmt: skip


@device
def room_shapes(s, layers, inner, blocks):  # type: ignore[no-untyped-def]
    """The shapes of `Room`; inner: the experts' width, blocks: of keys."""
    groups, inner_groups, shared = (s.hidden + 31) // 32, (inner + 31) // 32, s.heads // s.kv_heads
    lines = s.kv_heads * ((shared + QUERIES - 1) // QUERIES * QUERIES if shared > 1 else 1)
    logits = (s.experts + FLOAT_ROWS - 1) // FLOAT_ROWS * FLOAT_ROWS
    return (
        (layers, (s.heads + 2 * s.kv_heads) * s.dim), (layers, s.heads * s.dim), (layers, s.hidden), (layers, logits),
        (layers, s.chosen, s.hidden), (layers, s.chosen, groups), (s.chosen, inner_groups * 32),
        (s.chosen, inner_groups), (s.chosen, inner_groups), (blocks, lines), (blocks, lines), (blocks, lines, s.dim),
        (layers + 1, EXPERTS + s.chosen),
    )  # fmt: skip


@device
def _room(c, s):  # type: ignore[no-untyped-def]
    at, shapes = c[ROOM:], room_shapes(s, c[LAYERS], c[INNER], c[BLOCKS])
    return Room(
        array_at(at[0], shapes[0], FLOATS), array_at(at[1], shapes[1], FLOATS), array_at(at[2], shapes[2], FLOATS),
        array_at(at[3], shapes[3], FLOATS), array_at(at[4], shapes[4], SHORTS), array_at(at[5], shapes[5], FLOATS),
        array_at(at[6], shapes[6], CHARS), array_at(at[7], shapes[7], FLOATS), array_at(at[8], shapes[8], INTS),
        array_at(at[9], shapes[9], FLOATS), array_at(at[10], shapes[10], FLOATS), array_at(at[11], shapes[11], FLOATS),
        array_at(at[12], shapes[12], LONGS),
    )  # fmt: skip


@cache
def _attention_part(kind_name: str, scale_name: str, router: str) -> Any:
    project, route = panels_share(kind_name, scale_name), logits_share(router)

    @device
    def attention_part(x, layer, s, w, token, like, room, ids, weights, threads):  # type: ignore[no-untyped-def]
        """x [1, hidden] through attention and router of a layer; returns the row normed, for the experts. What there
        was is added to, in room.attended; ids and weights [1, k] say whom the row goes to."""
        line, norms, tally = w.table[layer], w.norms[layer], room.tally[layer]
        nothing = np.empty((1, 0), np.float32)

        norm = array_at(line[ATTENTION_NORM], (s.attention_norm,), FLOATS)
        q, scale, sums = rounded_row(normed_row(x, norm, norms[0], norms[1]))
        own = room.projected[layer]
        mine = project(
            array_at(line[PROJECTIONS], (1,), BYTES), s.projections_panel, w.places, q, scale, sums,
            array_at(line[PROJECTIONS_BIAS], (s.projections_bias,), FLOATS), nothing, own.reshape(1, own.size),
            tally[GIVEN + PROJECTED :], threads,
        )  # fmt: skip
        mark_done(tally, PROJECTED, mine)
        wait_for(tally, PROJECTED, len(w.places))

        q_end = s.heads * s.dim
        k_end = q_end + s.kv_heads * s.dim
        queries = np.empty((1, s.heads, s.dim), np.float32)
        keys = np.empty((1, s.kv_heads, s.dim), np.float32)
        turn_row(
            own[:q_end].reshape(1, q_end), array_at(line[Q_NORM], (s.q_norm,), FLOATS), norms[2], norms[3],
            token.cos, token.sin, token.first, token.interleaved, queries,
        )  # fmt: skip
        turn_row(
            own[q_end:k_end].reshape(1, k_end - q_end), array_at(line[K_NORM], (s.k_norm,), FLOATS), norms[4], norms[5],
            token.cos, token.sin, token.first, token.interleaved, keys,
        )  # fmt: skip
        shape, seen = (line[CAPACITY], s.kv_heads, s.dim), room.seen[layer]
        attend_share(
            queries[0], keys[0], own[k_end:].reshape(s.kv_heads, s.dim), array_at(line[KEYS], shape, like),
            array_at(line[VALUES], shape, like), token.position, line[START], line[WINDOW], w.factors[0],
            array_at(line[SINKS], (s.sinks,), FLOATS), room.tops, room.sums, room.parts,
            seen.reshape(s.heads, s.dim), tally[ATTENDED:], threads,
        )  # fmt: skip

        q, scale, sums = rounded_row(seen.reshape(1, q_end))
        attended = room.attended[layer].reshape(1, s.hidden)
        mine = project(
            array_at(line[OUTPUT], (1,), BYTES), s.output_panel, w.output_places, q, scale, sums,
            array_at(line[OUTPUT_BIAS], (s.output_bias,), FLOATS), x, attended, tally[GIVEN + PROJECTED_BACK :],
            threads,
        )  # fmt: skip
        mark_done(tally, PROJECTED_BACK, mine)
        wait_for(tally, PROJECTED_BACK, len(w.output_places))

        norm = array_at(line[FEED_NORM], (s.feed_norm,), FLOATS)
        normed = normed_row(attended, norm, norms[6], norms[7])
        mine = route(
            array_at(line[ROUTER], (1,), BYTES), s.router_panel, s.router_block, normed, s.experts,
            array_at(line[ROUTER_BIAS], (s.router_bias,), FLOATS), room.logits[layer], tally[GIVEN + ROUTED :],
        )  # fmt: skip
        mark_done(tally, ROUTED, mine)
        wait_for(tally, ROUTED, room.logits.shape[1] // FLOAT_ROWS)
        choose(
            room.logits[layer, : s.experts].reshape(1, s.experts), s.sigmoids != 0,
            array_at(line[CORRECTION], (s.correction,), FLOATS), s.normalise != 0, w.factors[1], ids, weights,
        )  # fmt: skip
        return normed

    return attention_part


@cache
def _experts_part(kind_name: str, scale_name: str) -> Any:
    run = experts_share(kind_name, scale_name)

    @device
    def experts_part(normed, layer, s, w, room, ids, weights, x, threads):  # type: ignore[no-untyped-def]
        """x [1, hidden] = room.attended plus what the experts of a layer make of the row `normed`."""
        line, tally = w.table[layer], room.tally[layer]
        q, scale, sums = rounded_row(normed)
        mine = run(
            array_at(line[ARENA], (1,), BYTES), array_at(line[ARENA], (1,), FLOATS), w.layout, w.code, w.parameters, q,
            scale, sums, array_at(line[SLOTS], (s.experts,), INTS), ids, room.h, room.h_scale, room.h_sums,
            room.made[layer], room.made_scale[layer], np.empty((1, 0), np.float32), tally[GIVEN + COMPUTED :],
            tally[2 * GIVEN :], tally[EXPERTS:], threads,
        )  # fmt: skip
        mark_done(tally, COMPUTED, mine)
        wait_for(tally, COMPUTED, s.chosen * room.made_scale.shape[2])
        combine_rounded(room.made[layer], room.made_scale[layer], weights, x)
        for i in range(s.hidden):
            x[0, i] = room.attended[layer, i] + x[0, i]

    return experts_part


@cache
def row_layers(dense: tuple[str, str], experts: tuple[str, str], router: str, halves: bool) -> Any:
    """The routine for layers of which the first matrices, the experts' and the router's are of these formats; `halves`:
    caches hold f16. It is told what to do in int64 [CALL]."""
    attention_part, experts_part = _attention_part(*dense, router), _experts_part(*experts)
    like = np.empty(0, np.uint16 if halves else np.float32)

    @routine
    def row_layers(numbers, threads):  # type: ignore[no-untyped-def]
        call = carray(numbers, (CALL,))
        s, token = _sizes(call), _token(call)
        w, room = _layers(call, s), _room(call, s)
        x = array_at(call[X], (1, s.hidden), FLOATS).copy()
        ids, weights = np.empty((1, s.chosen), np.int32), np.empty((1, s.chosen), np.float32)
        for layer in range(call[LAYERS]):
            normed = attention_part(x, layer, s, w, token, like, room, ids, weights, threads)
            experts_part(normed, layer, s, w, room, ids, weights, x, threads)
        if next_task(room.tally[call[LAYERS]]) == 0:
            array_at(call[OUT], (1, s.hidden), FLOATS)[:] = x

    return row_layers
