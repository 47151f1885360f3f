"""What the operating system says, in words for people, with the remedy where there is one; and what it offers."""

import errno
import os
from typing import TextIO

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or some of Swarm's own with `swarm cache gc`",
    errno.EDQUOT: "your disk quota is used up; free some space, or some of Swarm's own with `swarm cache gc`",
    errno.EACCES: "permission denied; check its owner and mode",
    errno.EPERM: "not permitted; check its owner and mode",
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "a part of that path is a file and no directory; choose another place",
    errno.EISDIR: "that is a directory; name a file",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EMFILE: "too many open files; raise the limit with `ulimit -n`",
    errno.EADDRINUSE: "that port is taken; choose another with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ENOMEM: "out of memory",
}


def words_of_system(error: OSError) -> str:
    """The file, if there is one, and what is wrong with it; without a full stop."""
    place = f"{error.filename}: " if error.filename is not None else ""
    if error.errno is not None and error.errno in REMEDIES:
        return place + REMEDIES[error.errno]
    return place + (error.strerror or str(error) or type(error).__name__)


def moves_cursor(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which lines can be written over."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
