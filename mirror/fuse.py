"""A model as a read-only directory for any other program, through FUSE.

    async with open_mirror(...) as mirror:
        await mount(MirrorSource(mirror), Path("/mnt/model"), issued_s=manifest.issued)

Thin: it translates what the kernel asks into reads of a `MirrorSource`. The kernel keeps what it has read
(the bytes under a manifest never change), so a page read twice is read once from here. The mount is
read-only, so the kernel itself refuses every kind of write with EROFS. A mount point left behind by a process
that was killed ("Transport endpoint is not connected") is cleared before it is used again.

libfuse runs its loop in a thread. A program that handles signals cancels `mount`, which unmounts. Where
SIGTERM or SIGHUP has no handler, libfuse installs its own, which ends the loop within a second.
"""

import contextlib
import errno
import importlib
import itertools
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from mirror.plan import Readahead
from mirror.source import MirrorSource
from swarm.errors import SwarmError

MAX_READ_BYTES = 1 << 20
READ_THREADS = 10
READAHEAD_KIB = 4096
"""What the kernel reads ahead, where we may tell it (as root); else it takes 128 KiB."""
POKE_EVERY_S = 1.0
_FOREVER_S = 86_400.0
_BLOCK_BYTES = 4096


class FuseMissing(SwarmError):
    """libfuse is not installed ({reason}). Install it (Debian, Ubuntu: `apt install fuse3`; Fedora: `dnf
    install fuse3`; macOS: macFUSE), or use the model without mounting it: `swarm chat`."""


class FuseForbidden(SwarmError):
    """Mounting is not possible here: {reason}. On your own machine `modprobe fuse` may help; a container
    needs `--device /dev/fuse --cap-add SYS_ADMIN`. `swarm chat` works without mounting."""


class MountPointUnfit(SwarmError):
    """{mountpoint} cannot be mounted on: {reason}."""


class MountFailed(SwarmError):
    """{mountpoint} could not be mounted ({reason}). What libfuse printed above says more."""


class ModelFiles:
    """The operations the kernel may ask for, in the terms of mfusepy and fusepy; paths begin with '/'. OSErrors
    become errnos."""

    use_ns = True

    def __init__(self, source: MirrorSource, issued_s: int) -> None:
        self._source = source
        self._tree = source.tree
        self._handles: dict[int, Readahead] = {}
        self._numbers = itertools.count(1)
        self._times = dict.fromkeys(("st_mtime", "st_ctime", "st_atime"), issued_s * 10**9)
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}

    def __call__(self, operation: str, *arguments: Any) -> Any:
        """fusepy's way of calling an operation by its name."""
        return getattr(self, operation)(*arguments)

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Tells the kernel to keep names, sizes and pages, and to ask for as much at once as it can."""
        if connection is not None:
            connection.max_readahead = max(connection.max_readahead, MAX_READ_BYTES)
            connection.max_background = 64
            connection.congestion_threshold = 48
            if hasattr(connection, "max_read"):
                connection.max_read = MAX_READ_BYTES
        if config is not None:
            config.kernel_cache = 1
            config.entry_timeout = config.attr_timeout = _FOREVER_S

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        """A file's or directory's attributes. FileNotFoundError."""
        inner = path.strip("/")
        children = self._tree.children(inner)
        if children is not None:
            folders = sum(self._tree.children(f"{inner}/{name}".strip("/")) is not None for name in children)
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2 + folders, **self._owner, **self._times}
        size = self._tree.size(inner)
        blocks = -(-size // _BLOCK_BYTES) * (_BLOCK_BYTES // 512)
        kind = {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": size, "st_blocks": blocks}
        return {**kind, **self._owner, **self._times}

    def readdir(self, path: str, handle: int) -> list[str]:
        """The names in a directory. FileNotFoundError."""
        children = self._tree.children(path.strip("/"))
        if children is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return [".", "..", *children]

    def open(self, path: str, flags: int) -> int:
        """Opens a file for reading; every opener gets a readahead of its own."""
        self._tree.size(path.strip("/"))
        handle = next(self._numbers)
        self._handles[handle] = Readahead()
        return handle

    def release(self, path: str, handle: int) -> int:
        """Closes a file."""
        self._handles.pop(handle, None)
        return 0

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        """The file's bytes, fewer only at its end. OSError (EIO) when they cannot be had, never zeros."""
        inner = path.strip("/")
        length = min(size, self._tree.size(inner) - offset)
        if length <= 0:
            return b""
        return bytes(self._source.read(inner, offset, length, self._handles.get(handle)))

    def statfs(self, path: str) -> dict[str, int]:
        """The model's size as that of a full disk."""
        blocks = -(-self._tree.total_bytes // _BLOCK_BYTES)
        return {
            "f_bsize": _BLOCK_BYTES,
            "f_frsize": _BLOCK_BYTES,
            "f_blocks": blocks,
            "f_files": len(self._tree.files),
            "f_namemax": 255,
        }


async def mount(
    source: MirrorSource,
    mountpoint: Path,
    *,
    issued_s: int,
    name: str = "swarm",
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mounts the model and serves it until cancelled or unmounted from outside; then it is unmounted.

    With `nursery.start` it returns once the mount can be used. When it ends the source is closed, so that
    nobody waits for bytes any more. FuseMissing, FuseForbidden, MountPointUnfit, MountFailed.
    """
    fuse = _library()
    working_directory = Path.cwd()
    mountpoint = await trio.to_thread.run_sync(prepare, mountpoint)
    operations = ModelFiles(source, issued_s)
    ended = trio.Event()
    mounted = False
    failure: list[str] = []
    serving: list[trio.CancelScope] = []

    def loop() -> None:
        try:
            fuse.FUSE(
                operations,
                str(mountpoint),
                foreground=True,
                ro=True,
                nosuid=True,
                nodev=True,
                fsname=name.replace(",", "_"),
                subtype="swarm",
                max_read=MAX_READ_BYTES,
                default_permissions=True,
                **_own_options(fuse),
            )
        except RuntimeError as error:  # mfusepy's only one: the loop's exit status
            failure.append(f"libfuse ended with status {error}")

    async def serve() -> None:
        with trio.CancelScope(shield=True) as given_up_on:
            serving.append(given_up_on)
            await trio.to_thread.run_sync(loop, abandon_on_cancel=True)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            # The kernel tells nobody when a mount is there; it is there within milliseconds.
            while not ended.is_set() and not await trio.to_thread.run_sync(mountpoint.is_mount):  # noqa: ASYNC110
                await trio.sleep(0.01)
            if not ended.is_set():
                os.chdir(working_directory)  # libfuse has moved the process to /
                await trio.to_thread.run_sync(_raise_readahead, mountpoint)
                mounted = True
                task_status.started()
            nursery.start_soon(_poke, mountpoint)
            await ended.wait()
        finally:
            source.close()
            with trio.CancelScope(shield=True):
                if not ended.is_set():
                    await trio.to_thread.run_sync(unmount, mountpoint)
                    # A program that still holds a file open keeps the loop alive; we do not wait for it.
                    with trio.move_on_after(2):
                        await ended.wait()
            for scope in serving:
                scope.cancel()
            nursery.cancel_scope.cancel()
    if failure and not mounted:  # a loop that a signal ends has a status too
        raise MountFailed(mountpoint=mountpoint, reason=failure[0])


async def _poke(mountpoint: Path) -> None:
    """Lets libfuse's loop, which sleeps until the kernel asks for something, see that a signal told it to
    end."""
    while True:
        await trio.sleep(POKE_EVERY_S)
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(os.statvfs, mountpoint, abandon_on_cancel=True)


def prepare(mountpoint: Path) -> Path:
    """Makes sure that something can be mounted there, clearing a mount left behind by a process that is gone.

    The absolute path of it. FuseForbidden, MountPointUnfit.
    """
    if sys.platform == "linux":
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise FuseForbidden(reason="/dev/fuse is not there or may not be opened")
        if os.geteuid() != 0 and _unmounter() is None:
            raise FuseForbidden(reason="fusermount3 is not installed, and only root mounts without it")
    mountpoint = mountpoint.absolute()
    if is_stale(mountpoint):
        unmount(mountpoint)
    if not mountpoint.exists():
        raise MountPointUnfit(
            mountpoint=mountpoint, reason=f"it does not exist; `mkdir -p {mountpoint}` first"
        )
    if not mountpoint.is_dir():
        raise MountPointUnfit(mountpoint=mountpoint, reason="it is not a directory")
    if mountpoint.is_mount():
        reason = f"something is mounted there already; `fusermount3 -u {mountpoint}` unmounts it"
        raise MountPointUnfit(mountpoint=mountpoint, reason=reason)
    if any(mountpoint.iterdir()):
        raise MountPointUnfit(
            mountpoint=mountpoint, reason="it is not empty; a mount would hide what it holds"
        )
    return mountpoint


def is_stale(mountpoint: Path) -> bool:
    """Whether a file system is mounted there whose process is gone."""
    try:
        os.statvfs(mountpoint)  # stat would be answered from what the kernel remembers
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(mountpoint: Path) -> None:
    """Unmounts, also while programs use it; nothing when nothing is mounted there."""
    tool = _unmounter()
    commands = [[tool, "-u", str(mountpoint)], [tool, "-u", "-z", str(mountpoint)]] if tool else []
    commands += [["umount", str(mountpoint)]]
    for command in commands:
        with contextlib.suppress(FileNotFoundError):  # no such tool here
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return


def _unmounter() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def _library() -> Any:
    """mfusepy, or fusepy where only that is installed; both look for libfuse when they are imported."""
    reasons = []
    for name in ("mfusepy", "fuse"):
        try:
            return importlib.import_module(name)
        except (OSError, ImportError, AttributeError) as error:
            reasons.append(str(error))
    raise FuseMissing(reason=reasons[0])


def _own_options(fuse: Any) -> dict[str, Any]:
    """What only this library or its libfuse understands: how many reads are served at once (libfuse 3.12), or
    that pages are kept (libfuse 2, which fusepy speaks to and does not ask `init_with_config`)."""
    version = getattr(fuse, "fuse_version_major", 2), getattr(fuse, "fuse_version_minor", 0)
    if version >= (3, 12):
        return dict.fromkeys(("max_threads", "max_idle_threads"), READ_THREADS)
    if version < (3, 0):
        return {"kernel_cache": True, "attr_timeout": int(_FOREVER_S), "entry_timeout": int(_FOREVER_S)}
    return {}


def _raise_readahead(mountpoint: Path) -> None:
    device = mountpoint.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    with contextlib.suppress(OSError):  # only root may, and only on Linux
        setting.write_text(str(READAHEAD_KIB))
