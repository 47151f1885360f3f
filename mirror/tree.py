"""The read-only file tree that a manifest describes: what is where, and which chunk holds which byte.

Pure. Chunks are numbered through all files in the manifest's order, as in `swarm.wire.holdings`: a file of n
chunks takes the next n numbers, an empty file none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from mirror.errors import NoSuchFile, OutsideFile
from mirror.ranges import touched
from swarm.trust.manifest import CHUNK_BYTES, FileEntry, Manifest


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a model: its number, the file it belongs to, where in it, how long, and its sha256."""

    index: int
    path: str
    offset: int
    size: int
    address: bytes


class Span(NamedTuple):
    """The part of one chunk that a read wants: bytes start to stop of the chunk."""

    chunk: Chunk
    start: int
    stop: int


class Tree:
    """Files and directories of a model by path; '/' between the parts, '' for the root."""

    def __init__(self, files: Iterable[FileEntry], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.chunk_bytes = chunk_bytes
        self._entries = tuple(files)
        counts = [len(entry.chunks) for entry in self._entries]
        self._first = [0, *accumulate(counts)]
        self._number = {entry.path: number for number, entry in enumerate(self._entries)}
        self._sizes = {entry.path: entry.size for entry in self._entries}
        children: dict[str, dict[str, None]] = {"": {}}
        for path in self._sizes:
            while path:
                parent, _, name = path.rpartition("/")
                children.setdefault(parent, {})[name] = None
                path = parent
        self._chunk = lru_cache(maxsize=8192)(self._make_chunk)  # the same few are asked for again and again
        self._children = {folder: tuple(names) for folder, names in children.items()}

    @classmethod
    def of(cls, manifest: Manifest) -> "Tree":
        """The tree of a manifest."""
        return cls(manifest.files)

    @property
    def files(self) -> Mapping[str, int]:
        """Path to size in bytes, of every file."""
        return self._sizes

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(self._sizes.values())

    @property
    def chunk_count(self) -> int:
        """How many chunks there are."""
        return self._first[-1]

    def children(self, path: str) -> tuple[str, ...] | None:
        """The names in a directory; None when there is no such directory."""
        return self._children.get(path)

    def size(self, path: str) -> int:
        """A file's size. NoSuchFile."""
        try:
            return self._sizes[path]
        except KeyError:
            raise NoSuchFile(path=path) from None

    def chunk(self, index: int) -> Chunk:
        """A chunk by its number. IndexError."""
        if not 0 <= index < self.chunk_count:
            raise IndexError(f"chunk {index} of {self.chunk_count}")
        number = bisect_right(self._first, index) - 1
        return self._chunk(number, index - self._first[number])

    def numbers(self, path: str) -> tuple[int, int]:
        """The numbers of a file's chunks, from the first to before the second. NoSuchFile."""
        self.size(path)
        number = self._number[path]
        return self._first[number], self._first[number + 1]

    def chunks(self, path: str) -> Iterator[Chunk]:
        """A file's chunks. NoSuchFile."""
        self.size(path)
        number = self._number[path]
        return (self._chunk(number, part) for part in range(len(self._entries[number].chunks)))

    def spans(self, path: str, offset: int, length: int) -> list[Span]:
        """What to read of which chunk for `length` bytes of `path` from `offset`. NoSuchFile, OutsideFile."""
        size = self.size(path)
        stop = offset + length
        if offset < 0 or length < 0 or stop > size:
            raise OutsideFile(path=path, start=offset, stop=stop, size=size)
        number = self._number[path]
        first, start = divmod(offset, self.chunk_bytes)
        if 0 < length <= self.chunk_bytes - start:  # of one chunk, as most reads are
            return [Span(self._chunk(number, first), start, start + length)]
        spans: list[Span] = []
        for part in touched(offset, stop, self.chunk_bytes):
            chunk = self._chunk(number, part)
            spans.append(Span(chunk, max(offset - chunk.offset, 0), min(stop - chunk.offset, chunk.size)))
        return spans

    def _make_chunk(self, number: int, part: int) -> Chunk:
        entry = self._entries[number]
        offset = part * self.chunk_bytes
        size = min(self.chunk_bytes, entry.size - offset)
        return Chunk(self._first[number] + part, entry.path, offset, size, entry.chunks[part])
