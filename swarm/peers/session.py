"""A joined swarm: one tracker, the models it knows, and those that are open here.

    async with join(parse_target(invite), home()) as session:
        models = await session.models()
        model = await session.open_model("olmoe")      # its `source` is for the engine's thread

What a tracker says is checked against what this machine remembers: the tracker's key, the operator's key and the
highest version seen of each model. A change of key, a rollback or an expired manifest is refused by name. When the
tracker does not answer, the session is offline: what was accepted before stays usable, says how old it is, and
reads what is on this machine; as soon as the swarm answers, reads of what is missing reach it.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from mirror.cas import Store
from mirror.fetch import Mirror, Progress, open_mirror
from mirror.plan import Ledger
from mirror.source import MirrorSource
from mirror.tree import Tree
from swarm.errors import SwarmError
from swarm.peers.links import Links, NotTriedAgain
from swarm.peers.replicas import SwarmReplicas
from swarm.peers.settings import Home
from swarm.peers.target import Target
from swarm.peers.tracking import TrackerClient, TrackerSilent
from swarm.trust.identity import Identity
from swarm.trust.manifest import SignedManifest, parse_signed
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import ModelSummary
from swarm.wire.rpc import ConnectionLost, Unreachable

SPEED_OVER_S = 3.0
_AWAY = (Unreachable, ConnectionLost, TrackerSilent, NotTriedAgain)
"""How a tracker looks that is not there; anything else it does is refused instead of worked around."""


class NoModels(SwarmError):
    """The swarm at {address} has no models yet; start `swarm serve --model DIR` there."""


class NoSuchModel(SwarmError):
    """The swarm at {address} has no model “{name}”; it has: {known}."""


class SeveralModels(SwarmError):
    """The swarm at {address} has several models; choose one with --model: {known}."""


class NothingKeptHere(SwarmError):
    """The tracker {address} does not answer ({reason}), and no model of that swarm was used on this machine before.
    Is `swarm serve` running there, and is the address right?"""


class OtherOperator(SwarmError):
    """Model “{name}” of this swarm is signed by operator {found}, but the invite names {expected}; it was not used.
    Ask whoever gave you the invite for a new one."""


class WrongManifest(SwarmError):
    """The tracker {address} gave the manifest {found} for “{name}” where it had announced {expected}; not used."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the swarm, as the tracker lists it or as it was accepted here."""

    name: str
    version: int
    root: bytes
    operator: bytes
    size_bytes: int
    chunks: int
    holders: int = 0
    """Peers that serve some of it; 0 when offline."""
    covered_chunks: int = 0
    experts: int = 0
    issued_s: int | None = None
    """When it was signed, seconds since 1970; None before it was opened here."""
    accepted: bool = False
    """This version was accepted on this machine."""

    @property
    def complete(self) -> bool:
        """Whether peers hold all of it."""
        return self.covered_chunks == self.chunks


@dataclass(frozen=True)
class OpenModel:
    """A model that is open here. `source` is for threads that are not trio's."""

    info: ModelInfo
    signed: SignedManifest
    mirror: Mirror
    source: MirrorSource
    replicas: SwarmReplicas
    notices: tuple[str, ...] = ()
    """What a user should know about it, such as how old it is when the swarm does not answer."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer that serves the open model."""

    key: PeerKey
    address: str
    chunks: int
    """How many chunks it holds."""
    given_bytes: int
    in_hand: int
    """Requests that it has not answered yet."""
    wrong: int
    banned: bool
    trouble: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session at one moment. Cheap to make."""

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


@dataclass
class _Speed:
    """Bytes a second over the last few seconds."""

    clock: Callable[[], float] = trio.current_time
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, count: int) -> float:
        now = self.clock()
        self._seen.append((now, count))
        while now - self._seen[0][0] > SPEED_OVER_S and len(self._seen) > 2:
            self._seen.popleft()
        start, first = self._seen[0]
        return (count - first) / (now - start) if now > start else 0.0
