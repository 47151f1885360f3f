"""Where this machine keeps things, and the answers it remembers.

`SWARM_HOME` moves everything below one directory. Otherwise what must not be lost (keys, accepted manifests,
answers) lies in the user's data directory, and what can be had again (chunks, hashes) in the cache directory.
"""

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from swarm.errors import SwarmError
from swarm.trust.files import locked, write_atomically


class SettingsDamaged(SwarmError):
    """{path} is not a settings file of Swarm ({reason}); repair it, or delete it to be asked again."""


class NoHome(SwarmError):
    """This user has no home directory here; point SWARM_HOME at a directory that can be written."""


class HomeIsAFile(SwarmError):
    """SWARM_HOME names {path}, which is not a directory; name one, or take SWARM_HOME away."""


@dataclass(frozen=True, slots=True)
class Home:
    """The two directories below which every file of ours lies. Nothing is created by asking for a path."""

    data: Path
    cache: Path

    @property
    def identity_key(self) -> Path:
        """This machine's key, which other peers know it by."""
        return self.data / "identity.key"

    def donor_key(self, kind: str) -> Path:
        """The key of a donor that runs here; each kind is a peer of its own, whatever else runs here."""
        return self.data / f"donor-{kind}.key"

    def donor_process(self, kind: str) -> Path:
        """The process of the donor of a kind, while one runs."""
        return self.data / f"donor-{kind}.pid"

    @property
    def operator_key(self) -> Path:
        """The key that signs the models served from here."""
        return self.data / "operator.key"

    @property
    def manifests(self) -> Path:
        """The manifests accepted from operators."""
        return self.data / "manifests"

    @property
    def known_trackers(self) -> Path:
        """The keys of trackers met before."""
        return self.data / "trackers.json"

    @property
    def served(self) -> Path:
        """The last manifest signed for each model served from here."""
        return self.data / "served"

    @property
    def proofs(self) -> Path:
        """Proofs of wrong answers that were found from here."""
        return self.data / "proofs"

    def tracker_store(self, port: int) -> Path:
        """What a tracker run from here at a port must not forget."""
        return self.data / "trackers" / f"{port}.sqlite"

    @property
    def settings(self) -> Path:
        """The remembered answers."""
        return self.data / "settings.json"

    @property
    def terminal(self) -> Path:
        """What the terminal remembers beside them."""
        return self.data / "terminal.json"

    @property
    def chunks(self) -> Path:
        """The store of verified chunks."""
        return self.cache / "chunks"

    @property
    def lent(self) -> Path:
        """The chunks in it that a donor of disk brought."""
        return self.cache / "lent"

    @property
    def packed(self) -> Path:
        """Experts in the form that kernels read, of models that do not fit in memory."""
        return self.cache / "packed"

    @property
    def hashes(self) -> Path:
        """Hashes of files served from here."""
        return self.cache / "hashes"


def home() -> Home:
    """The directories of this user, by `SWARM_HOME` or the platform's custom. Raises HomeIsAFile, NoHome."""
    if root := os.environ.get("SWARM_HOME"):
        path = Path(root).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise HomeIsAFile(path=path)
        return Home(path, path / "cache")
    try:
        data = Path(platformdirs.user_data_dir("swarm", appauthor=False))
        return Home(data, Path(platformdirs.user_cache_dir("swarm", appauthor=False)))
    except RuntimeError:  # no HOME, and a user that the machine does not list, as in containers
        raise NoHome() from None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Answers given once. None: never asked. Flags win over all of them."""

    swarm: str | None = None
    """The tracker's address or the invite used last."""
    model: str | None = None
    """The model chosen last."""
    cache_bytes: int | None = None
    """The most space for chunks; None: no limit."""
    web: str = "on"
    """Whether web sources that manifests name are asked: on, off."""

    @property
    def uses_web(self) -> bool:
        """Whether web sources may be asked."""
        return self.web != "off"


def load_remembered(path: Path) -> Remembered:
    """The remembered answers; none of them when there is no file.

    Raises:
        SettingsDamaged: the file is there and is not what we wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Remembered()
    except UnicodeDecodeError as error:
        raise SettingsDamaged(path=path, reason="it is not text") from error
    try:
        stored = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsDamaged(path=path, reason=str(error)) from error
    if not isinstance(stored, dict):
        raise SettingsDamaged(path=path, reason="it holds no table of answers")
    known = {field.name for field in fields(Remembered)}
    answers: dict[str, Any] = {name: value for name, value in stored.items() if name in known}
    for name, value in answers.items():
        kind = int if name == "cache_bytes" else str
        if value is not None and type(value) is not kind:
            raise SettingsDamaged(path=path, reason=f"{name} is not a {kind.__name__}")
    return Remembered(**answers)


def remember(path: Path, **answers: Any) -> Remembered:
    """Keeps further answers and gives all of them. The file is 0600: an invite is a secret.

    Raises:
        SettingsDamaged: the file is there and is not what we wrote.
        OSError: it cannot be read, or cannot be written and would have to be.
    """
    before = load_remembered(path)
    if replace(before, **answers) == before:
        return before
    with locked(path.with_suffix(".lock")):
        remembered = replace(load_remembered(path), **answers)
        write_atomically(path, (json.dumps(asdict(remembered), indent=2) + "\n").encode())
    return remembered
