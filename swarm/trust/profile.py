"""The numeric profile: what two machines must have in common for their numbers to be the same bits."""

from dataclasses import dataclass
from functools import cached_property

from blake3 import blake3

from swarm.errors import SwarmError
from swarm.wire import cbor

_CONTEXT = "swarm numeric profile v1"


class ProfileDiffers(SwarmError):
    """{peer} computes with another {part} ({theirs} there, {ours} here), so it was not asked."""


@dataclass(frozen=True)
class NumericProfile:
    """The version of the arithmetic, the root of the model's manifest, and the form of the weights."""

    numerics: int
    root: bytes
    weights: str

    @cached_property
    def digest(self) -> bytes:
        """The 32 bytes that name it; equal just when all three parts are."""
        value: list[cbor.Value] = [self.numerics, self.root, self.weights]
        return blake3(cbor.encode(value), derive_key_context=_CONTEXT).digest()

    def check(self, theirs: "NumericProfile", peer: str) -> None:
        """Raises ProfileDiffers, naming the part, unless the other profile is the same."""
        for part, mine, other in (
            ("version of the arithmetic", self.numerics, theirs.numerics),
            ("manifest", self.root, theirs.root),
            ("form of weights", self.weights, theirs.weights),
        ):
            if mine != other:
                raise ProfileDiffers(peer=peer, part=part, theirs=other, ours=mine)
