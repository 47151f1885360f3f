"""What a session knows: models of a swarm, those that are open, and the swarm at one moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from mirror.fetch import Mirror, Progress
from mirror.source import MirrorSource
from swarm.errors import SwarmError
from swarm.peers.replicas import PeerReplica, SwarmReplicas
from swarm.trust.manifest import Manifest, SignedManifest
from swarm.trust.memory import Remembered
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import ModelSummary

if TYPE_CHECKING:
    from mirror.http import WebReplica

SPEED_OVER_S = 3.0
TELL_EVERY_S = 0.25


class NoModels(SwarmError):
    """The swarm at {address} has no models yet; its operator runs `swarm serve --model DIR`."""


class NoSuchModel(SwarmError):
    """The swarm at {address} has no model “{name}”; it has: {known}."""


class SeveralModels(SwarmError):
    """The swarm at {address} has several models; choose one with --model: {known}."""


class NothingKeptHere(SwarmError):
    """{reason} No model of the swarm at {address} was used on this machine before, so there is nothing to
    go on with."""


class WrongManifest(SwarmError):
    """The tracker {address} announced manifest {expected} for “{name}” and gave {found}; it was not used."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the swarm, as the tracker lists it or, offline, as it was accepted here."""

    name: str
    version: int
    root: bytes
    operator: bytes
    size_bytes: int
    chunks: int
    holders: int = 0
    """Peers that serve some of it; 0 when offline."""
    covered_chunks: int = 0
    """Chunks that at least one of them holds."""
    experts: int = 0
    issued_s: int | None = None
    """When it was signed, seconds since 1970; None when this version was never opened here."""

    @property
    def accepted(self) -> bool:
        """Whether this version was accepted on this machine."""
        return self.issued_s is not None

    @property
    def complete(self) -> bool:
        """Whether peers hold all of it."""
        return self.covered_chunks == self.chunks


class SignedSource(MirrorSource):
    """A mirror's bytes for the engine, which may keep what it makes of them while they are the same."""

    def __init__(self, mirror: Mirror, manifest: Manifest) -> None:
        super().__init__(mirror)
        self._content = manifest.content.hex()

    def fingerprint(self) -> str:
        """Changes whenever the bytes do, and only then."""
        return self._content


@dataclass(frozen=True)
class OpenModel:
    """A model that is open here. `source` is for threads that are not trio's."""

    info: ModelInfo
    signed: SignedManifest
    mirror: Mirror
    source: SignedSource
    replicas: SwarmReplicas
    notices: tuple[str, ...]
    """What a user should know about it, such as how old it is when the swarm does not answer."""
    web: tuple[WebReplica, ...] = ()
    """Web servers that its manifest names, and that may be asked."""

    @property
    def described(self) -> str:
        """The model as a sentence names it."""
        return f"“{self.info.name}” version {self.signed.manifest.version}"

    async def fetch_all(self, show: Callable[[int], None] = lambda _: None) -> None:
        """Brings all of the model to this machine; `show` hears now and then of the bytes that are here.

        Raises:
            ReadFailed, OSError: some of it cannot be had or stored.
        """
        tree = self.mirror.tree

        async def tell() -> None:
            while True:
                show(self.mirror.progress.verified_bytes)
                await trio.sleep(TELL_EVERY_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await self.mirror.ensure(tree.chunk(index) for index in range(tree.chunk_count))
            nursery.cancel_scope.cancel()
        show(self.mirror.progress.verified_bytes)


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer that serves the open model."""

    key: PeerKey
    address: str
    chunks: int
    """How many chunks it holds."""
    lent: bool
    """It is a donor of disk, not a maintainer."""
    given_bytes: int
    in_hand: int
    """Requests that it has not answered yet."""
    wrong: int
    """How often it gave wrong bytes."""
    banned: bool
    trouble: str
    """What went wrong with it last."""

    @classmethod
    def of(cls, replica: PeerReplica) -> PeerView:
        """How it is now."""
        given = replica.given
        return cls(
            key=replica.peer_key,
            address=str(replica.address),
            chunks=len(replica.held),
            lent=replica.lent,
            given_bytes=given.bytes,
            in_hand=given.in_hand,
            wrong=given.wrong,
            banned=given.banned,
            trouble=given.trouble,
        )


@dataclass(frozen=True, slots=True)
class WebView:
    """A web server that the open model's manifest names."""

    name: str
    given_bytes: int
    banned: bool
    trouble: str
    """What went wrong with it last."""

    @classmethod
    def of(cls, replica: WebReplica) -> WebView:
        """How it is now."""
        given = replica.given
        return cls(replica.name, given.bytes, given.banned, given.trouble)


def state_of(giver: PeerView | WebView) -> str:
    """How one that gives bytes is doing, in a word: ok, slow or banned."""
    return "banned" if giver.banned else "slow" if giver.trouble else "ok"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session at one moment."""

    online: bool
    problem: str
    """Why it is offline; empty when it is not."""
    tracker: str
    operator: bytes | None
    model: str
    progress: Progress
    bytes_per_s: float
    peers: tuple[PeerView, ...] = ()
    accusations: tuple[str, ...] = ()
    """Who gave wrong bytes, in order."""
    web: tuple[WebView, ...] = ()


@dataclass
class Speed:
    """Bytes a second over the last few seconds."""

    clock: Callable[[], float] = time.monotonic
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, count: int) -> float:
        """Takes in how many bytes there are by now; how many came a second."""
        now = self.clock()
        self._seen.append((now, count))
        while now - self._seen[0][0] > SPEED_OVER_S and len(self._seen) > 2:
            self._seen.popleft()
        start, first = self._seen[0]
        return (count - first) / (now - start) if now > start else 0.0


def listed(summary: ModelSummary, kept: Remembered | None) -> ModelInfo:
    """A model as the tracker lists it; when it was signed, if this version was accepted here."""
    same = kept is not None and kept.manifest.root == summary.root
    return ModelInfo(
        name=summary.name,
        version=summary.version,
        root=summary.root,
        operator=summary.operator,
        size_bytes=summary.model_bytes,
        chunks=summary.chunks,
        holders=summary.holders,
        covered_chunks=summary.covered_chunks,
        experts=summary.experts,
        issued_s=kept.manifest.issued if kept is not None and same else None,
    )


def kept_info(kept: Remembered) -> ModelInfo:
    """A model as it was accepted here."""
    manifest = kept.manifest
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        root=manifest.root,
        operator=kept.signed.keyring.latest,
        size_bytes=manifest.total_bytes,
        chunks=sum(len(entry.chunks) for entry in manifest.files),
        issued_s=manifest.issued,
    )


def age_notice(kept: Remembered, problem: str) -> str:
    """What a user should know about a model that was opened while the swarm does not answer."""
    manifest, now_s = kept.manifest, time.time()
    expired = " It has expired since." if kept.is_expired(now_s) else ""
    return (
        f"Offline ({problem}). Using {manifest.name} version {manifest.version} from this machine, signed "
        f"{_duration(now_s - manifest.issued)} ago, last offered {_duration(kept.age_s(now_s))} ago.{expired}"
    )


def _duration(seconds: float) -> str:
    """A span of time in its largest sensible unit."""
    for unit, length_s in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length_s)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "moments"
