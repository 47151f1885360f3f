"""What `/swarm`, `/model` and `/stats` show: snapshots as frozen dataclasses, made by a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class ModelView:
    """One model of the swarm, or the one in a local directory."""

    name: str
    family: str = ""
    format: str = ""
    """How its weights are stored: bf16, int4, mxfp4 …"""
    size_bytes: int = 0
    layers: int = 0
    """Layers with experts."""
    experts: int = 0
    """Experts a layer."""
    fetched_bytes: int = 0
    """Bytes that are already on this machine."""
    needed_bytes: int | None = None
    """Bytes that opening it needs: everything but routed experts. None: nobody knows before it was opened."""
    missing: tuple[str, ...] = ()
    """What no peer holds; empty: coverage is complete."""
    open: bool = False
    supported: bool = True

    @property
    def to_fetch_bytes(self) -> int | None:
        """What opening it would fetch now, if that is known."""
        return None if self.needed_bytes is None else max(0, self.needed_bytes - self.fetched_bytes)


class Role(StrEnum):
    """What a peer does for the swarm."""

    MAINTAINER = "maintainer"
    DISK = "disk"
    COMPUTE = "compute"
    BOTH = "disk+compute"
    CHATTER = "chatter"
    WEB = "web server"


@dataclass(frozen=True)
class Ban:
    """A peer that is left out, and why."""

    peer: int
    reason: str


@dataclass(frozen=True)
class PeerView:
    """A peer, numbered, never named."""

    number: int
    role: Role
    relayed: bool = False
    rtt_ms: float | None = None
    service_ms: float | None = None
    """Moving average of the time for a call."""
    held: str = ""
    """What it holds, in words: "layers 0–7", "38 %"."""
    calls: int = 0
    """Expert calls it served to you."""
    bytes_down: int = 0
    bytes_up: int = 0
    state: str = "ok"
    """ok | slow | frozen | offline | banned."""


@dataclass(frozen=True)
class DonationView:
    """What this machine lends."""

    kind: str = ""
    """"" (nothing) | disk | compute | both."""
    state: str = "off"
    """off | starting | running | paused | failed."""
    disk_bytes: int = 0
    ram_bytes: int = 0
    served_calls: int = 0
    served_bytes: int = 0
    detail: str = ""


@dataclass(frozen=True)
class SwarmView:
    """The network at one moment."""

    link: str = "offline"
    """local | connecting | online | relayed | offline."""
    address: str = ""
    operator: str = ""
    model: str = ""
    peers: tuple[PeerView, ...] = ()
    experts: tuple[tuple[int, ...], ...] = ()
    """Replicas of expert e in layer l: experts[l][e]."""
    ranges: tuple[float, ...] = ()
    """Mean number of replicas of each of some equal byte ranges of the checkpoint, in order."""
    bans: tuple[Ban, ...] = ()
    donation: DonationView = field(default_factory=DonationView)
    fetched_bytes: int = 0
    fetch_rate: float = 0.0
    """Bytes per second, now."""


@dataclass(frozen=True)
class ReplyStats:
    """One reply in numbers."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were still there."""
    reply_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    guessed_tokens: int = 0
    """Tokens that donors computed before they were drawn, …"""
    guessed_right: int = 0
    """… and that were drawn then."""
    remote_calls: int = 0
    local_calls: int = 0
    hedges: int = 0
    hedges_won: int = 0
    failovers: int = 0
    audits: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    waited_s: float = 0.0
    """Time spent waiting for the slowest donor, over all layers."""
    context_tokens: int = 0
    """Tokens in the context after the reply."""
    expert_hits: int = 0
    """Experts that were in this machine's memory when asked for, where not all fit, …"""
    expert_misses: int = 0
    """… and that had to be read first."""
    expert_bytes: int = 0
    expert_wait_s: float = 0.0
    """Time spent waiting for such reads."""

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: the first token is the prefill's. 0 when nothing was decoded."""
        return max(0, self.reply_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def remote_share(self) -> float:
        """Share of expert calls done by others, 0 to 1."""
        calls = self.remote_calls + self.local_calls
        return self.remote_calls / calls if calls else 0.0


@dataclass(frozen=True)
class Found:
    """A swarm seen on the local network."""

    name: str
    address: str
