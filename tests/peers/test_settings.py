"""Where files lie, what is remembered (also by two at once), and that private files are private."""

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import platformdirs
import pytest

from swarm.peers.known import KnownTrackers
from swarm.peers.settings import NoHome, Remembered, SettingsDamaged, home, load_remembered, remember
from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from tui.preferences import keep, load


def test_swarm_home_holds_everything(home_folder: Path) -> None:
    paths = home()
    for path in (
        paths.identity_key,
        paths.operator_key,
        paths.manifests,
        paths.known_trackers,
        paths.tracker_store(1),
        paths.served,
        paths.settings,
        paths.chunks,
    ):
        assert path.is_relative_to(home_folder)
    assert list(home_folder.iterdir()) == []


@pytest.fixture
def home_folder(home: Path) -> Path:
    return home


def test_without_it_keys_and_caches_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARM_HOME", raising=False)
    assert not home().chunks.is_relative_to(home().data)


def test_who_has_no_home_is_told_of_swarm_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARM_HOME", raising=False)

    def unknown(*_: object, **__: object) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs, "user_data_dir", unknown)
    with pytest.raises(NoHome, match="SWARM_HOME"):
        home()


def test_answers_are_remembered_privately(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.json"
    assert load_remembered(path) == Remembered()
    remember(path, swarm="swarm://secret")
    remember(path, model="tiny")
    assert load_remembered(path) == Remembered(swarm="swarm://secret", model="tiny")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"swarm": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(SettingsDamaged, match=r"settings\.json"):
        load_remembered(path)


def test_unknown_answers_of_a_later_version_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"model": "tiny", "colour": "green"}')
    assert load_remembered(path) == Remembered(model="tiny")


def at_once(*works: Callable[[], Any]) -> None:
    """Does all of these at the same time. A lock on a file holds between threads as it does between processes."""
    start = Barrier(len(works))

    def begin(work: Callable[[], Any]) -> None:
        start.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(begin, works))


def test_who_remembers_at_the_same_time_loses_nothing(tmp_path: Path) -> None:
    trackers = {Address("127.0.0.1", port): PeerKey(bytes([port] * 32)) for port in range(1, 13)}
    met = tmp_path / "trackers.json"
    at_once(*(partial(KnownTrackers(met).remember, *pair) for pair in trackers.items()))
    assert {address: KnownTrackers(met).key(address) for address in trackers} == trackers

    path, terminal = tmp_path / "settings.json", tmp_path / "terminal.json"
    for number in range(1, 6):
        answers: dict[str, Any] = {"swarm": f"s{number}", "model": f"m{number}", "cache_bytes": number}
        at_once(*(partial(remember, path, **{name: answer}) for name, answer in answers.items()))
        assert load_remembered(path) == Remembered(**answers)
        at_once(partial(keep, terminal, place=f"p{number}"), partial(keep, terminal, lend_ram_bytes=number))
        assert (load(terminal).place, load(terminal).lend_ram_bytes) == (f"p{number}", number)


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    def meet() -> dict[Path, int]:
        KnownTrackers(tmp_path / "trackers.json").remember(Address("127.0.0.1", 1), PeerKey(b"k" * 32))
        remember(tmp_path / "settings.json", model="tiny")
        return {path: path.stat().st_ino for path in tmp_path.glob("*.json")}

    assert meet() == meet()
