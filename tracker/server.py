"""The tracker: puts register, catalogue, answers, judge and relay behind one set of handlers.

    async with open_tracker(keys, SqliteStore(path), psk=token) as tracker:
        await rpc.serve(listeners, keys, tracker.handlers(), psk=token)

The handlers may be merged with others' into one `rpc.serve`, so that one port serves everything. A tracker
knows who holds what and never holds a byte of a model; nobody has to believe what it says, for bytes are
checked against the operator's signature and answers by recomputation.
"""

import functools
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    GetManifest,
    GetProof,
    Heartbeat,
    HeartbeatSeen,
    LeaveSwarm,
    Left,
    PeerRegistered,
    ReachTried,
    RegisterPeer,
    TryReach,
)
from swarm.wire.rpc import Buffer, Busy, Handler, Peer
from tracker.answers import UNKNOWN_PLACE, Answers
from tracker.catalogue import Catalogue
from tracker.clock import Clock, SystemClock
from tracker.judge import Judge, Verifier
from tracker.publish import Publishing
from tracker.quota import Paces, Quotas, Rate
from tracker.reach import DialBack, Reach, dial_back_with, find_reach, plain
from tracker.registry import Limits, Registry, bounded_network
from tracker.relay import Relay, RelayLimits
from tracker.room import OPERATORS, STRANGERS, Room
from tracker.store import Store

SWEEP_S = 5.0
REQUESTS_A_KEY = Rate(per_second=100, burst=1000)
REQUESTS_A_NETWORK = Rate(per_second=1000, burst=10_000)
REGISTRATIONS_A_KEY = Rate(per_second=0.2, burst=20)
REGISTRATIONS_A_NETWORK = Rate(per_second=5, burst=512)
MOST_DIALLING = 256
"""Registrations whose addresses are tried at the same time: anybody can name addresses of others."""
DIALLING_HINT_S = 2.0
WORK_A_KEY = Rate(per_second=0.1, burst=2.0)
WORK_A_NETWORK = Rate(per_second=0.3, burst=6.0)
"""Seconds of this process. A question about holdings may take many milliseconds, where the model is large and its
holders have odd parts of it, and all others wait meanwhile."""
READ_A_KEY = Rate(per_second=4 << 20, burst=160 << 20)
READ_A_NETWORK = Rate(per_second=16 << 20, burst=640 << 20)
"""Bytes of manifests and proofs. The largest manifest has 64 MiB, and many behind one router may read one together."""


@dataclass(frozen=True)
class Options:
    """How much a tracker takes, and from whom."""

    limits: Limits = field(default_factory=Limits)
    relay: RelayLimits = field(default_factory=RelayLimits)
    requests_a_key: Rate = REQUESTS_A_KEY
    requests_a_network: Rate = REQUESTS_A_NETWORK
    registrations_a_key: Rate = REGISTRATIONS_A_KEY
    registrations_a_network: Rate = REGISTRATIONS_A_NETWORK
    work_a_key: Rate = WORK_A_KEY
    work_a_network: Rate = WORK_A_NETWORK
    read_a_key: Rate = READ_A_KEY
    read_a_network: Rate = READ_A_NETWORK
    operators: frozenset[bytes] | None = None
    """The operator keys that may publish models; None: whoever comes first to a name."""
    room: Room | None = None
    """How much is kept of models; None: as fits to who may publish."""


class Tracker:
    """A running tracker; made by `open_tracker`."""

    def __init__(
        self,
        store: Store,
        dial_back: DialBack,
        nursery: trio.Nursery,
        *,
        options: Options,
        verifier: Verifier | None,
        clock: Clock,
        first_generation: int,
    ) -> None:
        self._nursery = nursery
        self._clock = clock
        self._dial_back = dial_back
        self._requests = Quotas(options.requests_a_key, options.requests_a_network)
        self._registrations = Quotas(options.registrations_a_key, options.registrations_a_network)
        self._dialling = 0
        self._work = Paces(options.work_a_key, options.work_a_network)
        self._read = Paces(options.read_a_key, options.read_a_network)
        self._watched: dict[Peer, int] = {}
        self.catalogue = Catalogue(options.room or (STRANGERS if options.operators is None else OPERATORS))
        self.registry = Registry(options.limits, first_generation)
        self.relay = Relay(nursery, self.registry, clock, options.relay)
        self.judge = Judge(store, clock, verifier, self.forget)
        self.publishing = Publishing(self.catalogue, store, clock, options.operators)
        self._answers = Answers(self.catalogue, self.registry, self.relay, clock)

    def handlers(self) -> dict[type[Message], Handler]:
        """What to answer, by the type of the message: for `rpc.serve`, alone or merged with others'."""
        own: Mapping[type[Message], Handler] = {
            RegisterPeer: self.register,
            TryReach: self.try_reach,
            Heartbeat: self.heartbeat,
            LeaveSwarm: self.leave,
        }
        asked = {
            **own,
            **{kind: self._charged(handler) for kind, handler in self._answers.handlers().items()},
            **self.judge.handlers(),
            **self.publishing.handlers(),
            **self.relay.request_handlers(),
        }
        asked |= {kind: self._weighed(asked[kind]) for kind in (GetManifest, GetProof)}
        limited = {kind: self._limited(handler) for kind, handler in asked.items()}
        return {**limited, **self.relay.notice_handlers()}

    async def register(
        self, caller: Peer, message: RegisterPeer, payload: Buffer
    ) -> tuple[PeerRegistered, bytes]:
        """Makes the caller known, after having tried to reach it."""
        origin = plain(caller.address or UNKNOWN_PLACE)
        self.registry.check_room(caller.key, origin)
        reach = await self._reach(caller, origin, message)
        self.judge.check(caller.key)
        entry = self.registry.register(
            caller.key, origin, reach.address, message.local, message.agent, self._clock.monotonic_s()
        )
        # What an earlier registration held is not what this one holds.
        self.catalogue.forget(caller.key)
        if caller not in self._watched:
            self._nursery.start_soon(self._watch, caller)
        self._watched[caller] = entry.generation
        return PeerRegistered(
            generation=entry.generation,
            observed=str(caller.address or ""),
            address=str(reach.address or ""),
            obstacle=reach.obstacle[:500],
            heartbeat_ms=round(self.registry.limits.heartbeat_s * 1000),
            lifetime_ms=round(self.registry.limits.lifetime_s * 1000),
            unix_s=int(self._clock.unix_s()),
        ), b""

    async def try_reach(self, caller: Peer, message: TryReach, payload: Buffer) -> tuple[ReachTried, bytes]:
        """Tries again to reach the caller, and publishes what it finds."""
        self.registry.entry(caller.key, message.generation)
        reach = await self._reach(caller, plain(caller.address or UNKNOWN_PLACE), message)
        self.registry.move(self.registry.entry(caller.key, message.generation), reach.address)
        return ReachTried(str(reach.address or ""), reach.obstacle[:500]), b""

    async def _reach(self, caller: Peer, origin: Address, message: RegisterPeer | TryReach) -> Reach:
        """Where a peer was found to be reachable. Busy when it, or everybody, had too much dialled."""
        now_s = self._clock.monotonic_s()
        wait_s = DIALLING_HINT_S if self._dialling >= MOST_DIALLING else 0.0
        wait_s = wait_s or self._registrations.take(caller.key, bounded_network(caller.address), now_s)
        if wait_s:
            raise Busy(what="The tracker", retry_after_s=round(wait_s, 1))
        if caller.address is None and not message.addresses:
            return Reach(None, "The peer asked to be reached through the relay.")
        self._dialling += 1
        try:
            return await find_reach(caller.key, origin, message.addresses, message.port, self._dial_back)
        finally:
            self._dialling -= 1

    async def _watch(self, caller: Peer) -> None:
        """Doubts a peer when the connection that it registered on ends; its next heartbeat dispels that."""
        await caller.wait_closed()
        generation = self._watched.pop(caller)
        entry = self.registry.get(caller.key)
        if entry is not None and entry.generation == generation:
            entry.lost = True

    async def heartbeat(
        self, caller: Peer, message: Heartbeat, payload: Buffer
    ) -> tuple[HeartbeatSeen, bytes]:
        """Prolongs the caller's registration, and tells it what changed."""
        entry = self.registry.renew(
            caller.key, message.generation, message.sequence, self._clock.monotonic_s()
        )
        entry.service_us, entry.queue = message.service_us, message.queue
        return HeartbeatSeen(
            lifetime_ms=round(self.registry.limits.lifetime_s * 1000),
            resend=message.revision != entry.revision,
            departures=self.registry.departures,
            models=self.catalogue.revision,
            bans=self.judge.count,
        ), b""

    async def leave(self, caller: Peer, message: LeaveSwarm, payload: Buffer) -> tuple[Left, bytes]:
        """Forgets the caller."""
        self.registry.entry(caller.key, message.generation)
        self.forget(caller.key)
        return Left(), b""

    def forget(self, key: PeerKey) -> None:
        """Forgets a peer, what it holds, and its streams."""
        self.registry.remove(key)
        self.catalogue.forget(key)
        self.relay.drop(key)

    async def sweep(self) -> None:
        """Forgets who fell silent and what was promised too long ago, again and again."""
        while True:
            await trio.sleep(SWEEP_S)
            self.catalogue.release(self._clock.monotonic_s())
            for key in self.registry.expire(self._clock.monotonic_s()):
                self.catalogue.forget(key)
                self.relay.drop(key)
                await trio.lowlevel.checkpoint()  # many may fall silent at once: others are answered between

    def _limited(self, handler: Handler) -> Handler:
        """The handler, for callers that are not banned and do not ask too often."""

        @functools.wraps(handler)
        async def limited(caller: Peer, message: Message, payload: Buffer) -> tuple[Message, Buffer] | None:
            self.judge.check(caller.key)
            network = bounded_network(caller.address)
            wait_s = self._requests.take(caller.key, network, self._clock.monotonic_s())
            if wait_s:
                raise Busy(what="The tracker", retry_after_s=round(wait_s, 2))
            return await handler(caller, message, payload)

        return limited

    def _charged(self, handler: Handler) -> Handler:
        """The handler, which never waits, for callers that have not used up their share of the tracker's time.

        What it takes is known only afterwards: who has had too much is turned away until that is made good.
        """

        @functools.wraps(handler)
        async def charged(caller: Peer, message: Message, payload: Buffer) -> tuple[Message, Buffer] | None:
            network = bounded_network(caller.address)
            wait_s = self._work.delay_s(caller.key, network, 0.0, self._clock.monotonic_s())
            if wait_s:
                raise Busy(what="The tracker", retry_after_s=round(wait_s, 2))
            began_s = self._clock.work_s()
            try:
                return await handler(caller, message, payload)
            finally:
                took_s = self._clock.work_s() - began_s
                self._work.delay_s(caller.key, network, took_s, self._clock.monotonic_s())

        return charged

    def _weighed(self, handler: Handler) -> Handler:
        """The handler, for callers that have not had more bytes than they may; as in `_charged`."""

        @functools.wraps(handler)
        async def weighed(caller: Peer, message: Message, payload: Buffer) -> tuple[Message, Buffer] | None:
            network = bounded_network(caller.address)
            wait_s = self._read.delay_s(caller.key, network, 0.0, self._clock.monotonic_s())
            if wait_s:
                raise Busy(what="The tracker", retry_after_s=round(wait_s, 2))
            answer = await handler(caller, message, payload)
            read_bytes = 0 if answer is None else len(answer[1])
            self._read.delay_s(caller.key, network, read_bytes, self._clock.monotonic_s())
            return answer

        return weighed


@asynccontextmanager
async def open_tracker(
    keys: KeyPair,
    store: Store,
    *,
    psk: bytes | None = None,
    options: Options | None = None,
    verifier: Verifier | None = None,
    dial_back: DialBack | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Tracker]:
    """Runs a tracker for the length of a block; the store stays open and is the caller's.

    `verifier` is how proofs against liars are verified; without one nobody is banned. UnusableStore.
    """
    async with trio.open_nursery() as nursery:
        tracker = Tracker(
            store,
            dial_back or dial_back_with(keys, psk),
            nursery,
            options=options or Options(),
            verifier=verifier,
            clock=clock or SystemClock(),
            first_generation=random.SystemRandom().getrandbits(60),
        )
        await tracker.judge.load()
        await tracker.publishing.load()
        nursery.start_soon(tracker.sweep)
        nursery.start_soon(tracker.publishing.run)
        yield tracker
        nursery.cancel_scope.cancel()
