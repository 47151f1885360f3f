"""Models in memory: who waits for whom while one is loaded."""

import gc
import threading
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from engine.engine import Engine
from engine.errors import SettingsError
from swarm.api.errors import ApiError
from swarm.api.shelf import Listed, Need, Shelf


class Slow:
    """A library whose models take as long to open as `gates` says, by name."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = {}
        self.opened: list[str] = []

    def models(self) -> tuple[Listed, ...]:
        return tuple(Listed(name, 1) for name in "abc")

    def need(self, name: str) -> Need:
        return Need(10, 0)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        self.opened.append(name)
        if name in self.gates:
            self.gates[name].wait(20)
        made: Any = SimpleNamespace(
            model=SimpleNamespace(resident_bytes=10),
            bank=SimpleNamespace(capacity_bytes=0),
            close=lambda: None,
        )
        return made

    def swarm(self) -> Mapping[str, object]:
        return {}


def shelf_of(library: Any, limit_bytes: int) -> Shelf:
    scheduler: Any = SimpleNamespace(forget=lambda engine: None)
    return Shelf(library, scheduler, limit_bytes)


def test_a_model_is_used_while_others_are_loaded() -> None:
    library = Slow()
    library.gates = {"b": threading.Event(), "c": threading.Event()}

    async def main() -> None:
        shelf = shelf_of(library, 100)
        a, b, c = await shelf.models()
        async with shelf.use(a):
            pass

        async def load(listed: Listed) -> None:
            async with shelf.use(listed):
                pass

        async with trio.open_nursery() as nursery:
            try:
                for listed in (b, b, c):  # one after another: tasks that start together start in any order
                    nursery.start_soon(load, listed)
                    await trio.testing.wait_all_tasks_blocked()
                with trio.fail_after(5):
                    async with shelf.use(a):
                        pass
            finally:
                for gate in library.gates.values():
                    gate.set()
        assert library.opened == ["a", "b", "c"]

    trio.run(main)


@pytest.mark.parametrize(("name", "status"), [(None, 400), ("", 400), ("d", 404)])
async def test_of_several_models_one_has_to_be_named(name: str | None, status: int) -> None:
    with pytest.raises(ApiError, match="there is a, b, c") as refused:
        await shelf_of(Slow(), 100).find(name)
    assert refused.value.status == status


def test_who_waits_for_room_is_not_overtaken() -> None:
    async def main() -> None:
        shelf = shelf_of(Slow(), 20)
        a, b, c = await shelf.models()
        order: list[str] = []
        leave, both = trio.Event(), trio.Event()

        async def use(listed: Listed, until: trio.Event | None = None) -> None:
            async with shelf.use(listed):
                order.append(listed.name)
                if len(order) == 2:
                    both.set()
                if until is not None:
                    await until.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, a, leave)
            nursery.start_soon(use, b, leave)
            with trio.fail_after(5):
                await both.wait()
            nursery.start_soon(use, c)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(use, a)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(order) == ["a", "b"]
            leave.set()
        assert sorted(order[2:]) == ["a", "c"]

    trio.run(main)


def test_what_the_server_was_started_with_is_not_the_clients_fault() -> None:
    class Tight(Slow):
        def open(self, name: str, experts_bytes: int | None) -> Engine:
            raise SettingsError("1,000 bytes hold no expert; give more memory")

    async def main() -> None:
        shelf = shelf_of(Tight(), 100)
        with pytest.raises(ApiError) as refused:
            async with shelf.use((await shelf.models())[0]):
                pass
        assert refused.value.status == 503
        assert "1,000 bytes" in refused.value.message

    trio.run(main)


def test_what_an_unloaded_model_held_is_free_before_the_next_is_loaded() -> None:
    class Tied(SimpleNamespace):
        """Refers to itself, as models with their schedulers and experts do."""

    class Cyclic(Slow):
        held: weakref.ref[Any] | None = None
        free_when_opened = False

        def open(self, name: str, experts_bytes: int | None) -> Engine:
            if self.held is not None:
                self.free_when_opened = self.held() is None
            made: Any = Tied(
                model=SimpleNamespace(resident_bytes=10),
                bank=SimpleNamespace(capacity_bytes=0),
                close=lambda: None,
            )
            made.itself = made
            self.held = weakref.ref(made)
            return made  # type: ignore[no-any-return]

    library = Cyclic()

    async def main() -> None:
        shelf = shelf_of(library, 10)
        a, b, _ = await shelf.models()
        for model in (a, b):
            async with shelf.use(model):
                pass

    gc.disable()
    try:
        trio.run(main)
    finally:
        gc.enable()
    assert library.free_when_opened
