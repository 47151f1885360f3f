"""Identities on disk: secret, whole, and never replaced by chance."""

import os
import stat
from pathlib import Path

import pytest

from swarm.trust.files import write_atomically
from swarm.trust.identity import Identity, KeyFileTooOpen, UnreadableKey


def test_made_on_first_use_and_the_same_ever_after(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "identity.key"
    first = Identity.load_or_create(path)
    assert Identity.load_or_create(path) == first == Identity.load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert first.seed.hex() not in repr(first)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    Identity.load_or_create(path)
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(KeyFileTooOpen, match=f"chmod 600 {path}"):
            Identity.load_or_create(path)


def test_a_file_that_is_no_key_is_not_to_be_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:root:/root:/bin/sh\n")
    path.chmod(0o644)
    with pytest.raises(UnreadableKey, match="no key of this software"):  # and no word of chmod
        Identity.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        b"swarm identity 1 \n",
        b"swarm identity 1 abcd\n",
        b"swarm identity 2 " + b"0" * 64,
        b"swarm identity 1 " + b"g" * 64,
        b"swarm identity 1 " + b"0" * 66,
        b"\xff" * 5000,
    ],
)
def test_damaged_keys_are_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UnreadableKey, match=r"identity\.key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableKey):
        Identity.load_or_create(tmp_path)
    with pytest.raises(UnreadableKey, match="swarm key new"):
        Identity.load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreadableKey):
        Identity.load_or_create(tmp_path / "file" / "identity.key")


def test_saving_never_replaces_a_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    first = Identity.load_or_create(path)
    with pytest.raises(UnreadableKey, match="kept"):
        Identity(os.urandom(32)).save(path)
    assert Identity.load(path) == first


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swarm.trust.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
