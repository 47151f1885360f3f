"""A mirror's bytes for threads that are not trio's: the engine's, FUSE's.

What this process has checked before is read from the store right here, at the speed of pread; only what is
missing crosses over to the trio thread. Satisfies `engine.source.Source`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import trio

from mirror.errors import MirrorClosed
from mirror.fetch import Mirror
from mirror.memory import buffer_of
from mirror.plan import Readahead


class MirrorSource:
    """The files of one model, read by range; blocks. Safe to use from several threads, never from the trio
    thread."""

    def __init__(self, mirror: Mirror) -> None:
        """Made in the trio thread that runs the mirror."""
        self._mirror = mirror
        self.tree = mirror.tree
        self._store = mirror.store
        self._token = trio.lowlevel.current_trio_token()

    def files(self) -> Mapping[str, int]:
        """Path to size in bytes, of every file."""
        return self.tree.files

    def read(
        self, path: str, offset: int, length: int, readahead: Readahead | None = None
    ) -> bytes | bytearray | memoryview:
        """Exactly `length` bytes of `path` from `offset`; errors as for `Mirror.read`, MirrorClosed when it
        is over.

        A reader that may run forward brings its own `Readahead`.
        """
        spans = self.tree.spans(path, offset, length)
        buffer = buffer_of(length)
        position = 0
        for span in spans:
            part = buffer[position : position + span.stop - span.start]
            if not self._store.read_into(span.chunk.address, span.chunk.size, span.start, part):
                break
            if not self._mirror.has_seen(span.chunk):
                self._token.run_sync_soon(self._mirror.saw, span.chunk)
            position += span.stop - span.start
        if position < length:
            rest = self._await(path, offset + position, length - position, readahead)
            buffer[position:] = memoryview(rest)
        elif readahead is not None:
            start, stop = readahead.advance(offset, length, self.tree.size(path))
            if start < stop:
                self.prefetch([(path, start, stop - start)])
        return buffer

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """A hint that these (path, offset, length) will be read soon; returns at once."""
        asked = list(ranges)
        for path, offset, length in asked:
            self.tree.spans(
                path, offset, length
            )  # what is wrong with it is said here, not in the trio thread
        try:
            self._token.run_sync_soon(self._mirror.prefetch, asked)
        except trio.RunFinishedError:
            raise MirrorClosed(path=asked[0][0] if asked else "") from None

    def close(self) -> None:
        """Closes the mirror: reads of what is not in the store fail from now on, those under way too."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._mirror.close)

    def _await(self, path: str, offset: int, length: int, readahead: Readahead | None) -> memoryview:
        try:
            return memoryview(
                trio.from_thread.run(
                    self._mirror.read, path, offset, length, readahead, trio_token=self._token
                )
            )
        except (trio.RunFinishedError, trio.Cancelled):
            raise MirrorClosed(path=path) from None
