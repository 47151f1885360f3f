"""Clients that ask for streams and take the time; small, because they share the machine with what they measure."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from swarm.errors import SwarmError

PATIENCE_S = 600.0


class Refused(SwarmError):
    """The server that is measured refused a request: {reason}. Change the benchmark's settings that ask for it, such as
    --expert-ram, --prompt or --tokens."""


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
    """Asks for streamed text completions, all at once. Refused, OSError."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: _stream(address, body), bodies))


def _stream(address: tuple[str, int], body: bytes) -> Streamed:
    link = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        began_s, tokens = time.perf_counter(), []
        answer = _asked(link, body)
        if answer.status != 200:
            raise _refused(_document(answer.read()))
        for line in answer:
            came_s = time.perf_counter()
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise _refused(event)
            if event["choices"][0]["text"]:
                tokens.append(came_s)
        return Streamed(began_s, tuple(tokens))
    finally:
        link.close()


def _asked(link: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
    """The answer to a request, of which the server need not have read all."""
    try:
        link.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    except (BrokenPipeError, ConnectionResetError) as cut:
        try:
            return link.getresponse()
        except (OSError, http.client.HTTPException):
            raise cut from None
    return link.getresponse()


def _document(body: bytes) -> Any:
    """An error in OpenAI's form; where it is none, what there is of it."""
    try:
        return json.loads(body)
    except ValueError:
        return {"error": {"message": body[:200].decode("utf-8", "replace") or "without a word"}}


def _refused(document: Any) -> Refused:
    return Refused(reason=document["error"]["message"].rstrip("."))
