"""Swarms on the local network are found while they announce themselves."""

from __future__ import annotations

from contextlib import ExitStack

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


@pytest.mark.parametrize(
    "name", ["千问" * 15, "Modèle d'été, " * 6, "x\ty\x1b[2J\ud800", "a/b \\ c", ". .", "n" * 300]
)
def test_any_name_can_be_announced(name: str) -> None:
    pytest.importorskip("zeroconf")
    with (
        announced(name, 7312, ["127.0.0.1"], ["127.0.0.1"]),
        announced(name, 7313, ["127.0.0.1"], ["127.0.0.1"]),
    ):
        pass


def test_two_machines_at_one_port_are_told_apart() -> None:
    pytest.importorskip("zeroconf")
    places = {"first": "127.0.0.1", "second": "127.0.0.2"}
    with ExitStack() as both:
        for name, host in places.items():
            both.enter_context(announced(name, 7314, [host], ["127.0.0.1"]))
        found = {swarm.name: swarm.address for swarm in swarms(1.5, ["127.0.0.1"])}
    assert found == {name: f"{host}:7314" for name, host in places.items()}


def test_what_the_network_refuses_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    zeroconf = pytest.importorskip("zeroconf")

    def refuse(*_: object, **__: object) -> None:
        raise zeroconf.NonUniqueNameException

    monkeypatch.setattr(zeroconf.Zeroconf, "register_service", refuse)
    with pytest.raises(OSError, match="NonUniqueName"), announced("x", 7315, ["127.0.0.1"], ["127.0.0.1"]):
        pass
