"""Later versions of models in memory: looked for now and then, told, and used from the next request on."""

from collections.abc import Callable

import trio

from swarm.api.shelf import News, Shelf
from swarm.errors import SwarmError
from swarm.peers.versions import LOOK_S


async def keep_current(shelf: Shelf, tell: Callable[[News], None]) -> None:
    """Runs until it is cancelled."""
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(LOOK_S)
            try:
                found = await trio.to_thread.run_sync(shelf.library.renewed)
            except (SwarmError, OSError):  # the swarm is away; it is asked again
                continue
            for news in found:
                tell(news)
                if news.usable:
                    nursery.start_soon(shelf.renew, news.name)
