"""Each check of `swarm doctor`: what is fine says so, what falls short says what to do."""

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from swarm.peers import checkup
from swarm.peers.checkup import Finding
from swarm.peers.settings import Home


def one(findings: Iterator[Finding]) -> Finding:
    """The only finding."""
    (finding,) = findings
    return finding


def test_all_checks_find_this_machine_fit_or_say_what_to_do(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "cache")
    found = [finding for check in checkup.checks_of(home, 0) for finding in check()]
    assert len({finding.subject for finding in found}) == len(found) >= 11
    assert not [finding for finding in found if finding.state == "bad"]
    for finding in found:
        assert bool(finding.remedy) == (finding.state != "good"), finding
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_essential(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    found = list(checkup.disk(file, tmp_path / "cache" / "chunks"))
    assert [finding.state for finding in found] == ["bad", "good"]
    assert "SWARM_HOME" in found[0].remedy


@pytest.mark.parametrize(("free_bytes", "state"), [(0, "bad"), (100 << 20, "note"), (5 << 30, "good")])
def test_a_full_disk_fails_and_a_small_rest_is_noted(
    tmp_path: Path, free_bytes: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10 << 30, (10 << 30) - free_bytes, free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert {finding.state for finding in checkup.disk(tmp_path, tmp_path / "cache")} == {state}


def test_a_taken_port_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = one(checkup.free_port(port))
    assert finding.state == "note"
    assert str(port) in finding.text
    assert "--port" in finding.remedy


def test_a_clock_before_swarm_was_made_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup.time, "time", lambda: 1000.0)
    assert one(checkup.clock()).state == "bad"


def test_little_memory_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.available_bytes", lambda: 1 << 20)
    assert one(checkup.memory()).state == "note"


def test_kernels_for_another_cpu_are_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert "NUMBA_CPU_NAME" in one(checkup.processor()).remedy


@pytest.mark.parametrize(
    ("check", "missing", "remedy"),
    [
        (checkup.threading, ("numba.np.ufunc.omppool",), "libgomp"),
        (checkup.fuse, ("mfusepy", "fuse"), "fuse3"),
    ],
)
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[], Iterator[Finding]],
    missing: tuple[str, ...],
    remedy: str,
) -> None:
    present = checkup._imports
    monkeypatch.setattr(checkup, "_imports", lambda module: module not in missing and present(module))
    finding = one(check())
    assert finding.state == "note"
    assert remedy in finding.remedy


def test_a_missing_package_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "PACKAGES", ("numpy", "no-such-package"))
    packages = [finding for finding in checkup.versions() if finding.subject == "packages"]
    assert [finding.state for finding in packages] == ["bad"]
    assert "pip install no-such-package" in packages[0].remedy
