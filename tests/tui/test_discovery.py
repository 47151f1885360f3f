"""Swarms on the local network are found while they announce themselves."""

from __future__ import annotations

import pytest

from tui.discovery import announced, swarms
from tui.views import Found


def test_an_announced_swarm_is_found_and_then_gone() -> None:
    pytest.importorskip("zeroconf")
    with announced("Test swarm 7.b", 7311, ["127.0.0.1"], ["127.0.0.1"]):
        assert Found("Test swarm 7 b", "127.0.0.1:7311") in swarms(1.0, ["127.0.0.1"])
    assert not [found for found in swarms(0.5, ["127.0.0.1"]) if found.name == "Test swarm 7 b"]


def test_without_the_library_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.discovery.find_spec", lambda name: None)
    assert swarms(60.0) == ()
    with announced("x", 1, []):
        pass
