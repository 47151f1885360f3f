"""Everything that can happen while connecting, loading and answering: small frozen events, in order of time.

A backend yields them; the application and the line mode show them. Text in them is already decoded but not
yet cleaned: whoever shows it cleans it (`tui.cleaner`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tui.views import ModelView, ReplyStats


class Phase(StrEnum):
    """What is being waited for; the values are shown as they are."""

    CONNECTING = "connecting"
    RECONNECTING = "reconnecting"
    VERIFYING = "verifying"
    FETCHING = "fetching"
    LOADING = "loading"
    COMPILING = "compiling kernels"
    PREFILL = "prefill"
    DECODING = "decoding"


@dataclass(frozen=True)
class Progress:
    """How far a phase is. `total` 0: unknown. `unit` is "B" for bytes, "tokens", or "" for a bare count."""

    phase: Phase
    done: int = 0
    total: int = 0
    unit: str = ""
    rate: float = 0.0
    """Units per second; 0: unknown."""
    detail: str = ""
    """What exactly: a file, an address."""


@dataclass(frozen=True)
class Connected:
    """A swarm answered and its manifest signature holds."""

    address: str
    operator: str
    """Fingerprint of the operator's key."""
    known: bool
    """This key was seen before, or came with the invite."""
    models: tuple[ModelView, ...]


@dataclass(frozen=True)
class Ready:
    """A model is open: the next question will be answered by it."""

    model: ModelView
    context_tokens: int


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True)
class Text:
    """A piece of the reply."""

    text: str


@dataclass(frozen=True)
class Retracted:
    """Only this much of the reply stands; the rest was due to answers that were found wrong since."""

    reason: str
    text: str
    reasoning: str


class NoticeKind(StrEnum):
    """Kinds of news from the network that a user may want to see while a reply runs."""

    HEDGE = "hedge"
    FAILOVER = "failover"
    AUDIT = "audit"
    BAN = "ban"
    OFFLINE = "offline"
    ONLINE = "online"
    OTHER = "note"


@dataclass(frozen=True)
class Notice:
    """Something happened in the network, and the reply goes on."""

    kind: NoticeKind
    text: str


class EndReason(StrEnum):
    """Why a reply ended."""

    END = "end"
    STOPPED = "stopped"
    LENGTH = "length"
    CONTEXT = "context full"


@dataclass(frozen=True)
class Finished:
    """The reply is complete, or as complete as it will get."""

    reason: EndReason
    stats: ReplyStats = field(default_factory=ReplyStats)


@dataclass(frozen=True)
class Failed:
    """What was asked for did not work; `message` names culprit and remedy."""

    message: str
    offline: bool = False
    """The network is at fault: asking again later may work."""
    too_long: bool = False
    """The conversation does not fit the model's context: asking the same again cannot work."""


Event = Progress | Connected | Ready | Reasoning | Text | Retracted | Notice | Finished | Failed
