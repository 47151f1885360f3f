"""Where files lie, what is remembered, and that private files are private."""

import stat
from pathlib import Path

import pytest

from swarm.peers.settings import Remembered, SettingsDamaged, home, load_remembered, remember


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
