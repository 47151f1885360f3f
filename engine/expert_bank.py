"""Routed experts in packed form in a bounded piece of memory, read when they are needed and before.

The chatter's own experts and a donor's are the same thing: `ExpertBank.run` takes rows and (expert, row)
pairs and gives the experts' output rows. What is not in memory is read by background threads, from the
packed cache on disk where there is one, else from the model's files with conversion. While missing experts
are being read, those present already run.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from engine.arrays import F32, I32, U8, Array, aligned
from engine.checkpoint import Checkpoint
from engine.doubts import Doubts
from engine.errors import EngineError, ExpertsUnavailable, SettingsError
from engine.expert_reader import ExpertReader
from engine.experts import ExpertLayout
from engine.kernels import ExpertRows, ExpertShape, RowExperts, Rows, combine, quantize_rows, run_experts
from engine.memory import arena, available_bytes
from engine.numerics import Weights
from engine.readers import Job, Readers
from engine.residency import NOBODY, Residency

READERS = 4  # reads in flight
SHARE_OF_MEMORY = 0.7  # of what is free, when the user sets no budget
AHEAD_SHARE = 0.25  # of the slots, at most, for experts that are only guessed
GUESS_WEIGHT = 0.25  # of a use
TRUST_NEEDED = 0.5  # share of guesses that must have been right lately for reading on one to pay
TRUST_MEMORY = 0.95  # what remains of the old share when a new guess is judged


@dataclass(slots=True)
class BankStats:
    """What a bank did so far."""

    hits: int = 0  # experts that were in memory when asked for
    misses: int = 0
    guessed: int = 0  # misses that were already being read
    ahead: int = 0  # reads begun on a guess
    wait_s: float = 0.0  # time in which nothing could be computed for want of an expert
    bytes_read: int = 0  # stored bytes from the model's files, packed bytes from the cache
    from_cache: int = 0  # experts read in packed form


class _Pool:
    """Experts of one shape: their arena, and who is in it. Experts are numbered layer by layer."""

    def __init__(self, shape: ExpertShape, layers: Sequence[int], per_layer: int, slots: int) -> None:
        self.shape = shape
        self.first = {layer: place * per_layer for place, layer in enumerate(layers)}
        self.layers = list(layers)
        self.per_layer = per_layer
        self.residency = Residency(len(layers) * per_layer, slots)
        slot_of = self.residency.slot_of
        self.slots = {layer: slot_of[first : first + per_layer] for layer, first in self.first.items()}
        self.arena = arena(slots, shape.nbytes)
        self.alone = RowExperts(shape, self.arena) if shape.integer else None  # for single rows
        self.loading: dict[int, Job] = {}  # by expert number
        self._whole = False

    def at(self, number: int) -> tuple[int, int]:
        """(layer, expert) of an expert number."""
        return self.layers[number // self.per_layer], number % self.per_layer

    def settle(self) -> None:
        """Forgets reads that have ended well; gives back the slots of those that failed."""
        for expert in [expert for expert, job in self.loading.items() if job.done]:
            if self.loading.pop(expert).error is not None:
                self.residency.release([expert])

    @property
    def whole(self) -> bool:
        """Whether all experts are in memory, for good."""
        if not self._whole and not self.loading and self.residency.slots == len(self.residency.slot_of):
            self._whole = bool((self.residency.slot_of != NOBODY).all())
        return self._whole

    def busy_slots(self) -> set[int]:
        return {int(self.residency.slot_of[expert]) for expert in self.loading}


class ExpertBank:
    """All routed experts of a model, as many in memory as `ram_bytes` holds. Calls from several threads
    take turns."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        layout: ExpertLayout,
        weights: Weights,
        ram_bytes: int | None = None,
        cache: Path | None = None,
    ) -> None:
        self.layout = layout = layout.stored_in(checkpoint)
        self.weights = weights
        self._stats = BankStats()
        self.reader = ExpertReader(checkpoint, layout, weights, cache)
        self._guesses: dict[int, frozenset[int]] = {}  # by layer: what was said to come next
        self._trust = 0.75
        self._lock = threading.RLock()
        self._readers = Readers(READERS)
        self._shapes = {layer: self.reader.shape(layer) for layer in layout.layers}
        self.total_bytes = sum(shape.nbytes for shape in self._shapes.values()) * layout.experts_per_layer
        """Packed bytes of all experts."""
        self._pools = self._make_pools(ram_bytes)
        self.capacity_bytes = sum(pool.arena.nbytes for pool in self._distinct_pools())
        """Packed bytes of the experts that fit in memory at once."""
        self.capacity = sum(pool.residency.slots for pool in self._distinct_pools())
        """Experts that fit in memory at once."""
        self.streams = self.capacity_bytes < self.total_bytes
        """Whether not all experts fit in memory."""

    @property
    def stats(self) -> BankStats:
        """What happened so far; a copy."""
        return replace(self._stats, bytes_read=self.reader.bytes_read, from_cache=self.reader.from_cache)

    def shape(self, layer: int) -> ExpertShape:
        """The shape of the experts of a layer."""
        return self._shapes[layer]

    @property
    def cache_trouble(self) -> str | None:
        """Why the packed cache takes nothing more; None when all is well."""
        return self.reader.cache_trouble

    def resident(self) -> list[tuple[int, int]]:
        """(layer, expert) of all that are in memory or being read."""
        return [pool.at(number) for pool in self._distinct_pools() for number in pool.residency.resident()]

    def has(self, layer: int, expert: int) -> bool:
        """Whether an expert is in memory or being read."""
        pool = self._pools[layer]
        return bool(pool.residency.slot_of[pool.first[layer] + expert] != NOBODY)

    def run(self, layer: int, rows: F32 | Rows, expert: I32, row: I32) -> ExpertRows:
        """For each pair p, expert[p] of `layer` on rows[row[p]]; outputs in the pairs' order, [P, hidden].

        rows: f32 [N, hidden], or Rows on the integer path. Raises ExpertsUnavailable when bytes cannot be
        had.
        """
        with self._lock:
            pool = self._pools[layer]
            if layer in self._guesses:
                self._judge(self._guesses.pop(layer), expert)
            number = expert.astype(np.int64) + pool.first[layer]
            if pool.loading:
                pool.settle()
            slot = pool.residency.slot_of[number]
            if pool.whole or (not pool.loading and (slot != NOBODY).all()):
                used = set(number.tolist())
                self._stats.hits += len(used)
                if not pool.whole:
                    pool.residency.use(np.array(sorted(used)))
                return run_experts(pool.shape, pool.arena, rows, slot, row)
            return self._run_in_rounds(layer, pool, rows, number, row)

    def run_row(self, layer: int, row: F32, experts: I32, weights: F32) -> F32 | None:
        """The sum of the outputs of `experts` [1, k] on one row f32 [1, hidden] by `weights` f32 [1, k], as `combine`
        has it, f32 [1, hidden]; None where it cannot be had in one call: on the float path, or with absent experts."""
        with self._lock:
            pool = self._pools[layer]
            if pool.alone is None or not pool.whole:
                return None
            if layer in self._guesses:
                self._judge(self._guesses.pop(layer), experts[0])
            self._stats.hits += experts.size
            return pool.alone(row, pool.slots[layer], experts, weights)

    def placed(self, layers: Sequence[int]) -> tuple[ExpertShape, U8, list[I32]] | None:
        """Where the experts of these layers are: of one shape, in one arena, and of each layer the slot of every
        expert. None unless they are on the integer path and in memory, for good."""
        with self._lock:
            pool = self._pools[layers[0]]
            pool.settle()
            if pool.alone is None or not all(layer in pool.slots for layer in layers) or not pool.whole:
                return None
            return pool.shape, pool.arena, [pool.slots[layer] for layer in layers]

    def count_hits(self, experts: int) -> None:
        """So many experts that are in memory were run by others."""
        with self._lock:
            self._stats.hits += experts

    def prefetch(self, layer: int, experts: Iterable[int]) -> None:
        """Starts reading experts that will probably be needed, if such guesses proved right; returns at once."""
        with self._lock:
            pool = self._pools[layer]
            pool.settle()
            absent = [expert for expert in sorted(set(experts)) if not self.has(layer, expert)]
            self._guesses[layer] = frozenset(absent)
            room = int(pool.residency.slots * AHEAD_SHARE) - len(pool.loading)
            if absent and room > 0 and self._trust >= TRUST_NEEDED:
                numbers = [pool.first[layer] + expert for expert in absent[:room]]
                pool.residency.use(np.array(numbers), weight=GUESS_WEIGHT)
                self._stats.ahead += len(self._load(pool, numbers, urgent=False, keep=pool.busy_slots()))

    def preload(
        self,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Reads experts until memory is full or all are there, in the model's order. Raises as `run` does.

        `wanted`: these (layer, expert) and no others, every one of them, although the first may have to make
        room for the last; what is read is then in the packed cache at least. Calls run meanwhile.
        """
        if wanted is None:
            plan = [
                (pool, number)
                for pool in self._distinct_pools()
                for number in range(min(pool.residency.slots, len(pool.layers) * pool.per_layer))
            ]
        else:
            plan = [
                (self._pools[layer], self._pools[layer].first[layer] + expert) for layer, expert in wanted
            ]
        for start in range(0, len(plan), 2 * READERS):
            if cancelled is not None and cancelled():
                return
            part = plan[start : start + 2 * READERS]
            with self._lock:
                for pool, number in part:
                    pool.settle()
                    if pool.residency.slot_of[number] == NOBODY:
                        self._load(pool, [number], urgent=False, keep=pool.busy_slots())
                waiting = [(pool, number, pool.loading.get(number)) for pool, number in part]
            for pool, number, job in waiting:
                if job is not None:
                    self._finish(pool, number, job)
            if progress is not None:
                progress(min(start + 2 * READERS, len(plan)), len(plan))

    def close(self) -> None:
        """Ends background reading."""
        self._readers.close()

    def _make_pools(self, ram_bytes: int | None) -> dict[int, _Pool]:
        """A pool a shape, by layer; memory is shared among them in proportion to their experts' bytes."""
        budget = int(available_bytes() * SHARE_OF_MEMORY) if ram_bytes is None else ram_bytes
        share = min(1.0, budget / max(self.total_bytes, 1))
        pools: dict[int, _Pool] = {}
        per_layer = self.layout.experts_per_layer
        for shape in dict.fromkeys(self._shapes.values()):
            layers = [layer for layer, other in self._shapes.items() if other == shape]
            slots = int(len(layers) * per_layer * share)
            if slots < 1:
                raise SettingsError(
                    f"one expert of this model takes {shape.nbytes:,} bytes; the memory for experts must "
                    f"hold at least one of each kind, and {budget:,} bytes do not"
                )
            pools.update(dict.fromkeys(layers, _Pool(shape, layers, per_layer, slots)))
        return pools

    def _distinct_pools(self) -> list[_Pool]:
        return list({id(pool): pool for pool in self._pools.values()}.values())

    def _judge(self, guess: frozenset[int], expert: I32) -> None:
        """Learns from a guess; only what had to be read counts, as that is what being wrong would cost."""
        if not guess:
            return
        right = len(guess.intersection(expert.tolist())) / len(guess)
        self._trust = TRUST_MEMORY * self._trust + (1 - TRUST_MEMORY) * right

    # Running what is there while the rest is read.

    def _run_in_rounds(
        self, layer: int, pool: _Pool, rows: F32 | Rows, number: Array, row: I32
    ) -> ExpertRows:
        shape = pool.shape
        pairs = len(number)
        values = aligned((pairs, shape.hidden), np.int16 if shape.integer else np.float32)
        scale = aligned((pairs, -(-shape.hidden // 32) if shape.integer else 0), np.float32)
        waiting = [int(one) for one in np.unique(number)]
        pool.residency.use(np.array(waiting))
        while waiting:
            slots = pool.residency.slot_of
            present = [one for one in waiting if slots[one] != NOBODY and one not in pool.loading]
            coming = [one for one in waiting if one in pool.loading]
            self._stats.hits += len(present)
            self._stats.misses += len(coming)
            self._stats.guessed += len(coming)
            for one in coming:
                self._readers.hurry(pool.loading[one])
            keep = pool.busy_slots() | {int(slots[one]) for one in present}
            absent = [one for one in waiting if slots[one] == NOBODY]
            started = self._load(pool, absent, urgent=True, keep=keep)
            self._stats.misses += len(started)
            if not (present or coming or started):  # every slot is taken by a guess: let one finish
                self._await(pool, list(pool.loading)[:1])
                continue
            for group, ready in ((present, True), (coming + started, False)):
                if group:
                    if not ready:
                        self._await(pool, group)
                    chosen = np.flatnonzero(np.isin(number, group))
                    part = run_experts(shape, pool.arena, rows, slots[number[chosen]], row[chosen])
                    values[chosen], scale[chosen] = part.values, part.scale
            done = {*present, *coming, *started}
            waiting = [one for one in waiting if one not in done]
        return ExpertRows(values, scale)

    def _load(self, pool: _Pool, numbers: Sequence[int], *, urgent: bool, keep: set[int]) -> list[int]:
        """Begins to read experts for which a slot can be had; returns them. Slots in `keep` are left
        alone."""
        placed: list[tuple[int, int]] = []
        for number in numbers:
            slot = pool.residency.place(number, keep)
            if slot is None:
                break
            keep.add(slot)
            placed.append((number, slot))
        wanted = [pool.at(number) for number, _ in placed]
        self.reader.announce(wanted)
        for (number, slot), (layer, expert) in zip(placed, wanted, strict=True):
            blob = pool.arena[slot]
            work = partial(self.reader.read, layer, expert, blob)
            pool.loading[number] = self._readers.submit(work, urgent=urgent)
        return [number for number, _ in placed]

    def _await(self, pool: _Pool, numbers: Sequence[int]) -> None:
        started = time.perf_counter()
        try:
            for number in numbers:
                job = pool.loading.get(number)
                if job is not None:
                    self._finish(pool, number, job)
        finally:
            self._stats.wait_s += time.perf_counter() - started
            pool.settle()

    @staticmethod
    def _finish(pool: _Pool, number: int, job: Job) -> None:
        try:
            job.wait()
        except EngineError:
            raise
        except (OSError, RuntimeError) as error:
            layer, expert = pool.at(number)
            raise ExpertsUnavailable(
                f"expert {expert} of layer {layer} cannot be read ({error}); "
                "the reply cannot go on without it"
            ) from error


class LocalExperts:
    """Experts run in this process: round the rows, run, sum in the router's order."""

    far = False

    def __init__(self, bank: ExpertBank) -> None:
        self.bank = bank
        self.looks_ahead = bank.streams
        """Whether it pays to guess the next layer's experts: when they are not all in memory."""
        self.doubts = Doubts()

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return work()

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """See `engine.experts.Experts`."""
        return partial(self._run, layer, rows, ids, weights)

    def _run(self, layer: int, rows: F32, ids: I32, weights: F32) -> F32:
        count, k = ids.shape
        if count == 1:
            out = self.bank.run_row(layer, rows, ids, weights)
            if out is not None:
                return out
        packed = quantize_rows(rows) if self.bank.shape(layer).integer else rows
        row = np.zeros(k, np.int32) if count == 1 else np.repeat(np.arange(count, dtype=np.int32), k)
        return combine(self.bank.run(layer, packed, ids.reshape(-1), row), weights)

    def local_bank(self) -> ExpertBank | None:
        """See `engine.experts.Experts`."""
        return None if self.looks_ahead else self.bank

    def prefetch(self, layer: int, ids: I32) -> None:
        """See `engine.experts.Experts`."""
        self.bank.prefetch(layer, ids.reshape(-1).tolist())
