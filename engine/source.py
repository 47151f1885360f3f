"""Where a checkpoint's bytes come from: a directory here, a mirror or generated weights elsewhere.

The engine asks for ranges of files and knows nothing of where they lie. A `Source` may be read from several
threads at once.
"""

import os
import re
import stat
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from engine.errors import CheckpointError

GGUF_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")  # its model and the number of parts


class Source(Protocol):
    """The files of one model, read by range. Safe to use from several threads."""

    def files(self) -> Mapping[str, int]:
        """Relative path ('/' between parts) to size in bytes, of every file."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes | bytearray | memoryview:
        """Exactly `length` bytes of `path` from `offset`; blocks. OSError when they cannot be had."""
        ...

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """A hint that these (path, offset, length) will be read soon; returns at once, promises nothing."""
        ...

    def fingerprint(self) -> str | None:
        """A text that changes whenever the bytes do (a signed root, the files' times); None when nobody
        knows."""
        ...


class DirectorySource:
    """A model directory on this machine. Symbolic links are followed (the hub's cache is made of them).

    `directory` may also be a GGUF file: then that file, or all of its parts, is all there is.
    """

    def __init__(self, directory: str | os.PathLike[str], only: Collection[str] | None = None) -> None:
        """`only`: the files that count; None: all that lie there."""
        given = Path(directory)
        single = given.suffix == ".gguf" and given.is_file()
        self.directory = given.parent if single else given
        if not self.directory.is_dir():
            raise CheckpointError(
                f"{given} is not a directory, nor a GGUF file; give the folder that holds config.json"
            )
        self._sizes = {
            entry.name: entry.stat().st_size
            for entry in sorted(self.directory.iterdir())
            if (only is None or entry.name in only)
            and stat.S_ISREG(_mode(entry))
            and (not single or _same_model(given.name, entry.name))
        }
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()

    def files(self) -> Mapping[str, int]:
        return self._sizes

    def read(self, path: str, offset: int, length: int) -> memoryview:
        descriptor = self._descriptor(path)
        view = np.empty(length, np.uint8).data  # in huge pages where it is large, and not zeroed first
        done = 0
        while done < length:
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if count == 0:
                raise OSError(
                    f"{self.directory / path} ends at byte {offset + done}; it was longer when opened"
                )
            done += count
        return view

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        for path, offset, length in ranges:
            os.posix_fadvise(self._descriptor(path), offset, length, os.POSIX_FADV_WILLNEED)

    def fingerprint(self) -> str:
        """Sizes, times and places of the files: cheap, and different after any ordinary change."""
        lines = [str(self.directory.resolve())]
        for path in self._sizes:
            status = (self.directory / path).stat()
            lines.append(
                f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} "
                f"{status.st_dev} {status.st_ino}"
            )
        return "\n".join(lines)

    def close(self) -> None:
        """Closes the files; reading again opens them again."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def __enter__(self) -> "DirectorySource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()

    def _descriptor(self, path: str) -> int:
        with self._lock:
            descriptor = self._descriptors.get(path)
            if descriptor is None:
                if path not in self._sizes:
                    raise FileNotFoundError(f"{self.directory} has no file {path!r}")
                descriptor = os.open(self.directory / path, os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors[path] = descriptor
            return descriptor


def _same_model(name: str, other: str) -> bool:
    """Whether two names are the same, or those of parts of one GGUF file."""
    first, second = GGUF_PART.fullmatch(name), GGUF_PART.fullmatch(other)
    return name == other or (first is not None and second is not None and first.groups() == second.groups())


def _mode(entry: Path) -> int:
    try:
        return entry.stat().st_mode
    except FileNotFoundError:  # a dangling link: as good as not there, and named later if it is needed
        return 0


def read_whole(source: Source, path: str, limit_bytes: int) -> bytes | None:
    """The content of a small file, or None when there is none. Refuses files above `limit_bytes`."""
    size = source.files().get(path)
    if size is None:
        return None
    if size > limit_bytes:
        raise CheckpointError(f"{path} has {size:,} bytes; more than {limit_bytes:,} is not believable")
    return bytes(source.read(path, 0, size))
