"""What is remembered of operators and versions, and what can no longer be passed off."""

from dataclasses import replace
from pathlib import Path

import pytest

from swarm.trust.keyring import Keyring
from swarm.trust.manifest import Digests, FileEntry, Manifest, SignedManifest, sign
from swarm.trust.memory import (
    Equivocation,
    Expired,
    KeyringRollback,
    Memory,
    MemoryDamaged,
    NotYetIssued,
    OperatorChanged,
    Rollback,
)
from swarm.wire.keys import KeyPair

DAY_S = 86400
NOW = 1_000_000_000
OPERATOR, NEW, STRANGER = (KeyPair(bytes([i]) * 32) for i in (1, 2, 3))


def manifest(version: int, *, name: str = "olmoe", content: int = 0) -> Manifest:
    files = (FileEntry("a", 1, Digests(bytes([content]) * 32)),)
    return Manifest(name, version, NOW - DAY_S, NOW + 30 * DAY_S, files)


def signed(
    version: int, keys: KeyPair = OPERATOR, ring: Keyring | None = None, content: int = 0
) -> SignedManifest:
    return sign(manifest(version, content=content), keys, ring)


def test_first_use_is_believed_and_then_kept(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory")
    assert memory.recall("swarm", "olmoe") is None
    accepted = memory.accept("swarm", signed(3), now=NOW)
    assert memory.recall("swarm", "olmoe") == accepted
    again = Memory(tmp_path / "memory").accept("swarm", signed(3), now=NOW + 50)
    assert (again.accepted_at, again.offered_at) == (NOW, NOW + 50)
    later = memory.accept("swarm", signed(4), now=NOW + 60)
    assert (later.accepted_at, later.manifest.version) == (NOW + 60, 4)
    assert memory.everything("swarm") == [later]


def test_another_operator_is_refused(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    before = memory.accept("swarm", signed(3), now=NOW)
    with pytest.raises(OperatorChanged, match="“olmoe” is signed by"):
        memory.accept("swarm", signed(9, STRANGER), now=NOW)
    assert memory.recall("swarm", "olmoe") == before
    assert memory.accept("another swarm", signed(9, STRANGER), now=NOW).manifest.version == 9
    memory.forget("swarm", "olmoe")
    memory.forget("swarm", "olmoe")
    assert memory.accept("swarm", signed(1, STRANGER), now=NOW).manifest.version == 1


def test_the_operator_of_an_invite_is_demanded(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    with pytest.raises(OperatorChanged):
        memory.accept("swarm", signed(1, STRANGER), now=NOW, operator=OPERATOR.key)
    assert memory.recall("swarm", "olmoe") is None
    memory.accept("swarm", signed(1), now=NOW, operator=OPERATOR.key)
    # An invite from before a rotation still leads to the operator of today.
    ring = Keyring.start(OPERATOR).succeed(OPERATOR, NEW).retire(NEW)
    memory.accept("swarm", signed(2, NEW, ring), now=NOW, operator=OPERATOR.key)


def test_versions_never_go_back(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.accept("swarm", signed(3), now=NOW)
    with pytest.raises(Rollback, match=r"Version 2 .* after version 3"):
        memory.accept("swarm", signed(2), now=NOW)
    with pytest.raises(Equivocation, match="version 3"):
        memory.accept("swarm", signed(3, content=1), now=NOW)
    assert memory.accept("swarm", signed(3), now=NOW).manifest.version == 3


def test_expired_manifests_are_refused_but_stay_usable(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    late = NOW + 32 * DAY_S
    with pytest.raises(Expired, match="expired 2 days ago"):
        memory.accept("swarm", signed(3), now=late)
    memory.accept("swarm", signed(3), now=NOW)
    with pytest.raises(Expired):
        memory.accept("swarm", signed(4), now=late)
    kept = memory.recall("swarm", "olmoe")
    assert kept is not None
    assert kept.manifest.version == 3
    assert kept.is_expired(late)
    assert not kept.is_expired(NOW)
    assert kept.age_s(late) == 32 * DAY_S
    assert kept.age_s(NOW - 5) == 0
    with pytest.raises(NotYetIssued, match="clock"):
        memory.accept("swarm", signed(4), now=NOW - 3 * DAY_S)


def test_a_rotation_without_a_gap(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    old = Keyring.start(OPERATOR)
    both = old.succeed(OPERATOR, NEW)
    new = both.retire(NEW)
    memory.accept("swarm", signed(1, OPERATOR, old), now=NOW)
    memory.accept("swarm", signed(2, OPERATOR, both), now=NOW)
    memory.accept("swarm", signed(3, NEW, both), now=NOW)
    memory.accept("swarm", signed(4, NEW, new), now=NOW)
    for ring, keys in ((both, OPERATOR), (old, OPERATOR)):
        with pytest.raises(KeyringRollback):
            memory.accept("swarm", signed(5, keys, ring), now=NOW)
    with pytest.raises(OperatorChanged):
        memory.accept("swarm", signed(5, STRANGER, old.succeed(OPERATOR, STRANGER)), now=NOW)


def test_who_missed_the_rotation_follows_it(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.accept("swarm", signed(1), now=NOW)
    ring = Keyring.start(OPERATOR).succeed(OPERATOR, NEW).retire(NEW)
    memory.accept("swarm", signed(7, NEW, ring), now=NOW)
    with pytest.raises((KeyringRollback, OperatorChanged)):
        memory.accept("swarm", signed(8), now=NOW)


def test_a_damaged_memory_is_no_first_use(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.accept("swarm", signed(3), now=NOW)
    (path,) = tmp_path.glob("*/*.manifest")
    good = path.read_bytes()
    for bad in (b"", b"rubbish", good[:-1], good[:40] + b"\x00" + good[41:]):
        path.write_bytes(bad)
        with pytest.raises(MemoryDamaged, match="trust") as caught:
            memory.accept("swarm", signed(9, STRANGER), now=NOW)
        assert path.name in str(caught.value)
        with pytest.raises(MemoryDamaged):
            memory.recall("swarm", "olmoe")
    path.write_bytes(good)
    assert memory.recall("swarm", "olmoe")


def test_a_file_under_the_wrong_name_is_noticed(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.accept("swarm", signed(3), now=NOW)
    memory.accept("swarm", sign(manifest(1, name="other"), STRANGER), now=NOW)
    one, two = sorted(tmp_path.glob("*/*.manifest"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    for name in ("olmoe", "other"):
        with pytest.raises(MemoryDamaged, match="something else"):
            memory.recall("swarm", name)


def test_odd_names_are_only_names(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    name = "../../etc/passwd"
    memory.accept("../..", sign(replace(manifest(1), name=name), OPERATOR), now=NOW)
    found = memory.recall("../..", name)
    assert found is not None
    assert found.manifest.name == name
    assert all(tmp_path in path.parents for path in tmp_path.rglob("*"))
