"""`swarm cache`, `swarm models` and `swarm mount`, against a swarm in this process."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror.cas import TAG_BYTES, Store
from swarm.cli.frame import run
from swarm.demo.generated import write_checkpoint
from swarm.peers.session import join
from swarm.peers.settings import Home
from swarm.peers.target import parse_target
from swarm.units import format_bytes
from tests.e2e.hosts import Host, Plan, hosted, hosting
from tests.mirror.simulated import Unwritable

Ask = Callable[..., dict[str, object]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def host(model: Path, tmp_path: Path, home: Path) -> Iterator[Host]:
    with hosting(model, tmp_path / "host") as it:
        yield it


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command with --json; what it printed."""

    def do(*arguments: str, code: int = 0) -> dict[str, object]:
        assert run([*arguments, "--json"]) == code, capsys.readouterr().err
        printed: dict[str, object] = json.loads(capsys.readouterr().out)
        return printed

    return do


def test_an_empty_home_has_an_empty_cache(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    stock = ask("cache", "list")
    assert (stock["models"], stock["used_bytes"], stock["limit_bytes"]) == ([], 0, None)
    assert ask("cache", "verify") == {"checked": 0, "damaged": 0, "bytes": 0}
    assert run(["cache", "list"]) == 0
    assert "no limit" in capsys.readouterr().out


def test_a_model_is_fetched_listed_checked_and_removed(
    ask: Ask, host: Host, model: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = sum(path.stat().st_size for path in model.iterdir())
    assert run(["cache", "prefetch", host.invite]) == 0
    assert "complete here" in capsys.readouterr().err
    (kept,) = ask("cache", "list")["models"]  # type: ignore[misc]
    assert (kept["name"], kept["version"], kept["here_bytes"], kept["bytes"]) == ("model", 1, size, size)
    assert run(["cache", "list"]) == 0
    table = capsys.readouterr().out
    assert "model" in table
    assert host.publication.signed.keyring.latest.hex()[:16] in table

    assert ask("cache", "gc") == {"freed_bytes": 0, "pinned": []}
    chunk = next(path for path in (home / "cache" / "chunks" / "chunks").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    checked = ask("cache", "verify", code=1)
    assert checked["damaged"] == 1
    assert ask("cache", "verify")["damaged"] == 0
    assert int(ask("cache", "list")["models"][0]["here_bytes"]) < size  # type: ignore[index]

    assert int(str(ask("cache", "gc", "--all")["freed_bytes"])) > 0
    assert ask("cache", "list")["used_bytes"] == 0


def test_chunks_of_an_earlier_version_are_orphans(
    ask: Ask, model: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        write_checkpoint(model, seed=seed)
        with hosting(model, tmp_path / "host") as host:
            assert run(["cache", "prefetch", host.invite]) == 0
    stock = ask("cache", "list")
    orphans = int(str(stock["orphan_bytes"]))
    assert orphans >= (model / "model.safetensors").stat().st_size
    assert int(str(ask("cache", "gc")["freed_bytes"])) >= orphans
    assert ask("cache", "list")["orphan_bytes"] == 0


def test_what_will_not_fit_is_not_begun(
    host: Host, model: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1000]
    monkeypatch.setattr("mirror.files.Disk.free_bytes", lambda *_: free[0])
    need = format_bytes(sum(path.stat().st_size + TAG_BYTES for path in model.iterdir()))
    chunks = home / "cache" / "chunks"
    assert run(["cache", "prefetch", host.invite]) == 1
    said = capsys.readouterr().err
    assert f"“model” version 1 needs {need} more on the disk of {chunks}, and 1.0 kB are free there" in said
    assert "swarm cache gc" in said
    assert not [path for path in (chunks / "chunks").rglob("*") if path.is_file()]

    free[0] = 1 << 40
    assert run(["cache", "limit", "10kB"]) == 0
    assert run(["cache", "prefetch", host.invite]) == 1
    assert f"needs {need} on this machine, and `swarm cache limit` leaves 10.0 kB" in capsys.readouterr().err
    assert run(["cache", "limit", "none"]) == 0
    assert run(["cache", "prefetch", host.invite]) == 0
    assert f"{need} of model are to be fetched; 1.1 TB of disk are free" in capsys.readouterr().err

    free[0] = 0
    assert run(["cache", "prefetch", host.invite]) == 0, "all of it is here"
    assert "to be fetched" not in capsys.readouterr().err


def test_the_limit_is_remembered(ask: Ask) -> None:
    assert run(["cache", "limit", "2GB"]) == 0
    assert ask("cache", "list")["limit_bytes"] == 2_000_000_000
    assert run(["cache", "limit", "none"]) == 0
    assert ask("cache", "list")["limit_bytes"] is None
    assert run(["cache", "limit", "lots"]) == 2


def test_the_limit_is_kept_at_once_and_what_is_pinned_is_named(
    ask: Ask, host: Host, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cache", "prefetch", host.invite]) == 0
    with Store(home / "cache" / "chunks") as donor:
        chunks = sorted(donor.kept(), key=lambda kept: kept.bytes)
        used = sum(kept.bytes for kept in chunks)
        donor.pin("lent", [chunks[-1].address])
        pinned = [{"process": os.getpid(), "command": "swarm donate disk", "bytes": chunks[-1].bytes}]
        kept = f"{format_bytes(chunks[-1].bytes)} of it are kept by process {os.getpid()} (swarm donate disk)"
        capsys.readouterr()
        assert run(["cache", "limit", "1kB"]) == 0
        said = capsys.readouterr().err
        assert f"At most 1.0 kB from now on; {format_bytes(used - chunks[-1].bytes)} freed." in said
        assert kept in said
        listed = ask("cache", "list")
        assert (listed["used_bytes"], listed["pinned"]) == (chunks[-1].bytes - TAG_BYTES, pinned)
        assert ask("cache", "gc", "--all") == {"freed_bytes": 0, "pinned": pinned}
        assert run(["cache", "gc"]) == 0
        assert kept in capsys.readouterr().out
    assert ask("cache", "gc") == {"freed_bytes": chunks[-1].bytes, "pinned": []}, (
        "beyond the limit, and pinned no more"
    )


def test_a_model_is_fetched_by_its_name(
    ask: Ask, host: Host, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: set[str] = set()
    monkeypatch.setattr("swarm.cli.joining._is_host", hosts.__contains__)
    assert run(["cache", "prefetch", "model"]) == 2
    assert "There is no host 'model', and no swarm was used before" in capsys.readouterr().err
    assert run(["cache", "prefetch", "model", "--tracker", host.address]) == 0
    assert "complete here" in capsys.readouterr().err
    assert run(["cache", "gc", "--all"]) == 0
    assert run(["cache", "prefetch", "model"]) == 0, "of the swarm used last"
    assert "model version 1 is complete here" in capsys.readouterr().err
    assert run(["cache", "prefetch", "another"]) == 1
    assert "no model “another”; it has: model" in capsys.readouterr().err
    hosts.add("model")
    assert run(["cache", "prefetch", "model"]) == 2
    assert "--tracker model or --model model" in capsys.readouterr().err
    for words in (["--model", "model"], [host.address], [host.address, "--model", "model"]):
        assert run(["cache", "prefetch", *words]) == 0, words
    assert run(["cache", "prefetch", host.invite, "--tracker", host.address]) == 2


def test_a_home_that_can_only_be_read_is_listed_checked_and_used(
    ask: Ask, host: Host, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["cache", "prefetch", host.invite]) == 0
    listed = ask("cache", "list")
    monkeypatch.setattr("mirror.cas.Disk", Unwritable)
    assert ask("cache", "list") == listed | {"read_only": True}
    assert ask("cache", "verify")["damaged"] == 0
    assert run(["cache", "list"]) == 0
    assert "it can only be read" in capsys.readouterr().out
    for command in (["gc"], ["gc", "--all"], ["limit", "1kB"]):
        assert run(["cache", *command]) == 1
        assert "can only be read, so nothing in it can be added or removed" in capsys.readouterr().err
    chunk = next(path for path in (home / "cache" / "chunks" / "chunks").rglob("*") if path.is_file())
    chunk.write_bytes(b"")
    assert run(["cache", "verify"]) == 1
    assert "1 damaged, not removed" in capsys.readouterr().out
    assert chunk.exists()


async def test_a_session_says_once_that_its_store_can_only_be_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Home(tmp_path / "data", tmp_path / "cache")
    async with hosted(Plan(model, tmp_path / "host")) as host:
        target = parse_target(host.invite)
        async with join(target, place) as session:
            await (await session.open_model()).fetch_all()
        monkeypatch.setattr("mirror.cas.Disk", Unwritable)
        async with join(target, place, offline=True) as session:
            opened = await session.open_model()
            assert sum("can only be read" in notice for notice in opened.notices) == 1
            for path, size in opened.mirror.tree.files.items():
                assert bytes(await opened.mirror.read(path, 0, size)) == (model / path).read_bytes()


def test_models_are_listed_online_and_offline(
    ask: Ask, host: Host, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = ask("models", host.invite)
    assert (listed["name"], listed["version"], listed["holders"], listed["experts"]) == ("model", 1, 1, 16)
    assert listed["covered_chunks"] == listed["chunks"]
    assert listed["accepted_here"] is False
    assert run(["models", host.invite]) == 0
    assert "complete" in capsys.readouterr().out
    assert run(["cache", "prefetch", host.invite]) == 0
    capsys.readouterr()
    listed = ask("models", host.invite, "--offline")
    assert listed["accepted_here"] is True
    assert listed["holders"] == 0


def test_mounting_says_what_is_wrong_with_the_place(
    host: Host,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.access", lambda *_: True)
    assert run(["mount", str(tmp_path / "nowhere"), host.invite]) == 1
    assert "nowhere" in capsys.readouterr().err
