"""A running `swarm mount`."""

from functools import partial
from pathlib import Path

import trio

from mirror.fuse import mount
from swarm.cli.hosting import until_signalled
from swarm.cli.output import emit_json, say
from swarm.peers.models import ModelInfo
from swarm.peers.session import join
from swarm.peers.settings import Home
from swarm.peers.target import Target
from swarm.peers.versions import watch


async def serve_mount(
    target: Target, home: Home, mountpoint: Path, model: str | None, offline: bool, as_json: bool
) -> None:
    """Mounts until a signal comes or somebody unmounts. Raises SwarmError or OSError when it cannot."""
    async with until_signalled() as ended, join(target, home, offline) as session:
        found = await session.open_model(model)
        for notice in found.notices:
            say(notice)
        async with trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                await mount(
                    found.source,
                    mountpoint,
                    issued_s=found.signed.manifest.issued,
                    name=found.info.name,
                    task_status=task_status,
                )
                nursery.cancel_scope.cancel()

            await nursery.start(run)
            _tell(found.info.name, found.info.version, mountpoint, as_json)
            nursery.start_soon(watch, session, found, partial(_tell_later, found.info.version, as_json))
            await ended.wait()
            nursery.cancel_scope.cancel()
    if not as_json:
        say(f"{mountpoint} is unmounted.")


def _tell_later(version: int, as_json: bool, later: ModelInfo) -> None:
    say(
        f"{later.name} has a new version, {later.version}; what is mounted is version {version}, and what is not yet "
        "here of it may be held by nobody any more. Unmount, and mount again for the new one."
    )
    if as_json:
        emit_json({"event": "renewed", "model": later.name, "version": later.version, "mounted": version})


def _tell(name: str, version: int, mountpoint: Path, as_json: bool) -> None:
    if as_json:
        emit_json({"event": "mounted", "model": name, "version": version, "mountpoint": str(mountpoint)})
    else:
        say(f"{name} version {version} is at {mountpoint}. Ctrl-C unmounts it.")
