"""The models a tracker knows, by root and by name, with the index of who holds what of each. Pure.

The first operator key that publishes under a name owns it. A later manifest is accepted when its keyring
follows from the one before and its version is higher; the last few versions stay, for those in the middle of
a reply. A name is free again when nobody serves the model and its manifest counts no more, see `tracker.room`.

The experts of a model are indexed for each numeric profile (`tracker.holdings`). A peer counts in one profile of a
model, and a network adds few profiles: a donor of an invented one helps nobody.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from swarm.errors import SwarmError
from swarm.trust.keyring import Keyring
from swarm.trust.manifest import SignedManifest
from swarm.wire.holdings import ExpertLayout
from swarm.wire.keys import BadSignature, PeerKey, verify
from swarm.wire.messages.tracker import ExpertCoverage, ModelSummary, layout_statement
from tracker.holdings import Holdings
from tracker.room import ABSENT_S, COUNTS_S, GONE_S, STRANGERS, Kept, Room, to_drop
from tracker.store import StoredManifest

MAX_CHUNKS = 1 << 21
VERSIONS_KEPT = 3
MAX_PROFILES = 8
PROFILES_A_NETWORK = 2
PROFILES_LISTED = 4
_INDEX_BYTES = 2 * 4
"""What an index takes in `Holdings`: its counts of those who serve it, and of those told to."""


class UnknownModel(SwarmError):
    """This tracker knows no model with the manifest {root}; list its models again."""


class NameTaken(SwarmError):
    """The name “{name}” belongs to the operator key {owner} here; serve the model under another --name."""


class OldVersion(SwarmError):
    """Version {version} of “{name}” was refused: version {highest} has been published; sign a higher one."""


class ManifestExpired(SwarmError):
    """The manifest of “{name}” has expired; its operator must sign it again."""


class BadLayout(SwarmError):
    """The layout of experts of “{name}” was refused: {reason}."""


class ModelTooLarge(SwarmError):
    """The model “{name}” has {chunks} chunks; this tracker takes {limit} at most."""


class TooManyProfiles(SwarmError):
    """Nobody serves “{name}” in this numeric profile yet, and this tracker keeps no more than {limit} of
    them{whose}. Use the --weights and the version of Swarm that its other donors use."""


@dataclass(eq=False)
class Model:
    """One version of a model."""

    stored: StoredManifest
    keyring: Keyring
    chunk_count: int
    model_bytes: int
    layout: ExpertLayout
    issued: int
    expires: int
    chunks: Holdings = field(init=False)
    experts: dict[bytes, Holdings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chunks = Holdings(self.chunk_count)

    def profile(self, profile: bytes, network: str | None = None) -> Holdings:
        """The experts of a numeric profile, for a peer of a network. TooManyProfiles when it would be one more."""
        holdings = self.experts.get(profile)
        if holdings is None:
            for unused in [key for key, known in self.experts.items() if not len(known.told)]:
                del self.experts[unused]
            theirs = [
                known for known in self.experts.values() if network is not None and known.network == network
            ]
            if len(theirs) >= PROFILES_A_NETWORK:
                whose = f" from {network}"
                raise TooManyProfiles(name=self.stored.name, limit=PROFILES_A_NETWORK, whose=whose)
            if len(self.experts) >= MAX_PROFILES:
                raise TooManyProfiles(name=self.stored.name, limit=MAX_PROFILES, whose="")
            holdings = self.experts[profile] = Holdings(self.layout.total, network)
        return holdings

    def leave_others(self, peer: PeerKey, profile: bytes) -> list[bytes]:
        """Takes a peer out of all profiles but one, and names those it was in."""
        left = [key for key, one in self.experts.items() if key != profile and peer in one.told]
        for key in left:
            self.experts[key].forget(peer)
        return left

    @property
    def is_served(self) -> bool:
        """Whether anybody serves anything of it."""
        return any(holdings.is_served for holdings in self.holdings())

    def counts(self, unix_s: float) -> bool:
        """Whether its manifest still gives a right to the name."""
        return self.issued <= unix_s < min(self.expires, self.issued + COUNTS_S)

    def kept(self, network: str | None) -> Kept:
        """What it takes here: the manifest, and what is counted of its chunks and experts."""
        return _kept(self.stored, self.chunk_count, network)

    def holdings(self) -> Iterator[Holdings]:
        """The chunks, and the experts of each profile."""
        yield self.chunks
        yield from self.experts.values()

    def summary(self) -> ModelSummary:
        """What a list of models says of it."""
        covered = self.chunks.served.coverage()
        coverage = []
        served = sorted(self.experts.items(), key=lambda one: len(one[1].served), reverse=True)
        for profile, experts in sorted(served[:PROFILES_LISTED]):
            if not experts.is_served:
                continue
            found = experts.served.coverage()
            coverage.append(ExpertCoverage(profile, len(experts.served), found.covered, found.least_replicas))
        return ModelSummary(
            name=self.stored.name,
            version=self.stored.version,
            root=self.stored.root,
            operator=PeerKey(self.stored.operator),
            manifest_bytes=len(self.stored.signed),
            model_bytes=self.model_bytes,
            chunks=self.chunk_count,
            holders=len(self.chunks.served),
            whole_holders=self.chunks.served.whole,
            covered_chunks=covered.covered,
            least_replicas=covered.least_replicas,
            experts=self.layout.total,
            coverage=tuple(coverage),
        )


@dataclass
class Name:
    """A name with the versions of it that are kept, the newest last."""

    versions: list[Model]
    network: str | None
    """Where the newest was published from; None: not bounded, or not known since this tracker started."""
    served_s: float
    """When anybody served it last, as far as is known."""


class Catalogue:
    """All models. `revision` counts what was published."""

    def __init__(self, room: Room = STRANGERS) -> None:
        self.revision = 0
        self._room = room
        self._models: dict[bytes, Model] = {}
        self._names: dict[str, Name] = {}
        self._peers: dict[PeerKey, set[bytes]] = {}

    def model(self, root: bytes) -> Model:
        """The model with this root. UnknownModel when there is none."""
        model = self._models.get(root)
        if model is None:
            raise UnknownModel(root=root)
        return model

    def __contains__(self, root: bytes) -> bool:
        return root in self._models

    def newest(self, after: str, most: int) -> tuple[list[Model], bool]:
        """The newest versions of at most `most` names after `after`, and whether there are more."""
        names = sorted(name for name in self._names if name > after)
        return [self._names[name].versions[-1] for name in names[:most]], len(names) > most

    def check(
        self,
        signed: SignedManifest,
        encoded: bytes,
        layout: tuple[int, ...],
        layout_signature: bytes,
        unix_s: float,
    ) -> StoredManifest | None:
        """What to store for a verified manifest; None when it is known already.

        Raises NameTaken, OldVersion, ManifestExpired, BadLayout, ModelTooLarge.
        """
        manifest = signed.manifest
        name, version, root = manifest.name, manifest.version, manifest.root
        known = self._names.get(name)
        if known is not None:
            if any(one.stored.root == root and one.keyring == signed.keyring for one in known.versions):
                return None
            newest = known.versions[-1]
            if not signed.keyring.follows(newest.keyring):
                raise NameTaken(name=name, owner=newest.keyring.latest)
            if version < newest.stored.version or (
                version == newest.stored.version and root != newest.stored.root
            ):
                raise OldVersion(name=name, version=version, highest=newest.stored.version)
        if manifest.expires <= unix_s:
            raise ManifestExpired(name=name)
        chunks = _chunks_of(signed)
        if chunks > MAX_CHUNKS:
            raise ModelTooLarge(name=name, chunks=chunks, limit=MAX_CHUNKS)
        if sum(layout) > MAX_CHUNKS:
            raise BadLayout(name=name, reason=f"it has more than {MAX_CHUNKS} experts")
        try:
            verify(signed.signer, layout_statement(root, layout), layout_signature)
        except BadSignature:
            raise BadLayout(
                name=name, reason="the operator that signed the manifest did not sign it"
            ) from None
        return StoredManifest(root, name, version, signed.keyring.latest, encoded, layout, layout_signature)

    def to_drop(
        self, stored: StoredManifest, signed: SignedManifest, network: str | None, now_s: float
    ) -> list[bytes]:
        """The roots to drop when a manifest that was checked is added. NoRoom."""
        known = self._names.get(stored.name)
        earlier = [one for one in known.versions if one.stored.root != stored.root] if known else []
        most = VERSIONS_KEPT - 1
        older = [one.kept(network) for one in earlier[-most:]]
        others = [
            one.kept(name.network)
            for key, name in self._names.items()
            if key != stored.name
            for one in name.versions
        ]
        gone = sorted(
            (name.served_s, key) for key, name in self._names.items() if name.served_s + GONE_S <= now_s
        )
        new = _kept(stored, _chunks_of(signed), network)
        dropped = to_drop(new, older, others, [key for _, key in gone], self._room)
        return [one.stored.root for one in earlier[:-most]] + dropped

    def add(self, stored: StoredManifest, signed: SignedManifest, network: str | None, now_s: float) -> Model:
        """Makes a stored manifest known, published from a network at a time."""
        manifest = signed.manifest
        model = Model(
            stored,
            signed.keyring,
            _chunks_of(signed),
            manifest.total_bytes,
            ExpertLayout(stored.experts_in_layer),
            manifest.issued,
            manifest.expires,
        )
        same = self._models.get(stored.root)
        if same is not None:  # the same files under a newer keyring: who holds them stays
            model.chunks, model.experts = same.chunks, same.experts
        known = self._names.setdefault(stored.name, Name([], network, now_s))
        versions = [one for one in known.versions if one.stored.root != stored.root]
        known.versions = sorted([*versions, model], key=lambda one: one.stored.version)
        known.network = network
        self._models[stored.root] = model
        self.revision += 1
        return model

    def came_from(self, name: str, network: str | None) -> None:
        """Notes where a known name is published from, if that is not known: it is not stored."""
        known = self._names[name]
        known.network = known.network or network

    def drop(self, roots: Iterable[bytes]) -> None:
        """Forgets models; a name without any is free."""
        for root in roots:
            model = self._models.pop(root, None)
            if model is None:
                continue
            name = self._names[model.stored.name]
            name.versions.remove(model)
            if not name.versions:
                del self._names[model.stored.name]

    def lapsed(self, unix_s: float, now_s: float) -> list[bytes]:
        """The roots of the names that are free: nobody serves them, and their manifests count no more."""
        return [
            model.stored.root
            for name in self._names.values()
            if name.served_s + ABSENT_S <= now_s and not name.versions[-1].counts(unix_s)
            for model in name.versions
        ]

    def release(self, now_s: float) -> None:
        """Counts no more on donors that do not come nearer to what they were told to hold, and notes which names
        are served. To be called often."""
        for model in self._models.values():
            for holdings in model.holdings():
                holdings.release(now_s)
        for name in self._names.values():
            if any(model.is_served for model in name.versions):
                name.served_s = now_s

    def note(self, peer: PeerKey, root: bytes) -> None:
        """Remembers that a peer has something to do with a model, so that it can be forgotten."""
        self._peers[peer] = self.roots_of(peer) | {root}  # none that are gone: versions come without end

    def roots_of(self, peer: PeerKey) -> set[bytes]:
        """The models a peer has something to do with."""
        return {root for root in self._peers.get(peer, ()) if root in self._models}

    def forget(self, peer: PeerKey) -> None:
        """Forgets all that a peer holds."""
        for root in self._peers.pop(peer, set()):
            model = self._models.get(root)
            for holdings in model.holdings() if model else ():
                holdings.forget(peer)


def _chunks_of(signed: SignedManifest) -> int:
    return sum(len(entry.chunks) for entry in signed.manifest.files)


def _kept(stored: StoredManifest, chunks: int, network: str | None) -> Kept:
    """What a version takes: its manifest, and what is counted of its chunks, and of its experts in each profile."""
    counted = chunks + MAX_PROFILES * sum(stored.experts_in_layer)
    return Kept(stored.root, stored.name, network, len(stored.signed) + _INDEX_BYTES * counted)
