"""The measurement of bytes runs from server to mount, and refuses a disk that is too small."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from swarm.cli.bench.bytes import command
from swarm.peers.byte_bench import NoRoom, measure


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
