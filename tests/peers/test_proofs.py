"""Proofs that are kept here: found by their digests, and bounded."""

import os
from pathlib import Path

import pytest
from blake3 import blake3

from swarm.peers import proofs
from swarm.peers.proofs import keep_proof, kept_proof


def test_a_proof_is_found_by_its_digest(tmp_path: Path) -> None:
    keep_proof(tmp_path / "proofs", b"one")
    digest = blake3(b"one").digest()
    assert kept_proof(tmp_path / "proofs", digest) == b"one"
    assert kept_proof(tmp_path / "proofs", blake3(b"other").digest()) is None
    (path,) = (tmp_path / "proofs").iterdir()
    path.write_bytes(b"something else")
    assert kept_proof(tmp_path / "proofs", digest) is None


@pytest.mark.parametrize(("bound", "most"), [("MOST_PROOFS", 3), ("MOST_BYTES", 35)])
def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(proofs, bound, most)
    made = [b"proof  %03d" % number for number in range(6)]
    for age, proof in enumerate(made):
        keep_proof(tmp_path, proof)
        for path in tmp_path.iterdir():  # each a second older than the one after it
            status = path.stat()
            os.utime(path, (status.st_atime, 1000 + age if path.read_bytes() == proof else status.st_mtime))
    there = [kept_proof(tmp_path, blake3(proof).digest()) for proof in made]
    assert there == [None, None, None, *made[3:]]
