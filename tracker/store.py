"""What a tracker must not forget: which operator key owns a name, signed manifests, bans, and proofs of them.

Everything else is rebuilt from heartbeats. A store is small and seldom written, so every write is synced
before it returns: after a crash what was acknowledged is there, and nothing is there by half.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swarm.errors import SwarmError
from swarm.wire.keys import PeerKey

FORMAT = 2
_PATIENCE_S = 0.5


class UnusableStore(SwarmError):
    """The tracker's store {path} cannot be used: {reason}. Move it away to begin anew (names become free
    again)."""


class StoreInUse(SwarmError):
    """The store {path} is used by another tracker; stop that one, or give this one another folder."""


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as it was accepted: the signed bytes, and how many experts each layer has, signed too."""

    root: bytes
    name: str
    version: int
    operator: bytes
    """The operator key that owns the name since this manifest was accepted."""
    signed: bytes
    experts_in_layer: tuple[int, ...]
    layout_signature: bytes


@dataclass(frozen=True, slots=True)
class StoredBan:
    """A ban, the digest of its proof, and the root of the model that this is about."""

    number: int
    key: PeerKey
    reason: str
    digest: bytes
    unix_s: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """The numbers of bans that are forgotten with their proofs, and of bans whose proofs alone are."""

    bans: Sequence[int] = ()
    proofs: Sequence[int] = ()


class Store(Protocol):
    """Where a tracker keeps what must outlive it. All methods block for as long as a disk takes."""

    def publish(self, manifest: StoredManifest, forgotten: Sequence[bytes]) -> None:
        """Keeps a manifest and binds its name to its operator, and drops the manifests with other roots."""

    def forget(self, roots: Sequence[bytes]) -> None:
        """Drops the manifests with these roots; a name without any is free."""

    def manifests(self) -> list[StoredManifest]:
        """All manifests, by name and version."""

    def ban(self, ban: StoredBan, proof: bytes, dropped: Dropped) -> None:
        """Keeps a ban and its proof in the place of others."""

    def drop(self, dropped: Dropped) -> None:
        """Forgets bans and proofs."""

    def bans(self) -> list[StoredBan]:
        """All bans, by number."""

    def proof(self, digest: bytes) -> bytes | None:
        """The proof with this digest, if it is kept."""

    def proof_bytes(self) -> dict[int, int]:
        """How long the proofs are that are kept, by the numbers of their bans, in order."""

    def close(self) -> None:
        """Ends the use of the store."""


class MemoryStore:
    """A store that is forgotten with the process: for tests and for trackers that live as long as a test."""

    def __init__(self) -> None:
        self._manifests: dict[bytes, StoredManifest] = {}
        self._bans: list[StoredBan] = []
        self._proofs: dict[int, bytes] = {}

    def publish(self, manifest: StoredManifest, forgotten: Sequence[bytes]) -> None:
        self.forget(forgotten)
        self._manifests[manifest.root] = manifest

    def forget(self, roots: Sequence[bytes]) -> None:
        for root in roots:
            self._manifests.pop(root, None)

    def manifests(self) -> list[StoredManifest]:
        return sorted(self._manifests.values(), key=lambda manifest: (manifest.name, manifest.version))

    def ban(self, ban: StoredBan, proof: bytes, dropped: Dropped) -> None:
        self.drop(dropped)
        self._bans.append(ban)
        self._proofs[ban.number] = proof

    def drop(self, dropped: Dropped) -> None:
        self._bans = [ban for ban in self._bans if ban.number not in dropped.bans]
        for number in (*dropped.bans, *dropped.proofs):
            self._proofs.pop(number, None)

    def bans(self) -> list[StoredBan]:
        return list(self._bans)

    def proof(self, digest: bytes) -> bytes | None:
        found = (self._proofs.get(ban.number) for ban in self._bans if ban.digest == digest)
        return next((proof for proof in found if proof is not None), None)

    def proof_bytes(self) -> dict[int, int]:
        return {number: len(proof) for number, proof in self._proofs.items()}

    def close(self) -> None:
        return


_MANIFESTS = """
CREATE TABLE manifests (
    root BLOB PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL, operator BLOB NOT NULL,
    signed BLOB NOT NULL, layout BLOB NOT NULL, layout_signature BLOB NOT NULL, UNIQUE (name, version));
"""
_BANS = """
CREATE TABLE bans (
    number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, reason TEXT NOT NULL, digest BLOB NOT NULL,
    unix_s INTEGER NOT NULL, root BLOB NOT NULL);
CREATE INDEX bans_by_digest ON bans (digest);
CREATE TABLE proofs (number INTEGER PRIMARY KEY, proof BLOB NOT NULL);
"""
_BANS_OF_FORMAT_1 = f"""
ALTER TABLE bans RENAME TO old_bans;
{_BANS}
INSERT INTO bans SELECT number, key, reason, digest, unix_s, x'' FROM old_bans;
INSERT INTO proofs SELECT number, proof FROM old_bans;
DROP TABLE old_bans;
"""
"""Proofs stood beside their bans, which did not say what model they were about."""
_STEPS = {0: _MANIFESTS + _BANS, 1: _BANS_OF_FORMAT_1}
"""What makes a file of `FORMAT` from an empty one, or from one of an earlier format."""


class SqliteStore:
    """A store in one SQLite file (0600). Methods may be called from any thread, one at a time is let in."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file. Raises UnusableStore, StoreInUse."""
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._database = sqlite3.connect(
                path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise UnusableStore(path=path, reason=error) from error
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        with self._errors():
            # One process a file: a second tracker would hand out names that the first has given away.
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = DELETE")
            self._database.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                (version,) = self._database.execute("PRAGMA user_version").fetchone()
                if version in _STEPS:
                    for statement in _STEPS[version].split(";"):
                        self._database.execute(statement)
                    self._database.execute(f"PRAGMA user_version = {FORMAT}")
                elif version != FORMAT:
                    reason = f"it has format {version}, this software writes {FORMAT}"
                    raise UnusableStore(path=self._path, reason=reason)

    def publish(self, manifest: StoredManifest, forgotten: Sequence[bytes]) -> None:
        layout = b"".join(count.to_bytes(2, "big") for count in manifest.experts_in_layer)
        with self._errors(), self._transaction():
            self._delete(forgotten)
            self._database.execute(
                "INSERT OR REPLACE INTO manifests VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    manifest.root,
                    manifest.name,
                    manifest.version,
                    manifest.operator,
                    manifest.signed,
                    layout,
                    manifest.layout_signature,
                ),
            )

    def forget(self, roots: Sequence[bytes]) -> None:
        with self._errors(), self._transaction():
            self._delete(roots)

    def _delete(self, roots: Sequence[bytes]) -> None:
        self._database.executemany("DELETE FROM manifests WHERE root = ?", [(root,) for root in roots])

    def manifests(self) -> list[StoredManifest]:
        with self._errors(), self._lock:
            rows = self._database.execute(
                "SELECT root, name, version, operator, signed, layout, layout_signature"
                " FROM manifests ORDER BY name, version"
            ).fetchall()
        return [
            StoredManifest(root, name, version, operator, signed, _counts(layout), layout_signature)
            for root, name, version, operator, signed, layout, layout_signature in rows
        ]

    def ban(self, ban: StoredBan, proof: bytes, dropped: Dropped) -> None:
        with self._errors(), self._transaction():
            self._drop(dropped)
            self._database.execute(
                "INSERT INTO bans VALUES (?, ?, ?, ?, ?, ?)",
                (ban.number, ban.key, ban.reason, ban.digest, ban.unix_s, ban.root),
            )
            self._database.execute("INSERT INTO proofs VALUES (?, ?)", (ban.number, proof))

    def drop(self, dropped: Dropped) -> None:
        with self._errors(), self._transaction():
            self._drop(dropped)

    def _drop(self, dropped: Dropped) -> None:
        self._database.executemany("DELETE FROM bans WHERE number = ?", [(one,) for one in dropped.bans])
        without = [(one,) for one in (*dropped.bans, *dropped.proofs)]
        self._database.executemany("DELETE FROM proofs WHERE number = ?", without)

    def bans(self) -> list[StoredBan]:
        with self._errors(), self._lock:
            rows = self._database.execute(
                "SELECT number, key, reason, digest, unix_s, root FROM bans ORDER BY number"
            ).fetchall()
        return [StoredBan(*row) for row in rows]

    def proof(self, digest: bytes) -> bytes | None:
        with self._errors(), self._lock:
            row = self._database.execute(
                "SELECT proof FROM bans JOIN proofs USING (number) WHERE digest = ?", (digest,)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def proof_bytes(self) -> dict[int, int]:
        with self._errors(), self._lock:
            rows = self._database.execute(
                "SELECT number, length(proof) FROM proofs ORDER BY number"
            ).fetchall()
        return dict(rows)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreInUse(path=self._path) from error
            raise UnusableStore(path=self._path, reason=error) from error


def _counts(layout: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(layout[place : place + 2], "big") for place in range(0, len(layout), 2))
