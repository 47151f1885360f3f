"""What the user asked for, before anything was opened: the argument of `tui.app.run` and `tui.lines.run`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; None leaves the choice to the model's own generation config."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None

    def chosen(self) -> dict[str, float | int]:
        """The fields that were set, in order of declaration."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def directory_of(target: str) -> Path | None:
    """The directory that a target means, if it is written as a path rather than as an invite or address."""
    if target.startswith(("/", "./", "../", "~")):
        return path_of(target)
    return None


def path_of(written: str) -> Path:
    """A path as a user writes it; a ~NAME of nobody on this machine stays as it is."""
    return Path(os.path.expanduser(written))  # noqa: PTH111 - Path's own raises for nobody


@dataclass(frozen=True)
class Options:
    """One chat: where the model is, which it is, and how to talk to it."""

    home: Path
    """Directory of the user's state: conversations, history, remembered answers."""
    target: str | None = None
    """An invite or HOST[:PORT]; None, and no `local`: what is remembered, else the first-run questions."""
    local: Path | None = None
    """A checkpoint directory, instead of a swarm."""
    model: str | None = None
    """Name of the model on the swarm; None: the only one, else ask."""
    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    """System prompt."""
    weights: str = "auto"
    """auto | native | q8 | q4."""
    token: str | None = None
    """Token of a private swarm, when the target is a bare address."""
    offline: bool = False
    """Use what was fetched before, and no network."""
    expert_ram_bytes: int | None = None
    """Bound of the local cache of experts; None: chosen from this machine's memory."""
    hedge: str = "auto"
    """auto | off | milliseconds."""
    audit: float = 0.05
    """Share of remote calls that are recomputed, 0 to 1."""
    drafts: bool = True
    """Whether donors compute tokens that repeat earlier text along with the newest."""
    trace: Path | None = None
    """Write each layer's hops here as JSON lines."""
    json: bool = False
    """Line mode only: one JSON object a line instead of text."""
