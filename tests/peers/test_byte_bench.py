"""The measurement of bytes runs from server to mount and in a crowd, and refuses a disk or limit that is too small."""

import json
import re
import resource
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mirror.bench import Beside
from swarm.cli.bench.bytes import command
from swarm.peers import byte_bench
from swarm.peers.byte_bench import Bytes, NoRoom, measure
from swarm.peers.crowd_bench import Crowded, Reads, Size, TooFewFiles, Turn, room_for_files


def test_every_figure_stands_beside_its_reference(tmp_path: Path) -> None:
    options = [
        "--size",
        "3MiB",
        "--rounds",
        "2",
        "--folder",
        str(tmp_path),
        "--part",
        "cold",
        "--part",
        "warm",
    ]
    ran = CliRunner().invoke(command, [*options, "--json"], catch_exceptions=False)
    assert ran.exit_code == 0
    told = json.loads(ran.stdout)
    assert told["size_bytes"] == 3 << 20
    for part in ("cold", "warm"):
        assert len(told[part]["ratios"]) == len(told[part]["bytes_per_s"]) == 2
        assert min(told[part]["bytes_per_s"]) > 0
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="--size"):
        measure(tmp_path, 1 << 60, 1, ["cold"])
    assert not list(tmp_path.iterdir())


def test_an_honest_client_is_measured_alone_and_in_a_crowd(tmp_path: Path) -> None:
    found = measure(tmp_path, 3 << 20, 1, ["crowd"], crowd=Size(connections=12, clients=2, reads=8)).crowd
    assert found is not None
    (turn,) = found.turns
    assert 0 < turn.alone.p50_s <= turn.alone.p99_s
    assert found.ratio == turn.crowded.p99_s / turn.alone.p99_s
    assert turn.held == {"idle": 6, "slow": 3, "stalled": 3}
    assert found.clients_bytes_per_s > 1 << 20
    if sys.platform == "linux":
        assert found.clients_peak_bytes is not None
        assert found.crowd_peak_bytes is not None
        assert 1 << 20 < found.clients_peak_bytes <= found.crowd_peak_bytes


def test_figures_of_a_crowd_are_printed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(
        Reads(0.002, 0.004, 0.01), Reads(0.003, 0.006, 0.02), {"idle": 10, "slow": 5, "stalled": 4}, 7
    )

    def measured(*arguments: object) -> Bytes:
        assert Size(connections=20) in arguments
        return Bytes(1 << 20, crowd=Crowded(Size(20), (turn,), 1e8, 100 << 20, None))

    monkeypatch.setattr(byte_bench, "measure", measured)
    options = ["--part", "crowd", "--connections", "20"]
    printed = CliRunner().invoke(command, options, catch_exceptions=False).stdout
    assert re.search(r"crowd p99 +6\.0 ms +alone 4\.0 ms +1\.50 ", printed)
    assert re.search(r"64 clients +100 MiB", printed)
    assert "then the crowd" not in printed, "nothing is said of what is not known"
    told = json.loads(CliRunner().invoke(command, [*options, "--json"], catch_exceptions=False).stdout)[
        "crowd"
    ]
    assert told["p99_ratio"] == pytest.approx(1.5)
    assert told["turns"][0]["held"]["stalled"] == 4


def test_reading_a_mount_again_stands_beside_the_file_as_it_is_and_in_small_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again, small = Beside((4e9,), (16e9,)), Beside((4e9,), (5e9,))
    monkeypatch.setattr(
        byte_bench, "measure", lambda *_: Bytes(1 << 20, first=(1e9,), again=again, again_small=small)
    )
    printed = CliRunner().invoke(command, ["--part", "fuse"], catch_exceptions=False).stdout
    assert re.search(r"fuse again +4000 MB/s +page cache 16000 MB/s +0\.250", printed)
    assert re.search(r"fuse again small +4000 MB/s +page cache, 4 KiB 5000 MB/s +0\.800", printed)
    told = json.loads(
        CliRunner().invoke(command, ["--part", "fuse", "--json"], catch_exceptions=False).stdout
    )
    assert told["fuse_again_small"]["ratios"] == [0.8]


def test_too_low_a_limit_of_open_files_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    with pytest.raises(TooFewFiles, match="--connections"), room_for_files(Size(connections=2000)):
        raise AssertionError("it must not begin")


def test_the_limit_of_open_files_is_raised_only_for_the_measurement() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with room_for_files(Size(connections=100)):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 400
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
