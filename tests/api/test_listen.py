"""Where the API cannot listen it says so, and why."""

import socket

import pytest

from swarm.api.server import listen
from swarm.wire.listening import CannotListen


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "no-such-host.invalid"])
def test_a_host_that_there_is_not_is_named(host: str) -> None:
    with pytest.raises(CannotListen, match=f"{host}:8000: there is no such host"):
        listen(host, 8000)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}: the port is taken"):
            listen("127.0.0.1", port)
