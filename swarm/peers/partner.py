"""A donor as a chatter knows it: what it holds, how quick it is, and how it is asked."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import trio

from engine.arrays import Array
from engine.kernels import ExpertRows
from swarm.peers.calls import Form, MalformedOutputs, Work, decode_outputs, encode_call
from swarm.peers.choice import Candidate
from swarm.peers.pace import Pace, much_slower_s
from swarm.peers.tracking import ExpertsHeld
from swarm.wire import rpc
from swarm.wire.holdings import ExpertLayout, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.experts import ExpertOutputs, RunExperts
from swarm.wire.messages.tracker import Contact
from swarm.wire.questions import Question

UNKNOWN_S = 10.0
"""The deadline of a donor's first call."""
FIRST_TRY_S = 4.0
FIRST_TRY_PAIR_S = 0.005
"""The same where somebody else could be asked, and what that allows more for each pair."""
LEAST_LATE_S = 0.001
LEAST_DEADLINE_S = 2.0
MOST_DEADLINE_S = 60.0
PATIENCE = 8.0
"""A call's deadline in multiples of what it should take."""
COLD_S = 0.005
"""What an expert costs at first that a donor must read from its disk."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A donor's answer to a call, with all that proves it."""

    remote: "Remote"
    work: Work
    """The pairs of this call only; their rows are those of the whole layer."""
    message: RunExperts
    request: bytes
    outputs: ExpertRows
    reply: bytes
    receipt: bytes
    took_s: float


@dataclass(eq=False, slots=True)
class Call:
    """A request that was sent and waits for its reply, without a task of its own."""

    remote: "Remote"
    form: Form
    work: Work
    """The pairs of this call only."""
    message: RunExperts
    request: bytes
    peer: rpc.Peer
    question: Question
    started: float
    ended: bool = False

    def answer(self) -> Answer | None:
        """What the reply says, once it came; None when it is long (`opened` waits for it). Raises SwarmError."""
        if self.question.bulk is not None:
            return None
        try:
            return self._read(self.peer.questions.unpack_short(self.question))
        finally:
            self.end()

    async def opened(self) -> Answer:
        """The same, however long the reply is."""
        try:
            return self._read(await self.peer.questions.unpack(self.question))
        finally:
            self.end()

    def end(self) -> None:
        """Takes the call back unless its reply came; more than once does no harm."""
        if not self.ended:
            self.ended = True
            self.remote.in_flight -= 1
            self.peer.forget(self.question)

    def _read(self, reply: rpc.Reply) -> Answer:
        return self.remote.read(self.form, self.work, self.message, self.request, reply, self.started)


@dataclass(slots=True)
class Tally:
    """What one donor did."""

    calls: int = 0
    pairs: int = 0
    failures: int = 0
    hedges_won: int = 0
    busy: int = 0


@dataclass(eq=False)
class Remote:
    """A donor. `peer` is None while there is no connection."""

    contact: Contact
    layout: ExpertLayout
    ready: IndexSet = field(default_factory=IndexSet)
    resident: IndexSet = field(default_factory=IndexSet)
    last_resort: bool = False
    queue: int = 0
    peer: rpc.Peer | None = None
    relayed: bool = False
    bank: int = 0
    pace: Pace = field(default_factory=Pace)
    in_flight: int = 0
    suspended: bool = False
    banned: str = ""
    busy_until: float = 0.0
    rest_until: float = 0.0
    trouble: str = ""
    failures: int = 0
    """In a row."""
    overdue_since: float | None = None
    """When a call was sent that others have answered since, while this donor has not."""
    doubted: bool = False
    """Whether it has to prove itself."""
    slow_s: float = 0.0
    """What a call took that others did much quicker, until a proof says otherwise. That is kept out of the pace: one
    call that hung says little of the next."""
    doubts: int = 0
    """Tries to prove itself, and failures to, since an answer of its was used."""
    tally: Tally = field(default_factory=Tally)
    bytes_before: tuple[int, int] = (0, 0)
    """Sent and received on connections that ended."""
    _masks: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def key(self) -> PeerKey:
        """Its identity."""
        return self.contact.key

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"donor {self.key.hex()[:8]}"

    @property
    def usable(self) -> bool:
        """Whether it may be asked now."""
        peer = self.peer
        return peer is not None and peer.is_open and not self.suspended and not self.banned

    def told(self, held: ExpertsHeld) -> None:
        """Takes in what the tracker says of it."""
        self.contact, self.last_resort = held.holder.contact, held.holder.last_resort
        self.queue = held.holder.queue
        if (self.ready, self.resident) != (held.ready, held.resident):
            self.ready, self.resident = held.ready, held.resident
            self._masks.clear()

    def lacks(self, layer: int, experts: Collection[int]) -> None:
        """It does not answer for these experts any more."""
        self.ready = self.ready - IndexSet.of(self.layout.index(layer, expert) for expert in experts)
        self.resident = self.resident & self.ready
        self._masks.clear()

    def gone(self) -> None:
        """The tracker does not name it any more."""
        self.ready = self.resident = IndexSet()
        self._masks.clear()

    def masks(self, layer: int) -> tuple[int, int]:
        """The layer's experts that it is ready for, and those in its memory, as bits."""
        found = self._masks.get(layer)
        if found is None:
            numbers = self.layout.layer(layer)
            keep = (1 << len(numbers)) - 1
            found = self.ready.bits >> numbers.start & keep, self.resident.bits >> numbers.start & keep
            self._masks[layer] = found
        return found

    def candidate(self, layer: int) -> Candidate:
        """What `choose` has to know of it."""
        ready, resident = self.masks(layer)
        call_s = max(self.pace.call_s + self.in_flight * self.pace.expected_s(1), self._presumed_s())
        measured = self.pace.measured
        return Candidate(ready, resident, call_s, self.pace.pair_s, COLD_S, self.last_resort, measured)

    def holds_all(self, layer: int, experts: Collection[int]) -> bool:
        """Whether it is ready for all of these."""
        ready = self.masks(layer)[0]
        return all(ready >> expert & 1 for expert in experts)

    def takes_s(self, pairs: int) -> float:
        """What a call should take, by all that is known."""
        return max(self.pace.expected_s(pairs), self._presumed_s())

    def _presumed_s(self) -> float:
        """What its last call says that others were quicker with: how long that took, or is taking."""
        since = self.overdue_since
        return self.slow_s if since is None else max(self.slow_s, trio.current_time() - since)

    def proved(self, took_s: float) -> None:
        """It answered a call for a pair that it was given to prove itself: where that is far from what it took
        before, it has another pace now."""
        before_s = self.pace.expected_s(1)
        if not self.pace.measured or max(took_s, before_s) > much_slower_s(min(took_s, before_s)):
            self.pace = Pace()
            self.pace.observe(1, took_s)

    def late_s(self, pairs: int) -> float:
        """When a call is late by what its donor took before; inf while nothing is known."""
        return max(self.pace.late_s(pairs), LEAST_LATE_S) if self.pace.measured else math.inf

    def deadline_s(self, pairs: int, alone: bool) -> float:
        """How long a call may take; `alone`: nobody else could be asked."""
        if not self.pace.measured:
            return UNKNOWN_S if alone else min(FIRST_TRY_S + FIRST_TRY_PAIR_S * pairs, UNKNOWN_S)
        return min(max(PATIENCE * self.pace.expected_s(pairs), LEAST_DEADLINE_S), MOST_DEADLINE_S)

    def transferred(self) -> tuple[int, int]:
        """Bytes sent to it and received from it."""
        sent, received = self.bytes_before
        if self.peer is not None:
            sent, received = sent + self.peer.sent_bytes, received + self.peer.received_bytes
        return sent, received

    async def ask(self, form: Form, work: Work, pairs: Array) -> Answer:
        """Asks for the outputs of some pairs. Raises SwarmError; the caller owns the deadline."""
        peer = self.peer
        if peer is None:
            raise rpc.ConnectionLost(peer=self.name, reason="it is not connected")
        message, request = encode_call(form, self.bank, work, pairs)
        started = trio.current_time()
        self.in_flight += 1
        try:
            reply = await peer.request(message, request)
        finally:
            self.in_flight -= 1
        part = work.part(pairs)
        return self.read(form, part, message, request, reply, started)

    def call(self, form: Form, work: Work, pairs: Array, told: Callable[[], None]) -> Call | None:
        """Asks without a task: `told` is called when the reply is there. None where `ask` would have to wait.

        Raises SwarmError.
        """
        peer = self.peer
        if peer is None or not peer.sends_at_once:
            return None
        message, request = encode_call(form, self.bank, work, pairs)
        question = peer.ask_at_once(message, request, told)
        if question is None:
            return None
        self.in_flight += 1
        return Call(self, form, work.part(pairs), message, request, peer, question, trio.current_time())

    def read(
        self, form: Form, work: Work, message: RunExperts, request: bytes, reply: rpc.Reply, started: float
    ) -> Answer:
        """What a reply to a call for `work` says. Raises MalformedOutputs."""
        took_s = trio.current_time() - started
        if not isinstance(reply.message, ExpertOutputs):
            raise MalformedOutputs(peer=self.name, reason="something else than outputs")
        payload = bytes(reply.payload)
        outputs = decode_outputs(form, len(work), payload, self.name)
        self.failures = 0
        self.tally.calls += 1
        self.tally.pairs += len(work)
        return Answer(self, work, message, request, outputs, payload, reply.message.receipt, took_s)
