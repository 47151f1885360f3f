"""A thread that runs trio, for programs whose other threads compute or draw.

    with NetworkThread() as network:
        session = network.enter(join, target)      # an async context manager, left when the block ends
        models = network.call(session.models)      # blocks; other threads may call at the same time

A call that its caller gives up (Ctrl-C) is cancelled in trio too. When the block ends, calls that still run
are cancelled first and then what was entered is left.
"""

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from swarm.errors import SwarmError

T = TypeVar("T")


class NetworkClosed(SwarmError):
    """The network part of this program has ended; start the command again."""


class NetworkThread:
    """Runs trio in a daemon thread between `__enter__` and `__exit__`; `call` and `enter` are thread-safe."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._started: Future[None] = Future()
        self._failure: BaseException | None = None
        self._entered: trio.Nursery
        self._calls: trio.Nursery
        self._leave: trio.Event
        self._quiet: trio.Event
        self.token: trio.lowlevel.TrioToken

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels every call, leaves what was entered and ends the thread; idempotent.

        Raises:
            BaseException: what a context manager that was entered raised in the background or on leaving.
        """
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(lambda: self._leave.set())
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Runs an async function in trio and waits for its result, in the caller's thread.

        Raises:
            NetworkClosed: the thread has ended, or ended meanwhile.
            BaseException: whatever the function raised.
        """

        async def run(future: Future[T]) -> None:
            future.set_result(await function(*arguments))

        return self._wait(run, lambda: self._calls)

    def enter(self, function: Callable[..., AbstractAsyncContextManager[T]], *arguments: Any) -> T:
        """Enters an async context manager in a task of its own, which leaves it when the thread ends.

        Raises:
            NetworkClosed: the thread has ended, or ended meanwhile.
            BaseException: whatever entering raised.
        """

        async def run(future: Future[T]) -> None:
            async with function(*arguments) as value:
                future.set_result(value)
                await self._quiet.wait()

        return self._wait(run, lambda: self._entered)

    def _wait(self, run: Callable[[Future[T]], Awaitable[None]], nursery: Callable[[], trio.Nursery]) -> T:
        future: Future[T] = Future()
        scope = trio.CancelScope()

        async def task() -> None:
            try:
                with scope:
                    await run(future)
            except Exception as error:
                if future.done():
                    raise
                future.set_exception(_single(error))
            finally:
                if not future.done():
                    future.set_exception(NetworkClosed())

        def start() -> None:
            if self._leave.is_set():
                future.set_exception(NetworkClosed())
            else:
                nursery().start_soon(task)

        self._soon(start)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def _soon(self, action: Callable[[], object]) -> None:
        try:
            self.token.run_sync_soon(action)
        except trio.RunFinishedError:
            raise NetworkClosed() from None

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - kept for `close`, which raises it in the caller's thread
            self._failure = _single(error)

    async def _main(self) -> None:
        self._leave, self._quiet = trio.Event(), trio.Event()
        self.token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._entered:
            try:
                async with trio.open_nursery() as self._calls:
                    self._started.set_result(None)
                    await self._leave.wait()
                    self._calls.cancel_scope.cancel()
            finally:
                self._leave.set()
                self._quiet.set()


def _single(error: BaseException) -> BaseException:
    """The error itself, out of the groups of one that nurseries wrap it in."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
