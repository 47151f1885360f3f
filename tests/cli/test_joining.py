"""Which swarm a command joins: the one it names, else that of SWARM_INVITE, else the one used last."""

from pathlib import Path

import click
import pytest

from swarm.cli.joining import where
from swarm.peers.settings import home, remember
from swarm.wire.address import Address


def test_what_is_named_wins_over_the_environment_and_that_over_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    for nothing in (None, "", " "):
        if nothing is None:
            monkeypatch.delenv("SWARM_INVITE", raising=False)
        else:
            monkeypatch.setenv("SWARM_INVITE", nothing)
        with pytest.raises(click.UsageError, match="SWARM_INVITE"):
            where(None, None)
    remember(home().settings, swarm="last.example")
    assert where(None, None).address == Address("last.example", 7300)
    monkeypatch.setenv("SWARM_INVITE", "environment.example")
    assert where(None, None).address == Address("environment.example", 7300)
    assert where("named.example", None).address == Address("named.example", 7300)
