"""What was accepted before: which operator signs a model, the highest version seen, and that manifest itself.

The first manifest of a model is believed (or must be signed by the operator whom an invite names); after
that only its operator is, following the keyring, and no version ever goes back. What was accepted stays
usable without a network, and says how old it is. A memory that cannot be read is an error, never a first use.

A scope says within which swarm a name means a model: two swarms may both have a model of one name.
"""

import hashlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import SwarmError
from swarm.trust.files import locked, write_atomically
from swarm.trust.manifest import MAX_MANIFEST_BYTES, Manifest, SignedManifest, parse_signed
from swarm.wire import cbor

_CLOCK_SLACK_S = 24 * 3600
_NAMES = {"format", "scope", "name", "accepted_at", "offered_at", "signed"}


class OperatorChanged(SwarmError):
    """“{name}” is signed by {found}, but its operator is {expected}; it was refused. Somebody may be passing
    off another model under its name; if the operator did change, forget the old one first.
    """


class Rollback(SwarmError):
    """Version {offered} of “{name}” was offered after version {seen} had been accepted; it was refused."""


class KeyringRollback(SwarmError):
    """“{name}” came with an older keyring of its operator than was accepted before; it was refused."""


class Equivocation(SwarmError):
    """Two different manifests of “{name}” claim to be version {version}; the later one was refused."""


class Expired(SwarmError):
    """The manifest of “{name}” expired {days} days ago; its operator must sign a new one, or the clock here
    is wrong.
    """


class NotYetIssued(SwarmError):
    """The manifest of “{name}” was issued in the future; check this machine's clock."""


class MemoryDamaged(SwarmError):
    """What was remembered of “{name}” cannot be read from {path}: {reason}. Remove the file to trust the
    model's operator anew.
    """


@dataclass(frozen=True)
class Remembered:
    """A manifest that was accepted, when that was, and when it was last offered by somebody."""

    signed: SignedManifest
    accepted_at: int
    offered_at: int

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self.signed.manifest

    def age_s(self, now: float) -> float:
        """The seconds since somebody last offered it as the current one."""
        return max(now - self.offered_at, 0.0)

    def is_expired(self, now: float) -> bool:
        """Whether it would no longer be accepted from a peer. It stays usable."""
        return now >= self.manifest.expires


class Memory:
    """The memory in a folder; several processes may share it. All methods block on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def accept(
        self, scope: str, signed: SignedManifest, *, now: float, operator: bytes | None = None
    ) -> Remembered:
        """Takes a verified manifest as the current one of its model, or raises why not.

        ``operator`` is the key that an invite names. Raises OperatorChanged, KeyringRollback, Rollback,
        Equivocation, Expired, NotYetIssued, MemoryDamaged, and OSError when it cannot be written.
        """
        manifest = signed.manifest
        if operator is not None and operator not in signed.keyring.keys:
            raise OperatorChanged(name=manifest.name, found=signed.signer, expected=operator)
        with self._locked():
            before = self.recall(scope, manifest.name)
            if before is not None:
                _check_successor(before.signed, signed)
            if now >= manifest.expires:
                raise Expired(name=manifest.name, days=int((now - manifest.expires) // 86400))
            if now + _CLOCK_SLACK_S < manifest.issued:
                raise NotYetIssued(name=manifest.name)
            same = before is not None and before.manifest.root == manifest.root
            accepted_at = before.accepted_at if before is not None and same else int(now)
            after = Remembered(signed, accepted_at, int(now))
            self._write(scope, after)
            return after

    def recall(self, scope: str, name: str) -> Remembered | None:
        """What was accepted under a name, or None for a first use. Raises MemoryDamaged."""
        path = self._path(scope, name)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + (1 << 20))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MemoryDamaged(name=name, path=path, reason=error.strerror) from error
        found = _parse(data, name, path)
        if found[:2] != (scope, name):
            raise MemoryDamaged(name=name, path=path, reason="it is about something else")
        return found[2]

    def everything(self, scope: str) -> list[Remembered]:
        """All that was accepted in a scope, sorted by name. Raises MemoryDamaged."""
        files = sorted(self._path(scope, "").parent.glob("*.manifest"))
        found = [_parse(path.read_bytes(), path.name, path)[2] for path in files]
        return sorted(found, key=lambda remembered: remembered.manifest.name)

    def forget(self, scope: str, name: str) -> None:
        """Makes the next manifest of that name a first use again."""
        with self._locked():
            self._path(scope, name).unlink(missing_ok=True)

    def _path(self, scope: str, name: str) -> Path:
        return self._folder / _short_hash(scope) / f"{_short_hash(name)}.manifest"

    def _write(self, scope: str, remembered: Remembered) -> None:
        value: dict[str, cbor.Value] = {
            "format": 1,
            "scope": scope,
            "name": remembered.manifest.name,
            "accepted_at": remembered.accepted_at,
            "offered_at": remembered.offered_at,
            "signed": remembered.signed.encode(),
        }
        write_atomically(self._path(scope, remembered.manifest.name), cbor.encode(value))

    def _locked(self) -> AbstractContextManager[None]:
        """Keeps other processes from accepting at the same time, so that no version can go back."""
        return locked(self._folder / ".lock")


def _check_successor(before: SignedManifest, after: SignedManifest) -> None:
    """Raises unless ``after`` may take the place of ``before``."""
    name = after.manifest.name
    if not after.keyring.follows(before.keyring):
        if before.keyring.follows(after.keyring):
            raise KeyringRollback(name=name)
        raise OperatorChanged(name=name, found=after.signer, expected=before.keyring.latest)
    offered, seen = after.manifest.version, before.manifest.version
    if offered < seen:
        raise Rollback(name=name, offered=offered, seen=seen)
    if offered == seen and after.manifest.root != before.manifest.root:
        raise Equivocation(name=name, version=offered)


def _parse(data: bytes, name: str, path: Path) -> tuple[str, str, Remembered]:
    try:
        value = cbor.decode(data)
        if not isinstance(value, dict) or value.keys() != _NAMES or value["format"] != 1:
            raise MemoryDamaged(name=name, path=path, reason="it is not of format 1")
        scope, kept_name, signed = value["scope"], value["name"], value["signed"]
        accepted_at, offered_at = value["accepted_at"], value["offered_at"]
        if not isinstance(scope, str) or not isinstance(kept_name, str) or not isinstance(signed, bytes):
            raise MemoryDamaged(name=name, path=path, reason="its fields have wrong types")
        if not isinstance(accepted_at, int) or not isinstance(offered_at, int):
            raise MemoryDamaged(name=name, path=path, reason="its fields have wrong types")
        return scope, kept_name, Remembered(parse_signed(signed), accepted_at, offered_at)
    except MemoryDamaged:
        raise
    except SwarmError as error:
        raise MemoryDamaged(name=name, path=path, reason=str(error)) from error


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
