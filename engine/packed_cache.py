"""Experts in packed form on this machine's disk, so that reading one again takes fewer bytes and no
conversion.

One file an expert, in a directory named by everything its bytes depend on. A file is written under a
temporary name and renamed; it starts with a digest of what follows, and is believed only when that fits. So
a crash, a full disk or a bad sector cost a conversion, never a wrong weight. Several processes, and several engines of
one, may share a cache. It takes nothing more when the disk is nearly full; `clean` removes what has not been used for
long.
"""

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path

from blake3 import blake3

from engine.arrays import U8

DIGEST_BYTES = 32
HEADER_BYTES = 64  # digest, then zeros, so that the blob is aligned in the page cache
LEAST_FREE_BYTES = 2 << 30  # of the disk, left to others
TEMPORARY = ".tmp"
ABANDONED_S = 3600.0  # after which a temporary file is nobody's any more


def clean(directory: Path, unused_s: float) -> int:
    """Removes the packed experts that no engine opened for `unused_s` seconds; returns the bytes freed.

    directory: what `PackedCache` is given. Whoever reads them at the moment packs them again. Raises OSError.
    """
    freed = 0
    for model in _models(directory):
        if time.time() - model.stat().st_mtime >= unused_s:
            freed += _bytes_in(model)
            shutil.rmtree(model)
    return freed


def used_bytes(directory: Path) -> int:
    """Bytes of all packed experts kept. Raises OSError."""
    return sum(map(_bytes_in, _models(directory)))


def _models(directory: Path) -> list[Path]:
    """A directory for each model; what else lies there is not ours."""
    return [path for path in sorted(directory.iterdir()) if path.is_dir()] if directory.is_dir() else []


def _bytes_in(model: Path) -> int:
    total = 0
    for file in model.iterdir():
        with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
            total += file.stat().st_size
    return total


class PackedCache:
    """Blobs of one model in one weights format, by (layer, expert)."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory = directory / blake3(key.encode()).hexdigest()[:32]
        self.full: str | None = None  # why nothing more is written
        with contextlib.suppress(OSError):  # not there yet; else it counts as used now, see `clean`
            os.utime(self.directory)
            self._drop_abandoned()

    def has(self, layer: int, expert: int) -> bool:
        """Whether there is a file; whether it is good only reading tells."""
        return self._path(layer, expert).exists()

    def read(self, layer: int, expert: int, blob: U8) -> bool:
        """Fills `blob` from the cache; False, and `blob` undefined, when it is not there or damaged."""
        path = self._path(layer, expert)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            header = bytearray(HEADER_BYTES)
            if os.fstat(descriptor).st_size != HEADER_BYTES + blob.nbytes:
                return False
            views = [memoryview(header), blob.data]
            done = os.preadv(descriptor, views, 0)
            while HEADER_BYTES <= done < HEADER_BYTES + blob.nbytes:
                count = os.preadv(descriptor, [blob.data[done - HEADER_BYTES :]], done)
                if count == 0:
                    return False
                done += count
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return bytes(header[:DIGEST_BYTES]) == blake3(blob.data).digest()

    def write(self, layer: int, expert: int, blob: U8) -> None:
        """Keeps a blob. When the disk refuses, `full` says why and nothing more is tried."""
        if self.full is not None:
            return
        path = self._path(layer, expert)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.directory).free < LEAST_FREE_BYTES + blob.nbytes:
                self.full = f"packed experts are no longer kept in {self.directory}: the disk is nearly full"
                return
            with temporary.open("wb") as file:
                file.write(blake3(blob.data).digest() + bytes(HEADER_BYTES - DIGEST_BYTES))
                file.write(blob.data)
            temporary.replace(path)
        except OSError as error:
            self.full = f"packed experts are no longer kept in {self.directory}: {error.strerror}"
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _drop_abandoned(self) -> None:
        """Removes what writers left that were killed."""
        for left in self.directory.glob(f"*{TEMPORARY}"):
            with contextlib.suppress(FileNotFoundError):  # its writer is done, or another removes it
                if time.time() - left.stat().st_mtime >= ABANDONED_S:
                    left.unlink()

    def _path(self, layer: int, expert: int) -> Path:
        return self.directory / f"layer-{layer:03}-expert-{expert:04}"
