"""How fast bytes come: cold over the network, warm from the store, through FUSE, and what the machine itself
can do.

Speeds are bytes a second. A machine's speed changes from minute to minute, so each is taken right beside its
reference, in turns, and every turn has a ratio of its own.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from mirror.fetch import Mirror
from mirror.memory import buffer_of
from mirror.plan import Readahead
from mirror.source import MirrorSource

BLOCK_BYTES = 1 << 20
SMALL_PAGE_BYTES = 4096
_SENDER = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stream:
    with open(sys.argv[2], "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            stream.sendall(block)
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """A speed and, taken right beside it, that of its reference; one of each a turn."""

    speeds: tuple[float, ...]
    references: tuple[float, ...]

    @classmethod
    def turns(cls, rounds: int, reference: Callable[[], float], speed: Callable[[], float]) -> "Beside":
        """Takes both by turns."""
        pairs = [(reference(), speed()) for _ in range(rounds)]
        return cls(tuple(own for _, own in pairs), tuple(other for other, _ in pairs))

    @classmethod
    def joined(cls, parts: Iterable["Beside"]) -> "Beside":
        """The turns of all of them."""
        parts = tuple(parts)
        speeds = tuple(speed for part in parts for speed in part.speeds)
        return cls(speeds, tuple(speed for part in parts for speed in part.references))

    @property
    def speed(self) -> float:
        """The median."""
        return statistics.median(self.speeds)

    @property
    def reference(self) -> float:
        """The reference's median."""
        return statistics.median(self.references)

    @property
    def ratios(self) -> Sequence[float]:
        """The share of the reference's speed in each turn."""
        return [own / other for own, other in zip(self.speeds, self.references, strict=True)]


def tcp_copy_speed(path: Path) -> float:
    """A plain copy of a file over loopback TCP from another process, into memory; nothing is checked or
    kept."""
    buffer = bytearray(BLOCK_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", _SENDER, str(server.getsockname()[1]), str(path)]
        with subprocess.Popen(command) as sender:
            stream, _ = server.accept()
            with stream:
                began = time.perf_counter()
                total = 0
                while count := stream.recv_into(buffer):
                    total += count
                seconds = time.perf_counter() - began
            sender.wait()
    return total / seconds


async def cold_speed(mirror: Mirror, path: str) -> float:
    """Reading a file from start to end that is not in the store yet, checked and stored on the way."""
    size = mirror.tree.size(path)
    fetched_before = mirror.progress.fetched_bytes
    readahead = Readahead()
    began = time.perf_counter()
    for offset in range(0, size, 8 * BLOCK_BYTES):
        await mirror.read(path, offset, min(8 * BLOCK_BYTES, size - offset), readahead)
    seconds = time.perf_counter() - began
    return (mirror.progress.fetched_bytes - fetched_before) / seconds


async def warm_speeds(source: MirrorSource, path: str, plain: Path, rounds: int = 3) -> Beside:
    """Reading a file that is in the store, 1 MiB at a time, in a thread like the engine's, beside pread of
    `plain`, which has the same content and is in the page cache."""
    return await trio.to_thread.run_sync(_warm_speeds, source, path, plain, rounds)


def _warm_speeds(source: MirrorSource, path: str, plain: Path, rounds: int) -> Beside:
    size = source.files()[path]
    descriptor = os.open(plain, os.O_RDONLY)

    def through_mirror() -> float:
        return _blocks(size, lambda offset, length: source.read(path, offset, length))

    def plainly() -> float:
        return _blocks(size, lambda offset, length: os.pread(descriptor, length, offset))

    try:
        through_mirror()
        plainly()
        return Beside.turns(rounds, plainly, through_mirror)
    finally:
        os.close(descriptor)


def mounted_speeds(mounted: Path, plain: Path, small: Path, rounds: int = 3) -> tuple[float, Beside, Beside]:
    """Reading a file through a mount for the first time; and again, beside `plain` and beside `small`, which both
    have the same content and are in the page cache, the latter in pages of 4 KiB. Not in the process that serves
    the mount."""
    first_speed = _file(mounted)
    for path in (plain, small):
        _file(path)
    turns = [(_file(plain), _file(small), _file(mounted)) for _ in range(rounds)]
    plains, smalls, own = zip(*turns, strict=True)
    return first_speed, Beside(own, plains), Beside(own, smalls)


def copy_in_small_pages(source: Path, target: Path) -> None:
    """Copies a file by writes of 4 KiB: the page cache keeps it in pages of that size. What is written or read ahead
    in larger pieces it keeps in larger pages, where the file system can do so (ext4, XFS); of FUSE's files it does
    not (seen on Linux 6.18), and copying from them is slower."""
    with source.open("rb") as read, target.open("wb", buffering=0) as write:
        while piece := read.read(SMALL_PAGE_BYTES):
            write.write(piece)


def _blocks(size: int, read: Callable[[int, int], object]) -> float:
    began = time.perf_counter()
    for offset in range(0, size, BLOCK_BYTES):
        read(offset, min(BLOCK_BYTES, size - offset))
    return size / (time.perf_counter() - began)


def _file(path: Path) -> float:
    buffer = buffer_of(BLOCK_BYTES)  # as cp, dd and their like do it
    total = 0
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / (time.perf_counter() - began)
