"""The running server: sockets, hypercorn, and the parts behind it, put together and taken apart in order."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http

from swarm.api.app import App, Rules
from swarm.api.metrics import Metrics
from swarm.api.scheduler import Scheduler
from swarm.api.service import Service
from swarm.api.shelf import Library, Shelf
from swarm.errors import SwarmError
from swarm.wire.listening import cannot_listen

HEADER_BYTES = 32 << 10
IDLE_S = 30.0
"""How long a connection may take to send a request's head, or idle between requests."""
STALLED_MS = 60_000
"""How long a client may take nothing of what it is sent before its connection is closed."""
FAREWELL_S = 3.0
BACKLOG = 128


class UnusableCertificate(SwarmError):
    """{certificate} and {key} cannot be used ({problem}); give a certificate chain and its key without a passphrase,
    both in PEM."""


@dataclass(frozen=True)
class Settings:
    """How a server runs."""

    host: str = "127.0.0.1"
    port: int = 8000
    slots: int = 8
    most_waiting: int = 128
    """Replies that may wait for a slot."""
    memory_bytes: int | None = None
    kept_bytes: int = 1 << 30
    certificate: Path | None = None
    certificate_key: Path | None = None
    rules: Rules = field(default_factory=Rules)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, which wait until they are served. CannotListen when there can be none."""
    try:
        return _socket_at(host, port)
    except (OSError, UnicodeError) as error:
        raise cannot_listen(host, port, error) from error


def _socket_at(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


@asynccontextmanager
async def serving(
    library: Library, settings: Settings, listener: socket.socket
) -> AsyncIterator[Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]]:
    """Gives `run(until)`, which answers requests on a socket until `until()` returns; the parts end with the block.
    UnusableCertificate."""
    _check_certificate(settings)
    with Scheduler(settings.slots, settings.kept_bytes) as scheduler:
        shelf = Shelf(library, scheduler, settings.memory_bytes)
        service = Service(shelf, scheduler, Metrics(), settings.most_waiting)
        app, config = App(service, settings.rules), _http_config(settings, listener)

        async def run(until: Callable[[], Awaitable[None]]) -> None:
            await serve_http(app, config, shutdown_trigger=until)  # type: ignore[arg-type]

        try:
            yield run
        finally:
            with trio.CancelScope(shield=True):
                await shelf.close()


def _http_config(settings: Settings, listener: socket.socket) -> Config:
    """How hypercorn runs; it takes the socket over."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = HEADER_BYTES
    config.h2_max_header_list_size = HEADER_BYTES
    config.keep_alive_timeout = IDLE_S
    config.graceful_timeout = FAREWELL_S
    if settings.certificate is not None:
        config.certfile = str(settings.certificate)
        config.keyfile = str(settings.certificate_key)
    return config


def _check_certificate(settings: Settings) -> None:
    certificate, key = settings.certificate, settings.certificate_key
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise UnusableCertificate(certificate=str(certificate), key=str(key), problem=str(error)) from None
