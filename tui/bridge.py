"""Where Textual's loop, trio's thread and the compute thread meet.

A backend blocks (`tui.backend`). Here its long iterators run in one thread, the compute thread, one after the
other; its short calls run in a second one; what comes out is handed to the loop of the user interface in
batches, at most one wake-up at a time, however fast tokens come. Trio's thread belongs to the backend.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tui.backend import Backend
from tui.messages import Event, Failed
from tui.problems import NotThere, explain

T = TypeVar("T")
Job = Callable[[Backend], Iterator[Event]]
BATCH_S = 0.025
"""Shortest time between two deliveries of one job's events."""
Deliver = Callable[[list[Event]], None]


class Bridge:
    """Runs a backend for a user interface on an asyncio loop. Use from that loop's thread only."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        """`make` runs in the compute thread: it may import what is slow."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        # Textual finds its application by a context variable, which other threads do not have.
        self._context = contextvars.copy_context()
        self._jobs: queue.SimpleQueue[tuple[Job, Deliver] | None] = queue.SimpleQueue()
        self._made = threading.Event()
        self._backend: Backend | None = None
        self._problem = ""
        self._open = True
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="swarm-calls")
        self._thread = threading.Thread(target=self._work, name="swarm-compute", daemon=True)

    def start(self) -> None:
        """Make the backend; what was asked for before waits for it."""
        self._thread.start()

    @property
    def backend(self) -> Backend | None:
        """The backend, once it is made: for its `stop`, `snapshot` and `live`, which never block."""
        return self._backend

    def run(self, job: Job, deliver: Deliver) -> None:
        """Run a job of the backend after those before it; its events come to `deliver`, on the loop."""
        self._jobs.put((job, deliver))

    async def call(self, function: Callable[[Backend], T]) -> T:
        """The result of a short blocking call. Raises what it raises; NotThere: there is no backend."""
        return await self._loop.run_in_executor(self._calls, self._call, function)

    async def close(self, seconds: float = 3.0) -> None:
        """Stop what runs, leave the swarm, end the threads; gives up waiting after a while."""
        self._open = False
        self._jobs.put(None)
        if self._backend is not None:
            self._backend.stop()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, seconds)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[[Backend], T]) -> T:
        self._made.wait()
        if self._backend is None:
            raise NotThere(self._problem)
        return function(self._backend)

    def _deliver(self, deliver: Deliver, events: list[Event]) -> None:
        if self._open:
            deliver(events)

    def _work(self) -> None:
        try:
            self._backend = self._make()
        except Exception as error:  # noqa: BLE001 - whatever it is, the user must see it
            self._problem = str(error) or type(error).__name__
        self._made.set()
        while (item := self._jobs.get()) is not None:
            self._run(*item)
        if self._backend is not None:
            self._backend.close()

    def _run(self, job: Job, deliver: Deliver) -> None:
        batch = _Batch(self._loop, self._context, lambda events: self._deliver(deliver, events))
        if self._backend is None:
            batch.put(Failed(self._problem))
            return
        try:
            for event in job(self._backend):
                batch.put(event)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the user waiting
            batch.put(Failed(f"{explain(error)} The conversation is kept."))


class _Batch:
    """Events on their way from a thread to a loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: contextvars.Context, deliver: Deliver
    ) -> None:
        self._loop = loop
        self._context = context
        self._deliver = deliver
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._flushed_at = 0.0

    def put(self, event: Event) -> None:
        """From the thread: an event."""
        with self._lock:
            self._events.append(event)
            if len(self._events) > 1:
                return
        try:
            self._loop.call_soon_threadsafe(self._arm, context=self._context)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            return

    def _arm(self) -> None:
        """On the loop: deliver now, or as soon as the last delivery is old enough."""
        wait = self._flushed_at + BATCH_S - self._loop.time()
        if wait <= 0:
            self._flush()
        else:
            self._loop.call_later(wait, self._flush, context=self._context)

    def _flush(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        self._flushed_at = self._loop.time()
        self._deliver(events)
