"""What control groups leave a process, of both versions, nested, and where there are none."""

from pathlib import Path

import pytest

from engine import groups, memory
from engine.kernels import physical_cores


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(groups, "MOUNT", tmp_path / "cgroup")
    monkeypatch.setattr(groups, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_no_groups_no_bounds(mounted: Path) -> None:
    assert (groups.memory_left(), groups.processors()) == (None, None)
    write(mounted, {"membership": "0::/gone\n"})
    assert (groups.memory_left(), groups.processors()) == (None, None)


def test_version_2_and_the_tightest_of_those_above(mounted: Path) -> None:
    write(mounted, {"membership": "0::/box/job\n"})
    box = mounted / "cgroup" / "box"
    stat = "anon 5\ninactive_file 300\n"
    write(box / "job", {"memory.max": "max\n", "memory.current": "9\n", "cpu.max": "max 100000\n"})
    write(
        box,
        {
            "memory.max": "1000\n",
            "memory.current": "800\n",
            "memory.stat": stat,
            "cpu.max": "150000 100000\n",
        },
    )
    assert groups.memory_left() == 500
    assert groups.processors() == 2
    write(box / "job", {"memory.max": "100\n", "cpu.max": "20000 100000\n"})
    assert groups.memory_left() == 91
    assert groups.processors() == 1


def test_version_1(mounted: Path) -> None:
    write(mounted, {"membership": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n"})
    unlimited = {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5\n"}
    write(mounted / "cgroup" / "memory", unlimited)
    write(
        mounted / "cgroup" / "memory" / "box",
        {"memory.limit_in_bytes": "4096\n", "memory.usage_in_bytes": "4000\n"},
    )
    write(
        mounted / "cgroup" / "cpu,cpuacct" / "box",
        {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"},
    )
    assert groups.memory_left() == 96
    assert groups.processors() is None
    write(mounted / "cgroup" / "cpu,cpuacct" / "box", {"cpu.cfs_quota_us": "300000\n"})
    assert groups.processors() == 3


def test_a_container_s_bounds_hold_for_memory_and_threads(mounted: Path) -> None:
    free, cores = memory.available_bytes(), physical_cores()
    write(mounted, {"membership": "0::/\n"})
    write(
        mounted / "cgroup", {"memory.max": "5000\n", "memory.current": "1000\n", "cpu.max": "1000 100000\n"}
    )
    assert (memory.available_bytes(), physical_cores()) == (4000, 1)
    assert free > 4000
    assert cores >= 1
