"""The protocol between the terminal and whatever answers: a swarm, a local checkpoint, or a test's fake.

Every method blocks and is called from a worker thread, never from a user interface's loop. Those that take
time are iterators of events (`tui.messages`): they end with `Ready`, `Connected`, `Finished` or `Failed`, and
raise nothing but programming errors. `stop`, `snapshot`, `live` and `close` may be called from any thread at
any moment; of the others one runs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tui.messages import Event, Progress
from tui.options import Sampling
from tui.views import DonationView, Found, ModelView, ReplyStats, SwarmView

RoleName = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: RoleName
    text: str
    reasoning: str = ""


@dataclass(frozen=True)
class Ask:
    """A conversation to be continued, and how."""

    turns: Sequence[Turn]
    sampling: Sampling


@dataclass(frozen=True)
class Donation:
    """What the user wants to lend from now on. kind: "" | disk | compute | both."""

    kind: str
    disk_bytes: int = 0
    ram_bytes: int = 0
    paused: bool = False


class Backend(Protocol):
    """Where answers come from."""

    def discover(self, seconds: float) -> tuple[Found, ...]:
        """Swarms that announce themselves on the local network."""

    def connect(self, target: str) -> Iterator[Event]:
        """Join the swarm at an invite or address (local: anything); ends with Connected or Failed."""

    def models(self) -> tuple[ModelView, ...]:
        """All models of the swarm, as of now."""

    def open(self, model: str) -> Iterator[Event]:
        """Make a model the one that answers; ends with Ready or Failed (then the earlier one stays open)."""

    def ask(self, request: Ask) -> Iterator[Event]:
        """Continue a conversation; ends with Finished or Failed."""

    def stop(self) -> None:
        """End the running `ask` (or `open`, `connect`) soon; what was said stays said."""

    def snapshot(self) -> SwarmView:
        """The network as it is now; cheap, never waits for a peer."""

    def live(self) -> ReplyStats:
        """The numbers of the running reply so far; cheap."""

    def waiting(self) -> Progress | None:
        """What a running reply is held up by, where that is known better than by its last event; cheap."""

    def tune(self, name: str, value: str) -> str:
        """Change hedge, audit, drafts or expert-ram while running; the value now in force. ValueError: bad value."""

    def donate(self, wish: Donation) -> DonationView:
        """Lend more, less or nothing; what is lent now."""

    def close(self) -> None:
        """Leave the swarm and end every thread; idempotent."""
