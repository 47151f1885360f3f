"""The cache of compiled kernels: a second process compiles nothing, importing compiles nothing,
sources are watched.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.bytecode import FunctionIdentity

from engine.kernels import compile as compiling
from engine.kernels import physical_cores, set_threads, threads
from engine.kernels.addresses import carray
from engine.kernels.crew import send

ROOT = Path(__file__).parents[3]

PROGRAM = """
from engine.kernels import on_compile
compiled = []
with on_compile(compiled.append):
    import numpy as np
    import engine.kernels as kernels
    from engine.formats import F32Matrix
    kernels.exp(np.ones(3, np.float32))
    kernels.matmul(np.ones((1, 32), np.float32), kernels.pack(F32Matrix(np.ones((2, 32), np.float32)), "q8"))
print(" ".join(compiled))
"""

IMPORT = """
from numba.core import event
recorder = event.RecordingListener()
event.register("numba:compile", recorder)
import engine.kernels
print(len(recorder.buffer))
"""


def _run(program: str, cache: Path) -> str:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.strip()


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = _run(PROGRAM, tmp_path).split()
    assert "_exp" in first
    assert any(name.endswith("matmul") for name in first)
    assert _run(PROGRAM, tmp_path) == ""


def test_without_a_place_for_the_cache_kernels_run_all_the_same(tmp_path: Path) -> None:
    nowhere = """
from numba.core import caching
for locator in (caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator):
    locator.ensure_cache_path = lambda self: (_ for _ in ()).throw(OSError("read-only"))
"""
    for _ in range(2):
        assert "_exp" in _run(nowhere + PROGRAM, tmp_path).split()
    assert not list(tmp_path.iterdir())


def times(factor: int) -> Any:
    """A routine that multiplies its first number."""

    @compiling.device
    def multiplied(value):  # type: ignore[no-untyped-def]
        return value * factor

    @compiling.routine
    def work(numbers, threads):  # type: ignore[no-untyped-def]
        given = carray(numbers, (1,))
        given[0] = multiplied(given[0])

    return work


def test_machine_code_for_different_formats_has_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes count functions alike; what both kept on disk is loaded into one."""
    names = []
    for factor in (2, 3, 2):
        monkeypatch.setattr(FunctionIdentity, "_unique_ids", itertools.count(1 << 30))
        made = times(factor)
        names.append(made.native_name)
        numbers = np.array([7], np.int64)
        send(made.address, numbers, 1)
        assert numbers[0] == 7 * factor
    assert names[0] == names[2] != names[1]


def test_importing_compiles_nothing(tmp_path: Path) -> None:
    assert _run(IMPORT, tmp_path) == "0"


def test_the_stamp_follows_imports() -> None:
    files = {file.name: compiling.imported_files(file) for file in compiling.DIRECTORY.glob("*.py")}
    reached = compiling.reached_files(compiling.DIRECTORY / "matmul_integer.py")
    names = {file.name for file in reached}
    assert {"matmul_integer.py", "integer_tile.py", "integer_dot.py", "ir.py", "atomic.py"} <= names
    assert "attention_kernel.py" not in names
    assert {file.name for file in files["matmul_integer.py"]} <= names
    stamps = {compiling.source_stamp(file) for file in compiling.DIRECTORY.glob("*.py")}
    assert len(stamps) == len(files)


def test_threads() -> None:
    before = threads()
    try:
        assert set_threads(1) == threads() == 1
        assert 1 <= set_threads() <= physical_cores()
    finally:
        set_threads(before)
