"""Which models are in memory: loaded when they are first asked for, unloaded when room is needed.

Requests take turns in asking for a model, so one that has to wait for room is not overtaken for ever. Loading
runs in a thread of its own, one model at a time, while those that are there are used. A model in use is never
unloaded.
"""

import gc
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import trio

from engine.engine import Engine
from engine.errors import SettingsError
from swarm.api.constraint import Grammar
from swarm.api.errors import ApiError, bad, no_model
from swarm.api.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that can be asked for. `created_s`: seconds since 1970, 0 when not known."""

    name: str
    size_bytes: int
    created_s: int = 0
    owner: str = "swarm"
    missing: str = ""
    """What keeps it from being served in full; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a model takes: its dense weights, all its experts, and the least number of them."""

    dense_bytes: int
    experts_bytes: int
    least_experts_bytes: int = 0


class Library(Protocol):
    """Where models come from: directories, or a swarm. Methods block; errors are exceptions."""

    def models(self) -> tuple[Listed, ...]:
        """What there is now."""

    def need(self, name: str) -> Need:
        """What a model takes, from its headers alone."""

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        """A model, ready to speak."""

    def swarm(self) -> Mapping[str, object]:
        """The network as the page shows it."""


@dataclass(eq=False)
class Loaded:
    """A model in memory."""

    name: str
    engine: Engine
    nbytes: int
    users: int = 0
    used_s: float = field(default_factory=time.monotonic)
    grammar: Grammar = field(init=False)

    def __post_init__(self) -> None:
        self.grammar = Grammar(self.engine)


class Shelf:
    """The models in memory, within `limit_bytes`; None: as much as there is."""

    def __init__(self, library: Library, scheduler: Scheduler, limit_bytes: int | None = None) -> None:
        self.library = library
        self.limit_bytes = limit_bytes
        self.loads = 0
        self._scheduler = scheduler
        self._loaded: dict[str, Loaded] = {}
        self._turn = trio.Lock()
        self._loading = trio.Lock()  # is taken before a turn
        self._released = trio.Condition()
        self._listed: tuple[Listed, ...] = ()
        self._listed_s = -1e9

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """What is in memory now."""
        return tuple(self._loaded.values())

    async def models(self, fresh_s: float = 2.0) -> tuple[Listed, ...]:
        """All models there are; asked again when the list is older than `fresh_s`."""
        if trio.current_time() - self._listed_s > fresh_s:
            self._listed = await trio.to_thread.run_sync(self.library.models)
            self._listed_s = trio.current_time()
        return self._listed

    async def find(self, name: str | None) -> Listed:
        """The model of that name, or the only one. ApiError when there is none."""
        models = await self.models()
        for model in models:
            if name == model.name or (name in (None, "", "default") and len(models) == 1):
                return model
        known = ", ".join(model.name for model in models) or "none yet"
        if models and not name:
            raise bad(f"Say which model is meant, as model: there is {known}.", "model", "model_missing")
        raise no_model(name or "", known)

    @asynccontextmanager
    async def use(self, listed: Listed) -> AsyncIterator[Loaded]:
        """A model in memory for the length of a block; loads it, and unloads others, when it is not there."""
        async with self._turn:
            model = self._loaded.get(listed.name)
            if model is not None:
                model.users += 1
        if model is None:
            async with self._loading:
                model = self._loaded.get(listed.name) or await self._load(listed)
                model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            model.used_s = time.monotonic()
            with trio.CancelScope(shield=True):
                async with self._released:
                    self._released.notify_all()

    async def close(self) -> None:
        """Unloads everything."""
        for model in self.loaded:
            await self._unload(model)

    async def _load(self, listed: Listed) -> Loaded:
        if listed.missing:
            raise ApiError(503, f"{listed.name} cannot be served now: {listed.missing}.", code="incomplete")
        limit = self.limit_bytes
        async with self._turn:
            experts_bytes = None if limit is None else await self._expert_room(listed.name, limit)
        with trio.CancelScope(shield=True):  # a client that leaves does not throw away what was loaded
            try:
                engine = await trio.to_thread.run_sync(self.library.open, listed.name, experts_bytes)
            except SettingsError as error:  # what the server was started with, not what was asked of it
                raise ApiError(
                    503, f"{listed.name} cannot be served: {error}", code="model_unusable"
                ) from None
            nbytes = engine.model.resident_bytes + engine.bank.capacity_bytes
            model = self._loaded[listed.name] = Loaded(listed.name, engine, nbytes)
            self.loads += 1
        await trio.lowlevel.checkpoint_if_cancelled()
        return model

    async def _expert_room(self, name: str, limit_bytes: int) -> int:
        """Makes room for a model; how many bytes of it are left for its experts."""
        need = await trio.to_thread.run_sync(self.library.need, name)
        least = need.dense_bytes + need.least_experts_bytes
        if least > limit_bytes:
            raise ApiError(
                503,
                f"{name} needs at least {least / 1e9:.1f} GB of memory; this server may take "
                f"{limit_bytes / 1e9:.1f} GB. Start it with a larger --memory.",
                code="too_large",
            )
        most_held = limit_bytes - min(need.dense_bytes + need.experts_bytes, limit_bytes)
        await self._unload_beyond(most_held)
        return min(limit_bytes - self._held_bytes - need.dense_bytes, need.experts_bytes)

    @property
    def _held_bytes(self) -> int:
        return sum(model.nbytes for model in self.loaded)

    async def _unload_beyond(self, limit_bytes: int) -> None:
        """Unloads what was not used for longest until the rest fits; waits for models in use."""
        while self._held_bytes > limit_bytes:
            idle = [model for model in self.loaded if not model.users]
            if idle:
                await self._unload(min(idle, key=lambda model: model.used_s))
                idle.clear()
                await trio.to_thread.run_sync(gc.collect)  # models refer to themselves, and are large
            else:
                async with self._released:
                    if all(model.users for model in self.loaded):
                        await self._released.wait()

    async def _unload(self, model: Loaded) -> None:
        del self._loaded[model.name]
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._scheduler.forget, model.engine)
            await trio.to_thread.run_sync(model.engine.close)
