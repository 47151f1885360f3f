"""`swarm bench swarm` runs each of its parts in its smallest size and says what it found as rows and as JSON."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from swarm.cli.bench import swarm
from swarm.cli.bench.swarm import command
from swarm.cli.bench.swarm_rows import ROWS
from swarm.peers import frozen_bench
from tracker import bench

SMALL = ["--layers", "2", "--experts", "8", "--tokens", "4"]


def measured(part: str, *options: str) -> Any:
    """The JSON of a part, after its rows were made of it."""
    ran = CliRunner().invoke(command, ["--part", part, *options, "--json"], catch_exceptions=False)
    assert ran.exit_code == 0
    found = json.loads(ran.stdout)[part]
    for figure, value in ROWS[part](found):
        assert figure
        assert value
    return found


def test_every_part_has_rows() -> None:
    assert set(swarm.PARTS) == set(swarm.MEASURED) == set(ROWS)


def test_bytes_on_the_connection_are_what_the_formats_imply() -> None:
    found = measured("bytes", *SMALL, "--prompt", "128")
    assert found["no_delay"] is True
    for name, tokens in (("decode", 4), ("prefill", 128)):
        course = found[name]
        assert course["tokens"] == tokens
        assert course["sent_implied"] == 2 * (2048 + 4 * 64 + 8 * 4)
        assert course["received_implied"] == 2 * 8 * (2 * 2048 + 4 * 64)
        for direction in ("sent", "received"):
            ratio = course[f"{direction}_bytes_a_token"] / course[f"{direction}_implied"]
            assert course[f"{direction}_ratio"] == pytest.approx(ratio, abs=1e-3)
            assert 1 < ratio < 1.05


def test_a_donor_freezes_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_bench, "BACK_S", 3.0)
    found = measured("frozen", *SMALL)
    assert [one["hedge"] for one in found] == list(frozen_bench.HEDGES)
    for one in found:
        assert one["token_ms"] > 0
        assert one["stopped_token_ms"] > 0
        assert one["deadline_ms"] > 0
        assert one["worst_ms"] > one["lost_ms"] / 4
        assert 0 <= one["requests_later"] <= one["requests"]
        assert one["back_ms"] is None or one["back_ms"] > 0


def test_liars_of_every_rate_and_colluders_are_looked_for() -> None:
    found = measured("lies", "--seeds", "2", "--calls", "1000")
    assert [one["rate"] for one in found["one"]] == [0.01, 0.1, 1.0]
    assert [round(one["implied"]) for one in found["one"]] == [4267, 427, 43]
    assert found["all_first"]["implied"] == 160
    assert found["all_but_one"]["implied"] == 480
    assert (found["honest_calls"], found["honest_banned"], found["wrongly_accused"]) == (1000, 0, 0)


def test_donors_come_and_go_and_a_full_tracker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RELAYED_BYTES", 1 << 20)
    monkeypatch.setattr(swarm, "TRACKER_QUESTIONS", 3)
    found = measured("churn", "--peers", "40")
    assert (found["without_route"], found["not_found"]) == (0, 0)
    assert 0 < found["moved_share"] < 0.02
    assert found["peers"] == 40
    assert len(found["answers"]) == 11
    assert found["slowest_p99_ms"] == max(one["p99_ms"] for one in found["answers"])
