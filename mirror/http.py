"""Chunks from web servers: a Hugging Face repository, a bucket, any server that knows Range.

A manifest names the sources (`swarm.trust.sources`). The file's path is put where an address says `{path}`, else
behind its own path, before any query; an address that already ends in the file's path is that of the one file (a
presigned one, say).
"""

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx2
import trio

from mirror.errors import ReplicaBusy, ReplicaFailed, ReplicaLacks
from mirror.replica import Buffer, Given, Replica, Replicas
from mirror.tree import Chunk
from swarm.trust.sources import WebSource

LAST_RESORT = 1
FIRST_RESORT = -1
_ABSENT = {401, 403, 404, 410, 416}
_PATIENCE = {429, 503}
_RETRY_S = 5.0
_MOST_RETRY_S = 3600.0


def is_file(source: str, path: str) -> bool:
    """Whether a source is that one file of the model, rather than a place for all of them."""
    return unquote(urlsplit(source).path).endswith("/" + path)


def address_of(source: str, path: str) -> str:
    """The web address of a model's file below a source."""
    quoted = quote(path)
    if "{path}" in source:
        return source.replace("{path}", quoted)
    if is_file(source, path):
        return source
    parts = urlsplit(source)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quoted}"))


class WebReplica:
    """One web source; `mirror.replica.Replica`. Made by `web_replicas`."""

    def __init__(self, source: WebSource, client: httpx2.AsyncClient) -> None:
        self.given = Given()
        self._source = source
        self._client = client

    @property
    def key(self) -> Hashable:
        """The source's address."""
        return self._source.address

    @property
    def name(self) -> str:
        """The server's name, without the secrets that a presigned address holds."""
        return urlsplit(self._source.address).hostname or "a web source"

    @property
    def tier(self) -> int:
        """Before or after the peers."""
        return FIRST_RESORT if self._source.first else LAST_RESORT

    async def fetch(self, chunk: Chunk) -> Buffer:
        """What the server gives for the chunk's range: at most a byte more than the chunk has.

        ReplicaLacks, ReplicaBusy, ReplicaFailed.
        """
        last = chunk.offset + chunk.size - 1
        headers = {"Range": f"bytes={chunk.offset}-{last}", "Accept-Encoding": "identity"}
        data = bytearray()
        try:
            # Unlike leaving the loop, cancelling ends the generators in generators that a body comes through.
            with trio.CancelScope() as enough:
                address = address_of(self._source.address, chunk.path)
                async with self._client.stream("GET", address, headers=headers) as answer:
                    self._judge(answer, chunk)
                    async for part in answer.aiter_raw():
                        data += part[: chunk.size + 1 - len(data)]
                        if len(data) > chunk.size:
                            enough.cancel()
        except ReplicaFailed as error:
            self.given.trouble = str(error)
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # the last: where a redirect leads
            self.given.trouble = f"{type(error).__name__}: {error}"
            raise self._failed(chunk, self.given.trouble) from error
        self.given.bytes += len(data)
        self.given.chunks += 1
        self.given.trouble = ""
        whole_file = answer.status_code == 200
        return data[: chunk.size] if whole_file else data

    def _judge(self, answer: httpx2.Response, chunk: Chunk) -> None:
        """Returns when the body to come is the range that was asked for."""
        status = answer.status_code
        told = {"replica": self.name, "chunk": chunk.index, "path": chunk.path}
        if status in _ABSENT:
            raise ReplicaLacks(**told, reason=f"HTTP status {status}")
        if status in _PATIENCE:
            retry_after_s = _retry_after_s(answer.headers.get("Retry-After"))
            raise ReplicaBusy(retry_after_s=retry_after_s, **told, reason=f"HTTP status {status}")
        if status == 200 and chunk.offset > 0:
            raise self._failed(chunk, "the server does not know Range and sends whole files")
        if status == 206:
            given = answer.headers.get("Content-Range", "")
            if not given.startswith(f"bytes {chunk.offset}-"):
                raise self._failed(chunk, f"it sends another range than was asked for ({given or 'unnamed'})")
        elif status != 200:
            raise self._failed(chunk, f"HTTP status {status}")

    def _failed(self, chunk: Chunk, reason: str) -> ReplicaFailed:
        return ReplicaFailed(replica=self.name, chunk=chunk.index, path=chunk.path, reason=reason)


class WithWeb:
    """`mirror.replica.Replicas` that has web sources beside the peers, or web sources alone."""

    def __init__(self, web: Sequence[Replica], peers: Replicas | None = None) -> None:
        self._web = tuple(web)
        self._peers = peers

    def holders(self, chunk: Chunk) -> Sequence[Replica]:
        """The peers that have the chunk, and every web source."""
        return [*(self._peers.holders(chunk) if self._peers else ()), *self._web]

    async def refresh(self) -> None:
        """Has the peers looked up again."""
        if self._peers is not None:
            await self._peers.refresh()

    def accuse(self, replica: Replica, chunk: Chunk, reason: str, banned_s: float) -> None:
        """Passes on what is said of peers; what a web server did is noted with it."""
        if isinstance(replica, WebReplica):
            replica.given.accused(reason, banned_s)
        elif self._peers is not None:
            self._peers.accuse(replica, chunk, reason, banned_s)


@asynccontextmanager
async def web_replicas(sources: Sequence[WebSource]) -> AsyncIterator[list[WebReplica]]:
    """The replicas of these sources, with connections of their own until the end of the block."""
    async with httpx2.AsyncClient(
        follow_redirects=True,
        max_redirects=5,
        timeout=httpx2.Timeout(20.0, connect=10.0),
        limits=httpx2.Limits(max_connections=16),
        headers={"User-Agent": "swarm"},
    ) as client:
        yield [WebReplica(source, client) for source in sources]


def _retry_after_s(header: str | None) -> float:
    """The seconds a Retry-After header asks for: a number, or a date (RFC 9110, 10.2.3)."""
    if header is None:
        return _RETRY_S
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return _RETRY_S
    return min(max(seconds, 0.0), _MOST_RETRY_S) if seconds == seconds else _RETRY_S
