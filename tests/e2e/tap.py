"""A user-space TCP proxy that records every byte in both directions, and can change or stop them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


def unchanged(data: bytes) -> bytes:
    """Passes bytes on as they are."""
    return data


@dataclass
class Tap:
    """What went through: the address to connect to, and the bytes of all connections in order of arrival."""

    port: int
    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    connections: int = 0


@contextmanager
def tapped(host: str, port: int, downwards: Callable[[bytes], bytes] = unchanged) -> Iterator[Tap]:
    """Listens on a free port of loopback and passes everything on to `host:port`.

    Args:
        host: Where connections are passed on to.
        port: Its port.
        downwards: What to make of each piece of data on its way to the client.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    tap = Tap(listener.getsockname()[1])
    pairs: list[tuple[socket.socket, socket.socket]] = []
    threads: list[threading.Thread] = []
    lock = threading.Lock()

    def copy(
        source: socket.socket, target: socket.socket, log: bytearray, change: Callable[[bytes], bytes]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with lock:
                    log.extend(data)
                target.sendall(change(data))
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, port))
                pairs.append((client, server))
                tap.connections += 1
                for way in ((client, server, tap.up, unchanged), (server, client, tap.down, downwards)):
                    threads.append(threading.Thread(target=copy, args=way, daemon=True))
                    threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield tap
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        for thread in threads:
            thread.join(5)
