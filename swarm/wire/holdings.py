"""Which chunks of a model, or which of its experts, somebody holds: a set of small integers and its encoding.

A model's chunks are numbered through all files of its manifest in order: a file of n chunks (1 MiB each, the
last may be short, an empty file has none) takes the next n numbers. Its experts are numbered through the
layers in order (`ExpertLayout`). So both kinds of holding are one kind of set, and one encoding serves both.

Encoding, canonical (one set, one byte string), the shorter of two, the first when both are as long:

    0x00, then for each run of present indices: varint(absent before it), varint(its length)
    0x01, then a bitmap, lowest index in the lowest bit of the first byte, no zero byte at the end

A varint is LEB128 without padding. 300,000 chunks in any pattern take at most 37,501 bytes, a whole model 5.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from swarm.errors import SwarmError

MAX_INDICES = 1 << 24
"""No model has more chunks or experts than this: 16 TiB of chunks."""
_RUNS, _BITMAP = 0, 1
_VARINT_BYTES = 4
_FEW = 64
"""Up to so many bytes or numbers plain Python is quicker than numpy."""


class MalformedHoldings(SwarmError):
    """Holdings are malformed: {reason}. The sender may run another version of this software."""


class IndexSet:
    """An immutable set of indices, 0 ≤ index < MAX_INDICES. Ranges are half open: (start, stop)."""

    __slots__ = ("_bits", "_encoded")

    def __init__(self, bits: int = 0) -> None:
        """Takes the set as one integer, index i as bit i. ValueError when negative or too wide."""
        if bits < 0 or bits.bit_length() > MAX_INDICES:
            raise ValueError(f"an index set has at most {MAX_INDICES} indices and none below zero")
        self._bits = bits
        self._encoded: bytes | None = None

    @classmethod
    def full(cls, count: int) -> "IndexSet":
        """All indices below `count`."""
        return cls((1 << count) - 1)

    @classmethod
    def of(cls, indices: Iterable[int]) -> "IndexSet":
        """The given indices, in any order, repeated or not."""
        return cls.from_ranges((index, index + 1) for index in indices)

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> "IndexSet":
        """The union of half-open ranges, in any order, overlapping or not; an empty range adds nothing."""
        pairs = np.array([pair for pair in ranges if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)
        if not len(pairs):
            return cls()
        if pairs.min() < 0 or pairs.max() > MAX_INDICES:
            raise ValueError(f"indices lie between 0 and {MAX_INDICES}")
        return cls(_bits_of_runs(*_merged(pairs)))

    @property
    def bits(self) -> int:
        """The set as one integer, index i as bit i."""
        return self._bits

    def ranges(self) -> list[tuple[int, int]]:
        """Its runs (start, stop): increasing, disjoint, none touching the next."""
        starts, stops = _runs_of_bits(self._bits)
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    @property
    def start(self) -> int:
        """The smallest index; 0 for the empty set."""
        return (self._bits & -self._bits).bit_length() - 1 if self._bits else 0

    @property
    def stop(self) -> int:
        """One more than the largest index; 0 for the empty set."""
        return self._bits.bit_length()

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __contains__(self, index: int) -> bool:
        return index >= 0 and bool(self._bits >> index & 1)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges():
            yield from range(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __or__(self, other: "IndexSet") -> "IndexSet":
        return IndexSet(self._bits | other._bits)

    def __and__(self, other: "IndexSet") -> "IndexSet":
        return IndexSet(self._bits & other._bits)

    def __sub__(self, other: "IndexSet") -> "IndexSet":
        return IndexSet(self._bits & ~other._bits)

    def __le__(self, other: "IndexSet") -> bool:
        return not self._bits & ~other._bits

    def __repr__(self) -> str:
        runs = self.ranges()
        shown = ", ".join(f"{start}-{stop - 1}" for start, stop in runs[:8])
        return f"IndexSet({shown}{', …' if len(runs) > 8 else ''})"

    def encode(self) -> bytes:
        """The canonical encoding described at the top."""
        if self._encoded is None:
            self._encoded = self._encode()
        return self._encoded

    def _encode(self) -> bytes:
        bitmap_length = (self._bits.bit_length() + 7) // 8
        if 2 * (self._bits & ~(self._bits << 1)).bit_count() <= bitmap_length:
            starts, stops = _runs_of_bits(self._bits)
            numbers = np.empty(2 * len(starts), dtype=np.int64)
            numbers[0::2] = starts - np.concatenate(([0], stops[:-1])) if len(starts) else starts
            numbers[1::2] = stops - starts
            runs = _encode_varints(numbers)
            if len(runs) <= bitmap_length:
                return bytes([_RUNS]) + runs
        return bytes([_BITMAP]) + self._bits.to_bytes(bitmap_length, "little")

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, limit: int = MAX_INDICES) -> "IndexSet":
        """Reads a canonical encoding of indices below `limit`. MalformedHoldings for anything else."""
        data = bytes(data)
        if not data:
            raise MalformedHoldings(reason="no bytes")
        if len(data) > limit // 8 + 2:
            raise MalformedHoldings(reason=f"{len(data)} bytes for at most {limit} indices")
        bits = _decode(data, limit)
        if bits.bit_length() > limit:
            raise MalformedHoldings(reason=f"index {bits.bit_length() - 1} where {limit} exist")
        decoded = cls(bits)
        if decoded.encode() != data:  # what was read is then known to be the encoding, too
            raise MalformedHoldings(reason="not the canonical encoding")
        return decoded

    @classmethod
    def restore(cls, data: bytes) -> "IndexSet":
        """Reads what `encode` wrote in this process, without checking it again."""
        restored = cls(_decode(data, MAX_INDICES))
        restored._encoded = data
        return restored


EMPTY = IndexSet()


@dataclass(frozen=True)
class ExpertLayout:
    """How many routed experts each layer of a model has (0 for a dense layer), and how they are numbered.

    The experts of layer 0 come first, then those of layer 1, and so on.
    """

    experts_in_layer: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(count < 0 for count in self.experts_in_layer) or sum(self.experts_in_layer) > MAX_INDICES:
            raise ValueError(f"a layout counts at most {MAX_INDICES} experts, none below zero a layer")

    @cached_property
    def _first(self) -> tuple[int, ...]:
        return tuple(accumulate(self.experts_in_layer, initial=0))

    @property
    def total(self) -> int:
        """The number of experts in all layers."""
        return self._first[-1]

    def index(self, layer: int, expert: int) -> int:
        """The number of an expert. IndexError when there is no such expert."""
        if not (0 <= layer < len(self.experts_in_layer) and 0 <= expert < self.experts_in_layer[layer]):
            raise IndexError(f"no expert {expert} in layer {layer}")
        return self._first[layer] + expert

    def layer(self, layer: int) -> range:
        """The numbers of all experts of a layer."""
        return range(self._first[layer], self._first[layer + 1])

    def layers(self) -> list[range]:
        """The numbers of each layer's experts, dense layers left out."""
        return [self.layer(layer) for layer, count in enumerate(self.experts_in_layer) if count]

    def experts(self, held: IndexSet) -> list[tuple[int, int]]:
        """The (layer, expert) pairs of a set, in order. IndexError when it holds a number beyond the last."""
        if held.stop > self.total:
            raise IndexError(f"expert {held.stop - 1} where the model has {self.total}")
        pairs: list[tuple[int, int]] = []
        for layer, first in enumerate(self._first[:-1]):
            present = held.bits >> first & (1 << self.experts_in_layer[layer]) - 1
            pairs += [(layer, expert) for expert in IndexSet(present)]
        return pairs


def _decode(data: bytes, limit: int) -> int:
    if data[0] == _RUNS:
        return _bits_of_runs(*_decode_runs(data[1:], limit))
    if data[0] == _BITMAP:
        return int.from_bytes(data[1:], "little")
    raise MalformedHoldings(reason=f"unknown kind {data[0]}")


def _runs_of_bits(bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The starts and stops of the runs of one bits, increasing."""
    width = bits.bit_length()
    low = (bits & -bits).bit_length() - 1 if bits else 0
    if bits.bit_count() == width - low:
        one = 1 if bits else 0
        return np.full(one, low, dtype=np.int64), np.full(one, width, dtype=np.int64)
    toggles = bits ^ bits << 1
    octets = np.frombuffer(toggles.to_bytes(width // 8 + 1, "little"), dtype=np.uint8)
    places = np.flatnonzero(octets != 0)
    row, bit = np.nonzero(np.unpackbits(octets[places], bitorder="little").view(np.bool_).reshape(-1, 8))
    edges = (8 * places[row] + bit).astype(np.int64)
    return edges[0::2], edges[1::2]


def _bits_of_runs(starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> int:
    """Increasing half-open runs, none overlapping the next, as one integer."""
    if len(starts) <= 4:
        bits = 0
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            bits |= (1 << stop) - (1 << start)
        return bits
    # A bit at every edge; then each bit becomes the parity of those up to it, in doubling steps.
    width = int(stops[-1])
    octets = np.zeros(width // 8 + 1, dtype=np.uint8)
    for edges in (starts, stops):
        np.bitwise_xor.at(octets, edges >> 3, (1 << (edges & 7)).astype(np.uint8))
    bits, step = int.from_bytes(octets.tobytes(), "little"), 1
    while step <= width:
        bits ^= bits << step
        step *= 2
    return bits & (1 << width) - 1


def _merged(pairs: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Half-open runs [n, 2] in any order as increasing ones that neither overlap nor touch."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    first = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return pairs[first, 0], reach[last]


def _encode_varints(numbers: npt.NDArray[np.int64]) -> bytes:
    """LEB128 of non-negative numbers below 2^28, one after the other."""
    if len(numbers) <= _FEW:
        octets = bytearray()
        for number in numbers.tolist():
            while number >= 0x80:
                octets.append(number & 0x7F | 0x80)
                number >>= 7
            octets.append(number)
        return bytes(octets)
    sizes = np.ones(len(numbers), dtype=np.int64)
    for size in range(1, _VARINT_BYTES):
        sizes += numbers >= 1 << 7 * size
    places = np.cumsum(sizes) - sizes
    encoded = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for octet in range(_VARINT_BYTES):
        chosen = sizes > octet
        more = np.where(sizes[chosen] > octet + 1, 0x80, 0)
        encoded[places[chosen] + octet] = numbers[chosen] >> 7 * octet & 0x7F | more
    return encoded.tobytes()


def _decode_runs(data: bytes, limit: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The starts and stops of encoded runs. MalformedHoldings when cut short, too many or beyond `limit`."""
    numbers = _few_varints(data) if len(data) <= _FEW else _many_varints(data)
    if len(numbers) % 2:
        raise MalformedHoldings(reason="a gap without a run")
    edges = np.cumsum(numbers)
    if len(edges) and edges[-1] > limit:
        raise MalformedHoldings(reason=f"index {int(edges[-1]) - 1} where {limit} exist")
    return edges[0::2], edges[1::2]


def _few_varints(data: bytes) -> npt.NDArray[np.int64]:
    numbers: list[int] = []
    number = shift = 0
    for octet in data:
        number |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift == 7 * _VARINT_BYTES:
            raise MalformedHoldings(reason="a number too large")
    if shift:
        raise MalformedHoldings(reason="cut short")
    return np.array(numbers, dtype=np.int64)


def _many_varints(data: bytes) -> npt.NDArray[np.int64]:
    octets = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    last = np.flatnonzero(octets < 0x80)
    if not len(last) or last[-1] != len(octets) - 1:
        raise MalformedHoldings(reason="cut short")
    first = np.concatenate(([0], last[:-1] + 1))
    sizes = last - first + 1
    if sizes.max() > _VARINT_BYTES:
        raise MalformedHoldings(reason="a number too large")
    numbers = np.zeros(len(last), dtype=np.int64)
    for octet in range(_VARINT_BYTES):
        chosen = sizes > octet
        numbers[chosen] |= (octets[first[chosen] + octet] & 0x7F) << 7 * octet
    return numbers
