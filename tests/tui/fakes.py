"""A backend that does what a test tells it: streams, stalls, fails, goes offline."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tui.backend import Ask, Donation
from tui.messages import (
    Connected,
    EndReason,
    Event,
    Failed,
    Finished,
    Notice,
    Phase,
    Progress,
    Ready,
    Text,
)
from tui.views import Ban, DonationView, Found, ModelView, PeerView, ReplyStats, Role, SwarmView

OPERATOR = "7f3a 91c2 04de 5b68 aa10 3e77"
OLMOE = ModelView(
    "olmoe-1b-7b", "olmoe", "bf16", 13_800_000_000, 16, 64, 1_200_000_000, 1_900_000_000, open=True
)
QWEN = ModelView("qwen3-30b-a3b", "qwen3_moe", "int4", 17_100_000_000, 48, 128, 0, 2_300_000_000)
HOLES = replace(QWEN, name="glm-air", missing=("layer 3", "layer 17"), size_bytes=55_000_000_000)
MODELS = (OLMOE, QWEN, HOLES)
STATS = ReplyStats(
    prompt_tokens=48, cached_tokens=20, reply_tokens=128, prefill_s=0.4, decode_s=7.0, remote_calls=9000,
    local_calls=3000, hedges=2, hedges_won=1, failovers=1, audits=40, bytes_down=52_000_000,
    bytes_up=21_000_000, waited_s=1.2, context_tokens=176,
)  # fmt: skip


@dataclass(frozen=True)
class Stall:
    """The backend says nothing until it is stopped, or `FakeBackend.go` is set."""


Step = Event | Stall


def demo_swarm() -> SwarmView:
    """A swarm of four peers, one of them banned, with a hole in what they hold."""
    peers = (
        PeerView(1, Role.MAINTAINER, rtt_ms=0.4, service_ms=6.1, held="everything", calls=1200,
                 bytes_down=1_900_000_000, bytes_up=2_100_000),
        PeerView(2, Role.COMPUTE, rtt_ms=11.8, service_ms=9.4, held="layers 0–7", calls=48_210,
                 bytes_down=210_000_000, bytes_up=88_000_000),
        PeerView(3, Role.BOTH, relayed=True, rtt_ms=38.0, service_ms=14.0, held="layers 8–15", calls=45_007,
                 bytes_down=199_000_000, bytes_up=81_000_000, state="slow"),
        PeerView(4, Role.COMPUTE, rtt_ms=12.0, service_ms=3.0, held="layers 0–3", calls=310,
                 bytes_down=1_400_000, bytes_up=600_000, state="banned"),
    )  # fmt: skip
    experts = tuple(
        tuple(0 if (layer, expert) == (5, 17) else 1 + (layer * 7 + expert * 3) % 4 for expert in range(64))
        for layer in range(16)
    )
    return SwarmView(
        link="online", address="192.168.1.20:7300", operator=OPERATOR, model=OLMOE.name, peers=peers,
        experts=experts, ranges=tuple(float(1 + at % 3) for at in range(40)),
        bans=(Ban(4, "its answer for layer 2, expert 9 was recomputed and differs"),),
        donation=DonationView("compute", "running", 0, 4_000_000_000, 812, 3_100_000),
        fetched_bytes=1_900_000_000,
    )  # fmt: skip


@dataclass
class FakeBackend:
    """Each `ask` takes the next script; without one it echoes the last message."""

    scripts: list[Sequence[Step]] = field(default_factory=list)
    view: SwarmView = field(default_factory=demo_swarm)
    listed: tuple[ModelView, ...] = MODELS
    connecting: list[Sequence[Step]] = field(default_factory=list)
    opening: list[Sequence[Step]] = field(default_factory=list)
    found: tuple[Found, ...] = ()
    asked: list[Ask] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    donated: list[Donation] = field(default_factory=list)
    tuned: list[tuple[str, str]] = field(default_factory=list)
    now: ReplyStats = field(default_factory=ReplyStats)
    held_up: Progress | None = None
    known: bool = True
    closed: bool = False

    def __post_init__(self) -> None:
        self.go = threading.Event()
        self._stop = threading.Event()

    def discover(self, seconds: float) -> tuple[Found, ...]:
        """What the test put there, at once."""
        return self.found

    def connect(self, target: str) -> Iterator[Event]:
        """A script, or success."""
        self.joined.append(target)
        if self.connecting:
            yield from self._play(self.connecting.pop(0))
            return
        yield Progress(Phase.CONNECTING)
        yield Connected(self.view.address, OPERATOR, self.known, self.listed)

    def models(self) -> tuple[ModelView, ...]:
        """All models."""
        return self.listed

    def open(self, model: str) -> Iterator[Event]:
        """A script, or success."""
        if self.opening:
            yield from self._play(self.opening.pop(0))
            return
        chosen = next((item for item in self.listed if item.name == model), None)
        if chosen is None:
            yield Failed(f"The swarm has no model {model}; it has {', '.join(m.name for m in self.listed)}.")
            return
        self.listed = tuple(replace(item, open=item is chosen) for item in self.listed)
        yield Progress(Phase.LOADING, 1, 2)
        yield Ready(chosen, 4096)

    def ask(self, request: Ask) -> Iterator[Event]:
        """A script, or an echo."""
        self.asked.append(request)
        if self.scripts:
            yield from self._play(self.scripts.pop(0))
            return
        yield Text(f"You said: {request.turns[-1].text}")
        yield Finished(EndReason.END, STATS)

    def stop(self) -> None:
        """End a stall."""
        self._stop.set()

    def snapshot(self) -> SwarmView:
        """The view, as the test set it."""
        return self.view

    def live(self) -> ReplyStats:
        """The numbers, as the test set them."""
        return self.now

    def waiting(self) -> Progress | None:
        """What the test set."""
        return self.held_up

    def tune(self, name: str, value: str) -> str:
        """Remember the wish; "bad" is refused."""
        if value == "bad":
            raise ValueError(f"{name} cannot be {value}.")
        self.tuned.append((name, value))
        return value

    def donate(self, wish: Donation) -> DonationView:
        """Remember the wish, and look as if it was fulfilled."""
        self.donated.append(wish)
        state = "paused" if wish.paused else "running" if wish.kind else "off"
        lent = DonationView(wish.kind, state, wish.disk_bytes, wish.ram_bytes)
        self.view = replace(self.view, donation=lent)
        return lent

    def close(self) -> None:
        """Remember it."""
        self.closed = True

    def _play(self, script: Sequence[Step]) -> Iterator[Event]:
        self._stop.clear()
        for step in script:
            if not isinstance(step, Stall):
                yield step
                continue
            while not self.go.wait(0.005):
                if self._stop.is_set():
                    yield Finished(EndReason.STOPPED, STATS)
                    return


def notice_offline() -> Notice:
    """The network went away in mid reply."""
    from tui.messages import NoticeKind

    return Notice(NoticeKind.OFFLINE, "Peer 2 does not answer; peer 3 takes over.")
