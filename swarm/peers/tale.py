"""What happened in a layer's round, for statistics and traces."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal["first", "hedge", "failover", "audit"]
Outcome: TypeAlias = Literal["used", "lost", "failed", "late", "busy", "checked"]


@dataclass(slots=True)
class Hop:
    """One call of a round, for statistics and traces."""

    donor: str
    pairs: int
    cause: Cause
    outcome: Outcome = "lost"
    ms: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class Tale:
    """What happened in a round."""

    hops: list[Hop] = field(default_factory=list)
    local_pairs: int = 0
    """Pairs that ran here because nobody else could."""
    quicker_pairs: int = 0
    """Pairs that ran here, from memory, because their donor was late or known to be much slower."""
    hedges: int = 0
    hedges_won: int = 0
    failovers: int = 0
