"""One thread that computes, for tasks of trio: kernels keep their team of threads with the thread they run in."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

import trio

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.done = trio.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, token: trio.lowlevel.TrioToken) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self.error = error
        with suppress(trio.RunFinishedError):  # nobody is left to be told
            token.run_sync_soon(self.done.set)


class ComputeThread:
    """Runs one piece of work after another; the thread starts with the first and ends with the process."""

    def __init__(self, name: str = "experts") -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[_Job[object], trio.lowlevel.TrioToken]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """What a blocking function returns or raises. It runs to its end whoever stops waiting."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        job = _Job(work)
        self._jobs.put((cast(_Job[object], job), trio.lowlevel.current_trio_token()))
        with trio.CancelScope(shield=True):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def _serve(self) -> None:
        while True:
            job, token = self._jobs.get()
            job.run(token)
