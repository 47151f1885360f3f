"""What every endpoint needs of HTTP: a body within limits, a client that may leave, JSON and event streams."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from swarm.api.asgi import Receive, Scope, Send
from swarm.api.errors import ApiError, bad
from swarm.api.fields import refuse_odd
from swarm.wire.race import plain_errors

QUIET_S = 15.0
"""An event stream with nothing to say sends a comment this often, so that nobody in between gives up."""


class Left(Exception):
    """The client has gone away."""


async def read_json(scope: Scope, receive: Receive, limit_bytes: int, within_s: float) -> Any:
    """A request's body as JSON. ApiError: too large, too slow, or no JSON. Left."""
    headers = headers_of(scope)
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        # Also what keeps other sites' pages from sending requests without asking first.
        raise ApiError(415, "Send the body as JSON, with Content-Type: application/json.")
    declared = headers.get("content-length", "0")
    if not declared.isdecimal() or len(declared) > 18 or int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        with trio.fail_after(within_s):
            body = await _read_body(receive, limit_bytes)
    except trio.TooSlowError:
        raise ApiError(
            408, f"The body did not come within {within_s:g} seconds.", code="body_too_slow"
        ) from None
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise bad("The body is not valid JSON in UTF-8.") from None
    refuse_odd(value, "The body")
    return value


async def _read_body(receive: Receive, limit_bytes: int) -> bytearray:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Left
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        more = message.get("more_body", False)
    return body


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit_bytes:,} bytes.", code="body_too_large")


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers, by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


@asynccontextmanager
async def until_left(receive: Receive) -> AsyncIterator[None]:
    """A block that is cancelled when the client goes away, and then raises Left."""
    left = False
    async with plain_errors() as nursery:

        async def watch() -> None:
            nonlocal left
            while (await receive())["type"] != "http.disconnect":
                pass
            left = True
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()
    if left:
        raise Left


def as_json(value: Any) -> bytes:
    """A JSON document."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode()


async def send_json(
    send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Answers with a JSON document."""
    await send_bytes(send, as_json(value), "application/json", status, headers)


async def send_bytes(
    send: Send, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Answers with some bytes."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": _headers({"content-type": kind, "content-length": str(len(body)), **(headers or {})}),
        }
    )
    await send({"type": "http.response.body", "body": body})


class EventStream:
    """An answer of server-sent events; it begins with the first."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = trio.Lock()
        self._spoke_s = trio.current_time()
        self.begun = False

    async def send(self, *values: Any) -> None:
        """Sends some events, each a JSON document."""
        await self._write(b"".join(b"data: " + as_json(value) + b"\n\n" for value in values))

    async def end(self, *values: Any) -> None:
        """Sends some last events, and the mark of the end."""
        await self.send(*values)
        await self._write(b"data: [DONE]\n\n", last=True)

    async def keep_alive(self) -> None:
        """Says now and then that it goes on; runs until it is cancelled."""
        while True:
            await trio.sleep_until(self._spoke_s + QUIET_S)
            if trio.current_time() - self._spoke_s >= QUIET_S:
                await self._write(b": still working\n\n")

    async def _write(self, body: bytes, *, last: bool = False) -> None:
        async with self._lock:
            if not self.begun:
                self.begun = True
                kind = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
                head = _headers({**kind, "x-accel-buffering": "no"})
                await self._send({"type": "http.response.start", "status": 200, "headers": head})
            self._spoke_s = trio.current_time()
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})


@dataclass(frozen=True)
class Client:
    """Who sent a request: whether it is still there, and the two ways of answering it."""

    receive: Receive
    send: Send
    events: EventStream


def _headers(headers: Mapping[str, str]) -> Sequence[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
