"""`swarm bench api` where its server refuses what it asks."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from swarm.api.load import Refused, streams
from swarm.cli.frame import run

SMALL = ("bench", "api", "--layers", "1", "--experts", "8", "--streams", "2", "--runs", "1")


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        (("--expert-ram", "1"), "one expert of this model takes"),
        (("--tokens", "20000000"), "max_tokens must be a whole number"),
    ],
)
def test_a_setting_that_the_server_refuses_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], culprit: str
) -> None:
    assert run([*SMALL, *settings]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("swarm: The server that is measured refused a request: ")
    assert culprit in told
    assert "--expert-ram" in told
    assert "{" not in told


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, int]]:
    """A server that answers one request, whatever it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(1)
                link.sendall(answer)
                link.shutdown(socket.SHUT_WR)
                while link.recv(1 << 16):
                    pass

        server = threading.Thread(target=serve)
        server.start()
        yield listener.getsockname()
        server.join()


ERROR = json.dumps({"error": {"message": "It is too much."}}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 413 Too Large\r\ncontent-length: %d\r\n\r\n%b" % (len(ERROR), ERROR),
        b"HTTP/1.1 200 OK\r\n\r\ndata: " + ERROR + b"\n\n",
    ],
)
def test_a_refusal_is_told_by_its_reason(answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(Refused, match=r"request: It is too much\. Change"):
        streams(address, [b"{}"])
