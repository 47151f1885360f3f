"""A mounted model is the served directory, byte for byte, to programs that know nothing of Swarm."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.conftest import missing
from tests.e2e.processes import running, serving


@pytest.mark.fuse
def test_other_programs_read_what_is_served(oracle: Path, tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("/dev/fuse cannot be opened here")
    folder, mountpoint = oracle / "qwen3_moe-sharded", tmp_path / "mnt"
    mountpoint.mkdir()
    with serving(tmp_path / "server", folder) as served:
        with running(tmp_path / "client", "mount", mountpoint, served.invite, "--json") as mounting:
            assert mounting.event("mounted")["model"] == folder.name
            assert sorted(path.name for path in mountpoint.iterdir()) == sorted(
                path.name for path in folder.iterdir()
            )
            for path in folder.iterdir():
                shown = subprocess.run(
                    ["sha256sum", mountpoint / path.name],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=60,
                )
                assert shown.stdout.split()[0] == hashlib.sha256(path.read_bytes()).hexdigest()
            shard = "model-00001-of-00003.safetensors"
            with safe_open(mountpoint / shard, "np") as ours, safe_open(folder / shard, "np") as theirs:
                assert list(ours.keys()) == list(theirs.keys())
            with pytest.raises(OSError, match="Read-only"):
                (mountpoint / "new").write_text("x")
            assert mounting.stop() == 0
        assert list(mountpoint.iterdir()) == []
