"""What compressed attention remembers of a sequence: entries, each of a window of tokens, beside the last tokens.

The entry of positions e · ratio … (e + 1) · ratio is made when the last of them is there, and visible from that
token on. So of a sequence of n tokens the first n // ratio entries count; cutting back forgets the others, and
what later tokens write takes their place. To make the next entries the raw values and gates of the last windows
are kept in f32, as they came: where a prompt was cut changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.arrays import F32, Array, aligned
from engine.cache import FIRST_CAPACITY, KeyValue
from engine.config import Reader
from engine.errors import ConfigError
from engine.kernels.compress import pool_windows
from engine.layers import Norm
from engine.loader import Loader
from engine.models import Batch
from engine.rotary import RopeSettings, Rotary


class EntryCache(Protocol):
    """A part that holds entries."""

    def write_entries(self, first: int, entries: F32) -> None:
        """Sets entries `first` …, [n, D]."""
        ...


class Entries(KeyValue):
    """Entries alone: `arrays[0]` [capacity, width], of which the first length // ratio count."""

    def __init__(self, width: int, dtype: npt.DTypeLike, ratio: int) -> None:
        super().__init__([(width,)], dtype)
        self.ratio = ratio

    def prepare(self, length: int, count: int) -> None:
        held = length // self.ratio
        super().prepare(held, (length + count) // self.ratio - held)

    def write_entries(self, first: int, entries: F32) -> None:
        self.write(first, entries)

    def copy(self) -> "Entries":
        twin = Entries(self.widths[0][0], self.dtype, self.ratio)
        twin._hold([array.copy() for array in self.arrays])
        return twin


class WindowAndEntries:
    """The last tokens and all entries in one array [capacity, 1, width], so that one softmax spans both.

    Position p lies in row p - start, entry e in row front + e. Tokens that no later one can see are given up when
    room runs out, and the state can no longer be cut back to where they are needed.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike, window: int, ratio: int) -> None:
        self.width, self.dtype, self.window, self.ratio = width, np.dtype(dtype), window, ratio
        self.start = 0
        self.front = 0  # rows for tokens
        self.array: Array = np.zeros((0, 1, width), self.dtype)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def prepare(self, length: int, count: int) -> None:
        entries, wanted = length // self.ratio, (length + count) // self.ratio
        room = len(self.array) - self.front
        if length + count - self.start <= self.front and wanted <= room:
            return
        start, front = self.start, max(self.front, FIRST_CAPACITY)
        if length + count - start > self.front:
            start = max(start, length - self.window + 1)
        held = length - start
        while front < held + count or front < 2 * held:
            front *= 2
        if wanted > room:
            room = max(2 * room, wanted, FIRST_CAPACITY // 4)
        before, old_front, old_start = self.array, self.front, self.start
        if front != old_front or front + room != len(before):
            self.array = aligned((front + room, 1, self.width), self.dtype)
            self.array[front : front + entries] = before[old_front : old_front + entries]
        self.array[:held] = before[start - old_start : length - old_start]
        self.start, self.front = start, front

    def write(self, position: int, rows: Array) -> None:
        """Sets the rows of positions `position` …, [n, 1, width]."""
        first = position - self.start
        self.array[first : first + len(rows)] = rows

    def write_entries(self, first: int, entries: F32) -> None:
        at = self.front + first
        self.array[at : at + len(entries), 0] = entries

    def commit(self, length: int) -> None:
        """Nothing to do: tokens and entries count by the state's length."""

    def floor(self, length: int) -> int:
        return length if self.start == 0 or length - self.window + 1 >= self.start else 0

    def truncate(self, length: int) -> None:
        if length == 0:
            self.start = 0

    def mark(self) -> None:
        """Nothing to do: every position that is held can be gone back to."""

    def copy(self) -> "WindowAndEntries":
        twin = WindowAndEntries(self.width, self.dtype, self.window, self.ratio)
        twin.start, twin.front, twin.array = self.start, self.front, self.array.copy()
        return twin


class Compressor:
    """Makes a layer's entries: projections, pooling, norm, and the rotation of the window's first position."""

    def __init__(
        self, load: Loader, name: str, hidden: int, width: int, ratio: int, *, overlap: bool, epsilon: float
    ) -> None:
        wide = 2 * width if overlap else width
        self.ratio, self.overlap, self.wide = ratio, overlap, wide
        self.projections = load.stack([f"{name}.wkv", f"{name}.wgate"], [wide, wide], hidden)
        self.bias = load.tensor(f"{name}.ape", (ratio, wide))
        self.norm = Norm(load.vector(f"{name}.norm", width), epsilon)

    def new_part(self) -> KeyValue:
        """Where a sequence keeps the values and gates of its last windows."""
        span = 2 * self.ratio if self.overlap else self.ratio
        return KeyValue([(self.wide,), (self.wide,)], np.float32, window=span)

    def __call__(
        self, x: F32, batch: Batch, raw: Sequence[KeyValue], parts: Sequence[EntryCache], rotary: Rotary
    ) -> None:
        """Writes the entries that the rows x [N, hidden] complete."""
        values, gates = self.projections(x)
        for kept, part, rows in zip(raw, parts, batch.slices, strict=True):
            start = int(batch.positions[rows.start])
            kept.write(start, values[rows], gates[rows])
            first, last = start // self.ratio, (start + rows.stop - rows.start) // self.ratio
            if last == first:
                continue
            kv, scores = kept.arrays
            entries = pool_windows(
                kv, scores, self.bias, kept.start, first, last - first, overlap=self.overlap
            )
            angles = rotary.angles(np.arange(first, last, dtype=np.int32) * np.int32(self.ratio))
            part.write_entries(first, rotary.turn(self.norm(entries)[:, None], angles)[:, 0])


def ropes(read: Reader, share: float, context: int) -> tuple[RopeSettings, RopeSettings]:
    """Rotation in sliding layers, never scaled unless named apart, and in the others."""
    key = next((key for key in ("rope_scaling", "rope_parameters") if read.values.get(key)), None)
    given = dict(read.part(key).values) if key else {}
    theta = read.number("rope_theta", default=10000.0)
    if isinstance(given.get("main"), Mapping) and isinstance(given.get("compress"), Mapping):
        both = [{"rope_theta": theta, **given[kind]} for kind in ("main", "compress")]
        for values in both:
            if RopeSettings.kind_of(values) != "default":
                break
            if "partial_rotary_factor" not in values:  # the reference turns whole heads, as no release means
                raise ConfigError(
                    f"{read.where}: {key} does not say partial_rotary_factor for both kinds of layers"
                )
    else:
        scaling = {key: value for key, value in given.items() if key not in ("main", "compress")}
        scaling["rope_theta"] = read.number("compress_rope_theta", default=160000.0)
        scaling["partial_rotary_factor"] = share
        if RopeSettings.kind_of(scaling) == "yarn":
            scaling.setdefault("attention_factor", 1.0)
        both = [{"rope_theta": theta}, scaling]
    parsed = [
        RopeSettings.of(
            Reader(
                {"rope_parameters": {"partial_rotary_factor": share, **values, "truncate": True}}, read.where
            ),
            context=context,
        )
        for values in both
    ]
    if parsed[0].partial != parsed[1].partial:
        raise ConfigError(f"{read.where}: layers that turn different shares of their heads are not known")
    if any(settings.switches_at is not None for settings in parsed):
        raise ConfigError(
            f"{read.where}: rotary scaling of the type 'longrope' is not known of layers with compressed entries"
        )
    return parsed[0], parsed[1]
