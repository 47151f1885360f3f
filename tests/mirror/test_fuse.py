"""A real mount, served by a process of its own, as other programs meet it."""

import errno
import hashlib
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mirror import fuse
from tests.conftest import missing
from tests.mirror.fakes import make_model

pytestmark = pytest.mark.fuse
HERE = Path(__file__).resolve()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a safetensors file, files around the size of a chunk, an empty one, and folders."""
    folder = tmp_path / "model"
    sizes = {"config.json": 700, "a/b/big.bin": (3 << 20) + 5, "a/exact.bin": 1 << 20, "empty": 0}
    for path, data in make_model(sizes).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    luck = np.random.default_rng(1)
    tensors = {f"layer.{n}.weight": luck.standard_normal((300, 500), dtype=np.float32) for n in range(4)}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    if not Path("/dev/fuse").exists() or not (shutil.which("fusermount3") or os.geteuid() == 0):
        missing("mounting needs /dev/fuse and fusermount3")
    folder = tmp_path / "mounted"
    folder.mkdir()
    try:
        yield folder
    finally:
        while fuse.is_stale(folder) or folder.is_mount():
            fuse.unmount(folder)


@contextmanager
def mounted(model: Path, mountpoint: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE.with_name("mount_process.py"))]
    command += [str(mountpoint.with_name("store")), str(model), str(mountpoint), *options]
    environment = dict(os.environ, PYTHONPATH=str(HERE.parents[2]))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            yield process
        finally:
            process.kill()


def test_every_program_reads_what_is_there(model: Path, mountpoint: Path, tmp_path: Path) -> None:
    with mounted(model, mountpoint):
        listed = sorted(path.relative_to(mountpoint) for path in mountpoint.rglob("*"))
        assert listed == sorted(path.relative_to(model) for path in model.rglob("*"))
        assert mountpoint.stat().st_mode & 0o777 == 0o555
        assert (mountpoint / "config.json").stat().st_mtime == 1_700_000_000
        assert os.statvfs(mountpoint).f_bfree == 0

        subprocess.run(["cp", "-r", str(mountpoint), str(tmp_path / "copy")], check=True)
        subprocess.run(["diff", "-r", str(model), str(tmp_path / "copy")], check=True)
        subprocess.run(["chmod", "-R", "u+w", str(tmp_path / "copy")], check=True)
        said = subprocess.run(
            ["sha256sum", str(mountpoint / "a/b/big.bin")], check=True, capture_output=True, text=True
        ).stdout
        assert said.split()[0] == hashlib.sha256((model / "a/b/big.bin").read_bytes()).hexdigest()

        right = load_file(model / "model.safetensors")
        for name, tensor in load_file(mountpoint / "model.safetensors").items():
            np.testing.assert_array_equal(tensor, right[name])
        with (
            (mountpoint / "a/b/big.bin").open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            assert mapped[:] == (model / "a/b/big.bin").read_bytes()
        with pytest.raises(FileNotFoundError):
            (mountpoint / "nothing").open("rb")
        descriptor = os.open(mountpoint / "config.json", os.O_RDONLY)
        try:
            assert os.pread(descriptor, 100, 650) == (model / "config.json").read_bytes()[650:]
            assert os.pread(descriptor, 100, 700) == b""
        finally:
            os.close(descriptor)


def test_every_kind_of_write_is_refused(model: Path, mountpoint: Path) -> None:
    with mounted(model, mountpoint):
        file, fresh = mountpoint / "config.json", mountpoint / "new"
        for write in (
            lambda: file.write_bytes(b"x"),
            lambda: file.open("ab"),
            lambda: file.open("r+b"),
            lambda: fresh.write_bytes(b"x"),
            lambda: os.truncate(file, 1),
            file.unlink,
            lambda: file.rename(fresh),
            lambda: file.chmod(0o600),
            lambda: os.chown(file, 1, 1),
            lambda: os.utime(file),
            fresh.mkdir,
            (mountpoint / "a").rmdir,
            lambda: fresh.symlink_to("config.json"),
            lambda: fresh.hardlink_to(file),
            lambda: os.mkfifo(fresh),
            lambda: os.setxattr(file, "user.x", b"1"),
        ):
            with pytest.raises(OSError) as refusal:
                write()
            assert refusal.value.errno == errno.EROFS
        assert not os.access(file, os.W_OK)


def test_damage_is_an_input_output_error_never_zeros(model: Path, mountpoint: Path) -> None:
    with mounted(model, mountpoint):
        address = hashlib.sha256((model / "a/b/big.bin").read_bytes()[1 << 20 : 2 << 20]).hexdigest()
        chunk = mountpoint.with_name("store") / "chunks" / address[:2] / address
        chunk.write_bytes(bytes(chunk.stat().st_size))
        descriptor = os.open(mountpoint / "a/b/big.bin", os.O_RDONLY)
        try:
            with pytest.raises(OSError) as failure:
                os.pread(descriptor, 4096, (1 << 20) + 8192)
            assert failure.value.errno == errno.EIO
            right = (model / "a/b/big.bin").read_bytes()
            assert os.pread(descriptor, 4096, 2 << 20) == right[2 << 20 : (2 << 20) + 4096]
        finally:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, ()), (signal.SIGTERM, ("signals",)), (signal.SIGINT, ("signals",))],
)
def test_signals_unmount(
    model: Path, mountpoint: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with mounted(model, mountpoint, *options) as process:
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not mountpoint.is_mount()
        assert not fuse.is_stale(mountpoint)


def test_a_signal_unmounts_while_a_program_reads(model: Path, mountpoint: Path) -> None:
    with mounted(model, mountpoint, "signals") as process:
        descriptor = os.open(mountpoint / "a/b/big.bin", os.O_RDONLY)
        try:
            assert os.read(descriptor, 10)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert not mountpoint.is_mount()
        finally:
            with suppress(OSError):  # what is closed is not there any more
                os.close(descriptor)


def test_a_mount_left_behind_is_cleared_at_the_next_start(model: Path, mountpoint: Path) -> None:
    with mounted(model, mountpoint) as process:
        process.kill()
        process.wait()
    assert fuse.is_stale(mountpoint)
    with mounted(model, mountpoint):
        assert (mountpoint / "config.json").read_bytes() == (model / "config.json").read_bytes()


def test_unfit_mount_points_are_explained(tmp_path: Path, mountpoint: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for path, reason in (
        (tmp_path / "absent", "mkdir -p"),
        (tmp_path / "full", "not empty"),
        (tmp_path / "full" / "file", "not a directory"),
        (Path("/proc"), "mounted there already"),
    ):
        with pytest.raises(fuse.MountPointUnfit, match=reason):
            fuse.prepare(path)
    assert fuse.prepare(mountpoint) == mountpoint


def test_no_privilege_and_no_library_are_explained(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(fuse.FuseForbidden, match="--device /dev/fuse"):
            fuse.prepare(mountpoint)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(fuse.FuseForbidden, match="fusermount3 is not installed"):
            fuse.prepare(mountpoint)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mfusepy", None)
        patch.setitem(sys.modules, "fuse", None)
        with pytest.raises(fuse.FuseMissing, match="apt install fuse3"):
            fuse._library()


def test_fusepy_serves_where_mfusepy_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fusepy = ModuleType("fuse")  # it knows no versions, and calls operations by their names
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    monkeypatch.setitem(sys.modules, "fuse", fusepy)
    assert fuse._library() is fusepy
    assert fuse._own_options(fusepy)["kernel_cache"] is True
