"""Donors as processes of their own: whoever computes, and whatever becomes of them, the tokens are the same."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from swarm.cli.donating import NICENESS
from swarm.demo.generated import Shape, write_checkpoint
from tests.e2e.processes import Running, running, serving, swarm

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


def test_a_serving_machine_computes_for_others(oracle: Path, tmp_path: Path) -> None:
    model, weights = "qwen3_moe", "native"
    asker = Asker(tmp_path / "asker", oracle / model, weights)
    with serving(tmp_path / "host", oracle / model, "--weights", weights) as served:
        served.running.event("executing")
        trace = asker.same(served.invite, "--audit", "0")
    assert len(donors_used(trace)) == 1
    assert not any(line["fallback_pairs"] for line in trace)
    assert "100% by donor" in asker.said


def test_donors_that_hold_parts_compute_together_and_may_leave(oracle: Path, tmp_path: Path) -> None:
    """Two donors share the experts; then one leaves, and what only it held runs here."""
    model = oracle / "olmoe"
    asker = Asker(tmp_path / "asker", model)
    with (
        serving(tmp_path / "host", model, "--no-exec") as served,
        donating(tmp_path / "first", served.invite, "--experts", "16", ready=16) as first,
        donating(tmp_path / "second", served.invite, "--experts", "16", ready=16),
    ):
        trace = asker.same(served.invite, "--audit", "100%")
        assert len(donors_used(trace)) == 2
        assert not any(line["fallback_pairs"] for line in trace)
        assert first.stop(signal.SIGINT) == 0
        trace = asker.same(served.invite, "--audit", "0")
        assert len(donors_used(trace)) == 1
    assert "failovers" not in asker.said


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Large enough that a reply is under way for a while."""
    write_checkpoint(tmp_path / "model", Shape(64, 48, layers=16, experts=16, experts_per_token=8))
    return tmp_path / "model"


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), ("--relay",)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_donor_that_is_killed_or_frozen_in_mid_reply(
    model: Path, tmp_path: Path, how: signal.Signals, way: tuple[str, ...]
) -> None:
    asker = Asker(tmp_path / "asker", model)
    with (
        serving(tmp_path / "host", model) as served,
        donating(tmp_path / "first", served.invite, *way, ready=256) as first,
    ):
        served.running.event("executing")
        trace = tmp_path / "asker" / "trace.jsonl"

        def strike() -> None:
            while not trace.exists() or trace.stat().st_size < 4000:
                time.sleep(0.01)
            first.process.send_signal(how)

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            lines = asker.same(served.invite, "--audit", "0", "--hedge", "off")
        finally:
            striker.join()
            first.process.send_signal(signal.SIGCONT)
        hops = [hop for line in lines for hop in line["hops"]]  # type: ignore[attr-defined]
        assert sum(hop["outcome"] in ("late", "failed") for hop in hops) <= 2
        assert len(donors_used(lines)) == 2
        if how is signal.SIGKILL:
            first.process.wait(10)


def test_a_donor_behind_a_wall_is_relayed(oracle: Path, tmp_path: Path) -> None:
    asker = Asker(tmp_path / "asker", oracle / "olmoe")
    with (
        serving(tmp_path / "host", oracle / "olmoe", "--no-exec") as served,
        donating(tmp_path / "first", served.invite, "--relay", ready=32),
    ):
        trace = asker.same(served.invite, "--audit", "0")
        assert len(donors_used(trace)) == 1
        assert not any(line["fallback_pairs"] for line in trace)


def test_a_donor_rests_goes_on_and_streams_what_its_memory_does_not_hold(
    oracle: Path, tmp_path: Path
) -> None:
    home = tmp_path / "first"
    with (
        serving(tmp_path / "host", oracle / "olmoe", "--no-exec") as served,
        donating(home, served.invite, "--ram", "60KB", "--experts", "32", ready=32) as donor,
    ):
        least = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
        assert os.getpriority(os.PRIO_PROCESS, donor.process.pid) == least
        assert swarm(home, "donate", "compute", served.invite).returncode == 1  # one a machine
        assert swarm(home, "donate", "pause").returncode == 0
        while donor.event("lending")["state"] != "paused":
            pass
        assert swarm(home, "donate", "resume").returncode == 0
        now = donor.event("lending")
        assert (now["state"], now["ready"]) == ("running", 32)
        assert now["resident"] < 32
        asker = Asker(tmp_path / "asker", oracle / "olmoe")
        assert not any(line["fallback_pairs"] for line in asker.same(served.invite, "--audit", "0"))
    assert "No donor" in swarm(home, "donate", "pause").stderr


@pytest.mark.parametrize("kind", ["compute", "disk"])
def test_a_donor_that_is_paused_while_it_starts_rests_once_it_is_ready(
    oracle: Path, tmp_path: Path, kind: str
) -> None:
    home = tmp_path / "donor"
    what = ("--ram", "1GB") if kind == "compute" else ("--size", "20MB")
    with serving(tmp_path / "host", oracle / "olmoe", "--no-exec") as served:
        served.running.process.send_signal(signal.SIGSTOP)
        try:
            with running(
                home, "donate", kind, served.invite, "--listen", "127.0.0.1", "--json", *what
            ) as donor:
                while (
                    not (numbers := [path.read_text() for path in home.glob("**/donor-*.pid")])
                    or not numbers[0]
                ):
                    time.sleep(0.02)
                for command in ("resume", "pause", "resume", "pause"):
                    assert swarm(home, "donate", command, kind).returncode == 0
                served.running.process.send_signal(signal.SIGCONT)
                now = donor.event("lending")
                while now["state"] != "paused" or not now["ready"] == now["assigned"] > 0:
                    assert now["state"] == "paused"
                    now = donor.event("lending")
                assert swarm(home, "donate", "resume", kind).returncode == 0
                assert donor.event("lending")["state"] == "running"
        finally:
            served.running.process.send_signal(signal.SIGCONT)


def test_disk_donors_serve_when_the_origin_is_busy_elsewhere(oracle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "host", oracle / "olmoe") as served:
        where = ("--listen", "127.0.0.1", "--json", "--size", "20MB", "--relay")
        with running(tmp_path / "disk", "donate", "disk", served.invite, *where) as donor:
            now = donor.event("lending")
            while now["state"] != "running":
                now = donor.event("lending")
            assert now["ready"] == now["assigned"] > 0
            asker = Asker(tmp_path / "asker", oracle / "olmoe")
            asker.same(served.invite)
            assert donor.stop(signal.SIGINT) == 0
