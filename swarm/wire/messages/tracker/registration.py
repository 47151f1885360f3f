"""Becoming known to a tracker, staying so, and leaving.

A peer's life: RegisterPeer; HoldChunks or HoldExperts whenever its holdings change; Heartbeat in between, and
TryReach now and then where the tracker did not get through to it; LeaveSwarm. Each Hold message has the next
`revision`; heartbeats repeat the last one, and `resend` in the answer asks for everything again. Who only asks
(chat) need not register.
"""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import Bounds, Message, register
from swarm.wire.messages.tracker.fields import Count, Key, Number, Port


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a peer: directly at an address, through the tracker's relay, or either.

    An empty host with a port means the host at which the asker reached the tracker; port 0 means no direct
    way.
    """

    key: Key
    host: Annotated[str, Bounds(0, 255)]
    port: Port
    relay: bool


@register("register-peer")
@dataclass(frozen=True, slots=True)
class RegisterPeer(Message):
    """Makes the caller known, replacing what was known of its key. The reply may take some seconds: the
    tracker dials back. `addresses` are those the user advertises, `port` is where the peer listens at the
    address it calls from (0: nowhere), `local` says that it listens on the loopback interface only."""

    agent: Annotated[str, Bounds(0, 80)]
    addresses: Annotated[tuple[Annotated[str, Bounds(1, 300)], ...], Bounds(0, 4)]
    port: Port
    local: bool = False


@register("peer-registered")
@dataclass(frozen=True, slots=True)
class PeerRegistered(Message):
    """`generation` goes into every later message of this registration. `address` is the published one, empty
    when the peer can be reached through the relay only, and `obstacle` then says why. `unix_s` is the tracker's
    clock (0: not told)."""

    generation: Number
    observed: Annotated[str, Bounds(0, 300)]
    address: Annotated[str, Bounds(0, 300)]
    obstacle: Annotated[str, Bounds(0, 500)]
    heartbeat_ms: Count
    lifetime_ms: Count
    unix_s: Number = 0


@register("try-reach")
@dataclass(frozen=True, slots=True)
class TryReach(Message):
    """Has the tracker dial back again to a registered peer, with what `RegisterPeer` says of it."""

    generation: Number
    addresses: Annotated[tuple[Annotated[str, Bounds(1, 300)], ...], Bounds(0, 4)]
    port: Port


@register("reach-tried")
@dataclass(frozen=True, slots=True)
class ReachTried(Message):
    """The address that is published from now on, or why there is none, as in PeerRegistered."""

    address: Annotated[str, Bounds(0, 300)]
    obstacle: Annotated[str, Bounds(0, 500)]


@register("heartbeat")
@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The caller lives. `sequence` grows with each; `revision` is that of the last Hold message sent (0:
    none). The figures are moving averages of what others wait for: microseconds an expert call, calls in the
    queue."""

    generation: Number
    sequence: Number
    revision: Number
    service_us: Count = 0
    queue: Count = 0


@register("heartbeat-seen")
@dataclass(frozen=True, slots=True)
class HeartbeatSeen(Message):
    """`departures`, `models` and `bans` are counters: when one grew, donors that left make a new assignment
    worth asking for, a model was published or renewed, or a peer was banned."""

    lifetime_ms: Count
    resend: bool
    departures: Number
    models: Number
    bans: Number


@register("leave-swarm")
@dataclass(frozen=True, slots=True)
class LeaveSwarm(Message):
    """The caller goes; it is forgotten at once."""

    generation: Number


@register("left")
@dataclass(frozen=True, slots=True)
class Left(Message):
    """Answers LeaveSwarm."""
