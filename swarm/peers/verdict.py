"""Judging proofs for a tracker: it believes none that it did not recompute, or that an executor which it trusts
did not."""

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import trio

from engine.errors import EngineError
from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows
from swarm.errors import SwarmError
from swarm.peers.calls import Form, MalformedCall, Work
from swarm.peers.executor import Executor
from swarm.peers.proof import BadProof, Proof
from swarm.trust.profile import NumericProfile
from swarm.wire import rpc
from swarm.wire.keys import BadSignature, PeerKey
from swarm.wire.messages.experts import ExpertOutputs, ExpertsOpen, OpenExperts
from tracker.judge import Verdict

ASK_S = 30.0
Dial: TypeAlias = Callable[[PeerKey], AbstractAsyncContextManager[rpc.Peer]]
"""Connects to a peer by its key for the length of a block; a SwarmError when it is not there."""


class NobodyToAsk(SwarmError):
    """No executor that this tracker trusts runs the experts in question now; report again later."""


def recomputed(proof: Proof, experts: ExpertBank) -> bool:
    """Whether a proof's answer is wrong by the model's bytes; blocks.

    Raises:
        BadSignature, MalformedCall: it proves nothing.
        EngineError: the bytes cannot be had.
    """

    def run(work: Work) -> ExpertRows:
        return experts.run(work.layer, work.rows, work.expert, work.row)

    layer = proof.message.layer
    if layer not in experts.layout.layers:
        raise MalformedCall(reason=f"layer {layer} has no routed experts")
    return proof.is_lie(Form.of(experts.shape(layer)), experts.layout.experts_per_layer, run)


class ExecutorVerifier:
    """Recomputes with the experts of this process."""

    def __init__(self, executor: Callable[[], Executor | None]) -> None:
        self._executor = executor

    async def __call__(self, accused: PeerKey, root: bytes, profile: bytes, content: bytes) -> Verdict:
        """See `tracker.judge.Verifier`."""
        proof = parsed(accused, root, profile, content)
        if isinstance(proof, Verdict):
            return proof
        executor = self._executor()
        banks = executor.banks.values() if executor is not None else ()
        bank = next((bank for bank in banks if bank.profile == proof.profile), None)
        if executor is None or bank is None:
            raise NobodyToAsk()
        try:
            lied = await executor.thread.run(lambda: recomputed(proof, bank.experts))
        except (BadSignature, MalformedCall) as error:
            return Verdict(False, str(error))
        except EngineError as error:
            raise NobodyToAsk() from error
        return _verdict(proof, lied)


class AskingVerifier:
    """Has executors recompute whose keys the tracker's operator named: for a tracker that holds no model.

    Anybody can make a proof that is worth a question, so no connection outlives its answer.
    """

    def __init__(self, trusted: Collection[PeerKey], dial: Dial) -> None:
        self._trusted = trusted
        self._dial = dial

    async def __call__(self, accused: PeerKey, root: bytes, profile: bytes, content: bytes) -> Verdict:
        """See `tracker.judge.Verifier`."""
        proof = parsed(accused, root, profile, content)
        if isinstance(proof, Verdict):
            return proof
        try:
            proof.check_signature()
        except BadSignature as error:
            return Verdict(False, str(error))
        for key in self._trusted:
            if key == accused:
                continue
            try:
                with trio.move_on_after(ASK_S):
                    async with self._dial(key) as peer:
                        return _verdict(proof, await self._ask(peer, proof) != proof.reply)
            except rpc.RemoteError as error:
                if error.remote_code == MalformedCall.code:
                    return Verdict(False, str(error))
            except SwarmError:
                continue  # the next one may be there
        raise NobodyToAsk()

    @staticmethod
    async def _ask(peer: rpc.Peer, proof: Proof) -> bytes:
        profile = proof.profile
        opened = await peer.request(OpenExperts(profile.numerics, profile.root, profile.weights))
        if not isinstance(opened.message, ExpertsOpen):
            raise NobodyToAsk()
        again = type(proof.message)(opened.message.bank, proof.message.layer, proof.message.pairs)
        reply = await peer.request(again, proof.request)
        if not isinstance(reply.message, ExpertOutputs):
            raise NobodyToAsk()
        return bytes(reply.payload)


def parsed(accused: PeerKey, root: bytes, profile: bytes, content: bytes) -> Proof | Verdict:
    """The proof, if it is one against the accused for this model and profile; else why it is not."""
    try:
        proof = Proof.parse(content)
    except BadProof as error:
        return Verdict(False, str(error))
    ours: NumericProfile = proof.profile
    if proof.donor != accused or ours.root != root or ours.digest != profile:
        return Verdict(False, "the proof is about another peer, model or profile")
    return proof


def _verdict(proof: Proof, lied: bool) -> Verdict:
    layer = proof.message.layer
    if lied:
        return Verdict(True, f"it signed a wrong answer for layer {layer}")
    return Verdict(False, f"its answer for layer {layer} is right")
