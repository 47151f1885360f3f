"""Where the threads of a launch run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels import physical_cores
from engine.kernels.places import CAN_BIND, cores

pytestmark = pytest.mark.skipif(
    not CAN_BIND or physical_cores() < 2, reason="needs Linux, two cores and leave to bind threads"
)

SCENE = """
import os, threading
from pathlib import Path
from engine.formats import F32Matrix
from engine.kernels import apart, matmul, pack, set_threads, threads, waiting
from engine.kernels.threads import _launches, over_rows, stay_alone
from engine.kernels.places import cores
import numpy as np

everywhere = os.sched_getaffinity(0)
matrix = pack(F32Matrix(np.ones((2048, 2048), np.float32)), "q8")
def launch():
    matmul(np.ones((1, 2048), np.float32), matrix)
def alone():
    return [thread for thread in map(int, os.listdir("/proc/self/task"))
            if os.sched_getaffinity(thread) != everywhere]
def here():
    return os.sched_getaffinity(0)
def elsewhere(run=lambda: None):
    found = []
    def look():
        run()
        found.append(here())
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]
"""


def _run(program: str, **environment: str) -> str:
    """What a program prints that runs in a process of its own: where threads may run is never undone."""
    program = SCENE + program
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_a_team_shares_all_cores_while_it_computes() -> None:
    assert (
        _run("""
with apart():
    launch()
    sets = [os.sched_getaffinity(thread) for thread in alone()]
    assert here() in sets
    assert sorted(map(sorted, sets)) == sorted(map(sorted, cores(everywhere))), sets
assert here() == everywhere
print(len(sets) == threads())
""")
        == "True"
    )


def test_where_the_launching_thread_goes_the_others_leave() -> None:
    assert (
        _run("""
with apart():
    launch()
for core in cores(everywhere) * 2:
    os.sched_setaffinity(0, core)  # as if the system had moved it
    with apart():
        launch()
        others = [os.sched_getaffinity(one) for one in alone() if one != threading.get_native_id()]
        assert here() == core and core not in others, (core, others)
print(here() == everywhere, len(others) == threads() - 1)
""")
        == "True True"
    )


def test_only_the_outermost_counts_and_waits_are_free() -> None:
    assert (
        _run("""
with apart():
    with apart():
        pass
    held = here()
    with waiting():
        between = here()
        with apart():
            inside = here()
        assert here() == between
    again = here()
with waiting():
    assert here() == everywhere
print(len(held) < len(everywhere), between == everywhere, len(inside) == len(again) == len(held), here() == everywhere)
""")
        == "True True True True"
    )


def test_threads_of_ours_that_start_meanwhile_are_free() -> None:
    assert (
        _run("""
seen = []
with apart():
    over_rows(64, 1 << 20, lambda rows: seen.append((threading.get_native_id(), here())))
    reader = elsewhere(stay_alone)
    stranger = elsewhere()
others = [where for thread, where in seen if thread != threading.get_native_id()]
print(all(where == everywhere for where in others) and bool(others), reader == everywhere, stranger == everywhere)
""")
        == "True True False"
    )


@pytest.mark.parametrize("environment", [{"OMP_PROC_BIND": "false"}, {"NUMBA_THREADING_LAYER": "workqueue"}])
def test_where_it_is_not_wanted_nothing_is_bound(environment: dict[str, str]) -> None:
    assert (
        _run(
            """
with apart():
    launch()
    print(alone())
""",
            **environment,
        )
        == "[]"
    )


def test_a_smaller_team_is_not_bound() -> None:
    assert (
        _run("""
set_threads(1)
with apart():
    launch()
    print(alone())
""")
        == "[]"
    )


def test_hyper_threads_are_one_core() -> None:
    allowed = os.sched_getaffinity(0)
    found = cores(allowed)
    assert sorted(processor for core in found for processor in core) == sorted(allowed)
    assert len(found) == physical_cores()
