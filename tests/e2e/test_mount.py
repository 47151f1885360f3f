"""A mounted model is the served directory, byte for byte, to programs that know nothing of Swarm."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.conftest import missing
from tests.e2e.hosts import lasting_port
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


@pytest.mark.fuse
def test_a_new_version_of_what_is_mounted_is_told(oracle: Path, tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("/dev/fuse cannot be opened here")
    folder, mountpoint, port = tmp_path / "model", tmp_path / "mnt", str(lasting_port())
    shutil.copytree(oracle / "olmoe", folder)
    mountpoint.mkdir()
    serve = ("serve", "--model", folder, "--listen", "127.0.0.1", "--port", port, "--no-exec", "--json")
    with running(tmp_path / "server", *serve) as server:
        invite = server.event("serving")["invite"]
        with running(tmp_path / "client", "mount", mountpoint, invite, "--json") as mounting:
            assert mounting.event("mounted")["version"] == 1
            assert server.stop() == 0
            (folder / "more").write_text("more")
            with running(tmp_path / "server", *serve) as renewed:
                assert renewed.event("serving")["version"] == 2
                told = mounting.event("renewed")
                assert (told["version"], told["mounted"]) == (2, 1)
                assert mounting.told("has a new version, 2") == 1
                assert mounting.stop() == 0
