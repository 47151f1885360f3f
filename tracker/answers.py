"""The tracker's answers about holdings: who serves what, what a donor should hold, which models there are."""

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.codec import BadMessage
from swarm.wire.messages.tracker import (
    MAX_HOLDERS_BYTES,
    MAX_MODELS_LISTED,
    AssignChunks,
    Assigned,
    AssignExperts,
    ChunkHolder,
    ChunkHolders,
    Contact,
    ExpertHolder,
    ExpertHolders,
    FindChunks,
    FindExperts,
    Held,
    HoldChunks,
    HoldExperts,
    ListModels,
    Models,
    split_parts,
)
from swarm.wire.rpc import Buffer, Handlers, Peer
from tracker.assignment import assign_chunks, assign_experts, turn_of
from tracker.catalogue import Catalogue
from tracker.clock import Clock
from tracker.holdings import Holdings
from tracker.registry import LOOPBACK, Entry, Registry, TooManyHoldings
from tracker.relay import Relay

MODELS_A_PEER = 64
_ROOT_BYTES = 32
UNKNOWN_PLACE = Address("0.0.0.0", 0)


class HoldingsOutOfStep(SwarmError):
    """The tracker knows the holdings of peer {peer} at revision {known}, not {base}; send the whole set."""


class Answers:
    """The handlers of Hold, Find, Assign and ListModels."""

    def __init__(self, catalogue: Catalogue, registry: Registry, relay: Relay, clock: Clock) -> None:
        self._catalogue = catalogue
        self._registry = registry
        self._relay = relay
        self._clock = clock
        self._turn = 0

    def handlers(self) -> Handlers:
        """What to answer, by the type of the message."""
        return {
            HoldChunks: self.hold_chunks,
            HoldExperts: self.hold_experts,
            FindChunks: self.find_chunks,
            FindExperts: self.find_experts,
            AssignChunks: self.assign_chunks,
            AssignExperts: self.assign_experts,
            ListModels: self.list_models,
        }

    async def hold_chunks(self, caller: Peer, message: HoldChunks, payload: Buffer) -> tuple[Held, bytes]:
        """Replaces or changes the chunks that a peer serves."""
        entry = self._registry.entry(caller.key, message.generation)
        chunks = self._catalogue.model(message.root).chunks
        parts = split_parts(payload, message.parts, message.kind)
        if len(parts) != (2 if message.base else 1):
            raise BadMessage(message=message.kind, reason="a change has two sets, a whole one has one")
        sets = [IndexSet.decode(part, chunks.total) for part in parts]
        if message.base:
            if message.base != entry.revision:
                raise HoldingsOutOfStep(peer=caller.key, known=entry.revision, base=message.base)
            held = (chunks.served.held(caller.key) | sets[0]) - sets[1]
        else:
            held = sets[0]
        self._note(entry, message.root)
        self._account(entry, message.root, chunks.memory_when_serving(caller.key, held))
        chunks.serve(caller.key, held, self._clock.monotonic_s())
        entry.revision = message.revision
        return Held(message.revision), b""

    async def hold_experts(self, caller: Peer, message: HoldExperts, payload: Buffer) -> tuple[Held, bytes]:
        """Replaces the experts that a peer answers for."""
        entry = self._registry.entry(caller.key, message.generation)
        model = self._catalogue.model(message.root)
        ready, resident = (
            IndexSet.decode(part, model.layout.total)
            for part in split_parts(payload, message.parts, message.kind)
        )
        if not resident <= ready:
            raise BadMessage(message=message.kind, reason="an expert is in RAM and not ready")
        self._note(entry, message.root)
        experts = self._profile(entry, message.root, message.profile)
        in_ram = resident.encode()
        size = experts.memory_when_serving(caller.key, ready, in_ram)
        self._account(entry, message.root + message.profile, size)
        experts.serve(caller.key, ready, self._clock.monotonic_s())
        experts.resident[caller.key] = in_ram
        if message.last_resort:
            experts.last_resort.add(caller.key)
        else:
            experts.last_resort.discard(caller.key)
        entry.revision = message.revision
        return Held(message.revision), b""

    async def find_chunks(
        self, caller: Peer, message: FindChunks, payload: Buffer
    ) -> tuple[ChunkHolders, bytes]:
        """Who serves chunks of a model."""
        chunks = self._catalogue.model(message.root).chunks
        wanted = _wanted(payload, chunks.total)
        found, complete = self._holders(caller, chunks, wanted, message.most)
        holders: list[ChunkHolder] = []
        parts: list[bytes] = []
        room = MAX_HOLDERS_BYTES
        for contact, part in zip(found, _parts(chunks, found, wanted), strict=True):
            room -= len(part)
            if room < 0:
                complete = False
                break
            holders.append(ChunkHolder(contact, len(part), contact.key in chunks.donors))
            parts.append(part)
        return ChunkHolders(tuple(holders), cut=not complete), b"".join(parts)

    async def find_experts(
        self, caller: Peer, message: FindExperts, payload: Buffer
    ) -> tuple[ExpertHolders, bytes]:
        """Who runs experts of a model."""
        model = self._catalogue.model(message.root)
        wanted = _wanted(payload, model.layout.total)
        experts = model.experts.get(message.profile)
        if experts is None:
            return ExpertHolders((), cut=False), b""
        found, complete = self._holders(caller, experts, wanted, message.most)
        holders: list[ExpertHolder] = []
        parts: list[bytes] = []
        room = MAX_HOLDERS_BYTES
        for contact, ready in zip(found, _parts(experts, found, wanted), strict=True):
            entry = self._registry.get(contact.key)
            resident = experts.resident.get(contact.key, EMPTY.encode())
            if len(wanted) < model.layout.total:
                resident = (IndexSet.restore(resident) & wanted).encode()
            room -= len(ready) + len(resident)
            if entry is None or room < 0:
                complete = False
                break
            last_resort = contact.key in experts.last_resort
            figures = (entry.service_us, entry.queue, len(ready), len(resident))
            holders.append(ExpertHolder(contact, last_resort, *figures))
            parts += ready, resident
        return ExpertHolders(tuple(holders), cut=not complete), b"".join(parts)

    async def assign_chunks(
        self, caller: Peer, message: AssignChunks, payload: Buffer
    ) -> tuple[Assigned, bytes]:
        """What a disk donor should hold."""
        entry = self._registry.entry(caller.key, message.generation)
        chunks = self._catalogue.model(message.root).chunks
        kept = IndexSet.decode(payload, chunks.total)
        assigned = assign_chunks(
            chunks.told.partial_replicas(without=caller.key),
            chunks.served.partial_replicas(without=caller.key),
            kept,
            message.capacity,
            turn_of(caller.key),
        )
        self._note(entry, message.root)
        self._account(entry, message.root, chunks.memory_when_told(caller.key, assigned))
        chunks.tell(caller.key, assigned, self._clock.monotonic_s())
        return Assigned(), assigned.encode()

    async def assign_experts(
        self, caller: Peer, message: AssignExperts, payload: Buffer
    ) -> tuple[Assigned, bytes]:
        """What a compute donor should hold."""
        entry = self._registry.entry(caller.key, message.generation)
        model = self._catalogue.model(message.root)
        kept = IndexSet.decode(payload, model.layout.total)
        experts = self._profile(entry, message.root, message.profile)
        assigned = assign_experts(
            model.layout,
            experts.told.partial_replicas(without=caller.key),
            experts.served.partial_replicas(without=caller.key),
            kept,
            message.capacity,
            turn_of(caller.key),
        )
        self._note(entry, message.root)
        size = experts.memory_when_told(caller.key, assigned)
        self._account(entry, message.root + message.profile, size)
        experts.tell(caller.key, assigned, self._clock.monotonic_s())
        return Assigned(), assigned.encode()

    async def list_models(self, caller: Peer, message: ListModels, payload: Buffer) -> tuple[Models, bytes]:
        """The newest version of each model, with its coverage."""
        models, more = self._catalogue.newest(message.after, MAX_MODELS_LISTED)
        return Models(tuple(model.summary() for model in models), more, self._catalogue.revision), b""

    def _holders(
        self, caller: Peer, holdings: Holdings, wanted: IndexSet, most: int
    ) -> tuple[list[Contact], bool]:
        near = caller.address is not None and caller.address.is_loopback
        now_s = self._clock.monotonic_s()
        contacts: dict[PeerKey, Contact] = {}

        def usable(peer: PeerKey, doubtful: bool = False) -> bool:
            entry = self._registry.get(peer)
            if entry is None or peer == caller.key or (entry.is_doubtful(now_s) and not doubtful):
                return False
            contact = self._registry.contact(peer, near, self._relay.reaches(peer))
            if contact is None:
                return False
            contacts[peer] = contact
            return True

        self._turn += 1
        chosen, complete = holdings.served.holders(wanted, most, self._turn, usable=usable)
        if not complete and len(chosen) < most:
            # What only doubtful peers hold is better asked of them than of nobody.
            more, complete = holdings.served.holders(
                wanted, most, self._turn, depth=1, usable=lambda peer: usable(peer, doubtful=True)
            )
            chosen += [peer for peer in more if peer not in chosen]
            complete = complete and len(chosen) <= most
        return [contacts[peer] for peer in chosen[:most]], complete

    def _profile(self, entry: Entry, root: bytes, profile: bytes) -> Holdings:
        """The experts of a profile, the only one of this model that the peer counts in from now on."""
        model = self._catalogue.model(root)
        left = model.leave_others(entry.key, profile)
        self._registry.discount(entry, [root + other for other in left])
        return model.profile(profile, None if entry.network == LOOPBACK else entry.network)

    def _account(self, entry: Entry, subject: bytes, size: int) -> None:
        """Notes the memory of a peer's sets about a model (and a profile), and none of what models took that are
        gone. TooManyHoldings."""
        gone = [one for one in entry.set_bytes if one[:_ROOT_BYTES] not in self._catalogue]
        self._registry.discount(entry, gone)
        self._registry.account(entry, subject, size)

    def _note(self, entry: Entry, root: bytes) -> None:
        roots = self._catalogue.roots_of(entry.key)
        if root not in roots and len(roots) >= MODELS_A_PEER:
            raise TooManyHoldings(peer=entry.key, what=f"parts of {MODELS_A_PEER} models of one peer")
        self._catalogue.note(entry.key, root)


def _parts(holdings: Holdings, found: list[Contact], wanted: IndexSet) -> list[bytes]:
    return holdings.served.parts([contact.key for contact in found], wanted)


def _wanted(payload: Buffer, total: int) -> IndexSet:
    """The set that a question is about; an empty payload means all. MalformedHoldings."""
    return IndexSet.decode(payload, total) if len(payload) else IndexSet.full(total)
