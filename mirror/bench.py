"""How fast bytes come: cold over the network, warm from the store, through FUSE, and what the machine itself
can do.

Speeds are bytes a second. The comparisons are taken in the same run, since a machine's speed changes from
hour to hour; where two are compared they take turns, and each counts by its best.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from mirror.fetch import Mirror
from mirror.plan import Readahead
from mirror.source import MirrorSource

BLOCK_BYTES = 1 << 20
_SENDER = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stream:
    with open(sys.argv[2], "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            stream.sendall(block)
"""


@dataclass(frozen=True, slots=True)
class Warm:
    """Reading what is in the store, beside pread of a plain file that is in the page cache."""

    mirror_speed: float
    plain_speed: float


@dataclass(frozen=True, slots=True)
class Mounted:
    """Reading through FUSE, beside a plain file in the page cache."""

    first_speed: float
    again_speed: float
    plain_speed: float


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


async def warm_speeds(source: MirrorSource, path: str, plain: Path, rounds: int = 3) -> Warm:
    """Reading a file that is in the store, 1 MiB at a time, in a thread like the engine's; `plain` has the
    same."""
    return await trio.to_thread.run_sync(_warm_speeds, source, path, plain, rounds)


def _warm_speeds(source: MirrorSource, path: str, plain: Path, rounds: int) -> Warm:
    size = source.files()[path]
    descriptor = os.open(plain, os.O_RDONLY)
    try:
        _blocks(size, lambda offset, length: source.read(path, offset, length))
        mirror_speed = plain_speed = 0.0
        for _ in range(rounds):
            speed = _blocks(size, lambda offset, length: os.pread(descriptor, length, offset))
            plain_speed = max(plain_speed, speed)
            speed = _blocks(size, lambda offset, length: source.read(path, offset, length))
            mirror_speed = max(mirror_speed, speed)
    finally:
        os.close(descriptor)
    return Warm(mirror_speed, plain_speed)


def mounted_speeds(mounted: Path, plain: Path, rounds: int = 3) -> Mounted:
    """Reading a file through a mount for the first time, and again; `plain` has the same content. Not in the
    process that serves the mount."""
    first_speed = _file(mounted)
    again_speed = plain_speed = 0.0
    for _ in range(rounds):
        plain_speed = max(plain_speed, _file(plain))
        again_speed = max(again_speed, _file(mounted))
    return Mounted(first_speed, again_speed, plain_speed)


def _blocks(size: int, read: Callable[[int, int], object]) -> float:
    began = time.perf_counter()
    for offset in range(0, size, BLOCK_BYTES):
        read(offset, min(BLOCK_BYTES, size - offset))
    return size / (time.perf_counter() - began)


def _file(path: Path) -> float:
    buffer = bytearray(BLOCK_BYTES)
    total = 0
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / (time.perf_counter() - began)
