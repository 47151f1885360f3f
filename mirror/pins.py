"""Which chunks may not be evicted: named lists, kept on disk so that every process that shares the store sees
them.

A list is the addresses one after another and the BLAKE3 of them. A list that a crash left torn counts as
absent; whoever pinned pins again when it starts.
"""

import secrets
from collections.abc import Iterable
from contextlib import suppress

from blake3 import blake3

from mirror.files import Files, Stamp

ADDRESS_BYTES = 32


class Pins:
    """The pinned addresses of one store."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._read: dict[str, tuple[Stamp, frozenset[bytes]]] = {}

    def set(self, name: str, addresses: Iterable[bytes]) -> None:
        """Pins exactly these under `name` (letters, digits, `-` and `_`), in place of what was pinned under
        it."""
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{name!r} cannot name a list of pins")
        joined = b"".join(sorted(set(addresses)))
        temporary = f"{self._folder}/.{name}-{secrets.token_hex(4)}"
        try:
            descriptor = self._files.create(temporary)
            try:
                self._files.write(descriptor, [joined, blake3(joined).digest()])
            finally:
                self._files.close(descriptor)
            self._files.rename(temporary, f"{self._folder}/{name}")
        except BaseException:
            with suppress(OSError):
                self._files.unlink(temporary)
            raise

    def drop(self, name: str) -> None:
        """Unpins what was pinned under `name`."""
        with suppress(FileNotFoundError):
            self._files.unlink(f"{self._folder}/{name}")

    def all(self) -> frozenset[bytes]:
        """Every pinned address, whoever pinned it."""
        lists: dict[str, tuple[Stamp, frozenset[bytes]]] = {}
        for entry in self._files.list(self._folder):
            if not entry.name.startswith("."):
                known = self._read.get(entry.name)
                fresh = known is not None and known[0] == entry.stamp
                lists[entry.name] = known if known and fresh else (entry.stamp, self._load(entry.name))
        self._read = lists
        return frozenset().union(*(addresses for _, addresses in lists.values()))

    def _load(self, name: str) -> frozenset[bytes]:
        try:
            descriptor = self._files.open(f"{self._folder}/{name}")
        except FileNotFoundError:
            return frozenset()
        try:
            data = self._files.read(descriptor, self._files.stamp(descriptor).size, 0)
        finally:
            self._files.close(descriptor)
        joined, tag = data[:-32], data[-32:]
        if len(joined) % ADDRESS_BYTES or blake3(joined).digest() != tag:
            return frozenset()
        return frozenset(joined[at : at + ADDRESS_BYTES] for at in range(0, len(joined), ADDRESS_BYTES))
