"""What a model remembers of a sequence: keys and values, latents, convolution tails, recurrent sums.

A `State` is a list of parts, one or more a layer, each of which knows how to make room, to be cut back and
to be copied. A forward pass runs in three steps, so that a failure in the middle (a peer lost, a user's
Ctrl-C) leaves every state as it was:

1. `prepare(count)`: the parts make room for positions `length … length + count`.
2. The layers write those positions, and read what lies before.
3. `commit()`: the state's length grows. Until then nothing that was written counts.

Parts that keep one entry a position (`KeyValue`) can be cut back anywhere. Parts that keep a running
summary (`Running`) can be cut back only to positions of which they kept a copy: the last commit, and
whatever was marked. `State.floor(n)` tells the nearest position at or below n to which all parts can go
back.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from engine.arrays import Array, address_of, aligned
from engine.errors import CannotRewind
from engine.kernels import narrow
from engine.memory import own_bytes

FIRST_CAPACITY = 256  # positions; doubled whenever they run out


class Part(Protocol):
    """One layer's share of a state. Positions count from 0."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def prepare(self, length: int, count: int) -> None:
        """Make room for positions length … length + count; everything below `length` stays readable."""
        ...

    def commit(self, length: int) -> None:
        """Positions below `length` now count."""
        ...

    def floor(self, length: int) -> int:
        """The largest position at or below `length` to which `truncate` can go."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything from `length` on; `floor(length) == length` holds."""
        ...

    def mark(self) -> None:
        """Keep what is needed to come back to the committed length later; the oldest marks may go."""
        ...

    def copy(self) -> Self:
        """An independent copy of what was committed."""
        ...


class State:
    """The memory of one sequence of `length` tokens. Not safe for use from two threads at once."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self.length = 0
        self.passes: list[tuple[int, int]] = []
        """(position, number of the pass that computed what follows), as far as that was noted; neither shrinks."""
        self.tokens: list[int] = []
        """What was read, kept by models that may have to read it again; see `Model.switches_at`."""
        self.stretched = False
        """Whether it was read as a sequence longer than `Model.switches_at`."""
        self._pending = 0

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return sum(part.nbytes for part in self.parts)

    def prepare(self, count: int) -> None:
        """Make room for `count` further tokens. Whatever an earlier pass wrote and did not commit is
        dropped."""
        for part in self.parts:
            part.prepare(self.length, count)
        self._pending = count

    def commit(self) -> None:
        """The tokens prepared for now count."""
        self.length += self._pending
        self._pending = 0
        for part in self.parts:
            part.commit(self.length)

    def mark(self) -> None:
        """Remember this length as one to which the state can later be cut back, whatever its parts are."""
        for part in self.parts:
            part.mark()

    def floor(self, length: int) -> int:
        """The largest length at or below `length` to which this state can be cut back; 0 always can be."""
        length = min(length, self.length)
        while length > 0:
            lower = min((part.floor(length) for part in self.parts), default=length)
            if lower == length:
                break
            length = max(lower, 0)
        return length

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on. CannotRewind, and nothing changed, unless `floor(length) ==
        length`."""
        if not 0 <= length <= self.length:
            raise CannotRewind(f"a state of {self.length} tokens cannot be cut to {length}")
        floor = self.floor(length)
        if floor != length:
            raise CannotRewind(f"this model's state can go back to {floor} tokens, but not to {length}")
        for part in self.parts:
            part.truncate(length)
        while self.passes and self.passes[-1][0] >= length:
            self.passes.pop()
        del self.tokens[length:]
        self.length = length
        self._pending = 0

    def read_again(self, length: int) -> None:
        """Goes back to `floor(length)`. What was drawn from the rows of all `length` tokens stands, so the passes that
        computed those stay noted."""
        passes = [noted for noted in self.passes if noted[0] < length]
        self.truncate(self.floor(length))
        self.passes = passes

    def copy(self) -> "State":
        """An independent state of the same tokens."""
        twin = State([part.copy() for part in self.parts])
        twin.length = self.length
        twin.passes = list(self.passes)
        twin.tokens, twin.stretched = list(self.tokens), self.stretched
        return twin

    def become(self, other: "State") -> None:
        """Takes the place of `other`, which read the same tokens in one pass of another kind: no pass that computed
        this state counts any more."""
        self.parts, self.length = other.parts, other.length
        self.tokens, self.stretched = other.tokens, other.stretched
        self.passes = []
        self._pending = 0


def _rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array; a large one lies in huge pages."""
    return own_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


class KeyValue:
    """Arrays with one row a position: keys and values, or latents with their rotary part, or index keys.

    `arrays[i]` has shape [capacity, *widths[i]]; row r belongs to position `start + r`. With a `window`,
    rows that no later token can see are given up when room runs out, and the state can no longer be cut
    back to where they are needed.
    """

    def __init__(
        self,
        widths: Sequence[tuple[int, ...]],
        dtype: npt.DTypeLike,
        window: int | None = None,
        capacity: int = FIRST_CAPACITY,
    ) -> None:
        self.widths = tuple(widths)
        self.dtype = np.dtype(dtype)
        self.window = window
        self.start = 0
        self._first_capacity = capacity
        self._hold([np.zeros((0, *width), self.dtype) for width in self.widths])

    def _hold(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.bits = [array.view(np.uint16) if array.dtype == np.float16 else array for array in arrays]
        """The arrays as kernels take them."""
        self.addresses: list[int] = [address_of(array) for array in arrays]
        """Where each array begins, for kernels that take the caches of several sequences."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def capacity(self) -> int:
        """Rows for which there is memory."""
        return len(self.arrays[0]) if self.arrays else 0

    @property
    def place(self) -> tuple[int, ...]:
        """The cache as kernels are told of it that take several: where each array begins, their rows, the first row's
        position."""
        return *self.addresses, self.capacity, self.start

    def prepare(self, length: int, count: int) -> None:
        if length + count - self.start <= self.capacity:
            return
        start = self.start if self.window is None else max(self.start, length - self.window + 1)
        held = length - start
        capacity = max(self.capacity, self._first_capacity)
        while capacity < held + count or (self.window is not None and capacity < 2 * held):
            capacity *= 2
        old = self.arrays
        self._hold([_rows((capacity, *width), self.dtype) for width in self.widths])
        for array, before in zip(self.arrays, old, strict=True):
            array[:held] = before[start - self.start : length - self.start]
            array[held:] = 0
        self.start = start

    def write(self, position: int, *values: Array) -> None:
        """Sets the rows of positions `position` …, [n, *width] for each array, rounded to the cache's
        dtype."""
        first = position - self.start
        for array, value in zip(self.arrays, values, strict=True):
            narrow(value, array[first : first + len(value)])

    def commit(self, length: int) -> None:
        """Nothing to do: rows count by the state's length."""

    def floor(self, length: int) -> int:
        if self.start == 0 or (self.window is not None and length - self.window + 1 >= self.start):
            return length
        return 0

    def truncate(self, length: int) -> None:
        if length == 0:
            self.start = 0

    def mark(self) -> None:
        """Nothing to do: every position that is held can be gone back to."""

    def copy(self) -> "KeyValue":
        twin = KeyValue(self.widths, self.dtype, self.window, self._first_capacity)
        twin.start = self.start
        twin._hold([_rows(array.shape, array.dtype) for array in self.arrays])
        for copied, array in zip(twin.arrays, self.arrays, strict=True):
            copied[...] = array
        return twin


class Running:
    """Arrays that summarise all positions so far: the tail of a convolution, the sum of a linear attention.

    A layer reads `now`, whose arrays belong to the committed length, and writes `after`; commit makes them
    change places. What `now` was before the last commit is kept, so that one step can always be undone, and
    so are up to `MARKS` marks.
    """

    MARKS = 2

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = tuple(shapes)
        self._length = 0
        self._spare: list[list[Array]] = []
        self._marked: list[int] = []
        self._kept: dict[int, list[Array]] = {0: self._fresh(zero=True)}
        self.after: list[Array] = []

    @property
    def now(self) -> list[Array]:
        """The arrays at the committed length, f32 each; not to be written."""
        return self._kept[self._length]

    @property
    def nbytes(self) -> int:
        sets = [*self._kept.values(), *self._spare]
        return sum(array.nbytes for arrays in sets for array in arrays) + sum(
            array.nbytes for array in self.after
        )

    def prepare(self, length: int, count: int) -> None:
        if not self.after:
            self.after = self._spare.pop() if self._spare else self._fresh()

    def commit(self, length: int) -> None:
        if length == self._length:
            return
        before, self._length = self._length, length
        self._kept[length], self.after = self.after, []
        for position in [p for p in self._kept if p not in (before, length, *self._marked)]:
            self._spare.append(self._kept.pop(position))
        del self._spare[1:]

    def floor(self, length: int) -> int:
        return max((position for position in self._kept if position <= length), default=0)

    def truncate(self, length: int) -> None:
        if length not in self._kept:  # only 0 is ever asked for without having been kept
            self._kept = {0: self._fresh(zero=True)}
        self._kept = {position: arrays for position, arrays in self._kept.items() if position <= length}
        self._marked = [position for position in self._marked if position <= length]
        self._length = length

    def mark(self) -> None:
        if self._length not in self._marked:
            self._marked = [*self._marked, self._length][-self.MARKS :]

    def copy(self) -> "Running":
        twin = Running(self.shapes)
        twin._length = self._length
        twin._kept = {position: [array.copy() for array in arrays] for position, arrays in self._kept.items()}
        twin._marked = list(self._marked)
        return twin

    def _fresh(self, *, zero: bool = False) -> list[Array]:
        arrays = [aligned(shape, np.float32) for shape in self.shapes]
        if zero:
            for array in arrays:
                array[...] = 0.0
        return arrays
