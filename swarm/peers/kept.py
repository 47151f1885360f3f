"""What is kept on this machine of the swarms it joined: models, and how much of each is here."""

from collections.abc import Iterable
from dataclasses import dataclass

from mirror.cas import TAG_BYTES, Store
from swarm.peers.known import KnownTrackers
from swarm.peers.settings import Home
from swarm.trust.manifest import Manifest
from swarm.trust.memory import Memory, Remembered


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model that was accepted, and how many of its bytes are in the store."""

    remembered: Remembered
    here_bytes: int

    @property
    def manifest(self) -> Manifest:
        """The manifest that was accepted last."""
        return self.remembered.manifest


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything in the store."""

    models: tuple[KeptModel, ...]
    used_bytes: int
    """All chunks."""
    orphan_bytes: int
    """Those that belong to no model that was accepted: earlier versions, models that were forgotten."""


def accepted(home: Home) -> list[Remembered]:
    """The manifests accepted last, of all swarms, by name. Raises KnownTrackersDamaged, MemoryDamaged."""
    memory = Memory(home.manifests)
    found = [
        item for key in KnownTrackers(home.known_trackers).all_keys() for item in memory.everything(key.hex())
    ]
    return sorted(found, key=lambda item: (item.manifest.name, item.manifest.root))


def addresses(models: Iterable[Remembered]) -> set[bytes]:
    """The sha256 of every chunk of these models."""
    return {digest for item in models for entry in item.manifest.files for digest in entry.chunks}


def take_stock(home: Home, store: Store) -> Inventory:
    """Counts what is in the store, unchecked. Raises KnownTrackersDamaged, MemoryDamaged, OSError."""
    models = accepted(home)
    sizes = {kept.address: kept.bytes - TAG_BYTES for kept in store.kept()}
    wanted = addresses(models)
    return Inventory(
        models=tuple(
            KeptModel(item, sum(sizes.get(address, 0) for address in addresses([item]))) for item in models
        ),
        used_bytes=sum(sizes.values()),
        orphan_bytes=sum(size for address, size in sizes.items() if address not in wanted),
    )
