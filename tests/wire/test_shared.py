"""Who stalls on a new connection takes nothing from who has taken replies before."""

from typing import Any

import trio
import trio.testing

from swarm.wire.calls import PROVEN_BYTES, Shared
from swarm.wire.limits import Limits
from swarm.wire.outbox import HIGH_WATER_BYTES, Outbox


class Caller:
    """A connection that took so many bytes and never stalls long enough to be dropped."""

    name = "caller"
    source = "somewhere"

    def __init__(self, sent_bytes: int) -> None:
        self.sent_bytes = sent_bytes

    def drop(self, reason: str) -> None:
        raise AssertionError(reason)

    def receiving_stalled_s(self, now: float) -> float:
        return 0.0

    def sending_stalled_s(self, now: float) -> float:
        return 0.0


async def test_newcomers_wait_for_each_other_and_nobody_else_does(autojump_clock: Any) -> None:
    shared = Shared(Limits(bytes_in_flight=8 << 20))
    granted = []

    async def ask(caller: Caller) -> None:
        await shared.outgoing(caller).take(1 << 20, caller)
        granted.append(caller)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, Caller(PROVEN_BYTES - 1))
        await trio.testing.wait_all_tasks_blocked()
        assert len(granted) == 2
        proven = Caller(PROVEN_BYTES)
        for _ in range(6):
            await shared.outgoing(proven).take(1 << 20, proven)
        nursery.cancel_scope.cancel()


async def test_what_waits_on_a_connection_that_ended_is_let_go_and_who_waits_for_room_goes_on() -> None:
    outbox = Outbox(None, Limits(), lambda: None, lambda _: None)  # type: ignore[arg-type]
    outbox.reserve(HIGH_WATER_BYTES + 1).fill(memoryview(b""))
    assert not outbox.has_room
    outbox.discard()
    with trio.fail_after(1):
        await outbox.wait_room()
    assert outbox.waiting_bytes == 0
    await outbox.flush()
