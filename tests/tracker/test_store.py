"""The store: both kinds keep the same, the one in a file survives whatever ends the process."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.wire.keys import PeerKey
from tracker.store import (
    Dropped,
    MemoryStore,
    SqliteStore,
    Store,
    StoredBan,
    StoredManifest,
    UnusableStore,
)


def manifest(number: int, name: str = "model", version: int = 1) -> StoredManifest:
    return StoredManifest(
        bytes([number]) * 32, name, version, b"o" * 32, b"signed" * number, (0, 64), b"s" * 64
    )


def ban(number: int) -> StoredBan:
    one = bytes([number]) * 32
    return StoredBan(number, PeerKey(one), "it lied", one, 1_700_000_000, b"r" * 32)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "deep" / "tracker.sqlite")
    yield opened
    opened.close()


def test_what_was_kept_comes_back_in_order(store: Store) -> None:
    first, second, other = manifest(1), manifest(2, version=2), manifest(3, name="a")
    store.publish(second, [])
    store.publish(first, [])
    store.publish(other, [])
    assert store.manifests() == [other, first, second]
    store.publish(manifest(4, version=3), [first.root])
    assert [kept.version for kept in store.manifests() if kept.name == "model"] == [2, 3]
    store.forget([other.root, b"unknown"])
    assert [kept.name for kept in store.manifests()] == ["model", "model"]
    store.ban(ban(1), b"proof one", Dropped())
    store.ban(ban(2), b"proof two", Dropped())
    assert store.bans() == [ban(1), ban(2)]
    assert store.proof(ban(2).digest) == b"proof two"
    assert store.proof(b"x" * 32) is None


def test_a_proof_may_go_without_its_ban_but_not_a_ban_without_its_proof(store: Store) -> None:
    store.ban(ban(1), b"proof one", Dropped())
    store.ban(ban(2), b"proof two", Dropped())
    store.ban(ban(3), b"proof three", Dropped(proofs=[1]))
    assert store.bans() == [ban(1), ban(2), ban(3)]
    assert store.proof(ban(1).digest) is None
    assert store.proof_bytes() == {2: 9, 3: 11}
    store.drop(Dropped(bans=[2, 7]))
    assert store.bans() == [ban(1), ban(3)]
    assert store.proof_bytes() == {3: 11}


def test_publishing_again_replaces(store: Store) -> None:
    store.publish(manifest(1), [])
    renewed = StoredManifest(bytes([1]) * 32, "model", 1, b"n" * 32, b"again", (), b"t" * 64)
    store.publish(renewed, [])
    assert store.manifests() == [renewed]


def test_a_file_is_private_and_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "tracker.sqlite"
    store = SqliteStore(path)
    store.publish(manifest(1), [])
    store.ban(ban(1), b"proof", Dropped())
    store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = SqliteStore(path)
    assert again.manifests() == [manifest(1)]
    assert again.bans() == [ban(1)]
    again.close()


def test_a_file_of_the_format_before_keeps_its_bans_and_proofs(tmp_path: Path) -> None:
    path = tmp_path / "tracker.sqlite"
    before = sqlite3.connect(path)
    before.executescript(
        """
        CREATE TABLE manifests (
            root BLOB PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL, operator BLOB NOT NULL,
            signed BLOB NOT NULL, layout BLOB NOT NULL, layout_signature BLOB NOT NULL, UNIQUE (name, version));
        CREATE TABLE bans (
            number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, reason TEXT NOT NULL, digest BLOB NOT NULL,
            unix_s INTEGER NOT NULL, proof BLOB NOT NULL);
        INSERT INTO manifests VALUES (x'01', 'model', 1, x'02', x'03', x'0010', x'04');
        PRAGMA user_version = 1;
        """
    )
    known = replace(ban(3), root=b"")
    before.execute(
        "INSERT INTO bans VALUES (?, ?, ?, ?, ?, ?)",
        (known.number, known.key, known.reason, known.digest, known.unix_s, b"its proof"),
    )
    before.commit()
    before.close()
    for _ in range(2):  # once as it was, once as it is now
        store = SqliteStore(path)
        assert store.bans() == [known]
        assert store.proof(known.digest) == b"its proof"
        assert [kept.experts_in_layer for kept in store.manifests()] == [(16,)]
        store.close()


def test_two_trackers_never_share_a_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tracker.sqlite")
    code = "import sys, pathlib, tracker.store; tracker.store.SqliteStore(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "tracker.sqlite")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is used by another tracker" in result.stderr
    store.close()


@pytest.mark.parametrize("damage", ["text", "newer", "folder"])
def test_an_unusable_file_is_named_with_the_remedy(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tracker.sqlite"
    if damage == "text":
        path.write_text("this is no database, but it is long enough to be taken for one" * 20)
    elif damage == "newer":
        store = SqliteStore(path)
        store._database.execute("PRAGMA user_version = 99")
        store.close()
    else:
        path.mkdir()
    with pytest.raises(UnusableStore, match="Move it away"):
        SqliteStore(path)


def test_a_failed_write_leaves_nothing_by_half(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tracker.sqlite")
    store.publish(manifest(1), [])
    store.ban(ban(1), b"proof", Dropped())
    broken = StoredManifest(b"z" * 32, "model", 1, None, b"", (), b"")  # type: ignore[arg-type]
    with pytest.raises(UnusableStore):
        store.publish(broken, [manifest(1).root])
    with pytest.raises(UnusableStore):
        store.ban(ban(1), b"another", Dropped())
    assert store.manifests() == [manifest(1)]
    assert store.proof(ban(1).digest) == b"proof"
    store.close()


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "tracker.sqlite"
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tracker.store import SqliteStore, StoredManifest
        store = SqliteStore(Path(sys.argv[1]))
        start = len(store.manifests())
        for version in range(start + 1, start + 1000):
            root = version.to_bytes(32, "big")
            store.publish(StoredManifest(root, "m", version, b"o" * 32, b"x" * 5000, (), b"s" * 64), [])
            print(version, flush=True)
        """
    )
    acknowledged = 0
    for kill_after in (1, 4, 9):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(kill_after):
                acknowledged = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            for line in process.stdout:
                acknowledged = int(line)
        store = SqliteStore(path)
        versions = [kept.version for kept in store.manifests()]
        store.close()
        assert versions == list(range(1, len(versions) + 1))
        assert acknowledged <= len(versions) <= acknowledged + 1
