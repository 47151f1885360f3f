"""Who in the swarm has a model's chunks: peers found through the tracker, asked over the wire."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mirror.errors import ReplicaBusy, ReplicaFailed, ReplicaLacks
from mirror.replica import Given
from mirror.tree import Chunk
from swarm.errors import SwarmError
from swarm.peers.doors import Doors, Through
from swarm.peers.links import Links
from swarm.peers.tracking import Holder, TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.data import Chunk as ChunkAnswer
from swarm.wire.messages.data import ReadChunk

# What a maintainer answers when it cannot give this chunk, now or for good.
_LACKING = frozenset({"chunk-not-here", "file-withdrawn", "not-served-here", "no-such-chunk"})
_PATIENCE_S = 1.0


@dataclass
class PeerReplica:
    """A peer that may give chunks of one model."""

    links: Links | Through
    address: Address
    peer_key: PeerKey
    root: bytes
    held: IndexSet = EMPTY
    given: Given = field(default_factory=Given)
    tier: int = 0
    lent: bool = False
    """It is a donor of disk, not a maintainer."""

    @property
    def key(self) -> PeerKey:
        """What it is known by."""
        return self.peer_key

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.address} ({self.peer_key.hex()[:8]})"

    async def fetch(self, chunk: Chunk) -> rpc.Buffer:
        """The bytes it claims are the chunk. Raises ReplicaBusy, ReplicaLacks, SwarmError."""
        self.given.in_hand += 1
        try:
            peer = await self.links.peer(self.address, self.peer_key)
            reply = await peer.request(ReadChunk(self.root, chunk.index))
        except rpc.RemoteError as error:
            if error.remote_code == rpc.Busy.code:
                wait_s = error.retry_after_s
                raise ReplicaBusy(
                    replica=self.name, reason=error, retry_after_s=_PATIENCE_S if wait_s is None else wait_s
                ) from error
            self.given.trouble = str(error)
            kind = ReplicaLacks if error.remote_code in _LACKING else ReplicaFailed
            raise kind(replica=self.name, chunk=chunk.index, path=chunk.path, reason=error) from error
        except SwarmError as error:
            self.given.trouble = str(error)
            raise
        finally:
            self.given.in_hand -= 1
        if not isinstance(reply.message, ChunkAnswer):
            raise ReplicaFailed(
                replica=self.name, chunk=chunk.index, path=chunk.path, reason="it answered something else"
            )
        self.given.bytes += len(reply.payload)
        self.given.chunks += 1
        self.given.trouble = ""
        return reply.payload


class SwarmReplicas:
    """The peers that serve one model, as the tracker told last; it is asked again when they all fail."""

    def __init__(
        self,
        tracker: TrackerClient,
        links: Links,
        root: bytes,
        chunk_count: int,
        doors: Doors | None = None,
    ) -> None:
        """`doors` lead to peers through the tracker's relay, too; None: `links` are the only way."""
        self._tracker = tracker
        self._doors = doors
        self._links = links
        self._root = root
        self._chunk_count = chunk_count
        self._replicas: dict[PeerKey, PeerReplica] = {}
        self._lacking: set[int] = set()
        self.accusations: list[str] = []

    @property
    def known(self) -> tuple[PeerReplica, ...]:
        """Everybody who was ever named, in a stable order."""
        return tuple(self._replicas[key] for key in sorted(self._replicas))

    def holders(self, chunk: Chunk) -> Sequence[PeerReplica]:
        """Those thought to have this chunk."""
        found = [replica for replica in self._replicas.values() if chunk.index in replica.held]
        if not found:
            self._lacking.add(chunk.index)
        return found

    async def refresh(self) -> None:
        """Asks the tracker who has what, and in particular who has the chunks that nobody was known to have.

        Raises:
            SwarmError: the tracker does not answer; nothing changed.
        """
        told = {holder.contact.key: holder for holder in await self._ask(None)}
        lacking = {index for index in self._lacking if not any(index in h.chunks for h in told.values())}
        if lacking:
            for holder in await self._ask(IndexSet.of(lacking)):
                before = told.get(holder.contact.key)
                chunks = holder.chunks | (before.chunks if before else EMPTY)
                told[holder.contact.key] = replace(holder, chunks=chunks)
        self._lacking.clear()
        for replica in self._replicas.values():
            replica.held = EMPTY
        self._take(told.values())

    async def look(self) -> None:
        """Takes in who came since and what they have by now. Who is not named stays as it was: a tracker that
        just began knows few.

        Raises:
            SwarmError: the tracker does not answer; nothing changed.
        """
        self._take(await self._ask(None))

    def _take(self, told: Iterable[Holder]) -> None:
        for holder in told:
            key = holder.contact.key
            links: Links | Through = self._links
            address = self._tracker.address_of(holder.contact)
            if holder.contact.relay and self._doors is not None:
                links, address = Through(self._doors, holder.contact), address or self._tracker.address
            if address is None:
                continue
            known = self._replicas.get(key)
            if known is None:
                known = self._replicas[key] = PeerReplica(links, address, key, self._root)
            known.links, known.address = links, address
            known.held, known.lent = holder.chunks, holder.lent

    def accuse(self, replica: object, chunk: Chunk, reason: str, banned_s: float) -> None:
        """Remembers what a peer did wrong, for whoever looks at the status."""
        assert isinstance(replica, PeerReplica)
        replica.given.accused(reason, banned_s)
        self.accusations.append(
            f"{replica.name} gave wrong bytes for chunk {chunk.index} of {chunk.path}: {reason}"
        )

    async def _ask(self, wanted: IndexSet | None) -> tuple[Holder, ...]:
        return await self._tracker.holders(self._root, wanted, self._chunk_count)
