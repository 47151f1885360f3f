"""Further maintainers inside the test's process, of a whole model or a part of it, and the operator's new versions."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from swarm.peers.announce import Announcer
from swarm.peers.disk import DiskDonor
from swarm.peers.donor import Lending
from swarm.peers.inspect import inspect
from swarm.peers.inventory import hash_files, list_files
from swarm.peers.maintainer import DirectoryChunks, Maintainer
from swarm.peers.membership import Listening, Swarming, member
from swarm.peers.operator import publish
from swarm.peers.session import Session, join
from swarm.peers.settings import Home
from swarm.peers.target import parse_target
from swarm.peers.whole import WholeModel
from swarm.trust.identity import Identity
from swarm.wire.messages.tracker import HeartbeatSeen
from tests.e2e.hosts import Plan


def home_at(folder: Path) -> Home:
    """A home of its own."""
    return Home(folder / "data", folder / "cache")


@dataclass
class Joined:
    """A member of the swarm."""

    session: Session
    announcer: Announcer
    seen: trio.MemoryReceiveChannel[HeartbeatSeen]


@dataclass
class Report:
    """What a maintainer told its owner, and waiting for what it is to tell."""

    told: list[tuple[str, int, int, str]] = field(default_factory=list)
    more: trio.Event = field(default_factory=trio.Event)
    trouble: tuple[str, ...] = ()
    announcer: Announcer | None = None

    def take(self, now: Lending) -> None:
        self.trouble = now.trouble
        self.told.append((now.state, now.assigned, now.ready, now.problem))
        self.more.set()
        self.more = trio.Event()

    async def until(self, state: str, problem: str = "", after: int = 0) -> int:
        """Waits until it tells of this state and problem; how much it had told by then."""
        while not any(told[0] == state and problem in told[3] for told in self.told[after:]):
            await self.more.wait()
        return len(self.told)


@asynccontextmanager
async def joined(invite: str, home: Home, maintainer: Maintainer) -> AsyncIterator[Joined]:
    """A member of the swarm with a home and an identity of its own."""
    identity = Identity.generate()
    where = Listening("127.0.0.1", local=True)
    async with join(parse_target(invite), home, identity=identity) as session:
        await session.open_model()
        async with member(Swarming(session, identity, None), where, maintainer.handlers()) as (
            announcer,
            seen,
        ):
            yield Joined(session, announcer, seen)


@asynccontextmanager
async def further(
    invite: str,
    home: Home,
    report: Report,
    copy: Path | None = None,
    disk: bool = False,
    size_bytes: int = 1 << 30,
) -> AsyncIterator[Maintainer]:
    """A further maintainer of the whole model, or a donor of disk."""
    maintainer = Maintainer()
    async with joined(invite, home, maintainer) as here, trio.open_nursery() as nursery:
        opened, lending = await here.session.open_model(), Lending(on_change=report.take)
        if disk:
            donor = DiskDonor(here.session, opened, size_bytes, maintainer, lending)
            await donor.open()
            nursery.start_soon(donor.run, here.announcer, here.seen)
        else:
            whole = WholeModel(here.session, opened, maintainer, lending, copy)
            await whole.open()
            nursery.start_soon(whole.run, here.announcer, here.seen)
        report.announcer = here.announcer
        yield maintainer
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def renewed(invite: str, home: Home, plan: Plan, version: int) -> AsyncIterator[bytes]:
    """The operator's server comes back with what is in the directory now, signed anew; the root."""
    files = hash_files(plan.model, list_files(plan.model), plan.scratch / "hashes")
    layout = inspect(plan.model).experts_in_layer
    publication = publish(
        plan.name,
        files,
        layout,
        plan.operator,
        plan.scratch / "served",
        now_s=int(time.time()),
        least_version=version,
    )
    source = DirectoryChunks(plan.model, files)
    async with joined(invite, home, Maintainer({publication.root: source})) as here:
        here.announcer.publications.append(publication)
        here.announcer.held[publication.root] = source.held
        here.announcer.changed()
        yield publication.root


async def fetched(invite: str, home: Home) -> dict[str, bytes]:
    """All files of the model as a newcomer gets them."""
    async with join(parse_target(invite), home) as session:
        opened = await session.open_model()
        await opened.fetch_all()
        return {
            path: bytes(await opened.mirror.read(path, 0, size))
            for path, size in opened.mirror.tree.files.items()
        }


def content(plan: Plan) -> dict[str, bytes]:
    """What is in the directory."""
    return {path.name: path.read_bytes() for path in plan.model.iterdir()}


async def retired(report: Report, maintainer: Maintainer, root: bytes) -> None:
    """Waits until nothing of a version is served any more."""
    with trio.fail_after(60):
        while root in maintainer.models and maintainer.models[root].held():
            assert report.announcer is not None
            report.announcer.changed()
            await trio.sleep(0.05)


async def followed(report: Report, maintainer: Maintainer, root: bytes, chunks: int) -> None:
    """Waits until so many chunks of a version are served."""
    with trio.fail_after(60):
        while root not in maintainer.models or len(maintainer.models[root].held()) < chunks:
            assert report.announcer is not None
            report.announcer.changed()  # else the next sign of life is seconds away
            await trio.sleep(0.05)
