"""What `swarm doctor` finds on this machine: what Swarm needs, what it found, and what to do where that falls short.

Each check is a function that gives findings; none of them changes anything beyond a file that it removes again.
What concerns a tracker is in `swarm.peers.reachable`.
"""

import importlib
import importlib.util
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

from swarm.peers.settings import Home
from swarm.trust.manifest import CHUNK_BYTES

State: TypeAlias = Literal["good", "note", "bad"]
"""good: as it should be; note: works, but could be better; bad: something essential fails."""
GIB = 1 << 30
LEAST_MEMORY_BYTES = 1 * GIB
LEAST_DISK_BYTES = 1 * GIB
EXPECTED_FILES = 1024
LEAST_PYTHON = (3, 11)
BUILT_UNIX_S = 1_735_689_600  # 1 January 2025: no right clock shows an earlier time
PACKAGES = ("numpy", "numba", "llvmlite", "trio", "pynacl", "blake3", "textual", "tokenizers")
SLOW_ISAS = ("sse2", "portable")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do, and is empty when nothing is needed."""

    subject: str
    state: State
    text: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


Check: TypeAlias = Callable[[], Iterator[Finding]]


def local_checks(home: Path, chunks: Path, port: int) -> list[Check]:
    """All checks of this machine, in the order in which they are shown."""
    return [
        versions,
        processor,
        threading,
        memory,
        lambda: disk(home, chunks),
        kernel_cache,
        open_files,
        fuse,
        lambda: free_port(port),
        clock,
    ]


def checks_of(home: Home, port: int) -> list[Check]:
    """All checks for the files of a user."""
    return local_checks(home.data, home.chunks, port)


def versions() -> Iterator[Finding]:
    """Swarm, Python, the system and what Swarm rests on."""
    try:
        own = version("swarm-moe")
    except PackageNotFoundError:
        own = "from a source tree"
    python = platform.python_version()
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    fit = sys.version_info >= LEAST_PYTHON
    yield Finding(
        "versions", "good" if fit else "bad", f"Swarm {own}, Python {python}, {system}",
        "" if fit else "Swarm needs Python 3.11 or newer.",
        {"swarm": own, "python": python, "system": system},
    )  # fmt: skip
    found: dict[str, str] = {}
    missing = []
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        remedy = f"Install what is missing: `pip install {' '.join(missing)}`, or Swarm itself again."
        yield Finding("packages", "bad", f"not installed: {', '.join(missing)}", remedy, {"missing": missing})
    else:
        text = ", ".join(f"{name} {number}" for name, number in found.items())
        yield Finding("packages", "good", text, facts=dict(found))


def processor() -> Iterator[Finding]:
    """The CPU, and the instructions that the kernels are written in for it."""
    from llvmlite import binding

    from engine.kernels.isa import isa

    chosen, host = isa().name, str(binding.get_host_cpu_name())
    facts = {"cpu": host, "kernels": chosen, "forced": os.environ.get("NUMBA_CPU_NAME", "")}
    text = f"{host}: kernels in {chosen}"
    if forced := facts["forced"]:
        remedy = "Unset NUMBA_CPU_NAME for full speed; answers are the same either way."
        yield Finding("processor", "note", f"{text}, chosen for NUMBA_CPU_NAME={forced}", remedy, facts)
    elif chosen in SLOW_ISAS:
        remedy = "Nothing is wrong, but a CPU with AVX2 or NEON dot products is several times as fast."
        yield Finding("processor", "note", text, remedy, facts)
    else:
        yield Finding("processor", "good", text, facts=facts)


def threading() -> Iterator[Finding]:
    """How many threads compute, and through which layer they are started."""
    from engine.kernels.threads import physical_cores, threads

    cores, used = physical_cores(), threads()
    layer = "omp" if _imports("numba.np.ufunc.omppool") else "workqueue"
    facts = {"threads": used, "cores": cores, "layer": layer}
    text = f"{used} of {cores} cores, started through {'OpenMP' if layer == 'omp' else 'the work queue'}"
    if layer == "omp":
        yield Finding("threads", "good", text, facts=facts)
    else:
        remedy = "OpenMP starts threads sooner: install libgomp (Debian: `apt install libgomp1`)."
        yield Finding("threads", "note", text, remedy, facts)


def memory() -> Iterator[Finding]:
    """Memory that is free now."""
    from engine.memory import available_bytes

    free = available_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {"available_bytes": free, "total_bytes": total}
    text = f"{_gib(free)} of {_gib(total)} free"
    if free < LEAST_MEMORY_BYTES:
        remedy = (
            "Close other programs, or choose a smaller model; experts beyond the memory are read from disk."
        )
        yield Finding("memory", "note", text, remedy, facts)
    else:
        yield Finding("memory", "good", text, facts=facts)


def disk(home: Path, chunks: Path) -> Iterator[Finding]:
    """Whether our directories can be written, and the space for chunks."""
    for subject, path in (("home", home), ("cache", chunks)):
        where = _nearest(path)
        try:
            with tempfile.NamedTemporaryFile(dir=where, prefix=".swarm-doctor-"):
                free = shutil.disk_usage(where).free
        except OSError as error:
            remedy = f"Make {where} writable, or point SWARM_HOME at a directory that is."
            text = f"{path} cannot be written: {error.strerror or error}"
            yield Finding(subject, "bad", text, remedy, {"path": str(path), "free_bytes": None})
            continue
        facts = {"path": str(path), "free_bytes": free}
        text = f"{path}, {_gib(free)} free"
        if free < LEAST_DISK_BYTES:
            remedy = "Free some space, or some of Swarm's own with `swarm cache gc`."
            yield Finding(subject, "bad" if free < CHUNK_BYTES else "note", text, remedy, facts)
        else:
            yield Finding(subject, "good", text, facts=facts)


def kernel_cache() -> Iterator[Finding]:
    """Whether compiled kernels can be kept: beside the code, or in the user's cache."""
    import engine.kernels

    beside = Path(engine.kernels.__file__).parent / "__pycache__"
    named = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(named)] if named else [beside]
    if not named:
        with suppress(RuntimeError):  # a user without a home
            places.append(Path.home() / ".cache")
    kept = next((place for place in places if os.access(_nearest(place), os.W_OK)), None)
    if kept is None:
        remedy = "Set NUMBA_CACHE_DIR to a directory that can be written; else kernels are compiled at every start."
        yield Finding("kernel cache", "note", "compiled kernels cannot be kept", remedy, {"path": None})
    else:
        yield Finding(
            "kernel cache", "good", f"compiled kernels are kept below {kept}", facts={"path": str(kept)}
        )


def open_files() -> Iterator[Finding]:
    """The most files and connections this process may have open."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    facts = {"limit": limit}
    if limit != resource.RLIM_INFINITY and limit < EXPECTED_FILES:
        remedy = f"Raise it with `ulimit -n {EXPECTED_FILES}`; a tracker for many peers wants more."
        yield Finding("open files", "note", f"at most {limit}", remedy, facts)
    else:
        yield Finding("open files", "good", f"at most {limit}", facts=facts)


def fuse() -> Iterator[Finding]:
    """What `swarm mount` needs; everything else works without it."""
    obstacles = []
    if not (_imports("mfusepy") or _imports("fuse")):
        obstacles.append("libfuse is not installed")
    if sys.platform == "linux":
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            obstacles.append("/dev/fuse is not there or may not be opened")
        if os.geteuid() != 0 and not (shutil.which("fusermount3") or shutil.which("fusermount")):
            obstacles.append("fusermount3 is not installed")
    if obstacles:
        remedy = (
            "Only `swarm mount` needs it: `apt install fuse3` on Debian; in a container --device /dev/fuse."
        )
        yield Finding("FUSE", "note", "; ".join(obstacles), remedy, {"usable": False})
    else:
        yield Finding("FUSE", "good", "`swarm mount` can be used", facts={"usable": True})


def free_port(port: int) -> Iterator[Finding]:
    """Whether `swarm serve` could listen at a port."""
    facts = {"port": port}
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            remedy = "If that is no server of yours, choose another with --port."
            text = f"{port} cannot be taken: {error.strerror or error}"
            yield Finding("port", "note", text, remedy, {**facts, "free": False})
            return
    yield Finding("port", "good", f"{port} is free", facts={**facts, "free": True})


def clock() -> Iterator[Finding]:
    """Whether the clock can be right at all; a tracker tells more."""
    now_s = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < BUILT_UNIX_S:
        remedy = "Set the clock (`timedatectl set-ntp true`): manifests of the future are refused."
        yield Finding("clock", "bad", f"{text} lies before Swarm was made", remedy, {"unix_s": now_s})
    else:
        yield Finding("clock", "good", text, facts={"unix_s": now_s})


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except (ImportError, OSError, AttributeError):
        return False
    return True


def _nearest(path: Path) -> Path:
    """The path itself, or the closest directory above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
