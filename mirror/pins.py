"""Which chunks may not be evicted: named lists, each of one process that has the store open, on disk so that every
process that shares the store sees them.

A list is the addresses one after another and the BLAKE3 of them, in a file PROCESS.NAME. It counts for as long as
its process lives (`space` removes those of the dead): whoever pinned pins again when it starts. A list that is torn
counts as absent.
"""

import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress

from blake3 import blake3

from mirror.files import Files, Stamp

ADDRESS_BYTES = 32


class Pins:
    """The pinned addresses of one store, for the process that is called `process` in it."""

    def __init__(self, folder: str, files: Files, process: str) -> None:
        self._folder = folder
        self._files = files
        self._process = process
        self._read: dict[str, tuple[Stamp, frozenset[bytes]]] = {}

    def set(self, name: str, addresses: Iterable[bytes]) -> None:
        """Pins exactly these under `name` (letters, digits, `-` and `_`), in place of what was pinned under
        it."""
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{name!r} cannot name a list of pins")
        joined = b"".join(sorted(set(addresses)))
        temporary = f"{self._folder}/.{self._process}.{name}-{secrets.token_hex(4)}"
        try:
            descriptor = self._files.create(temporary)
            try:
                self._files.write(descriptor, [joined, blake3(joined).digest()])
            finally:
                self._files.close(descriptor)
            self._files.rename(temporary, f"{self._folder}/{self._process}.{name}")
        except BaseException:
            with suppress(OSError):
                self._files.unlink(temporary)
            raise

    def drop(self, name: str) -> None:
        """Unpins what was pinned under `name`."""
        with suppress(FileNotFoundError):
            self._files.unlink(f"{self._folder}/{self._process}.{name}")

    def drop_all(self) -> None:
        """Unpins all that this process pinned."""
        for process, name in self.lists():
            if process == self._process:
                self.drop(name)

    def keep_only(self, processes: Collection[str]) -> None:
        """Removes the lists of all other processes."""
        for entry in self._files.list(self._folder):
            if entry.name.removeprefix(".").partition(".")[0] not in processes:
                with suppress(FileNotFoundError):
                    self._files.unlink(f"{self._folder}/{entry.name}")

    def lists(self) -> dict[tuple[str, str], frozenset[bytes]]:
        """The addresses that each process pinned, by (process, name)."""
        lists: dict[str, tuple[Stamp, frozenset[bytes]]] = {}
        for entry in self._files.list(self._folder):
            if not entry.name.startswith("."):
                known = self._read.get(entry.name)
                fresh = known is not None and known[0] == entry.stamp
                lists[entry.name] = known if known and fresh else (entry.stamp, self._load(entry.name))
        self._read = lists
        return {_whose(name): addresses for name, (_, addresses) in lists.items()}

    def all(self) -> frozenset[bytes]:
        """Every pinned address, whoever pinned it."""
        return frozenset().union(*self.lists().values())

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


def _whose(file: str) -> tuple[str, str]:
    process, _, name = file.partition(".")
    return process, name
