"""Signed models and keyrings as files: whole or refused, and a client that knew the old key follows to the new one."""

import time
from pathlib import Path

import pytest

from swarm.errors import SwarmError
from swarm.peers.operator import Publication, publish
from swarm.peers.signing import (
    NotAKeyring,
    NotAPublication,
    keyring_file,
    load_keyring,
    read_publication,
    retire,
    rotate,
    write_publication,
)
from swarm.trust.identity import Identity, UnreadableKey
from swarm.trust.keyring import Keyring
from swarm.trust.memory import Memory
from swarm.wire import cbor


def published(folder: Path, key_file: Path, **changes: int) -> Publication:
    """A model without files, signed."""
    operator = Identity.load_or_create(key_file)
    keyring = load_keyring(key_file, operator)
    now_s = int(time.time())
    return publish("m", (), (2, 2), operator, folder / "served", now_s=now_s, keyring=keyring, **changes)


def test_a_signed_model_comes_back(tmp_path: Path) -> None:
    publication = published(tmp_path, tmp_path / "key")
    write_publication(tmp_path / "m.signed", publication)
    read = read_publication(tmp_path / "m.signed")
    assert (read.signed, read.experts_in_layer) == (publication.signed, (2, 2))
    assert read.layout_signature == publication.layout_signature


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.signed"
    write_publication(path, published(tmp_path, tmp_path / "key"))
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(NotAPublication):
            read_publication(path)
    path.write_bytes(content[:-1])
    with pytest.raises(NotAPublication):
        read_publication(path)


@pytest.mark.parametrize("layout", [[2, "2"], [2, True], [2, None], [2, -1], [2, 65536], [2, 1 << 63]])
def test_a_layout_of_anything_but_numbers_is_refused(layout: list[cbor.Value], tmp_path: Path) -> None:
    path = tmp_path / "m.signed"
    write_publication(path, published(tmp_path, tmp_path / "key"))
    value = cbor.decode(path.read_bytes())
    assert isinstance(value, dict)
    path.write_bytes(cbor.encode({**value, "layout": layout}))
    with pytest.raises(NotAPublication, match="numbers of experts"):
        read_publication(path)


def test_clients_follow_to_the_new_key_and_not_back(tmp_path: Path) -> None:
    memory, now_s = Memory(tmp_path / "memory"), time.time()
    old, new = tmp_path / "old", tmp_path / "new"
    memory.accept("swarm", published(tmp_path, old).signed, now=now_s, operator=None)
    keyring = rotate(old, new)
    assert keyring.latest == Identity.load(new).key
    assert len(keyring.active) == 2
    second = published(tmp_path, new)
    assert second.signed.manifest.version == 2
    memory.accept("swarm", second.signed, now=now_s, operator=None)
    assert retire(new).active == (keyring.latest,)
    third = published(tmp_path, new)
    memory.accept("swarm", third.signed, now=now_s, operator=None)
    stolen = published(tmp_path, old, least_version=9)
    with pytest.raises(SwarmError):
        memory.accept("swarm", stolen.signed, now=now_s, operator=None)


def test_a_key_without_a_keyring_stands_alone(tmp_path: Path) -> None:
    operator = Identity.load_or_create(tmp_path / "key")
    assert load_keyring(tmp_path / "key", operator) == Keyring.start(operator)


def test_a_keyring_of_another_key_is_refused(tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path / "old")
    rotate(tmp_path / "old", tmp_path / "new")
    other = Identity.load_or_create(tmp_path / "other")
    keyring_file(tmp_path / "new").rename(keyring_file(tmp_path / "other"))
    with pytest.raises(NotAKeyring, match="another one"):
        load_keyring(tmp_path / "other", other)
    keyring_file(tmp_path / "other").write_bytes(b"no")
    with pytest.raises(NotAKeyring):
        load_keyring(tmp_path / "other", other)


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path / "old")
    kept = Identity.load_or_create(tmp_path / "new")
    with pytest.raises(UnreadableKey):
        rotate(tmp_path / "old", tmp_path / "new")
    assert Identity.load(tmp_path / "new").key == kept.key
