"""What the tracker's tests share: models of any size, fake callers, and a clock that tests move."""

import hashlib
from dataclasses import dataclass, field

import trio

from swarm.trust.keyring import Keyring
from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry, Manifest, SignedManifest, sign
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import layout_statement
from swarm.wire.rpc import Buffer, Handlers, Peer

NOW_S = 1_800_000_000


def keys(number: int) -> KeyPair:
    """The same identity for the same number."""
    return KeyPair(hashlib.sha256(number.to_bytes(8, "big")).digest())


OPERATOR = keys(1_000_000)


def manifest(
    name: str = "model", version: int = 1, chunks: int = 100, expires: int = NOW_S + 1000
) -> Manifest:
    """A manifest of one file with so many chunks."""
    digest = hashlib.sha256(name.encode()).digest()
    entry = FileEntry("model.safetensors", chunks * CHUNK_BYTES, Digests(digest * chunks))
    return Manifest(name, version, NOW_S - 1000, expires, (entry,))


@dataclass(frozen=True)
class Published:
    """A signed manifest with its layout, as an operator would publish it."""

    signed: SignedManifest
    layout: tuple[int, ...]
    layout_signature: bytes

    @property
    def encoded(self) -> bytes:
        return self.signed.encode()

    @property
    def root(self) -> bytes:
        return self.signed.manifest.root


def published(
    of: Manifest | None = None,
    layout: tuple[int, ...] = (0, 16, 16),
    operator: KeyPair = OPERATOR,
    keyring: Keyring | None = None,
) -> Published:
    """Signs a manifest and a layout."""
    signed = sign(of or manifest(), operator, keyring)
    return Published(signed, layout, operator.sign(layout_statement(signed.manifest.root, layout)))


@dataclass
class HandClock:
    """A clock that stands still until a test moves it, but for work: each look at that costs so much."""

    now_s: float = 0.0
    look_s: float = 0.0
    worked_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return NOW_S + self.now_s

    def work_s(self) -> float:
        self.worked_s += self.look_s
        return self.worked_s


@dataclass(eq=False)
class FakeCaller(Peer):
    """A caller whose requests go straight to the handlers of a tracker."""

    handlers: Handlers
    keys: KeyPair
    address: Address | None = None
    name: str = field(default="caller")

    def __post_init__(self) -> None:
        self.key: PeerKey = self.keys.key
        self.gone = trio.Event()

    async def wait_closed(self) -> None:
        await self.gone.wait()

    async def ask(self, message: Message, payload: Buffer = b"") -> tuple[Message, bytes]:
        """What the tracker answers; raises what its handler raises."""
        reply, content = await self.handlers[type(message)](self, message, payload)
        return reply, bytes(content)
