"""Telling the local network of a swarm that is served here."""

import threading

import trio

from swarm.cli.hosting import own_host
from swarm.cli.output import say
from swarm.wire.address import Address
from tui.discovery import announced

FAREWELL_S = 2.0


async def tell_lan(name: str, address: Address) -> None:
    """Announces a swarm on the local network until cancelled, where it can be."""
    ended, done = threading.Event(), threading.Event()
    host = address.host if address.ip else own_host()

    def announce() -> None:
        try:
            with announced(name, address.port, [host]):
                ended.wait()
        except OSError as error:
            say(f"The local network was not told of this swarm: {error}.")
        finally:
            done.set()

    try:
        await trio.to_thread.run_sync(announce, abandon_on_cancel=True)
    finally:
        # The thread takes the announcement back; without that it would linger on other machines for an hour.
        ended.set()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(done.wait, FAREWELL_S)
