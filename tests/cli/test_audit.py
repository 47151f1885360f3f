"""What `swarm audit bans` says of proofs: where `swarm audit show` would find each."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blake3 import blake3
from click.testing import CliRunner

from swarm.cli import joining
from swarm.cli.audit import command
from swarm.peers.proofs import keep_proof
from swarm.peers.settings import home as settings_home
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import Ban

MINE, THEIRS, GONE = b"found here", b"found by others", b"found long ago"


def ban(number: int, proof: bytes, *, kept: bool) -> Ban:
    return Ban(number, PeerKey(bytes([number]) * 32), "it lied", blake3(proof).digest(), 0, kept)


@pytest.fixture
def banned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swarm with three bans: the proof of one is kept here, that of one at the tracker, that of one nowhere."""
    keep_proof(settings_home().proofs, MINE)
    bans = ban(1, MINE, kept=False), ban(2, THEIRS, kept=True), ban(3, GONE, kept=False)

    @contextmanager
    def joined(*_: Any) -> Iterator[tuple[Any, Any]]:
        yield SimpleNamespace(call=lambda *_: bans), SimpleNamespace(tracker=None)

    monkeypatch.setattr(joining, "joined", joined)


@pytest.mark.usefixtures("banned")
def test_each_ban_is_listed_with_who_keeps_its_proof() -> None:
    rows = [line.split() for line in CliRunner().invoke(command, ["bans"]).output.splitlines()]
    heads = next(number for number, row in enumerate(rows) if "kept" in row)
    assert rows[heads] == ["donor", "proof", "kept", "reason"]
    assert [row[2] for row in rows[heads + 1 :] if len(row) > 3] == ["here", "tracker", "no"]


@pytest.mark.usefixtures("banned")
def test_scripts_are_told_it_too() -> None:
    lines = CliRunner().invoke(command, ["bans", "--json"]).output.splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["kept"] for one in told] == ["here", "tracker", None]
    assert [one["proof"] for one in told] == [blake3(proof).digest().hex() for proof in (MINE, THEIRS, GONE)]
