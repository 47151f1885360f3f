"""What can go wrong between a reader and the bytes of a model.

What a reader meets is an `OSError` with the right errno as well as a `SwarmError` with the whole story, so
that the engine, FUSE and a person at a terminal each get it in the form they act on.
"""

import errno
from typing import ClassVar

from swarm.errors import SwarmError


class ReadFailed(SwarmError, OSError):
    """The bytes cannot be read."""

    number: ClassVar[int] = errno.EIO

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields)
        self.errno = self.number


class ChunkUnavailable(ReadFailed):
    """Chunk {chunk} of {path} could not be had ({reason}). Reading again tries again; it needs a peer that
    has it."""


class NotHere(ReadFailed):
    """Chunk {chunk} of {path} is not on this machine and the mirror is offline. Join a swarm that serves the
    model."""


class MirrorClosed(ReadFailed):
    """{path} was read after its mirror was closed. Open the model again."""


class NoSuchFile(ReadFailed):
    """{path} is no file of this model."""

    number = errno.ENOENT


class OutsideFile(ReadFailed):
    """Bytes {start} to {stop} of {path} were asked for, but it has {size}."""

    number = errno.EINVAL


class StoreFull(ReadFailed):
    """The chunk store {root} may hold {limit}, and {reason}. Give it a larger size with `swarm cache limit`{end}."""

    number = errno.ENOSPC


class StoreReadOnly(ReadFailed):
    """The chunk store {root} can only be read, so nothing in it can be added or removed. Check its owner and mode,
    or set SWARM_HOME to a directory that can be written."""

    number = errno.EROFS


class WrongBytes(SwarmError):
    """What was given for chunk {address} is something else: {found}."""


class ReplicaFailed(SwarmError):
    """{replica} did not give chunk {chunk} of {path}: {reason}."""


class ReplicaLacks(ReplicaFailed):
    """{replica} does not have chunk {chunk} of {path}."""


class ReplicaBusy(ReplicaFailed):
    """{replica} asks for patience: {reason}."""

    def __init__(self, *, retry_after_s: float, **fields: object) -> None:
        super().__init__(retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s
