"""Donors as processes of their own: whoever computes, and whatever becomes of them, the tokens are the same."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from swarm.demo.generated import Shape, write_checkpoint
from tests.e2e.processes import Running, Served, running, serving, swarm

IDS = list(range(5, 29))
GREEDY = 24


@contextmanager
def donating(home: Path, invite: str, *arguments: str, ready: int = 1) -> Iterator[Running]:
    """`swarm donate compute` on loopback, with at least so many experts ready."""
    where = ("--listen", "127.0.0.1", "--json", "--ram", "200MB")
    with running(home, "donate", "compute", invite, *where, *arguments) as donor:
        while donor.event("lending")["ready"] < ready:
            pass
        yield donor


class Asker:
    """Runs `swarm logits` in a home of its own, and compares with the model run locally."""

    def __init__(self, folder: Path, model: Path, weights: str = "auto") -> None:
        self.folder = folder
        self.weights = weights
        self.ids = folder / "ids.json"
        folder.mkdir(parents=True)
        self.ids.write_text(json.dumps(IDS))
        self.tokens, self.logits = self.ask("--local", model)

    def ask(self, *where: str | Path) -> tuple[str, bytes]:
        """The greedy tokens and the logits' bytes."""
        out = self.folder / "out.npy"
        arguments = ("--ids", self.ids, "--out", out, "--greedy", str(GREEDY), "--weights", self.weights)
        done = swarm(self.folder / "home", "logits", *where, *arguments)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        return done.stdout, np.load(out).tobytes()

    def same(self, invite: str, *options: str) -> list[dict[str, object]]:
        """Asks the swarm, requires the local answer, and gives the trace."""
        trace = self.folder / "trace.jsonl"
        assert self.ask(invite, "--trace", trace, *options) == (self.tokens, self.logits)
        return [json.loads(line) for line in trace.read_text().splitlines()]


def donors_used(trace: list[dict[str, object]]) -> set[str]:
    """Who gave answers that were used."""
    return {hop["donor"] for line in trace for hop in line["hops"] if hop["outcome"] == "used"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("model", "weights"), [("olmoe", "auto"), ("qwen3_moe", "auto"), ("olmoe", "native")])
def test_a_serving_machine_computes_for_others(oracle: Path, tmp_path: Path, model: str, weights: str) -> None:
    asker = Asker(tmp_path / "asker", oracle / model, weights)
    with serving(tmp_path / "host", oracle / model, "--weights", weights) as served:
        served.running.event("executing")
        trace = asker.same(served.invite, "--audit", "0")
    assert len(donors_used(trace)) == 1
    assert not any(line["fallback_pairs"] for line in trace)
    assert "100% by donor" in asker.said


def test_donors_that_hold_parts_compute_together_and_may_leave(oracle: Path, tmp_path: Path) -> None:
    """Two donors share the experts; one leaves cleanly, one is killed, one is paused: nobody notices."""
    model = oracle / "olmoe"
    asker = Asker(tmp_path / "asker", model)
    with serving(tmp_path / "host", model, "--no-exec") as served:
        with (
            donating(tmp_path / "first", served.invite, "--experts", "16", ready=16) as first,
            donating(tmp_path / "second", served.invite, "--experts", "16", ready=16),
        ):
            trace = asker.same(served.invite, "--audit", "100%")
            assert len(donors_used(trace)) == 2
            assert not any(line["fallback_pairs"] for line in trace)
            assert first.stop(signal.SIGINT) == 0
            trace = asker.same(served.invite, "--audit", "0")
            assert len(donors_used(trace)) <= 1
    assert "failovers" not in asker.said
