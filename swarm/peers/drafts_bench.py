"""What guessed tokens are worth at a distance: `swarm bench swarm --part drafts`.

Made-up weights say nothing that repeats itself, so a grammar decides what the reply says: the prompt again, as where a
text is corrected or quoted, or other tokens. All else is as in a chat.
"""

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.drafts import Drafter, Pace
from engine.engine import Engine
from engine.generate import generate
from engine.reply import Reply
from swarm.peers.bench import DonorPlan, Place, asking, donor
from swarm.peers.delay_bench import distance
from swarm.peers.network import NetworkThread
from swarm.peers.remote import RemoteExperts, Rules

RUNS = 2
PROMPT = 32


class Dictation:
    """A grammar that allows one text; see `engine.sampling.Constraint`."""

    def __init__(self, tokens: Sequence[int], vocabulary: int) -> None:
        self._tokens, self._vocabulary, self._said = tokens, vocabulary, 0

    def allowed(self) -> Array:
        """The next token of the text."""
        allowed = np.zeros(self._vocabulary, np.bool_)
        allowed[self._tokens[self._said]] = True
        return allowed

    def accept(self, token: int) -> None:
        """See `engine.sampling.Constraint`."""
        self._said += 1

    def restart(self) -> None:
        """See `engine.sampling.Constraint`."""
        self._said = 0


@dataclass(frozen=True)
class Drafted:
    """Tokens a second, medians, of replies that repeat their prompt and of others."""

    round_trip_ms: float
    repeated: float
    repeated_without: float
    other: float
    other_without: float


def drafting(
    engine: Engine, config: Mapping[str, Any], round_trips_s: Sequence[float], tokens: int
) -> Iterator[Drafted]:
    """Replies of so many tokens behind a proxy, with guesses and without in turns."""
    with donor(DonorPlan(config)) as place, ExitStack() as proxies, NetworkThread() as network:
        for round_trip_s in round_trips_s:
            port = proxies.enter_context(distance(place.port, round_trip_s))
            remote = network.enter(asking, engine.bank, [Place(port, place.key)], Rules(None, 0.0))
            yield _compared(engine, remote, round_trip_s, tokens)


def _compared(engine: Engine, remote: RemoteExperts, round_trip_s: float, tokens: int) -> Drafted:
    vocabulary = engine.model.vocab_size
    known = random.Random(0).sample(range(vocabulary), PROMPT)
    fresh = random.Random(1).choices(range(vocabulary), k=tokens)
    repeated = (known * (1 + tokens // PROMPT))[:tokens]
    pace = Pace()
    found: dict[tuple[bool, bool], list[float]] = {}
    for run in range(RUNS + 1):
        for repeats in (True, False):
            for drafts in (True, False):
                reply = Reply(
                    list(known),
                    engine.model.new_state(),
                    constraint=Dictation(repeated if repeats else fresh, vocabulary),
                    max_tokens=tokens,
                    drafter=Drafter(pace) if drafts else None,
                )
                list(generate(engine.model, remote, reply))
                if run:
                    speed = (tokens - 1) / reply.stats.decode_s
                    found.setdefault((repeats, drafts), []).append(speed)
    speeds = {how: statistics.median(values) for how, values in found.items()}
    return Drafted(
        1000 * round_trip_s,
        speeds[True, True],
        speeds[True, False],
        speeds[False, True],
        speeds[False, False],
    )
