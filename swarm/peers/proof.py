"""The proof of a lie: a call, the answer, and the donor's signature over both. Anybody with the model's bytes
can check it: recompute the call; if the answer is another, the signature says who gave it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blake3 import blake3

from engine.kernels import ExpertRows
from swarm.errors import SwarmError
from swarm.peers.calls import UNSIGNED, Form, Work, decode_call, encode_outputs
from swarm.trust.profile import NumericProfile
from swarm.trust.receipts import Receipt, reply_digest, request_digest
from swarm.wire import cbor
from swarm.wire.keys import PeerKey
from swarm.wire.messages.experts import RunExperts, RunManyExperts

_KINDS: dict[str, type[RunExperts]] = {kind.kind: kind for kind in (RunExperts, RunManyExperts)}
_NUMBERS = ("format", "numerics", "bank", "layer", "pairs")
_TEXTS = ("weights", "kind")
_BYTES = ("donor", "root", "request", "reply", "receipt")

Recompute: TypeAlias = Callable[[Work], ExpertRows]
"""Runs a piece of work from bytes that the operator signed."""


class BadProof(SwarmError):
    """This is no proof of a wrong answer: {reason}."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a donor was asked and what it signed as the answer."""

    donor: PeerKey
    profile: NumericProfile
    message: RunExperts
    request: bytes
    reply: bytes
    receipt: bytes

    @property
    def digest(self) -> bytes:
        """The name under which a tracker keeps it."""
        return blake3(self.encode()).digest()

    def encode(self) -> bytes:
        """Its canonical form."""
        return cbor.encode(
            {
                "format": 1,
                "donor": self.donor,
                "numerics": self.profile.numerics,
                "root": self.profile.root,
                "weights": self.profile.weights,
                "kind": self.message.kind,
                "bank": self.message.bank,
                "layer": self.message.layer,
                "pairs": self.message.pairs,
                "request": self.request,
                "reply": self.reply,
                "receipt": self.receipt,
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> "Proof":
        """Reads a proof. BadProof for anything that `encode` does not write."""
        try:
            value = cbor.decode(data)
        except cbor.BadEncoding as error:
            raise BadProof(reason=error) from None
        if not isinstance(value, dict) or set(value) != {*_NUMBERS, *_TEXTS, *_BYTES}:
            raise BadProof(reason="its fields are not those of a proof")
        for names, kind in ((_NUMBERS, int), (_TEXTS, str), (_BYTES, bytes)):
            if any(type(value[name]) is not kind for name in names):
                raise BadProof(reason="a field is of the wrong type")
        found: dict[str, object] = dict(value)
        message = _KINDS.get(str(found["kind"]))
        if found["format"] != 1 or message is None or len(value["donor"]) != 32 or len(value["root"]) != 32:  # type: ignore[arg-type]
            raise BadProof(reason="it is of a format or kind that is not known here")
        return cls(
            PeerKey(value["donor"]),  # type: ignore[arg-type]
            NumericProfile(value["numerics"], value["root"], value["weights"]),  # type: ignore[arg-type]
            message(value["bank"], value["layer"], value["pairs"]),  # type: ignore[arg-type]
            value["request"],  # type: ignore[arg-type]
            value["reply"],  # type: ignore[arg-type]
            value["receipt"],  # type: ignore[arg-type]
        )

    def check_signature(self) -> None:
        """Raises BadSignature unless the donor signed that this reply answers this request."""
        Receipt(
            donor=self.donor,
            profile=self.profile.digest,
            request=request_digest(self.message, self.request),
            reply=reply_digest(UNSIGNED, self.reply),
            signature=self.receipt,
        ).check()

    def work(self, form: Form, experts: int) -> Work:
        """What was asked. MalformedCall when no honest donor would have answered it."""
        return decode_call(form, experts, self.message, self.request)

    def is_lie(self, form: Form, experts: int, recompute: Recompute) -> bool:
        """Whether the signed answer differs from what the model's bytes give; blocks.

        Raises:
            BadSignature, MalformedCall: it proves nothing.
            EngineError: the experts' bytes cannot be had.
        """
        self.check_signature()
        return encode_outputs(recompute(self.work(form, experts))) != self.reply
