"""What this machine could lend without missing it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_GB = 10**9


@dataclass(frozen=True)
class Machine:
    """Sizes in bytes."""

    free_disk_bytes: int
    ram_bytes: int
    """All of it; 0: the system does not say."""

    @property
    def disk_offer(self) -> int:
        """A fifth of what is free, at most 200 GB, in whole GB."""
        return min(200 * _GB, self.free_disk_bytes // 5) // _GB * _GB

    @property
    def ram_offer(self) -> int:
        """A quarter of the memory, at most 64 GB, in whole GB, and never the last 2 GB."""
        return max(0, min(64 * _GB, self.ram_bytes // 4, self.ram_bytes - 2 * _GB)) // _GB * _GB


def measure(directory: Path) -> Machine:
    """This machine, with the disk that holds a directory (or will)."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        ram = 0
    return Machine(shutil.disk_usage(place).free, max(0, ram))
