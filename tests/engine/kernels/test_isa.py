"""The same bits from every instruction set: those the host has in this process, other CPU targets in
processes of their own.

What no machine at hand can run (Arm, AVX-VNNI) is at least compiled for it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding
from llvmlite import ir as llvm

from engine.arrays import F32
from engine.formats import F32Matrix, Int4Matrix, MXFP4Matrix, StoredMatrix
from engine.kernels import Rows, pack, quantize_rows
from engine.kernels import ir as w
from engine.kernels.compile import device
from engine.kernels.integer_tile import (
    KINDS,
    SCALED,
    SCALES,
    block_bytes,
    make_tile,
    weight_bytes,
    write_tile,
)
from engine.kernels.isa import BY_NAME, ISAS, isa
from tests.engine.kernels.digests import digests, normal, stored

ROOT = Path(__file__).parents[3]
WORSE = {
    "avx512vnni": ("avx2", "sse2", "portable"),
    "avxvnni": ("avx2", "sse2"),
    "avx2": ("sse2", "portable"),
}


def _matrix(kind: str) -> tuple[StoredMatrix, Any]:
    matrix = stored(8, 16, 96)[{"q8": "f32", "q4": "f32"}.get(kind, kind)]
    assert isinstance(matrix, F32Matrix | Int4Matrix | MXFP4Matrix)
    return matrix, pack(matrix, "q4" if kind == "q4" else "auto")


def _by_each(kind: str, w: Any, rows: Rows) -> list[F32]:
    """The first panel of a matrix times 4 rows, by each instruction set that this host has."""
    number, scale = KINDS.index(kind), SCALES.index(w.packing.scale)
    results = []
    for name in (isa().name, *WORSE.get(isa().name, ("portable",))):
        tile, count = make_tile(name), ISAS[name].tokens

        @device
        def run(data, q, scales, sums, index, out):  # type: ignore[no-untyped-def]
            for first in range(0, 4, count):  # noqa: B023
                some = min(count, 4 - first)  # noqa: B023
                tile(number, scale, data, 0, 3, q, scales, sums, index, first, some, out, first * 16, 16)  # noqa: B023

        out = np.zeros((16, 16), np.float32)
        run(w.data, rows.q, rows.scale, rows.sums, np.arange(4), out)
        results.append(out[:4].copy())
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_of_this_host(kind: str) -> None:
    _, w = _matrix(kind)
    x = normal(9, 4, w.cols)
    x[1] = -np.abs(x[1])
    results = _by_each(kind, w, quantize_rows(x))
    assert np.abs(results[0]).max() > 0
    for other in results[1:]:
        assert (other.view(np.uint32) == results[0].view(np.uint32)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_sum_leaves_its_width(kind: str) -> None:
    _, w = _matrix(kind)
    luck = np.random.default_rng(3)
    ends = {"mxfp4": (0x7, 0xF)}.get(kind, (0x0, 0xF))  # the codes of the least and the largest value
    bytes_of_ends = [low | high << 4 for low in ends for high in ends] if kind != "q8" else [1, 255]
    size = weight_bytes(kind)
    for pattern in (*bytes_of_ends, None):
        for group in range(3):
            block, place = divmod(group, SCALED[w.packing.scale])
            at = block * block_bytes(kind, w.packing.scale) + place * size
            w.data[at : at + size] = luck.choice(bytes_of_ends, size) if pattern is None else pattern
        q = np.full((4, 96), 127, np.int8)
        q[1] = -127
        q[2, 1::2] = -127
        q[3] = luck.choice([-127, 127], 96)
        results = _by_each(kind, w, Rows.of(q, np.ones((4, 3), np.float32)))
        assert np.abs(results[0][3]).max() > 0
        for other in results[1:]:
            assert (other.view(np.uint32) == results[0].view(np.uint32)).all()


def _start(**environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.engine.kernels.digests"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_cpu_targets_agree() -> None:
    runs = {
        "sse2" if isa().name not in ("neon", "portable") else "portable": _start(NUMBA_CPU_NAME="generic")
    }
    if isa().name in WORSE:
        runs["avx2"] = _start(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")
    host = digests()
    assert len(host) > 30
    for name, run in runs.items():
        output, _ = run.communicate(timeout=600)
        assert run.returncode == 0
        assert output.splitlines() == [f"# {name}", *host]


@pytest.mark.parametrize(
    ("name", "triple", "cpu", "instruction"),
    [
        ("neon", "aarch64-unknown-linux-gnu", "neoverse-n1", "sdot"),
        ("avxvnni", "x86_64-unknown-linux-gnu", "alderlake", "vpdpbusd"),
        ("avx512vnni", "x86_64-unknown-linux-gnu", "icelake-server", "vpdpbusd"),
        ("avx2", "x86_64-unknown-linux-gnu", "haswell", "vpmaddubsw"),
        ("sse2", "x86_64-unknown-linux-gnu", "x86-64", "pmaddwd"),
        ("portable", "riscv64-unknown-linux-gnu", "generic-rv64", "ret"),
    ],
)
@pytest.mark.parametrize(("kind", "scale"), [("q8", "f16"), ("mxfp4", "e8m0")])
def test_compiles_for(name: str, triple: str, cpu: str, instruction: str, kind: str, scale: str) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = llvm.Module()
    pointers = {"panel": w.I8, "q": w.I8, "scale": w.F32, "sums": w.I32, "index": w.I64, "out": w.F32}
    names = ("panel", "groups", "q", "scale", "sums", "index", "first", "count", "out", "stride")
    kinds = [pointers[key].as_pointer() if key in pointers else w.I64 for key in names]
    function = llvm.Function(module, llvm.FunctionType(w.VOID, kinds), "tile")
    builder = llvm.IRBuilder(function.append_basic_block())
    write_tile(builder, name, kind, scale, ISAS[name].tokens, dict(zip(names, function.args, strict=True)))
    builder.ret_void()
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
    assert instruction in machine.emit_assembly(parsed)


def test_names_lead_to_known_instruction_sets() -> None:
    assert set(BY_NAME.values()) <= set(ISAS)
