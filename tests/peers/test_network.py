"""The thread that runs trio: results, errors, cancellation and order of leaving."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from swarm.peers.network import NetworkClosed, NetworkThread


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


async def fail() -> None:
    async with trio.open_nursery():
        raise ValueError("once")


def test_a_call_gives_its_result_and_its_error_unwrapped() -> None:
    with NetworkThread() as network:
        assert network.call(double, 21) == 42
        with pytest.raises(ValueError, match="once"):
            network.call(fail)
        assert network.call(double, 1) == 2


def test_calls_from_several_threads_run_at_the_same_time() -> None:
    with NetworkThread() as network:
        meeting = network.call(make_event)
        first = threading.Thread(target=network.call, args=(meeting.wait,))
        first.start()
        network.call(set_event, meeting)
        first.join(timeout=10)
        assert not first.is_alive()


async def make_event() -> trio.Event:
    return trio.Event()


async def set_event(event: trio.Event) -> None:
    event.set()


def test_what_was_entered_is_left_after_the_calls_are_cancelled() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[str]:
        yield "inside"
        order.append("left")

    async def wait_for_ever() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            order.append("cancelled")

    started = threading.Event()
    raised: list[BaseException] = []

    def call() -> None:
        try:
            network.call(wait_for_ever)
        except NetworkClosed as error:
            raised.append(error)

    with NetworkThread() as network:
        assert network.enter(context) == "inside"
        caller = threading.Thread(target=call)
        caller.start()
        started.wait(10)
    caller.join(timeout=10)
    assert order == ["cancelled", "left"]
    assert len(raised) == 1


def test_an_error_on_entering_reaches_the_caller_and_the_thread_lives_on() -> None:
    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        raise OSError("no way in")
        yield

    with NetworkThread() as network:
        with pytest.raises(OSError, match="no way in"):
            network.enter(context)
        assert network.call(double, 2) == 4


def test_a_context_that_dies_in_the_background_ends_the_calls_and_is_reported() -> None:
    dying = threading.Event()

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            yield
            nursery.cancel_scope.cancel()

    async def die() -> None:
        await trio.to_thread.run_sync(dying.wait)
        raise RuntimeError("background")

    network = NetworkThread()
    network.__enter__()
    network.enter(context)
    dying.set()
    with pytest.raises(NetworkClosed):
        network.call(trio.sleep_forever)
    with pytest.raises(RuntimeError, match="background"):
        network.close()
    network.close()


def test_nothing_is_called_after_the_end() -> None:
    with NetworkThread() as network:
        pass
    with pytest.raises(NetworkClosed):
        network.call(double, 1)
