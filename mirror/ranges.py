"""Sets of bytes as half-open intervals, and the chunks they touch. Pure arithmetic.

A `RangeSet` is immutable; its intervals are increasing, disjoint and never touch, so equal sets compare
equal. Which chunks somebody holds travels as a `swarm.wire.holdings.IndexSet`; this is about bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """An immutable set of integers ≥ 0, kept as half-open intervals (start, stop)."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """The union of the intervals, in any order, overlapping or not; an empty one adds nothing.

        ValueError for a negative start or a stop before its start.
        """
        starts: list[int] = []
        stops: list[int] = []
        for start, stop in sorted(ranges):
            if start < 0 or stop < start:
                raise ValueError(f"({start}, {stop}) is no interval")
            if start == stop:
                continue
            if stops and start <= stops[-1]:
                stops[-1] = max(stops[-1], stop)
            else:
                starts.append(start)
                stops.append(stop)
        self._starts = tuple(starts)
        self._stops = tuple(stops)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, increasing."""
        return zip(self._starts, self._stops, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def total(self) -> int:
        """How many integers are in the set."""
        return sum(self._stops) - sum(self._starts)

    def __contains__(self, value: int) -> bool:
        index = bisect_right(self._starts, value) - 1
        return index >= 0 and value < self._stops[index]

    def __or__(self, other: "RangeSet") -> "RangeSet":
        return RangeSet([*self, *other])

    def __and__(self, other: "RangeSet") -> "RangeSet":
        return RangeSet(common for start, stop in self for common in other.within(start, stop))

    def __sub__(self, other: "RangeSet") -> "RangeSet":
        rest: list[tuple[int, int]] = []
        for start, stop in self:
            for hole_start, hole_stop in other.within(start, stop):
                rest.append((start, hole_start))
                start = hole_stop
            rest.append((start, stop))
        return RangeSet(rest)

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The set's intervals cut to [start, stop)."""
        index = max(bisect_right(self._starts, start) - 1, 0)
        for position in range(index, bisect_left(self._starts, stop)):
            cut = max(self._starts[position], start), min(self._stops[position], stop)
            if cut[0] < cut[1]:
                yield cut

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    def __hash__(self) -> int:
        return hash((self._starts, self._stops))

    def __repr__(self) -> str:
        return f"RangeSet([{', '.join(f'({start}, {stop})' for start, stop in self)}])"


def touched(start: int, stop: int, chunk_bytes: int) -> range:
    """The chunks, of `chunk_bytes` each, that share a byte with [start, stop)."""
    return range(start // chunk_bytes, -(-stop // chunk_bytes)) if start < stop else range(0)


def covered(ranges: RangeSet, chunk_bytes: int, size: int) -> list[int]:
    """The chunks of a file of `size` bytes whose every byte is in `ranges`; the last one may be short."""
    whole: list[int] = []
    for start, stop in ranges:
        first = -(-start // chunk_bytes)
        last = -(-size // chunk_bytes) if stop >= size else stop // chunk_bytes
        whole.extend(range(first, last))
    return whole
