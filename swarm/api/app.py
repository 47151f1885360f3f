"""The routes, and what stands before them: who may ask, how much, and what goes wrong in OpenAI's form."""

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from swarm.api.asgi import Message, Receive, Scope, Send
from swarm.api.chat import answer_chat
from swarm.api.completions import answer_text
from swarm.api.errors import ApiError, from_failure, not_allowed
from swarm.api.http import Client, EventStream, Left, as_json, headers_of, read_json, send_bytes, send_json
from swarm.api.service import Service
from swarm.api.shelf import Listed
from swarm.api.wishes import parse_chat, parse_text
from swarm.wire.address import BadAddress, parse_address

_log = logging.getLogger(__name__)
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
W = TypeVar("W")

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/talk.js": ("talk.js", "text/javascript; charset=utf-8"),
    "/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/swarm.js": ("swarm.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SAFE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
ASKED_METHOD, ASKED_HEADERS = "access-control-request-method", "access-control-request-headers"


@dataclass(frozen=True)
class Rules:
    """Who may ask, and how much."""

    key: str | None = None
    """Bearer key that every request under /v1, and /metrics, must show."""
    local_only: bool = True
    """Whether requests must name this machine as their host, so that no page elsewhere can pose as it."""
    origins: tuple[str, ...] = ()
    """Other sites whose pages may use this server; "*" for all."""
    body_bytes: int = 8 << 20
    body_within_s: float = 30.0
    most_requests: int = 512
    """Requests at once, whatever they ask."""


class App:
    """The ASGI application."""

    def __init__(self, service: Service, rules: Rules) -> None:
        self._service = service
        self._rules = rules
        self._requests = 0
        pages = files("swarm.api") / "page"
        self._page = {path: ((pages / name).read_bytes(), kind) for path, (name, kind) in PAGE.items()}
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/v1/swarm": {"GET": self._swarm},
            "/v1/chat/completions": {"POST": partial(self._complete, parse_chat, answer_chat)},
            "/v1/completions": {"POST": partial(self._complete, parse_text, answer_text)},
            **{path: {"GET": partial(self._static, path)} for path in PAGE},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; there are no WebSockets here."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *self._extra(scope)]}
            await send(message)

        self._requests += 1
        try:
            await self._guarded(scope, receive, counted)
        except Left:
            status = status or 499
        finally:
            self._requests -= 1
            path = scope["path"] if scope["path"] in self._routes else "other"
            self._service.metrics.answered(path, status)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except Left:
            raise
        except Exception as failure:  # noqa: BLE001  the boundary: whatever it is, the client is told
            error = _told(failure)
            body = b"" if scope["method"] == "HEAD" else as_json(error.body())
            await send_bytes(send, body, "application/json", error.status, error.headers)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, path, method = self._rules, scope["path"], scope["method"]
        headers = headers_of(scope)
        if self._requests > rules.most_requests:
            raise ApiError(503, "Too many requests at once; try again in a moment.", retry_after_s=1)
        if rules.local_only and not _names_this_machine(headers.get("host", "")):
            raise ApiError(403, "This server answers only to this machine's own name, such as localhost.")
        route = self._routes.get(path)
        if route is None and path.startswith("/v1/models/"):
            route = {"GET": self._model}
        if route is None:
            raise ApiError(404, f"There is nothing at {path[:200]}.", code="not_found")
        if method == "OPTIONS" and headers.get(ASKED_METHOD):
            await send_bytes(send, b"", "text/plain", 204)
            return
        handler = route.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise not_allowed(path, method, ["HEAD", *route] if "GET" in route else [*route])
        if (path.startswith("/v1/") or path == "/metrics") and not self._is_known(headers):
            raise ApiError(
                401, "This server needs its key: Authorization: Bearer KEY.", code="invalid_api_key"
            )
        await handler(scope, receive, send)

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        if self._rules.key is None:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(key.strip().encode("latin-1"), self._rules.key.encode())
        return scheme.lower() == "bearer" and same

    def _extra(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Headers of every answer: what keeps a browser safe, and leave for other sites' pages, if given."""
        extra = [(name.encode(), value.encode()) for name, value in SAFE.items()]
        headers, origins = headers_of(scope), self._rules.origins
        origin = headers.get("origin")
        if origin is not None and ("*" in origins or origin in origins):
            extra = [pair for pair in extra if pair[0] != b"cross-origin-resource-policy"]
            asked = (
                headers.get(ASKED_HEADERS) or "authorization, content-type"
            )  # clients send some of their own
            extra += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-headers", asked.encode("latin-1")),
                (b"access-control-allow-methods", b"GET, POST"),
                (b"vary", f"origin, {ASKED_HEADERS}".encode()),
            ]
        return extra

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"status": "ok", **self._busy()})

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        load, loaded = self._service.scheduler.load(), self._service.shelf.loaded
        banks = [model.engine.bank.stats for model in loaded]
        text = self._service.metrics.text(
            slots=load.slots,
            running=load.running,
            waiting=load.waiting,
            kept_bytes=load.kept_bytes,
            models_loaded=len(loaded),
            models_bytes=sum(model.nbytes for model in loaded),
            expert_hits=sum(bank.hits for bank in banks),
            expert_misses=sum(bank.misses for bank in banks),
            expert_read_bytes=sum(bank.bytes_read for bank in banks),
            expert_wait_seconds=sum(bank.wait_s for bank in banks),
        )
        await send_bytes(send, text, "text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = await self._service.shelf.models()
        await send_json(send, {"object": "list", "data": [self._shown(model) for model in models]})

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = await self._service.shelf.find(scope["path"].removeprefix("/v1/models/"))
        await send_json(send, self._shown(found))

    def _shown(self, model: Listed) -> dict[str, Any]:
        loaded = next((found for found in self._service.shelf.loaded if found.name == model.name), None)
        shown: dict[str, Any] = {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": model.owner,
            "loaded": loaded is not None,
            "size_bytes": model.size_bytes,
            "missing": model.missing or None,
        }
        if loaded is not None:
            shown["context_length"] = loaded.engine.model.context_length
            shown["memory_bytes"] = loaded.nbytes
        return shown

    async def _swarm(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {**self._service.shelf.library.swarm(), **self._busy()})

    def _busy(self) -> Mapping[str, int]:
        load = self._service.scheduler.load()
        return {"slots": load.slots, "running": load.running, "waiting": load.waiting}

    async def _static(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        body, kind = self._page[path]
        body = b"" if scope["method"] == "HEAD" else body
        await send_bytes(send, body, kind, headers={"cache-control": "no-cache"})

    async def _complete(
        self,
        parse: Callable[[Any], W],
        answer: Callable[[Service, W, Client], Awaitable[None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        rules = self._rules
        wish = parse(await read_json(scope, receive, rules.body_bytes, rules.body_within_s))
        client = Client(receive, send, EventStream(send))
        try:
            await answer(self._service, wish, client)
        except Left:
            raise
        except Exception as error:
            if not client.events.begun:
                raise
            await client.events.end(_told(error).body())


def _told(failure: Exception) -> ApiError:
    """What a failure is to the client; one that nobody foresaw is written down here."""
    error = from_failure(failure)
    if error.status == 500:
        _log.error("a request failed", exc_info=failure)
    return error


def _names_this_machine(host: str) -> bool:
    """Whether a Host header names loopback, by whatever name or address."""
    try:
        return parse_address(host).is_loopback
    except BadAddress:
        return False


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
