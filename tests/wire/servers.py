"""A server on a port of its own, for the length of a nursery, and an error for it to raise."""

from typing import Any

import trio
import trio.testing

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.rpc import (
    listen,
    serve,
)
from tests.wire.support import ECHO, SERVER


class NoSuchThing(SwarmError):
    """There is no {thing} here; try another."""


async def start_server(
    nursery: trio.Nursery, handlers: Any = ECHO, host: str = "127.0.0.1", **options: Any
) -> Address:
    listeners = await listen(host, 0)

    async def run(task_status: trio.TaskStatus[list[Address]]) -> None:
        await serve(listeners, SERVER, handlers, task_status=task_status, **options)

    addresses: list[Address] = await nursery.start(run)
    return addresses[0]
