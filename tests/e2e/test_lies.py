"""Servers that lie about bytes, hashes, versions and keys: refused by name, and nothing of it is used."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.cli.frame import run
from swarm.demo.generated import write_checkpoint
from swarm.peers.maintainer import ChunkSource
from swarm.peers.operator import LIFETIME_S
from swarm.trust.manifest import Digests, FileEntry, SignedManifest, parse_signed
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import GetManifest, ListModels, Models
from swarm.wire.rpc import Buffer, Handler, Peer
from tests.e2e.hosts import hosting, lasting_port
from tests.e2e.processes import serving, swarm


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint."""
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


class Client:
    """Runs `swarm logits` from one home, in this process."""

    def __init__(self, home: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.out = folder / "out.npy"
        self._ids = folder / "ids"
        self._ids.write_text("3 4 5 6")
        self._capsys = capsys

    def ask(self, *where: str) -> bytes:
        """The logits, which must come."""
        self.out.unlink(missing_ok=True)
        assert self._run(*where) == 0, self._capsys.readouterr().err
        self._capsys.readouterr()
        return self.out.read_bytes()

    def refused(self, *where: str) -> str:
        """What is said when they must not."""
        self.out.unlink(missing_ok=True)
        code = self._run(*where)
        said = self._capsys.readouterr().err
        assert code == 1, said
        assert "Traceback" not in said
        assert not self.out.exists()
        return said

    def _run(self, *where: str) -> int:
        return run(["logits", *where, "--ids", str(self._ids), "--out", str(self.out)])


@pytest.fixture
def client(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Client:
    """A client with an empty home."""
    return Client(home, tmp_path, capsys)


class Flipped:
    """Chunks with one bit changed."""

    def __init__(self, source: ChunkSource) -> None:
        self._source = source

    def held(self) -> IndexSet:
        return self._source.held()

    def read(self, index: int) -> bytes:
        data = bytearray(self._source.read(index))
        data[len(data) // 3] ^= 4
        return bytes(data)


def test_a_maintainer_that_changes_a_bit_is_named_and_nothing_is_kept(
    model: Path, client: Client, tmp_path: Path
) -> None:
    with hosting(model, tmp_path / "host", source=Flipped) as host:
        said = client.refused(host.invite)
    assert host.address in said
    chunks = [path for path in (client.home / "cache" / "chunks" / "chunks").rglob("*") if path.is_file()]
    assert chunks == []
    with hosting(model, tmp_path / "host") as honest:
        again = client.ask(honest.invite)
    assert again == client.ask("--local", str(model))


def test_a_served_file_that_changes_is_withdrawn_and_named(oracle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(oracle / "olmoe", folder)
    with serving(tmp_path / "server", folder) as served:
        weights = folder / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
        assert served.running.event("withdrawn")["path"] == "model.safetensors"
        shown = swarm(tmp_path / "client", "chat", served.invite, stdin="hello\n")
    assert shown.returncode != 0
    assert "model.safetensors" in shown.stderr
    assert shown.stdout.strip() == ""
    # Started again, it signs what is there now as the next version.
    with serving(tmp_path / "server", folder) as served:
        assert served.version == 2


def lying_manifest(change: Callable[[SignedManifest], SignedManifest]) -> Callable[[Handler], Handler]:
    """A tracker that gives out a manifest it has changed."""

    def twist(handler: Handler) -> Handler:
        async def give(caller: Peer, message: GetManifest, payload: Buffer) -> tuple[object, Buffer]:
            answer, piece = await handler(caller, replace(message, offset=0), payload)
            lie = change(parse_signed(bytes(piece))).encode()
            assert len(lie) == answer.total_bytes  # type: ignore[attr-defined]
            return answer, lie[message.offset :]

        return give  # type: ignore[return-value]

    return twist


def with_another_hash(signed: SignedManifest) -> SignedManifest:
    """The same manifest, but for one bit of one chunk's hash."""
    manifest = signed.manifest
    last = manifest.files[-1]
    digests = bytearray(last.chunks.joined)
    digests[5] ^= 1
    files = (*manifest.files[:-1], FileEntry(last.path, last.size, Digests(bytes(digests))))
    return replace(signed, manifest=replace(manifest, files=files))


def test_a_tracker_that_lies_about_a_hash_is_refused(model: Path, client: Client, tmp_path: Path) -> None:
    with hosting(model, tmp_path / "host", twists={GetManifest: lying_manifest(with_another_hash)}) as host:
        said = client.refused(host.invite)
    assert "signature" in said.lower()
    assert not (client.home / "manifests").exists()


def test_a_tracker_that_announces_one_model_and_gives_another_is_refused(
    model: Path, client: Client, tmp_path: Path
) -> None:
    def twist(handler: Handler) -> Handler:
        async def give(caller: Peer, message: ListModels, payload: Buffer) -> tuple[object, Buffer]:
            answer, _ = await handler(caller, message, payload)
            assert isinstance(answer, Models)
            return replace(answer, models=tuple(replace(m, name="other") for m in answer.models)), b""

        return give  # type: ignore[return-value]

    with hosting(model, tmp_path / "host", twists={ListModels: twist}) as host:
        said = client.refused(host.invite)
    assert host.address in said
    assert "other" in said


def test_another_operator_than_the_invite_names_is_refused(
    model: Path, client: Client, tmp_path: Path
) -> None:
    other = KeyPair(b"\7" * 32)
    with hosting(model, tmp_path / "right") as right:
        pass
    with hosting(model, tmp_path / "wrong", operator=other) as wrong:
        mixed = right.invite.replace(right.address, wrong.address)
        assert "character of it was changed" in client.refused(mixed)
        from swarm.trust.invite import Invite, parse_invite

        named = parse_invite(wrong.invite)
        said = client.refused(str(Invite(named.address, parse_invite(right.invite).operator, named.tracker)))
    assert other.key.hex()[:16] in said
    assert "refused" in said


def test_an_operator_that_changes_is_refused_after_first_use(
    model: Path, client: Client, tmp_path: Path
) -> None:
    port, now_s = lasting_port(), int(time.time())
    with hosting(model, tmp_path / "first", port=port, now_s=now_s) as first:
        client.ask("--tracker", first.address)
    other = KeyPair(b"\7" * 32)
    # Signed in the same second, even the roots are equal: only the signature tells the two apart.
    with hosting(model, tmp_path / "second", operator=other, port=port, now_s=now_s) as second:
        assert second.publication.root == first.publication.root
        said = client.refused("--tracker", second.address)
    assert "operator" in said
    assert "refused" in said


def test_a_tracker_whose_key_changed_is_refused(model: Path, client: Client, tmp_path: Path) -> None:
    port = lasting_port()
    with hosting(model, tmp_path / "host", port=port) as first:
        client.ask("--tracker", first.address)
    with hosting(model, tmp_path / "host", tracker=KeyPair(b"\7" * 32), port=port) as second:
        said = client.refused("--tracker", second.address)
    assert second.address in said
    assert "key" in said


def test_a_version_that_goes_back_is_refused_and_the_newer_one_stays_usable(
    model: Path, client: Client, tmp_path: Path
) -> None:
    with hosting(model, tmp_path / "host"):
        pass
    shutil.copytree(tmp_path / "host", tmp_path / "old-state")
    old_model = shutil.copytree(model, tmp_path / "old-model")
    write_checkpoint(model, seed=1)
    with hosting(model, tmp_path / "host") as newer:
        expected = client.ask(newer.invite)
        assert newer.publication.signed.manifest.version == 2
    with hosting(Path(old_model), tmp_path / "old-state") as older:
        assert older.publication.signed.manifest.version == 1
        said = client.refused(older.invite)
        assert "Version 1" in said
        assert "version 2" in said
    assert client.ask(older.invite, "--offline") == expected


def test_an_expired_manifest_is_refused_when_offered_and_usable_when_it_was_accepted_before(
    model: Path, client: Client, tmp_path: Path
) -> None:
    signed_s = int(time.time()) - LIFETIME_S + 3
    with hosting(model, tmp_path / "host", now_s=signed_s) as host:
        accepted = client.ask(host.invite)
        time.sleep(max(0, signed_s + LIFETIME_S + 1 - time.time()))
        said = client.refused(host.invite)
    assert "expired" in said
    assert client.ask(host.invite, "--offline") == accepted
    assert client.ask(host.invite) == accepted
