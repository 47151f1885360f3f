"""Whether the web sources that a manifest names give what was signed: tried with a chunk of a few files."""

import hashlib
from collections.abc import Sequence

import trio

from mirror.http import WebReplica, is_file, web_replicas
from mirror.tree import Chunk, Tree
from swarm.errors import SwarmError
from swarm.trust.manifest import Manifest
from swarm.trust.sources import WebSource, parse_source

_PATIENCE_S = 60.0


async def useless_sources(manifest: Manifest) -> list[tuple[str, str]]:
    """The sources that fail or give other bytes, each by its server's name, and why."""
    tree, sources = Tree.of(manifest), [parse_source(source) for source in manifest.sources]
    found: list[tuple[str, str]] = []
    async with web_replicas(sources) as replicas:
        for source, replica in zip(sources, replicas, strict=True):
            if reason := await _objection(replica, _some_chunks(tree, source)):
                found.append((replica.name, reason))
    return found


def _some_chunks(tree: Tree, source: WebSource) -> list[Chunk]:
    """Chunks that a source should have: from the start, the middle and the end of the files it has."""
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
