"""`swarm config`: everything that is remembered is shown, changed, forgotten; secrets stay out of the list."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.frame import run
from swarm.peers.settings import load_remembered
from swarm.trust.invite import Invite
from swarm.wire.address import Address
from tui.preferences import load

INVITE = str(Invite(Address("192.0.2.7", 7300), token=b"s" * 32))


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What `swarm config … --json` prints."""

    def answer(*arguments: str) -> Any:
        assert run(["config", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return answer


def test_everything_is_listed_and_an_invite_only_by_its_address(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("swarm", INVITE) == {"swarm": INVITE}
    assert ask("mouse", "off") == {"mouse": "off"}
    assert run(["config"]) == 0
    listed = capsys.readouterr().out
    assert "192.0.2.7:7300" in listed
    assert "swarm://" not in listed
    for name in ask():
        assert name in listed
    assert run(["config", "swarm"]) == 0
    assert capsys.readouterr().out.strip() == INVITE


def test_what_is_changed_counts_where_it_is_read(ask: Callable[..., Any], home: Path) -> None:
    for name, value in (("cache-limit", "2GB"), ("lend-disk", "20GB"), ("lend", "disk"), ("theme", "light")):
        ask(name, value)
    assert load_remembered(home / "settings.json").cache_bytes == 2 * 10**9
    kept = load(home / "terminal.json")
    assert (kept.lend, kept.lend_disk_bytes, kept.theme, kept.asked) == ("disk", 20 * 10**9, "light", True)
    for name in ("cache-limit", "lend", "theme"):
        ask(name, "--unset")
    assert load_remembered(home / "settings.json").cache_bytes is None
    kept = load(home / "terminal.json")
    assert (kept.lend, kept.theme, kept.asked) == ("", "", False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["colour"], "theme"),
        (["theme", "pink"], "dark, light, terminal"),
        (["cache-limit", "lots"], "not a size"),
        (["lend", "disk"], "lend-disk"),
        (["--unset"], "NAME"),
        (["theme", "dark", "--unset"], "not both"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(
    arguments: list[str], text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not (home / "terminal.json").exists()


def test_a_damaged_invite_is_not_kept(home: Path) -> None:
    assert run(["config", "swarm", INVITE[:-1]]) == 1
    assert not (home / "settings.json").exists()
