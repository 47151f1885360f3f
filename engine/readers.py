"""A few background threads that read ahead, what is needed now before what may be needed later."""

import heapq
import itertools
import threading
from collections.abc import Callable

from engine.errors import Closed
from engine.kernels.threads import stay_alone

_CLOSED = "the model was closed; open it again"


class Job:
    """One piece of reading; done exactly once, or cancelled before it began."""

    def __init__(self, work: Callable[[], None], urgent: bool) -> None:
        self.urgent = urgent
        self.error: BaseException | None = None
        self._work = work
        self._finished = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._finished.is_set()

    def wait(self) -> None:
        """Until it ended; raises what it raised."""
        self._finished.wait()
        if self.error is not None:
            raise self.error

    def drop(self) -> None:
        """Ends it without having begun; whoever waits gets Closed."""
        self.error = Closed(_CLOSED)
        self._finished.set()

    def run(self) -> None:
        """Does the work, on a reader's thread."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  handed to whoever waits
            self.error = error
        finally:
            self._finished.set()


class Readers:
    """`count` threads, started when first needed. They end with `close`, or with the process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._waiting: list[tuple[bool, int, Job]] = []
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, work: Callable[[], None], *, urgent: bool) -> Job:
        """Queues work. After `close`, Closed."""
        job = Job(work, urgent)
        with self._changed:
            if self._closed:
                raise Closed(_CLOSED)
            heapq.heappush(self._waiting, (not urgent, next(self._order), job))
            if len(self._threads) < self._count:
                thread = threading.Thread(target=self._serve, name="expert-reader", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return job

    def hurry(self, job: Job) -> None:
        """Moves a job that has not begun to the urgent ones."""
        with self._changed:
            if job.urgent:
                return
            job.urgent = True
            for place, (_, order, waiting) in enumerate(self._waiting):
                if waiting is job:
                    self._waiting[place] = (False, order, job)
                    heapq.heapify(self._waiting)
                    break

    def close(self) -> None:
        """Lets running work end, drops what has not begun, and ends the threads."""
        with self._changed:
            self._closed = True
            dropped, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, _, job in dropped:
            job.drop()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        stay_alone()  # they pack side by side
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                _, _, job = heapq.heappop(self._waiting)
            job.run()
