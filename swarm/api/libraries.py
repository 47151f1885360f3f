"""Where the models of a server come from: directories on this machine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.checkpoint import config_in
from engine.engine import Engine, Options
from engine.needs import needs_of
from engine.numerics import Weights
from engine.source import DirectorySource, Source
from swarm.api.shelf import Listed, Need
from swarm.peers.settings import home


class Directories:
    """Checkpoint directories, each a model named like its folder; see `named`."""

    def __init__(
        self, directories: Sequence[Path], weights: Weights = "auto", expert_ram_bytes: int | None = None
    ) -> None:
        self._directories = named(directories)
        self._weights: Weights = weights
        self._expert_ram_bytes = expert_ram_bytes
        self._sources = {name: DirectorySource(path) for name, path in self._directories.items()}
        self._listed = tuple(self._describe(name) for name in sorted(self._directories))

    def models(self) -> tuple[Listed, ...]:
        """All of them."""
        return self._listed

    def need(self, name: str) -> Need:
        """See `swarm.api.shelf.Library`."""
        return need_of(self._sources[name], self._weights)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        """See `swarm.api.shelf.Library`."""
        return Engine.open(
            self._sources[name],
            Options(self._weights, least(experts_bytes, self._expert_ram_bytes), home().packed),
        )

    def swarm(self) -> Mapping[str, object]:
        """No network."""
        return {"link": "local", "address": "", "model": "", "peers": [], "experts": []}

    def close(self) -> None:
        """Closes the files."""
        for source in self._sources.values():
            source.close()

    def _describe(self, name: str) -> Listed:
        source, path = self._sources[name], self._directories[name]
        config_in(source, path)
        config = path / "config.json"
        created_s = int((config if config.is_file() else path).stat().st_mtime)
        return Listed(name, sum(source.files().values()), created_s, "local")


def named(directories: Sequence[Path]) -> Mapping[str, Path]:
    """Directories by what tells them apart: the name of the folder, with as many of those above as it takes. One that
    is given twice is there once."""
    left = {directory.resolve(): directory for directory in directories}
    found: dict[str, Path] = {}
    for folders in range(1, max((len(path.parts) for path in left), default=0) + 1):
        names = {path: "/".join(path.parts[-folders:]) for path in left}
        counts = Counter(names.values())
        for path, name in names.items():
            if counts[name] == 1 or len(path.parts) == folders:
                found[name] = left.pop(path)
    return found


def least(*sizes: int | None) -> int | None:
    """The smallest of some sizes, of which None is none at all."""
    return min((size for size in sizes if size is not None), default=None)


def need_of(source: Source, weights: Weights) -> Need:
    """The memory that a checkpoint takes in a number format, from its headers."""
    needs = needs_of(source, weights)
    return Need(needs.dense, needs.experts, needs.layer)
