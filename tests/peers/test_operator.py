"""Signing what is served: versions that only grow, and grow when the content does."""

from pathlib import Path

import pytest

from swarm.peers.inventory import HashedFile, hash_files, list_files
from swarm.peers.operator import LIFETIME_S, LastManifestDamaged, Publication, UnfitName, name_for, publish
from swarm.trust.manifest import parse_signed
from swarm.wire.keys import BadSignature, KeyPair, verify
from swarm.wire.messages.tracker import layout_statement

OPERATOR = KeyPair(b"\1" * 32)
NOW_S = 1_800_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def files_of(model: Path) -> tuple[HashedFile, ...]:
    return hash_files(model, list_files(model), model.parent / "hashes")


def published(
    model: Path, *, now_s: int = NOW_S, least: int = 1, operator: KeyPair = OPERATOR
) -> Publication:
    kept = model.parent / "kept"
    return publish("tiny", files_of(model), (0, 8), operator, kept, now_s=now_s, least_version=least)


def test_the_first_manifest_is_version_1_and_signed(model: Path) -> None:
    publication = published(model)
    again = parse_signed(publication.signed.encode())
    assert again.manifest.version == 1
    assert again.signer == OPERATOR.key
    assert again.manifest.issued < NOW_S < again.manifest.expires
    verify(OPERATOR.key, layout_statement(publication.root, (0, 8)), publication.layout_signature)
    with pytest.raises(BadSignature):
        verify(OPERATOR.key, layout_statement(publication.root, (0, 9)), publication.layout_signature)


def test_the_same_files_keep_their_manifest_while_it_has_time(model: Path) -> None:
    first = published(model)
    again = published(model, now_s=NOW_S + LIFETIME_S // 3)
    assert again.root == first.root
    assert (first.renewed, again.renewed) == (True, False)
    renewed = published(model, now_s=NOW_S + LIFETIME_S // 2 + 1)
    assert renewed.renewed
    assert renewed.signed.manifest.version == 2
    assert renewed.signed.manifest.files == first.signed.manifest.files


def test_other_content_gets_the_next_version_and_so_does_going_back(model: Path) -> None:
    published(model)
    (model / "config.json").write_text("[]")
    assert published(model).signed.manifest.version == 2
    (model / "config.json").write_text("{}")
    assert published(model).signed.manifest.version == 3


def test_another_operator_signs_a_version_of_its_own(model: Path) -> None:
    published(model)
    other = KeyPair(b"\2" * 32)
    publication = published(model, operator=other)
    assert publication.signed.manifest.version == 2
    assert publication.signed.signer == other.key


def test_a_lost_history_can_be_stepped_over(model: Path) -> None:
    assert published(model, least=7).signed.manifest.version == 7
    assert published(model, least=7).signed.manifest.version == 7
    assert published(model, least=9).signed.manifest.version == 9


def test_a_damaged_history_is_named_and_kept(model: Path) -> None:
    published(model)
    (place,) = (model.parent / "kept").iterdir()
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises(LastManifestDamaged, match=r"\.manifest"):
        published(model)
    assert place.read_bytes() == content


@pytest.mark.parametrize("name", ["x ", " x", "a\nb", "a\x1b[2Jb", "n" * 121])
def test_a_directory_whose_name_is_not_fit_for_a_model_needs_another(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnfitName, match="--name NAME") as refused:
        name_for(tmp_path / name)
    assert str(refused.value).isprintable()
    assert name_for(tmp_path / name, "chosen") == "chosen"
    assert name_for(tmp_path / "fine name") == "fine name"
    with pytest.raises(UnfitName):
        name_for(tmp_path, name)
