"""What the control groups of this process leave it, as in a container: less than the machine has.

Linux's cgroups, version 2 (`memory.max`, `cpu.max`) and 1 (`memory.limit_in_bytes`, `cpu.cfs_quota_us`). A group is
bound by those above it, as far as they can be seen from here.
"""

import math
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # version 1 has no word for it


def memory_left() -> int | None:
    """Bytes that the groups still allow, what the page cache would give back included; None where none is set."""
    left = []
    for group in _groups("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None and most < UNLIMITED:
                left.append(max(0, most - now + _stat(group / "memory.stat", cache)))
    return min(left, default=None)


def processors() -> int | None:
    """Processors that the groups' quotas amount to, rounded up; None where none is set."""
    found = []
    for group in _groups("cpu"):
        words = _words(group / "cpu.max")
        if len(words) == 2 and words[0].isdigit():
            found.append(int(words[0]) / int(words[1]))
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            found.append(quota / period)
    return max(1, math.ceil(min(found))) if found else None


def _groups(controller: str) -> Iterator[Path]:
    """The directories of this process's groups for a controller, and of those above them."""
    for line in _lines(MEMBERSHIP):
        number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = MOUNT if number == "0" else MOUNT / controllers
        roots = [root] if root.is_dir() else [MOUNT / controller]
        for base in roots:
            group = base / path.lstrip("/")
            yield from (place for place in (group, *group.parents) if place.is_relative_to(base))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # no such limit, or none that can be seen from here
        return []


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _number(file: Path) -> int | None:
    words = _words(file)
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None


def _stat(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(file) if line.startswith(f"{name} ")), 0)
