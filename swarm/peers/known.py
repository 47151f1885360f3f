"""Trackers met before, by address: one is believed to be itself only with the key it had the first time."""

import json
from pathlib import Path

from swarm.errors import SwarmError
from swarm.trust.files import locked, write_atomically
from swarm.wire.address import Address
from swarm.wire.keys import KEY_BYTES, PeerKey


class KnownTrackersDamaged(SwarmError):
    """{path} cannot be read ({reason}). Restore it, or delete it to trust the trackers you meet anew."""


class KnownTrackers:
    """The keys in one file. A missing file is empty; a damaged one is an error, never a first meeting."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def key(self, address: Address) -> PeerKey | None:
        """The key a tracker had, or None when it was never met. Raises KnownTrackersDamaged."""
        return self._load().get(str(address))

    def remember(self, address: Address, key: PeerKey) -> None:
        """Takes a tracker's key as its own from now on. Raises KnownTrackersDamaged, OSError."""
        if self.key(address) == key:
            return  # also where nothing can be written
        with locked(self._path.with_suffix(".lock")):
            known = self._load() | {str(address): key}
            content = json.dumps({place: known[place].hex() for place in sorted(known)}, indent=1)
            write_atomically(self._path, content.encode() + b"\n")

    def all_keys(self) -> tuple[PeerKey, ...]:
        """All keys, each once, sorted. Raises KnownTrackersDamaged."""
        return tuple(sorted(set(self._load().values())))

    def _load(self) -> dict[str, PeerKey]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KnownTrackersDamaged(path=self._path, reason=error.strerror) from error
        try:
            known = {place: PeerKey(bytes.fromhex(key)) for place, key in json.loads(content).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise KnownTrackersDamaged(path=self._path, reason=error) from error
        if any(len(key) != KEY_BYTES for key in known.values()):
            raise KnownTrackersDamaged(path=self._path, reason="a key in it has a wrong length")
        return known
