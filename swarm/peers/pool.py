"""The donors of one model and numeric profile, as a chatter sees them: who they are, what they hold, how quick
they are, and whom not to ask.

The tracker is asked now and then, and at once when donors are lacking. Connections are opened ahead, so that
no token waits for a handshake. A donor that missed a deadline is left out until it proves itself: by a small call
whose answer nobody waits for and nobody uses, after longer and longer pauses. (That it answers pings says nothing.)
So does one that was much slower than another; it is asked meanwhile by what was measured of it. One that was caught
lying is never asked again.
"""

import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import Literal, Protocol, TypeAlias

import trio

from swarm.errors import SwarmError
from swarm.pauses import pause_s
from swarm.peers.calls import MalformedOutputs
from swarm.peers.pace import Pace, much_slower_s
from swarm.peers.partner import Answer, Remote
from swarm.peers.tracking import ExpertsHeld
from swarm.peers.watch import Watch
from swarm.trust.profile import NumericProfile
from swarm.wire import rpc
from swarm.wire.holdings import ExpertLayout, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.experts import ExpertsOpen, OpenExperts
from swarm.wire.messages.tracker import Contact
from swarm.wire.race import plain_errors

REFRESH_S = 10.0
OPEN_S = 5.0
FIRST_PROOF_S = 0.5
LONGEST_PROOF_S = 30.0
"""Pauses before a donor is asked for a proof."""
PROOF_S = 10.0
"""How long it may take."""
AGAIN_S = 1.0
"""The tracker is not asked more often than this."""
FIRST_REST_S = 0.2
LONGEST_REST_S = 30.0
FIRST_BUSY_S = 0.05
"""How long a donor is busy that does not say it."""


Proof: TypeAlias = Callable[[], Awaitable[Answer]]
"""Asks a donor for the outputs of a pair. Raises SwarmError."""


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
    """See the module. Lives in trio, in a nursery of its own; `run` keeps it up to date."""

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

    def leave(self) -> None:
        """The model is used no more: ends all that goes on for it."""
        self.nursery.cancel_scope.cancel()

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

    def quickest(
        self, layer: int, experts: Collection[int], pairs: int, without: Collection[Remote]
    ) -> Remote | None:
        """Who holds all of these experts and should answer first; those of last resort last. None: nobody."""
        holders = [remote for remote in self.usable(without) if remote.holds_all(layer, experts)]
        return min(holders, key=lambda one: (one.last_resort, one.takes_s(pairs)), default=None)

    def has_any(self, layer: int, experts: Collection[int], without: Collection[Remote]) -> bool:
        """Whether somebody may be asked now for one of these experts."""
        masks = [remote.masks(layer)[0] for remote in self.usable(without)]
        return any(mask >> expert & 1 for mask in masks for expert in experts)

    # What became of calls.

    def refused(
        self, remote: Remote, error: SwarmError, asked_for: tuple[int, Collection[int]] | None
    ) -> bool:
        """A call for these (layer, experts) was answered with an error; whether that says that the donor is
        busy."""
        code = error.remote_code if isinstance(error, rpc.RemoteError) else ""
        if isinstance(error, rpc.RemoteError) and code == rpc.Busy.code:
            self.was_busy(remote, FIRST_BUSY_S if error.retry_after_s is None else error.retry_after_s)
            return True
        if code == "unassigned-expert" and asked_for is not None:
            self.lacks(remote, *asked_for)
        else:
            self.failed(remote, error)
        return False

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

    def used(self, remote: Remote) -> None:
        """An answer was quicker than all others."""
        if not remote.doubted:
            remote.doubts = 0

    def froze(self, remote: Remote, proof: Proof) -> None:
        """A call missed its deadline: the donor is left out until it proves itself."""
        remote.tally.failures += 1
        remote.trouble = "it did not answer in time"
        remote.suspended = True
        self._doubt(remote, proof, much_slower_s(remote.pace.expected_s(1)))
        self.want()

    def outrun(self, remote: Remote, answer: Answer, other_s: float, proof: Proof) -> None:
        """An answer came when another, that took `other_s`, was used: where it took much longer it is doubted."""
        if answer.took_s > much_slower_s(other_s):
            remote.slow_s = answer.took_s
            self._doubt(remote, proof, much_slower_s(other_s))
        elif not remote.pace.measured:
            remote.pace.observe(len(answer.work), answer.took_s)

    def _doubt(self, remote: Remote, proof: Proof, limit_s: float) -> None:
        if not remote.doubted:
            remote.doubted = True
            self.nursery.start_soon(self._prove, remote, proof, limit_s)

    def ban(self, remote: Remote, reason: str) -> None:
        """A donor lied: it is never asked again."""
        remote.banned = remote.trouble = reason

    async def _prove(self, remote: Remote, proof: Proof, limit_s: float) -> None:
        """Asks for proofs until an answer comes within `limit_s`."""
        while not remote.banned:
            await trio.sleep(pause_s(FIRST_PROOF_S, remote.doubts, LONGEST_PROOF_S))
            remote.doubts += 1
            peer = remote.peer
            if peer is None or not peer.is_open:  # who connects anew begins anew
                remote.pace, remote.slow_s = Pace(), 0.0
                break
            took_s = await self._proven_s(proof)
            if took_s is None:
                continue
            remote.suspended = False
            if took_s:
                remote.proved(took_s)
            remote.slow_s = took_s if took_s > limit_s else 0.0
            if not remote.slow_s:
                break
        remote.suspended = remote.doubted = False

    async def _proven_s(self, proof: Proof) -> float | None:
        """What a proof took; 0 where the donor answers but not that, None where it does not answer."""
        started = trio.current_time()
        with trio.move_on_after(PROOF_S):
            try:
                await proof()
            except rpc.RemoteError:  # it is busy, say, or without that expert now
                return 0.0
            except SwarmError:
                return None
            return trio.current_time() - started
        return None


async def keep_pool(
    tracker: Directory,
    doors: Opener,
    profile: NumericProfile,
    layout: ExpertLayout,
    first_asked: Literal["before", "after", "never"] = "before",
    task_status: trio.TaskStatus[Pool] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Gives a pool and lives for as long as it, in a task of its own: until it is left or this is cancelled.

    first_asked: when the tracker is first asked, before or after the pool is given; or that it never is.
    """
    async with plain_errors() as nursery:
        pool = Pool(tracker, doors, profile, layout, nursery)
        if first_asked == "before":
            await nursery.start(pool.run)
        elif first_asked == "after":
            nursery.start_soon(pool.run)
        task_status.started(pool)
        await trio.sleep_forever()
