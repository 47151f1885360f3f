"""A clock for tests of code that also works in threads."""

from collections.abc import Iterator

import trio


class WorkClock(trio.abc.Clock):
    """Virtual time that moves only when there is nothing to do but wait for it, and then straight to the next
    deadline.

    trio's own clock that jumps sees no worker threads, and on a busy machine jumps while they work. This one
    stands still for as long as any task waits for a thread, so the time a test sees does not depend on the
    machine. Not for code whose threads wait for trio in turn, nor for sockets: both would look like nothing to
    do, or wait for ever.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked when no task can run: for how many real seconds to wait for something else to happen."""
        if deadline > self._now_s:
            if deadline == float("inf") or threads_at_work():
                return float("inf")  # the thread that is done ends the sleep
            self._now_s = deadline
        return 0.0


def threads_at_work() -> bool:
    """Whether any task of this run waits for what it has handed to a thread."""
    handing_over = trio.to_thread.run_sync.__code__
    return any(frame.f_code is handing_over for task in all_tasks() for frame, _ in task.iter_await_frames())


def all_tasks() -> Iterator[trio.lowlevel.Task]:
    """Every task of this run."""
    root = trio.lowlevel.current_root_task()
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        yield task
        for nursery in task.child_nurseries:
            waiting.extend(nursery.child_tasks)
