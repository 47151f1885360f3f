"""Running experts for others: what a donor, and `swarm serve`, answers to expert calls.

A call is refused by name before any work is done when it is of another numeric profile, asks for an expert
that this peer does not answer for, or carries sizes or values that cannot be. Calls run one at a time, in
turn among clients (`turns`); the kernels use all threads they may for each. A reply carries a receipt.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import trio

from engine.errors import EngineError
from engine.expert_bank import ExpertBank
from engine.kernels import apart, expect_pauses
from engine.numerics import NUMERICS_VERSION
from swarm.errors import SwarmError
from swarm.peers.calls import UNSIGNED, Form, MalformedCall, Work, decode_call, encode_outputs
from swarm.peers.compute import ComputeThread
from swarm.peers.turns import Turns
from swarm.trust.profile import NumericProfile
from swarm.trust.receipts import give_receipt, reply_digest, request_digest
from swarm.wire.holdings import ExpertLayout, IndexSet
from swarm.wire.keys import KeyPair
from swarm.wire.messages.experts import ExpertOutputs, ExpertsOpen, OpenExperts, RunExperts, RunManyExperts
from swarm.wire.rpc import Buffer, Busy, Handlers, Peer, Prompt

PAUSED_HINT_S = 10.0
SHORT_S = 0.004
MOST_PAIRS_AT_ONCE = 64
MOST_BYTES_AT_ONCE = 60_000
"""Outputs that fit one record of the wire."""


class NoExpertsHere(SwarmError):
    """This peer runs no experts now; ask the tracker again who does."""


class UnknownBank(SwarmError):
    """This peer was asked with a number that it never gave; open the experts again."""


class UnassignedExpert(SwarmError):
    """Expert {expert} of layer {layer} is not among those this peer answers for; ask the tracker again."""


class ExpertsNotHere(SwarmError):
    """This peer cannot read an expert it promised: {reason}"""


@dataclass
class Bank:
    """Experts of one model in one numeric profile, and which of them are answered for."""

    profile: NumericProfile
    experts: ExpertBank
    layout: ExpertLayout
    """How the tracker numbers experts."""
    ready: IndexSet
    last_resort: bool = False
    """Whether this executor should be asked only where no donor answers."""
    _allowed: dict[int, "np.ndarray[tuple[int], np.dtype[np.bool_]] | None"] = field(default_factory=dict)
    """By layer, the experts that are answered for; None: all."""

    def __post_init__(self) -> None:
        self.answer_for(self.ready)

    def answer_for(self, ready: IndexSet) -> None:
        """Answers for these experts and no others from now on."""
        allowed = {}
        per_layer = self.experts.layout.experts_per_layer
        for layer in self.experts.layout.layers:
            first = self.layout.layer(layer).start
            flags = np.array([first + expert in ready for expert in range(per_layer)], np.bool_)
            allowed[layer] = None if flags.all() else flags
        self.ready, self._allowed = ready, allowed

    def resident(self) -> IndexSet:
        """Those in memory."""
        held = IndexSet.of(self.layout.index(layer, expert) for layer, expert in self.experts.resident())
        return held & self.ready

    def form(self, layer: int) -> Form:
        """The form of a layer's rows. MalformedCall when the layer has no experts."""
        if layer not in self._allowed:
            raise MalformedCall(reason=f"layer {layer} has no routed experts")
        return Form.of(self.experts.shape(layer))

    def check(self, layer: int, expert: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
        """Raises UnassignedExpert unless all are answered for."""
        allowed = self._allowed[layer]
        if allowed is not None and not allowed[expert].all():
            raise UnassignedExpert(layer=layer, expert=int(expert[~allowed[expert]][0]))


@dataclass
class Executed:
    """What was done for others."""

    calls: int = 0
    pairs: int = 0
    refused: int = 0
    clients: set[bytes] = field(default_factory=set)


class Executor:
    """Answers expert calls from its banks; they may be added, changed and removed while it runs."""

    def __init__(self, keys: KeyPair) -> None:
        expect_pauses()
        self.banks: dict[int, Bank] = {}
        self.done = Executed()
        self.turns = Turns()
        self.paused = False
        self._keys = keys
        self._numbers = 0
        self._pair_s: dict[int, float] = {}
        """Moving averages of what an (expert, row) pair takes, by the size of experts."""
        self.thread = ComputeThread()

    def add(self, bank: Bank) -> int:
        """Answers for a bank from now on; gives its number."""
        self._numbers += 1
        # As in `remove`, never changed in place: others go through them with awaits in between.
        self.banks = {**self.banks, self._numbers: bank}
        return self._numbers

    def remove(self, bank: Bank) -> None:
        """Answers for a bank no more."""
        self.banks = {number: one for number, one in self.banks.items() if one is not bank}

    def handlers(self) -> Handlers:
        """What to merge into `rpc.serve`."""
        run = Prompt(self._run, self._run_at_once)
        return {OpenExperts: self._open, RunExperts: run, RunManyExperts: run}

    async def drain(self) -> None:
        """Takes no further calls, and waits until those in the queue are answered."""
        self.paused = True
        await self.turns.idle()

    async def _open(self, caller: Peer, message: OpenExperts, _: Buffer) -> tuple[ExpertsOpen, bytes]:
        wanted = NumericProfile(message.numerics, message.root, message.weights)
        for number, bank in self.banks.items():
            if bank.profile == wanted:
                return ExpertsOpen(number), b""
        self.done.refused += 1
        same_model = [bank for bank in self.banks.values() if bank.profile.root == message.root]
        for bank in same_model or self.banks.values():
            wanted.check(bank.profile, "This peer")
        raise NoExpertsHere()

    async def _run(self, caller: Peer, message: RunExperts, payload: Buffer) -> tuple[ExpertOutputs, bytes]:
        bank, work = self._checked(message, payload)
        async with self.turns.turn(caller.key):
            compute = partial(self._compute, bank, message, payload, work)
            answer = compute() if self._is_short(bank, work) else await self.thread.run(compute)
        self._done(caller, work)
        return answer

    def _run_at_once(
        self, caller: Peer, message: RunExperts, payload: Buffer
    ) -> tuple[ExpertOutputs, bytes] | None:
        """The answer to a call that is short in every way and need not wait for its turn."""
        if self.turns.busy or message.pairs > MOST_PAIRS_AT_ONCE:
            return None
        bank, work = self._checked(message, payload)
        if (
            not self._is_short(bank, work)
            or len(work) * bank.form(work.layer).output_bytes > MOST_BYTES_AT_ONCE
        ):
            return None
        started = trio.current_time()
        answer = self._compute(bank, message, payload, work)
        self.turns.took(trio.current_time() - started)
        self._done(caller, work)
        return answer

    def _checked(self, message: RunExperts, payload: Buffer) -> tuple[Bank, Work]:
        """What a call asks for. Raises SwarmError when it is refused."""
        try:
            if self.paused:
                raise Busy(what="This executor, which its owner has paused,", retry_after_s=PAUSED_HINT_S)
            bank = self.banks.get(message.bank)
            if bank is None:
                raise UnknownBank()
            form = bank.form(message.layer)
            work = decode_call(form, bank.experts.layout.experts_per_layer, message, payload)
            bank.check(message.layer, work.expert)
        except SwarmError:
            self.done.refused += 1
            raise
        return bank, work

    def _compute(
        self, bank: Bank, message: RunExperts, payload: Buffer, work: Work
    ) -> tuple[ExpertOutputs, bytes]:
        """Runs a call. Raises ExpertsNotHere."""
        started = time.perf_counter()
        try:
            with apart():
                outputs = bank.experts.run(work.layer, work.rows, work.expert, work.row)
        except EngineError as error:
            raise ExpertsNotHere(reason=error) from error
        self._measure(bank, work, time.perf_counter() - started)
        reply = encode_outputs(outputs)
        return self._signed(bank.profile, message, payload, reply), reply

    def _done(self, caller: Peer, work: Work) -> None:
        self.done.calls += 1
        self.done.pairs += len(work)
        self.done.clients.add(caller.key)

    def _is_short(self, bank: Bank, work: Work) -> bool:
        """Whether a call takes no longer than the way to another thread is worth; it runs in trio's then."""
        per_pair_s = self._pair_s.get(bank.experts.shape(work.layer).nbytes)
        return per_pair_s is not None and not bank.experts.streams and per_pair_s * len(work) < SHORT_S

    def _measure(self, bank: Bank, work: Work, took_s: float) -> None:
        size = bank.experts.shape(work.layer).nbytes
        if len(work):
            pair_s = took_s / len(work)
            self._pair_s[size] = pair_s + (self._pair_s.get(size, pair_s) - pair_s) * 0.9

    def _signed(
        self, profile: NumericProfile, message: RunExperts, payload: Buffer, reply: bytes
    ) -> ExpertOutputs:
        receipt = give_receipt(
            self._keys,
            profile=profile.digest,
            request=request_digest(message, payload),
            reply=reply_digest(UNSIGNED, reply),
        )
        return ExpertOutputs(receipt.signature)


def whole_bank(profile: NumericProfile, experts: ExpertBank, layout: ExpertLayout) -> Bank:
    """A bank that answers for every expert, as the replica of last resort."""
    return Bank(profile, experts, layout, IndexSet.full(layout.total), last_resort=True)


def profile_of(root: bytes, weights: str) -> NumericProfile:
    """The numeric profile of this software for a model and a weights format."""
    return NumericProfile(NUMERICS_VERSION, root, weights)


def figures(turns: Turns) -> Mapping[str, int]:
    """What heartbeats tell of an executor."""
    return {"service_us": min(math.ceil(turns.service_s * 1e6), 2**32 - 1), "queue": turns.waiting}
