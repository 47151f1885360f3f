"""Mounts a directory's files from a store: STORE DIRECTORY MOUNTPOINT [signals]; run in a process of its own.

Says "mounted" on a line when it is. With `signals` it handles SIGTERM itself, as the command line does;
without, libfuse has to.
"""

import hashlib
import signal
import sys
from pathlib import Path

import trio

from mirror.cas import Store
from mirror.fetch import open_mirror
from mirror.fuse import mount
from mirror.source import MirrorSource
from mirror.tree import Tree
from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry


def filled(store: Store, directory: Path) -> Tree:
    """Puts all files below a directory into the store; their tree."""
    entries = []
    for path in sorted(found for found in directory.rglob("*") if found.is_file()):
        data = path.read_bytes()
        parts = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        digests = Digests.of(hashlib.sha256(part).digest() for part in parts)
        entries.append(FileEntry(path.relative_to(directory).as_posix(), len(data), digests))
        for chunk in Tree(entries[-1:]).chunks(entries[-1].path):
            store.put(chunk.address, data[chunk.offset : chunk.offset + chunk.size])
    return Tree(entries)


async def main(store_path: str, directory: str, mountpoint: str, *options: str) -> None:
    with Store(store_path) as store:
        tree = filled(store, Path(directory))
        async with open_mirror(tree, store) as mirror, trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                await mount(
                    MirrorSource(mirror), Path(mountpoint), issued_s=1_700_000_000, task_status=task_status
                )
                nursery.cancel_scope.cancel()

            async def until_signalled(task_status: trio.TaskStatus[None]) -> None:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    task_status.started()
                    async for _ in signals:
                        nursery.cancel_scope.cancel()

            if "signals" in options:
                await nursery.start(until_signalled)
            await nursery.start(serve)
            print("mounted", flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
