"""Models at a tracker: published in pieces, listed, refused, and kept before they are known."""

import pytest

from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    GetManifest,
    ListModels,
    ManifestPiece,
    ManifestPublished,
    Models,
    PublishManifest,
)
from tests.tracker.kit import OPERATOR, keys, manifest, published
from tests.tracker.world import world
from tracker.publish import BrokenUpload, NotAnOperator
from tracker.server import Options
from tracker.store import MemoryStore, UnusableStore


async def test_models_are_listed_and_manifests_come_in_pieces() -> None:
    async with world() as here:
        new = published(manifest(chunks=40_000))
        encoded = new.encoded
        assert len(encoded) > PIECE_BYTES
        operator = here.caller(5)
        for offset in range(0, len(encoded), PIECE_BYTES):
            message = PublishManifest(offset, len(encoded), new.layout, new.layout_signature)
            reply, _ = await operator.ask(message, encoded[offset : offset + PIECE_BYTES])
        assert reply == ManifestPublished(True, len(encoded), new.root)
        listed, _ = await here.caller(6).ask(ListModels())
        assert isinstance(listed, Models)
        assert [model.name for model in listed.models] == ["model"]
        assert listed.models[0].operator == OPERATOR.key
        received = b""
        while len(received) < listed.models[0].manifest_bytes:
            piece, payload = await here.caller(6).ask(GetManifest(new.root, len(received)))
            assert isinstance(piece, ManifestPiece)
            assert (piece.experts_in_layer, piece.layout_signature) == (new.layout, new.layout_signature)
            received += payload
        assert received == encoded


async def test_broken_uploads_are_refused() -> None:
    async with world() as here:
        new = published()
        whole = new.encoded
        caller = here.caller(1)

        def piece(offset: int, total: int = len(whole)) -> PublishManifest:
            return PublishManifest(offset, total, new.layout, new.layout_signature)

        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(10), whole[10:])
        await caller.ask(piece(0), whole[:10])
        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(11), whole[11:])
        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(10, len(whole) + 1), whole[10:])
        with pytest.raises(BrokenUpload, match="beyond the end"):
            await caller.ask(piece(10), whole)
        with pytest.raises(BrokenUpload, match="it must have between"):
            await caller.ask(piece(0, 1 << 40), whole)
        here.clock.now_s = 1e6
        await here.caller(2).ask(piece(0), whole[:10])
        with pytest.raises(BrokenUpload, match="too late"):
            await caller.ask(piece(10), whole[10:])


async def test_a_tracker_may_take_only_its_own_operators_models() -> None:
    async with world(Options(operators=frozenset([OPERATOR.key]))) as here:
        await here.publish(published())
        with pytest.raises(NotAnOperator, match="ask whoever runs it"):
            await here.publish(published(manifest("other"), operator=keys(9)))


async def test_what_the_disk_does_not_take_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryStore, manifest: object, forgotten: object) -> None:
        raise UnusableStore(path="tracker.sqlite", reason="database or disk is full")

    async with world() as here:
        first = await here.publish(published())
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "publish", full)
            with pytest.raises(UnusableStore, match="disk is full"):
                await here.publish(published(manifest(version=2)))
        listed, _ = await here.caller(1).ask(ListModels())
        assert isinstance(listed, Models)
        assert [model.root for model in listed.models] == [first.root]
        await here.publish(published(manifest(version=2)))
