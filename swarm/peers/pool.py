"""The donors of one model and numeric profile, as a chatter sees them: who they are, what they hold, how quick
they are, and whom not to ask.

The tracker is asked now and then, and at once when donors are lacking. Connections are opened ahead, so that
no token waits for a handshake. A donor that missed a deadline is left out until it answers a ping; one that
was caught lying is never asked again.
"""

import itertools
from collections.abc import Collection
from typing import Protocol

import trio

from swarm.errors import SwarmError
from swarm.pauses import pause_s
from swarm.peers.calls import MalformedOutputs
from swarm.peers.partner import Remote
from swarm.peers.tracking import ExpertsHeld
from swarm.peers.watch import Watch
from swarm.trust.profile import NumericProfile
from swarm.wire import rpc
from swarm.wire.holdings import ExpertLayout, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.experts import ExpertsOpen, OpenExperts
from swarm.wire.messages.tracker import Contact

REFRESH_S = 10.0
OPEN_S = 5.0
FIRST_PROBE_S = 0.5
LONGEST_PROBE_S = 30.0
PING_S = 2.0
AGAIN_S = 1.0
"""The tracker is not asked more often than this."""
FIRST_REST_S = 0.2
LONGEST_REST_S = 30.0


class Directory(Protocol):
    """Who knows the donors; `TrackerClient` does."""

    async def executors(
        self, root: bytes, profile: bytes, wanted: IndexSet | None, expert_count: int
    ) -> Collection[ExpertsHeld]:
        """Who runs the wanted experts of a model in a numeric profile (None: all). Raises SwarmError."""
        ...


class Opener(Protocol):
    """What opens connections; `Doors` does."""

    async def open(self, contact: Contact) -> tuple[rpc.Peer, bool]:
        """A connection to a donor, and whether it is relayed. Raises SwarmError."""
        ...

    def direct(self, contact: Contact) -> rpc.Peer | None:
        """The direct connection to a donor that was relayed so far; None, and it is tried, where there is none."""
        ...


class Pool:
    """See the module. Lives in trio; `run` keeps it up to date."""

    def __init__(
        self,
        tracker: Directory,
        doors: Opener,
        profile: NumericProfile,
        layout: ExpertLayout,
        nursery: trio.Nursery,
    ) -> None:
        self.profile = profile
        self.layout = layout
        self.nursery = nursery
        self.tracker = tracker
        self.remotes: dict[PeerKey, Remote] = {}
        self.problem = ""
        """Why the tracker could not be asked last."""
        self.turn = itertools.count()
        self.watch = Watch(nursery)
        self._doors = doors
        self._asked_at = -REFRESH_S
        self._asking = trio.Lock()
        self._wanted = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks the tracker and keeps connections open, until cancelled. Started after the first time."""
        await self.refresh()
        task_status.started()
        while True:
            with trio.move_on_after(REFRESH_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await trio.sleep(max(0.0, self._asked_at + AGAIN_S - trio.current_time()))
            await self.refresh()

    def want(self) -> None:
        """Donors are lacking: asks the tracker soon."""
        self._wanted.set()

    async def ask_again(self) -> bool:
        """Asks the tracker unless it was asked a moment ago; whether it was asked."""
        if trio.current_time() - self._asked_at < AGAIN_S:
            return False
        await self.refresh()
        return True

    async def refresh(self) -> None:
        """Asks the tracker who runs experts, and connects to all that are not connected. Does not raise."""
        before = self._asked_at
        async with self._asking:
            if self._asked_at > before:  # somebody else just asked
                return
            try:
                told = await self.tracker.executors(
                    self.profile.root, self.profile.digest, None, self.layout.total
                )
                self.problem = ""
            except SwarmError as error:
                self.problem = str(error)
                told = None
            if told is not None:
                self._take_in(told)
            with trio.move_on_after(OPEN_S):
                async with trio.open_nursery() as nursery:
                    for remote in self.remotes.values():
                        if remote.ready and not remote.banned:
                            nursery.start_soon(self._connect, remote)
            self._asked_at = trio.current_time()

    def _take_in(self, told: Collection[ExpertsHeld]) -> None:
        named = {one.holder.contact.key for one in told}
        for key, remote in self.remotes.items():
            if key not in named:
                remote.gone()
        for one in told:
            contact = one.holder.contact
            remote = self.remotes.setdefault(contact.key, Remote(contact, self.layout))
            if not remote.pace.measured and one.holder.service_us:
                remote.pace.call_s = one.holder.service_us / 1e6
            remote.told(one)

    async def _connect(self, remote: Remote) -> None:
        peer = remote.peer
        if peer is not None and peer.is_open:
            if remote.relayed:
                await self._straighten(remote)
            return
        if peer is not None:
            remote.bytes_before, remote.peer = remote.transferred(), None
        try:
            peer, remote.relayed = await self._doors.open(remote.contact)
            await self._agree(remote, peer)
        except SwarmError as error:
            remote.trouble = str(error)
            return
        remote.trouble = ""

    async def _agree(self, remote: Remote, peer: rpc.Peer) -> None:
        """Settles the numeric profile: nothing is sent to a donor that computes otherwise."""
        wanted = OpenExperts(self.profile.numerics, self.profile.root, self.profile.weights)
        reply = await peer.request(wanted)
        if not isinstance(reply.message, ExpertsOpen):
            raise MalformedOutputs(peer=remote.name, reason="something else than the number of a bank")
        remote.bank, remote.peer = reply.message.bank, peer

    async def _straighten(self, remote: Remote) -> None:
        """Takes the direct way to a relayed donor where there is one now."""
        direct = self._doors.direct(remote.contact)
        old = remote.peer
        if direct is None or old is None:
            return
        before = remote.transferred()
        try:
            await self._agree(remote, direct)
        except SwarmError:
            return
        remote.relayed, remote.bytes_before = False, before
        self.nursery.start_soon(old.aclose, "the direct way works")

    def usable(self, without: Collection[Remote] = ()) -> list[Remote]:
        """Those that may be asked now."""
        now = trio.current_time()
        return [
            remote
            for remote in self.remotes.values()
            if remote.usable
            and remote.ready
            and remote not in without
            and max(remote.busy_until, remote.rest_until) <= now
        ]

    def usable_now(self) -> bool:
        """Whether there is anybody to ask; from any thread."""
        return any(remote.usable and remote.ready for remote in list(self.remotes.values()))

    def busy_until(self, layer: int, experts: Collection[int]) -> float | None:
        """When somebody who holds these experts and was busy may be asked again; None if nobody was."""
        times = [
            remote.busy_until
            for remote in self.remotes.values()
            if remote.usable and remote.busy_until > trio.current_time() and remote.holds_all(layer, experts)
        ]
        return min(times, default=None)

    # What became of calls.

    def failed(self, remote: Remote, error: SwarmError) -> None:
        """A call failed at once: the donor rests, longer each time."""
        remote.tally.failures += 1
        remote.trouble = str(error)
        remote.rest_until = trio.current_time() + pause_s(FIRST_REST_S, remote.failures, LONGEST_REST_S)
        remote.failures += 1
        self.want()

    def was_busy(self, remote: Remote, retry_after_s: float) -> None:
        """A donor turned a call away, with a hint when to come again."""
        remote.tally.busy += 1
        remote.busy_until = trio.current_time() + retry_after_s

    def lacks(self, remote: Remote, layer: int, experts: Collection[int]) -> None:
        """A donor does not answer for experts that it was asked for."""
        remote.tally.failures += 1
        remote.lacks(layer, experts)
        self.want()

    def froze(self, remote: Remote) -> None:
        """A call missed its deadline: the donor is left out until it proves itself."""
        remote.tally.failures += 1
        remote.trouble = "it did not answer in time"
        if not remote.suspended:
            remote.suspended = True
            self.nursery.start_soon(self._probe, remote)
        self.want()

    def ban(self, remote: Remote, reason: str) -> None:
        """A donor lied: it is never asked again."""
        remote.banned = remote.trouble = reason

    async def _probe(self, remote: Remote) -> None:
        pause_s = FIRST_PROBE_S
        while remote.suspended and not remote.banned:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PROBE_S)
            peer = remote.peer
            if peer is None or not peer.is_open:
                remote.suspended = False  # connecting anew proves it as well
                return
            with trio.move_on_after(PING_S):
                try:
                    await peer.ping()
                except SwarmError:
                    continue
                remote.suspended = False
