"""The models a tracker knows, by root and by name, with the index of who holds what of each. Pure.

The first operator key that publishes under a name owns it. A later manifest is accepted when its keyring
follows from the one before and its version is higher; the last few versions stay, for those in the middle of
a reply.

The experts of a model are indexed for each numeric profile. `served` is what peers say they serve; `told`
adds what donors were told to hold and do not yet, so donors that come together are not all given the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from swarm.errors import SwarmError
from swarm.trust.keyring import Keyring
from swarm.trust.manifest import SignedManifest
from swarm.wire.holdings import ExpertLayout, IndexSet
from swarm.wire.keys import BadSignature, PeerKey, verify
from swarm.wire.messages.tracker import ExpertCoverage, ModelSummary, layout_statement
from tracker.index import HoldingIndex
from tracker.store import StoredManifest

MAX_CHUNKS = 1 << 21
VERSIONS_KEPT = 3
MAX_NAMES = 256
MAX_PROFILES = 4
PROMISE_S = 600.0


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


class TooManyModels(SwarmError):
    """This tracker has no room for {what}; its limit is {limit}."""


@dataclass
class Holdings:
    """Who serves indices of one kind (chunks, or experts of a profile), and who was told to."""

    total: int
    served: HoldingIndex[PeerKey] = field(init=False)
    told: HoldingIndex[PeerKey] = field(init=False)
    resident: dict[PeerKey, bytes] = field(default_factory=dict)
    """Of the experts a peer serves, those in its RAM, encoded."""
    last_resort: set[PeerKey] = field(default_factory=set)
    donors: set[PeerKey] = field(default_factory=set)
    """Those that hold what they were told."""
    promised_s: dict[PeerKey, float] = field(default_factory=dict)
    """When a donor that does not serve all of it yet was told, or last served more."""

    def __post_init__(self) -> None:
        self.served = HoldingIndex(self.total)
        self.told = HoldingIndex(self.total)

    def serve(self, peer: PeerKey, held: IndexSet, now_s: float) -> None:
        """Replaces what a peer serves. ValueError for an index beyond the last."""
        more = not held <= self.served.held(peer)
        self.served.set(peer, held)
        self.told.set(peer, held | self.told.held(peer) if peer in self.donors else held)
        if peer in self.promised_s and self.told.held(peer) == held:
            del self.promised_s[peer]
        elif peer in self.promised_s and more:
            self.promised_s[peer] = now_s

    def tell(self, peer: PeerKey, assigned: IndexSet, now_s: float) -> None:
        """Replaces what a peer was told to hold."""
        self.donors.add(peer)
        self.told.set(peer, assigned)
        if assigned <= self.served.held(peer):
            self.promised_s.pop(peer, None)
        else:
            self.promised_s[peer] = now_s

    def release(self, now_s: float) -> None:
        """Counts no more on donors that were told to hold something and do not come nearer to it."""
        for peer in [peer for peer, then_s in self.promised_s.items() if then_s + PROMISE_S <= now_s]:
            del self.promised_s[peer]
            self.told.set(peer, self.served.held(peer))

    def forget(self, peer: PeerKey) -> None:
        """Forgets a peer."""
        self.served.remove(peer)
        self.told.remove(peer)
        self.resident.pop(peer, None)
        self.last_resort.discard(peer)
        self.donors.discard(peer)
        self.promised_s.pop(peer, None)


@dataclass
class Model:
    """One version of a model."""

    stored: StoredManifest
    keyring: Keyring
    chunk_count: int
    model_bytes: int
    layout: ExpertLayout
    chunks: Holdings = field(init=False)
    experts: dict[bytes, Holdings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chunks = Holdings(self.chunk_count)

    def profile(self, profile: bytes) -> Holdings:
        """The experts of a numeric profile. TooManyModels when there are many already."""
        holdings = self.experts.get(profile)
        if holdings is None:
            if len(self.experts) >= MAX_PROFILES:
                for unused in [key for key, known in self.experts.items() if not len(known.told)]:
                    del self.experts[unused]
            if len(self.experts) >= MAX_PROFILES:
                raise TooManyModels(what="another numeric profile of one model", limit=MAX_PROFILES)
            holdings = self.experts[profile] = Holdings(self.layout.total)
        return holdings

    def holdings(self) -> Iterator[Holdings]:
        """The chunks, and the experts of each profile."""
        yield self.chunks
        yield from self.experts.values()

    def summary(self) -> ModelSummary:
        """What a list of models says of it."""
        covered = self.chunks.served.coverage()
        coverage = []
        for profile, experts in sorted(self.experts.items()):
            if not len(experts.served):
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


class Catalogue:
    """All models. `revision` counts what was published."""

    def __init__(self) -> None:
        self.revision = 0
        self._models: dict[bytes, Model] = {}
        self._names: dict[str, list[Model]] = {}
        self._peers: dict[PeerKey, set[bytes]] = {}

    def model(self, root: bytes) -> Model:
        """The model with this root. UnknownModel when there is none."""
        model = self._models.get(root)
        if model is None:
            raise UnknownModel(root=root)
        return model

    def newest(self, after: str, most: int) -> tuple[list[Model], bool]:
        """The newest versions of at most `most` names after `after`, and whether there are more."""
        names = sorted(name for name in self._names if name > after)
        return [self._names[name][-1] for name in names[:most]], len(names) > most

    def check(
        self,
        signed: SignedManifest,
        encoded: bytes,
        layout: tuple[int, ...],
        layout_signature: bytes,
        unix_s: float,
    ) -> tuple[StoredManifest, list[bytes]] | None:
        """What to store for a verified manifest and which roots to drop; None when it is known already.

        Raises NameTaken, OldVersion, ManifestExpired, BadLayout, TooManyModels.
        """
        manifest = signed.manifest
        name, version, root = manifest.name, manifest.version, manifest.root
        versions = self._names.get(name, [])
        if versions:
            newest = versions[-1]
            if not signed.keyring.follows(newest.keyring):
                raise NameTaken(name=name, owner=newest.keyring.latest)
            if root == newest.stored.root and signed.keyring == newest.keyring:
                return None
            if version < newest.stored.version or (
                version == newest.stored.version and root != newest.stored.root
            ):
                raise OldVersion(name=name, version=version, highest=newest.stored.version)
        elif len(self._names) >= MAX_NAMES:
            raise TooManyModels(what="another model", limit=MAX_NAMES)
        if manifest.expires <= unix_s:
            raise ManifestExpired(name=name)
        chunks = sum(len(entry.chunks) for entry in manifest.files)
        if chunks > MAX_CHUNKS:
            raise TooManyModels(what=f"a model of {chunks} chunks", limit=MAX_CHUNKS)
        if sum(layout) > MAX_CHUNKS:
            raise BadLayout(name=name, reason=f"it has more than {MAX_CHUNKS} experts")
        try:
            verify(signed.signer, layout_statement(root, layout), layout_signature)
        except BadSignature:
            raise BadLayout(
                name=name, reason="the operator that signed the manifest did not sign it"
            ) from None
        stored = StoredManifest(root, name, version, signed.keyring.latest, encoded, layout, layout_signature)
        kept = [model.stored.root for model in versions if model.stored.root != root]
        return stored, kept[: max(0, len(kept) - VERSIONS_KEPT + 1)]

    def add(self, stored: StoredManifest, signed: SignedManifest) -> Model:
        """Makes a stored manifest known; a version beyond those kept falls out."""
        files = signed.manifest.files
        chunks = sum(len(entry.chunks) for entry in files)
        model = Model(
            stored, signed.keyring, chunks, signed.manifest.total_bytes, ExpertLayout(stored.experts_in_layer)
        )
        known = self._models.get(stored.root)
        if known is not None:  # the same files under a newer keyring: who holds them stays
            model.chunks, model.experts = known.chunks, known.experts
        versions = [other for other in self._names.get(stored.name, []) if other.stored.root != stored.root]
        versions = sorted([*versions, model], key=lambda other: other.stored.version)
        for old in versions[:-VERSIONS_KEPT]:
            del self._models[old.stored.root]
        self._names[stored.name] = versions[-VERSIONS_KEPT:]
        self._models[stored.root] = model
        self.revision += 1
        return model

    def release(self, now_s: float) -> None:
        """Counts no more on donors that do not come nearer to what they were told to hold."""
        for model in self._models.values():
            for holdings in model.holdings():
                holdings.release(now_s)

    def note(self, peer: PeerKey, root: bytes) -> None:
        """Remembers that a peer has something to do with a model, so that it can be forgotten."""
        self._peers.setdefault(peer, set()).add(root)

    def roots_of(self, peer: PeerKey) -> set[bytes]:
        """The models a peer has something to do with."""
        return self._peers.get(peer, set())

    def forget(self, peer: PeerKey) -> None:
        """Forgets all that a peer holds."""
        for root in self._peers.pop(peer, set()):
            model = self._models.get(root)
            for holdings in model.holdings() if model else ():
                holdings.forget(peer)
