"""Bytes of expert calls on their connection: `swarm bench swarm --part bytes`.

What is measured is what was written to the socket and read from it: frames, signatures and encryption are in it.
Beside it stands what rows, pairs and outputs take in the form they travel in. The donor's experts compute nothing, as
their outputs are of the same length.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.doubts import forward
from engine.engine import Engine
from engine.models import Segment
from swarm.peers.bench import DonorPlan, Place, asking, donor
from swarm.peers.calls import PAIR_BYTES, Form
from swarm.peers.network import NetworkThread
from swarm.peers.remote import RemoteExperts, Rules


@dataclass(frozen=True)
class Bytes:
    """Bytes a token in one direction."""

    measured: float
    implied: float
    """Of the rows and pairs, or of the outputs, alone."""

    @property
    def ratio(self) -> float:
        """What was measured in multiples of what is implied."""
        return self.measured / self.implied


@dataclass(frozen=True)
class Course:
    """What some tokens took."""

    tokens: int
    sent: Bytes
    received: Bytes


@dataclass(frozen=True)
class Traffic:
    """With one donor."""

    decode: Course
    prefill: Course
    no_delay: bool
    """Whether TCP_NODELAY was set at both ends."""


def traffic(engine: Engine, config: Mapping[str, Any], tokens: int, prompt: int) -> Traffic:
    """Reads a prompt in one pass, then so many tokens one by one."""
    luck = random.Random(0)
    state = engine.model.new_state()
    with donor(DonorPlan(config, empty=True)) as place, NetworkThread() as network:
        remote = network.enter(asking, engine.bank, [place], Rules.parse("off", 0.0))

        def read(ids: Sequence[int]) -> None:
            forward(engine.model, [Segment(state, ids)], remote)

        def decode() -> None:
            for _ in range(tokens):
                read([luck.randrange(engine.model.vocab_size)])

        long = [luck.randrange(engine.model.vocab_size) for _ in range(prompt)]
        prefilled = _course(engine, remote, config, prompt, lambda: read(long))
        decoded = _course(engine, remote, config, tokens, decode)
        return Traffic(decoded, prefilled, _no_delay(remote, place))


def _course(
    engine: Engine, remote: RemoteExperts, config: Mapping[str, Any], tokens: int, run: Callable[[], None]
) -> Course:
    before = remote.transferred()
    run()
    sent, received = (now - then for now, then in zip(remote.transferred(), before, strict=True))
    forms = [Form.of(engine.bank.shape(layer)) for layer in engine.bank.layout.layers]
    chosen = config["num_experts_per_tok"]
    return Course(
        tokens,
        Bytes(sent / tokens, sum(form.row_bytes + chosen * PAIR_BYTES for form in forms)),
        Bytes(received / tokens, sum(chosen * form.output_bytes for form in forms)),
    )


def _no_delay(remote: RemoteExperts, place: Place) -> bool:
    peer = remote.pool.remotes[place.key].peer
    assert peer is not None
    assert place.process is not None
    return bool(peer.no_delay) and bool(place.process.hear()["no_delay"])
