"""How many bytes come over the network: what is read and little more, and each of them once."""

import shutil
from pathlib import Path

import pytest

from engine.engine import Engine, Options
from engine.generate import greedy, logits
from swarm.demo.generated import Shape, write_checkpoint
from swarm.peers.network import NetworkThread
from swarm.peers.session import join
from swarm.peers.settings import home as paths
from swarm.peers.target import parse_target
from swarm.trust.manifest import CHUNK_BYTES
from tests.e2e.hosts import hosting
from tests.e2e.tap import tapped

# Dense weights of 35 MiB in two runs, and 96 MiB of experts of 1.5 MiB each.
LARGE = Shape(hidden=2048, intermediate=128, layers=1, experts=64, experts_per_token=2, heads=16)
OVERHEAD = 1.05


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of which a chunk is a small part."""
    folder = tmp_path_factory.mktemp("large") / "model"
    write_checkpoint(folder, LARGE)
    (folder / "unread.bin").write_bytes(bytes(8 * CHUNK_BYTES))
    return folder


def dense_bytes(engine: Engine) -> int:
    """Bytes of everything but routed experts: headers, JSON files, dense tensors."""
    experts = sum(
        engine.checkpoint.info(f"{ref.name}.weight").nbytes
        for layer, expert in engine.family.experts(engine.config).all()
        for ref in engine.family.experts(engine.config).refs(layer, expert)
    )
    files = engine.checkpoint.source.files()
    read = sum(size for path, size in files.items() if path != "unread.bin")
    return read - experts


def test_only_what_is_read_is_fetched_and_experts_when_they_are_routed(
    model: Path, home: Path, tmp_path: Path
) -> None:
    with hosting(model, tmp_path / "host") as host:
        port = int(host.address.rpartition(":")[2])
        with tapped("127.0.0.1", port) as tap, NetworkThread() as network:
            target = parse_target(f"127.0.0.1:{tap.port}")
            session = network.enter(join, target, paths())
            opened = network.call(session.open_model, None)
            before = len(tap.down)
            with Engine.open(opened.source, Options(weights="q8", expert_ram_bytes=64 << 20)) as engine:
                dense = opened.mirror.progress.fetched_bytes
                needed = dense_bytes(engine)
                assert needed > 35 << 20
                assert dense <= OVERHEAD * needed
                # The wire carried that and little else: frames, tags, no chunk twice.
                assert dense < len(tap.down) - before < 1.01 * dense
                logits(engine.model, engine.experts, [70])
                after_one_token = opened.mirror.progress.fetched_bytes
                expert = 3 * LARGE.hidden * LARGE.intermediate * 2
                assert 0 < after_one_token - dense <= LARGE.experts_per_token * (expert + 2 * CHUNK_BYTES)
                tokens, _ = greedy(engine.model, engine.experts, [70, 71], 4)
                fetched = opened.mirror.progress.fetched_bytes
                assert fetched < opened.mirror.tree.total_bytes
                assert tokens == greedy(engine.model, engine.experts, [70, 71], 4)[0]
                assert opened.mirror.progress.fetched_bytes == fetched


def test_a_second_model_that_shares_chunks_fetches_only_the_rest(home: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    write_checkpoint(first)
    (first / "shared.bin").write_bytes(bytes(range(256)) * (5 * CHUNK_BYTES // 256) + b"first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    (second / "shared.bin").write_bytes((first / "shared.bin").read_bytes()[:-5] + b"other")
    for folder, most in ((first, 7 * CHUNK_BYTES), (second, CHUNK_BYTES)):
        with hosting(folder, tmp_path / "host", name=folder.name) as host, NetworkThread() as network:
            session = network.enter(join, parse_target(host.invite), paths())
            opened = network.call(session.open_model, None)
            network.call(opened.fetch_all)
            progress = opened.mirror.progress
            assert progress.verified_bytes == opened.mirror.tree.total_bytes
            assert 0 < progress.fetched_bytes <= most
            content = bytes(opened.source.read("shared.bin", 0, opened.source.files()["shared.bin"]))
            assert content == (folder / "shared.bin").read_bytes()
