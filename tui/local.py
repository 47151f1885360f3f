"""A checkpoint directory on this machine as the place a model comes from."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from engine.checkpoint import config_in
from engine.engine import Engine
from engine.source import DirectorySource
from tui.backend import Donation
from tui.messages import Connected, Notice, Phase, Progress
from tui.options import Options
from tui.place import Emit, engine_options, expert_shape, must_chat, storage_format
from tui.problems import NotThere
from tui.views import DonationView, ModelView, ReplyStats, SwarmView

_TICK_S = 0.1


class LocalPlace:
    """One checkpoint directory."""

    def __init__(self, directory: Path, options: Options) -> None:
        self._directory = directory
        self._options = options
        self._view = ModelView(directory.name or str(directory))

    def connect(self, emit: Emit) -> Connected:
        """Look at the directory."""
        self._view = describe_directory(self._directory)
        return Connected(str(self._directory), "", True, (self._view,))

    def models(self) -> tuple[ModelView, ...]:
        """The one."""
        return (self._view,)

    def open(self, model: str, emit: Emit) -> tuple[Engine, ModelView]:
        """Load it."""
        if model != self._view.name:
            raise NotThere(f"Only {self._view.name} is in this directory; leave --model out.")

        told_at = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told_at
            if time.monotonic() - told_at > _TICK_S or done == total:
                told_at = time.monotonic()
                emit(Progress(Phase.LOADING, done, total, "B"))

        source = DirectorySource(self._directory)
        with ExitStack() as undo:
            engine = undo.enter_context(Engine.open(source, engine_options(self._options), progress))
            must_chat(engine, model)
            undo.pop_all()
        self._view = replace(self._view, open=True)
        return engine, self._view

    def snapshot(self) -> SwarmView:
        """No network."""
        return SwarmView(link="local", address=str(self._directory), model=self._view.name)

    def counters(self, stats: ReplyStats) -> ReplyStats:
        """Nothing came from others."""
        return stats

    def news(self) -> list[Notice]:
        """There is no network."""
        return []

    def waiting(self) -> Progress | None:
        """Bytes are read too fast to be told."""
        return None

    def begin(self) -> None:
        """Nothing to count."""

    def stop(self) -> None:
        """Nothing waits."""

    def tune(self, name: str, value: str) -> str:
        """There is no network to tune."""
        raise ValueError(f"{name} can be set in a swarm; here the model is a local directory")

    def donate(self, wish: Donation) -> DonationView:
        """There is nobody to lend to."""
        raise ValueError("There is no swarm to lend to: the model is a local directory.")

    def is_away(self, error: BaseException) -> bool:
        """There is no network at fault."""
        return False

    def close(self) -> None:
        """Nothing to leave."""


def describe_directory(directory: Path) -> ModelView:
    """What is in a checkpoint directory, from its configuration and the sizes of its files. EngineError."""
    with DirectorySource(directory) as source:
        config = config_in(source, directory)
        family, layers, experts = expert_shape(config)
        size = sum(source.files().values())
    name = directory.resolve().name
    return ModelView(name, family, storage_format(config), size, layers, experts, size, size)
