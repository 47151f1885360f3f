"""Clients that ask for streams and take the time; small, because they share the machine with what they measure."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PATIENCE_S = 600.0


@dataclass(frozen=True)
class Streamed:
    """When a request was sent, and when each token came; seconds of one clock."""

    began_s: float
    tokens_s: tuple[float, ...]

    @property
    def first_s(self) -> float:
        """From the request to the first token."""
        return self.tokens_s[0] - self.began_s


def streams(address: tuple[str, int], bodies: list[bytes]) -> list[Streamed]:
    """Asks for streamed text completions, all at once; OSError or ValueError when one is refused."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: _stream(address, body), bodies))


def _stream(address: tuple[str, int], body: bytes) -> Streamed:
    link = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        began_s, tokens = time.perf_counter(), []
        link.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = link.getresponse()
        if answer.status != 200:
            raise ValueError(answer.read(1000).decode("utf-8", "replace"))
        for line in answer:
            came_s = time.perf_counter()
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                tokens.append(came_s)
        return Streamed(began_s, tuple(tokens))
    finally:
        link.close()
