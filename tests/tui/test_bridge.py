"""Events cross from the compute thread to the loop in order, in batches; faults are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.tui.fakes import FakeBackend, Stall
from tui.backend import Ask, Backend, Turn
from tui.bridge import Bridge
from tui.messages import EndReason, Event, Failed, Finished, Text
from tui.options import Sampling
from tui.problems import NotThere

ASK = Ask((Turn("user", "x"),), Sampling())


async def gather(bridge: Bridge, job: object = None) -> list[list[Event]]:
    """All batches of a job."""
    batches: list[list[Event]] = []
    ended = asyncio.Event()

    def deliver(events: list[Event]) -> None:
        batches.append(events)
        if isinstance(events[-1], Finished | Failed):
            ended.set()

    bridge.run(job or (lambda backend: backend.ask(ASK)), deliver)  # type: ignore[arg-type]
    await asyncio.wait_for(ended.wait(), 20)
    return batches


def test_a_flood_of_tokens_is_a_few_batches_in_order() -> None:
    pieces = [Text(str(at)) for at in range(5000)]
    fake = FakeBackend([[*pieces, Finished(EndReason.END)]])

    async def run() -> None:
        bridge = Bridge(lambda: fake)
        bridge.start()
        batches = await gather(bridge)
        assert [event for batch in batches for event in batch] == [*pieces, Finished(EndReason.END)]
        assert len(batches) < 2500
        await bridge.close()
        assert fake.closed

    asyncio.run(run())


def test_jobs_run_one_after_the_other_and_calls_beside_them() -> None:
    fake = FakeBackend([[Stall(), Finished(EndReason.END)], [Text("second"), Finished(EndReason.END)]])

    async def run() -> None:
        bridge = Bridge(lambda: fake)
        bridge.start()
        first = asyncio.create_task(gather(bridge))
        second = asyncio.create_task(gather(bridge))
        assert await bridge.call(lambda backend: backend.models()) == fake.listed
        assert not first.done()
        fake.go.set()
        assert (await second)[0][0] == Text("second")
        assert first.done()
        await bridge.close()

    asyncio.run(run())


def test_a_backend_that_cannot_be_made_is_told_to_whoever_asks() -> None:
    def broken() -> Backend:
        raise ValueError("no such weights")

    async def run() -> None:
        bridge = Bridge(broken)
        bridge.start()
        assert await gather(bridge) == [[Failed("no such weights")]]
        with pytest.raises(NotThere, match="no such weights"):
            await bridge.call(lambda backend: backend.models())
        await bridge.close()

    asyncio.run(run())


def test_a_fault_in_the_middle_is_told() -> None:
    def job(backend: Backend) -> Iterator[Event]:
        yield Text("a")
        raise KeyError("b")

    async def run() -> None:
        bridge = Bridge(FakeBackend)
        bridge.start()
        events = [event for batch in await gather(bridge, job) for event in batch]
        assert events[0] == Text("a")
        assert "KeyError" in events[1].message  # type: ignore[union-attr]
        await bridge.close()

    asyncio.run(run())


def test_closing_stops_what_runs_and_delivers_nothing_more() -> None:
    fake = FakeBackend([[Text("a"), Stall(), Finished(EndReason.END)]])

    async def run() -> None:
        bridge = Bridge(lambda: fake)
        bridge.start()
        batches: list[list[Event]] = []
        first = asyncio.Event()

        def deliver(events: list[Event]) -> None:
            batches.append(events)
            first.set()

        bridge.run(lambda backend: backend.ask(ASK), deliver)
        await asyncio.wait_for(first.wait(), 20)
        await bridge.close()
        assert batches == [[Text("a")]]
        assert fake.closed
        assert not any(thread.name == "swarm-compute" for thread in threading.enumerate())

    asyncio.run(run())
