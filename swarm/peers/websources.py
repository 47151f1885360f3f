"""The web sources that a manifest names, beside a model's peers; and whether they give what was signed.

What speaks to web servers is loaded only where there are any.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from mirror.replica import Replicas
from mirror.tree import Chunk, Tree
from swarm.errors import SwarmError
from swarm.trust.manifest import Manifest
from swarm.trust.sources import WebSource, parse_source

if TYPE_CHECKING:
    from mirror.http import WebReplica

_PATIENCE_S = 60.0


@asynccontextmanager
async def with_web(
    peers: Replicas, sources: Sequence[WebSource]
) -> AsyncIterator[tuple[Replicas, tuple[WebReplica, ...]]]:
    """Everybody who may give chunks, and the web servers among them."""
    if not sources:
        yield peers, ()
        return
    from mirror.http import WithWeb, web_replicas

    async with web_replicas(sources) as web:
        yield WithWeb(web, peers), tuple(web)


async def useless_sources(manifest: Manifest) -> list[tuple[str, str]]:
    """The sources that fail or give other bytes for a chunk of a few files: each by its address, and why."""
    from mirror.http import web_replicas

    tree, sources = Tree.of(manifest), [parse_source(source) for source in manifest.sources]
    found: list[tuple[str, str]] = []
    async with web_replicas(sources) as replicas:
        for source, replica in zip(sources, replicas, strict=True):
            if reason := await _objection(replica, _some_chunks(tree, source)):
                found.append((source.public, reason))
    return found


def _some_chunks(tree: Tree, source: WebSource) -> list[Chunk]:
    """Chunks that a source should have: from the start, the middle and the end of the files it has."""
    from mirror.http import is_file

    paths = [path for path, size in tree.files.items() if size]
    paths = [path for path in paths if is_file(source.address, path)] or paths
    return [next(tree.chunks(paths[at])) for at in sorted({0, len(paths) // 2, len(paths) - 1}) if paths]


async def _objection(replica: WebReplica, chunks: Sequence[Chunk]) -> str:
    """Why a source is useless for one of these chunks; empty when it is right about all."""
    for chunk in chunks:
        try:
            with trio.fail_after(_PATIENCE_S):
                data = await replica.fetch(chunk)
        except SwarmError as error:
            return str(error)
        except trio.TooSlowError:
            return f"It did not give chunk {chunk.index} of {chunk.path} within {_PATIENCE_S:.0f} s."
        if hashlib.sha256(data).digest() != chunk.address:
            return f"It gives other bytes for chunk {chunk.index} of {chunk.path} than were signed."
    return ""
