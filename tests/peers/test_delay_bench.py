"""The proxy of measurements: it passes on everything, in order and no sooner than it should."""

import socket
import threading
import time

from swarm.peers.delay_bench import carry, distance

PATIENCE_S = 20.0


def test_what_passes_through_is_held_and_stays_in_order() -> None:
    (near, ours), (far, theirs) = socket.socketpair(), socket.socketpair()
    delay_s = 0.05
    carrying = threading.Thread(target=carry, args=(near, far, delay_s))
    with near, ours, far, theirs:
        for one in (ours, theirs):
            one.settimeout(PATIENCE_S)
        carrying.start()
        sent = time.perf_counter()
        parts = [bytes([number]) * 50_000 for number in range(3)]
        for part in parts:
            ours.sendall(part)
        received = theirs.recv(1)
        assert time.perf_counter() - sent >= delay_s
        while len(received) < 150_000:
            received += theirs.recv(1 << 16)
        assert received == b"".join(parts)
        theirs.sendall(b"back")
        assert ours.recv(4) == b"back"
        ours.shutdown(socket.SHUT_WR)
        carrying.join(PATIENCE_S)
        assert not carrying.is_alive()


def test_a_port_is_found_behind_a_round_trip() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, distance(server.getsockname()[1], 0.06) as port:
        server.settimeout(PATIENCE_S)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as here:
            there, _ = server.accept()
            with there:
                there.settimeout(PATIENCE_S)
                asked = time.perf_counter()
                here.sendall(b"question")
                assert there.recv(8) == b"question"
                there.sendall(b"answer")
                assert here.recv(6) == b"answer"
                assert time.perf_counter() - asked >= 0.06
