"""A peer's identity on disk: one secret seed in a file that only its owner may read."""

import os
import stat
from pathlib import Path

from swarm.errors import SwarmError
from swarm.system import words_of_system
from swarm.trust.files import write_atomically
from swarm.wire.keys import KEY_BYTES, KeyPair

_HEADER = "swarm identity 1 "
_MAX_FILE_BYTES = 1024


class UnreadableKey(SwarmError):
    """The key file {path} cannot be used: {reason}."""


class NoSuchKey(UnreadableKey):
    """There is no key at {path}; check the path, or make a key there with: swarm key new {path}"""


class KeyFileTooOpen(SwarmError):
    """The key file {path} can be read by others (mode {mode}); run: chmod 600 {path}."""


class Identity(KeyPair):
    """An Ed25519 identity (and the X25519 key that follows from it) that can be kept in a file."""

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Reads a key file. Raises NoSuchKey, UnreadableKey, KeyFileTooOpen."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableKey(path=path, reason="it is not a regular file")
                content = file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            raise NoSuchKey(path=path) from None
        except OSError as error:
            raise UnreadableKey(path=path, reason=_words(error)) from error
        try:
            text = content.decode("ascii")
            if not text.startswith(_HEADER):
                raise ValueError("no header")
            seed = bytes.fromhex(text.removeprefix(_HEADER).strip())
            if len(seed) != KEY_BYTES:
                raise ValueError("wrong length")
        except ValueError:
            reason = "it is damaged or no key of this software; restore it, or move it away to get a new key"
            raise UnreadableKey(path=path, reason=reason) from None
        if status.st_mode & 0o077:  # said of keys only: another file may have to be open, such as /etc/passwd
            raise KeyFileTooOpen(path=path, mode=f"{stat.S_IMODE(status.st_mode):o}")
        return cls(seed)

    def save(self, path: Path) -> None:
        """Writes the key file (0600), whole or not at all. Raises UnreadableKey when one is there already."""
        try:
            write_atomically(path, f"{_HEADER}{self.seed.hex()}\n".encode("ascii"), replace=False)
        except FileExistsError:
            raise UnreadableKey(
                path=path, reason="another key is there, and it was kept; choose another place"
            ) from None
        except OSError as error:
            raise UnreadableKey(path=path, reason=_words(error)) from error

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """The identity of a file, made on first use. Raises UnreadableKey, KeyFileTooOpen."""
        if not path.exists():
            fresh = cls(KeyPair.generate().seed)
            try:
                fresh.save(path)
            except UnreadableKey:
                if not path.exists():
                    raise
                return cls.load(path)  # another process was quicker: both use its key
            return fresh
        return cls.load(path)


def _words(error: OSError) -> str:
    """What is wrong with a file that is named beside it."""
    return words_of_system(OSError(error.errno, error.strerror))
