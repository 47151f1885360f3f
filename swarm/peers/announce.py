"""Being known at a tracker: registering, publishing manifests, saying what is held, and signs of life.

One `Announcer` a process. It never gives up: when the tracker is gone it keeps serving whoever knows it, and
registers again as soon as the tracker answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from swarm.errors import SwarmError
from swarm.pauses import pause_s
from swarm.peers.executor import Executor, figures
from swarm.peers.operator import Publication
from swarm.peers.tracking import TrackerClient, ask_again
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    Heartbeat,
    HeartbeatSeen,
    Held,
    HoldChunks,
    HoldExperts,
    LeaveSwarm,
    ManifestPublished,
    PeerRegistered,
    PublishManifest,
    ReachTried,
    RegisterPeer,
    TryReach,
    join_parts,
)
from swarm.wire.rpc import RemoteError
from tracker.catalogue import OldVersion, UnknownModel

AGENT = "swarm/1"
RETRY_S = 5.0
FIRST_REACH_S = 60.0
LONGEST_REACH_S = 900.0
"""Pauses before the tracker is asked to dial back again, where it did not reach us."""
LEAVE_S = 2.0


class TrackerRefused(SwarmError):
    """The tracker {tracker} did not take the manifest of “{model}”; it may run another version of Swarm."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How others may reach this peer."""

    port: int
    """Where it listens, at whatever address it calls the tracker from; 0: nowhere."""
    addresses: tuple[str, ...] = ()
    """Addresses that the user advertises."""
    local: bool = False
    """It listens on the loopback interface only."""


@dataclass
class Standing:
    """What the tracker says of this peer."""

    registered: bool = False
    address: str = ""
    """Where others are told to reach it; empty: through the relay only."""
    obstacle: str = ""
    """Why there is no such address."""
    problem: str = ""
    """Why it is not registered now."""


@dataclass
class Announcer:
    """Keeps one peer known at a tracker. `changed` after a change of publications or of what is held."""

    tracker: TrackerClient
    reach: Reach
    publications: list[Publication] = field(default_factory=list)
    held: dict[bytes, Callable[[], IndexSet]] = field(default_factory=dict)
    """By root: the chunks that are served now."""
    executor: Executor | None = None
    """Whose banks are announced too, and its figures told with every heartbeat."""
    on_seen: Callable[[HeartbeatSeen], None] = lambda _: None
    """Told of each answer to a heartbeat."""
    standing: Standing = field(default_factory=Standing)
    on_change: Callable[[Standing], None] = lambda _: None
    generation: int = 0
    """Of the last registration."""
    _revision: int = 0
    _sequence: int = 0
    _published: set[bytes] = field(default_factory=set)
    _wake: trio.Event = field(default_factory=trio.Event)
    _stood: trio.Event = field(default_factory=trio.Event)
    _tries: int = 0
    """How often the tracker did not reach us since we registered."""
    _try_at: float = 0.0

    def changed(self) -> None:
        """Tells the tracker soon what is published and held now."""
        self._wake.set()

    async def registered(self, but: int = 0) -> int:
        """Waits for a registration, another than `but`; gives its generation."""
        while not self.standing.registered or self.generation == but:
            await self._stood.wait()
        return self.generation

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Registers and stays registered until cancelled; then leaves. Started once it is registered.

        Raises:
            SwarmError: the first registration failed. Later failures are told to `on_change` and tried again.
        """
        interval_s = await self._register()
        task_status.started()
        try:
            while True:
                try:
                    await self._stay(interval_s)
                except SwarmError as error:
                    self._stand(Standing(problem=str(error)))
                    interval_s = await self._register_again()
        finally:
            with trio.move_on_after(LEAVE_S, shield=True):
                await self._leave()

    async def _register_again(self) -> float:
        while True:
            try:
                return await self._register()
            except SwarmError as error:
                self._stand(Standing(problem=str(error)))
                await trio.sleep(RETRY_S)

    async def _register(self) -> float:
        """Everything the tracker should know, from nothing; the seconds between heartbeats."""
        request = RegisterPeer(AGENT, self.reach.addresses, self.reach.port, self.reach.local)
        answer = (await self.tracker.ask(request, PeerRegistered)).message
        self.generation, self._revision, self._sequence = answer.generation, 0, 0
        self._published.clear()
        await self._tell()
        self._tries = 0
        self._reached(answer.address, answer.obstacle)
        return answer.heartbeat_ms / 1000

    async def _publish(self, publication: Publication) -> None:
        content = publication.signed.encode()
        for offset in range(0, len(content), PIECE_BYTES):
            request = PublishManifest(
                offset, len(content), publication.experts_in_layer, publication.layout_signature
            )
            piece = content[offset : offset + PIECE_BYTES]
            answer = (await ask_again(self.tracker, request, ManifestPublished, piece)).message
        if not answer.complete or answer.root != publication.root:
            raise TrackerRefused(tracker=self.tracker.address, model=publication.signed.manifest.name)

    async def _tell(self) -> None:
        for publication in list(self.publications):
            if publication.root in self._published:
                continue
            try:
                await self._publish(publication)
            except RemoteError as error:
                if error.remote_code != OldVersion.code or publication is self.publications[-1]:
                    raise
                self._retire(publication.root)
            else:
                self._published.add(publication.root)
        await self._hold()

    def _retire(self, root: bytes) -> None:
        """Tells nothing more of a version: the tracker keeps later ones only."""
        self.publications = [one for one in self.publications if one.root != root]
        self.held.pop(root, None)

    async def _hold(self) -> None:
        for root, held in list(self.held.items()):  # more may come meanwhile
            chunks = held()
            lengths, payload = join_parts([chunks.encode()])
            self._revision += 1
            request = HoldChunks(self.generation, self._revision, 0, root, lengths)
            try:
                await self.tracker.ask(request, Held, payload)
            except RemoteError as error:
                is_earlier = any(one.root == root for one in self.publications[:-1])
                if error.remote_code != UnknownModel.code or (chunks and not is_earlier):
                    raise
                self._retire(root)
        if self.executor is None:
            return
        for bank in self.executor.banks.values():
            sets = (EMPTY, EMPTY) if self.executor.paused else (bank.ready, bank.resident())
            lengths, payload = join_parts([one.encode() for one in sets])
            self._revision += 1
            profile = bank.profile
            told = HoldExperts(
                self.generation, self._revision, profile.root, profile.digest, bank.last_resort, lengths
            )
            await self.tracker.ask(told, Held, payload)

    async def _stay(self, interval_s: float) -> None:
        while True:
            with trio.move_on_after(interval_s):
                await self._wake.wait()
            if self._wake.is_set():
                self._wake = trio.Event()
                await self._tell()
            self._sequence += 1
            told = {} if self.executor is None else figures(self.executor.turns)
            beat = Heartbeat(self.generation, self._sequence, self._revision, **told)
            seen = (await self.tracker.ask(beat, HeartbeatSeen)).message
            self.on_seen(seen)
            if seen.resend:
                await self._hold()
            if trio.current_time() >= self._try_at:
                await self._try_reach()

    async def _try_reach(self) -> None:
        """Has the tracker dial back again: a port may have been opened since."""
        request = TryReach(self.generation, self.reach.addresses, self.reach.port)
        try:
            answer = (await self.tracker.ask(request, ReachTried)).message
        except RemoteError:  # it has no time, or is too old for that
            self._reached("", self.standing.obstacle)
        else:
            self._reached(answer.address, answer.obstacle)

    def _reached(self, address: str, obstacle: str) -> None:
        nowhere = not self.reach.port and not self.reach.addresses
        pause = pause_s(FIRST_REACH_S, self._tries, LONGEST_REACH_S)
        self._try_at = math.inf if address or nowhere else trio.current_time() + pause
        self._tries += 1
        self._stand(Standing(True, address, obstacle))

    async def _leave(self) -> None:
        if self.standing.registered:
            try:
                await self.tracker.notify(LeaveSwarm(self.generation))
            except SwarmError:
                return  # it will find out by our silence

    def _stand(self, standing: Standing) -> None:
        if standing != self.standing:
            self.standing = standing
            self._stood.set()
            self._stood = trio.Event()
            self.on_change(standing)
