"""Distance for measurements: a proxy that holds what passes through it, as a process of its own.

It waits by `select`, which wakes a fraction of a millisecond late at most. Python's `epoll`, and so trio, rounds waits
up to whole milliseconds; in the process that is measured it would also take its interpreter's time.
"""

import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from swarm.peers.bench_process import helper, tell

RECEIVE_BYTES = 1 << 18


@contextmanager
def distance(port: int, round_trip_s: float) -> Iterator[int]:
    """The port where a port of this machine is found behind a round trip, for the length of a block."""
    with helper(__name__, str(port), str(round_trip_s)) as process:
        yield int(process.told["port"])


def carry(near: socket.socket, far: socket.socket, delay_s: float) -> None:
    """Passes on what either side says, each piece `delay_s` after it came, until one of them ends."""
    others = {near: far, far: near}
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait_s = max(under_way[0][0] - time.perf_counter(), 0.0) if under_way else None
        ready, _, _ = select.select((near, far), (), (), wait_s)
        now = time.perf_counter()
        for source in ready:
            data = source.recv(RECEIVE_BYTES)
            if not data:
                return
            under_way.append((now + delay_s, others[source], data))
        while under_way and under_way[0][0] <= time.perf_counter():
            _, target, data = under_way.popleft()
            target.sendall(data)


def _connect(near: socket.socket, port: int, delay_s: float) -> None:
    with near, socket.create_connection(("127.0.0.1", port)) as far, suppress(ConnectionError):
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        carry(near, far, delay_s)


def _serve(server: socket.socket, port: int, delay_s: float) -> None:
    while True:
        near, _ = server.accept()
        threading.Thread(target=_connect, args=(near, port, delay_s), daemon=True).start()


def main(port: int, round_trip_s: float) -> None:
    """Serves until its input ends; tells where."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, port, round_trip_s / 2), daemon=True).start()
    tell(port=server.getsockname()[1])
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
