"""Fetching one chunk, by whatever replica gives it, once for all who want it at the same time."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import trio

from mirror.cas import Store
from mirror.errors import ChunkUnavailable, MirrorClosed, ReadFailed, ReplicaBusy, ReplicaLacks, WrongBytes
from mirror.plan import Ledger
from mirror.replica import Buffer, Replica, Replicas
from mirror.tree import Chunk
from swarm.errors import SwarmError, why

REFRESH_S = 15.0
"""How long finding out anew who has what may take."""
WINDOW = 24
"""Chunks on their way at a time."""
WORKERS = 3
"""Threads that check and store."""
HEDGES_AT_ONCE = 4
"""Second requests beside slow ones; when everybody is slow, asking everybody twice would not help."""
LANDINGS_KEPT = 1024
"""How many of the last landings are known by their chunks, of which each takes some hundred bytes."""
LOOK_FOR_LOST_S = 1.0
"""How often peers are looked for while nobody is known to have a chunk, soon after somebody failed."""
LOOK_AGAIN_S = 30.0
"""How long replicas of last resort alone are asked before others are looked for."""
_FAILURES = (SwarmError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


class Flight:
    """A chunk on its way."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._done = trio.Event()
        self._data: Buffer = b""
        self._error: OSError | None = None

    async def landed(self) -> Buffer:
        """The chunk's right bytes, in the store by now. OSError when they could not be had or stored."""
        await self._done.wait()
        error = self._error
        # Each waiter gets an exception of its own: one object raised twice would entangle their tracebacks.
        if isinstance(error, ReadFailed):
            raise type(error)(**error.fields) from error
        if error is not None:
            raise OSError(error.errno, error.strerror, error.filename) from error
        return self._data

    def land(self, data: Buffer) -> None:
        """Gives the bytes to all who wait."""
        self._data = data
        self._done.set()

    def crash(self, error: OSError) -> None:
        """Fails all who wait; nothing when it has landed."""
        if not self._done.is_set():
            self._error = error
            self._done.set()


@dataclass(slots=True)
class _Attempt:
    """One request to one replica, and what came of it."""

    replica: Replica
    began_s: float
    in_hand: int
    arrived: bool = False
    data: Buffer | None = None
    disk: OSError | None = None


@dataclass(slots=True)
class _Tried:
    """What a flight has learnt of the replicas, by key."""

    useless: set[Hashable] = field(default_factory=set)
    """Gave wrong bytes for this chunk, or say that they do not have it."""
    failed: set[Hashable] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each one named did not give it, the last reason of each."""
    busy: bool = False

    def reason(self) -> str:
        return "; ".join(f"{name} {why}" for name, why in self.reasons.items()) or "no peer has it"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, a chunk that nobody gives is tried for."""

    failing_s: float = 20.0
    busy_s: float = 120.0
    """When somebody has it and only asks to wait."""


class Flights:
    """All chunks on their way to one store from one set of replicas."""

    def __init__(
        self, store: Store, replicas: Replicas, ledger: Ledger, patience: Patience, nursery: trio.Nursery
    ) -> None:
        self.fetched_bytes = 0
        """Of all chunks that landed."""
        self._store = store
        self._replicas = replicas
        self._ledger = ledger
        self._patience = patience
        self._nursery = nursery
        self._flying: dict[bytes, Flight] = {}
        self.landings = 0
        """How many flights have stored their chunk."""
        self._landed: dict[bytes, None] = {}
        """The chunks of the last landings, in order; the store may have lost them since."""
        self._window = trio.CapacityLimiter(WINDOW)
        self._workers = trio.CapacityLimiter(WORKERS)
        self._hedges = 0
        self._refreshing = trio.Lock()
        self._refreshed_s = -math.inf
        self._refresh_trouble = ""
        self._lost_s = -math.inf
        """When a replica failed last."""

    def start(self, chunk: Chunk, looked: int) -> Flight:
        """The flight of this chunk, a new one unless it is on its way already. `looked`: how many `landings` there were
        when whoever asks for it began to look in the store, and did not find it."""
        flight = self._flying.get(chunk.address)
        if flight is None:
            flight = self._flying[chunk.address] = Flight()
            self._nursery.start_soon(self._fly, chunk, flight, looked)
        return flight

    @property
    def remembered(self) -> int:
        """How many landings are known by their chunks."""
        return len(self._landed)

    def close(self) -> None:
        """Ends all flights; who waits for one gets MirrorClosed."""
        for flight in self._flying.values():
            flight.scope.cancel()

    async def _fly(self, chunk: Chunk, flight: Flight, looked: int) -> None:
        try:
            with flight.scope:
                data = await self._landed_since(chunk, looked)
                if data is None:
                    async with self._window:
                        data = await self._obtain(chunk)
                    self._count(chunk)
                flight.land(data)
        except OSError as error:
            flight.crash(error)
        finally:
            del self._flying[chunk.address]
            flight.crash(MirrorClosed(path=chunk.path))

    def _count(self, chunk: Chunk) -> None:
        self.fetched_bytes += chunk.size
        self.landings += 1
        self._landed.pop(chunk.address, None)
        self._landed[chunk.address] = None
        if len(self._landed) > LANDINGS_KEPT:
            del self._landed[next(iter(self._landed))]

    async def _landed_since(self, chunk: Chunk, looked: int) -> Buffer | None:
        """What an earlier flight stored that landed since the store was looked at, if the store still has it."""
        landed = self.landings - looked
        if not landed or (landed <= LANDINGS_KEPT and chunk.address not in self._landed):
            return None
        return await trio.to_thread.run_sync(
            self._store.read, chunk.address, chunk.size, limiter=self._workers
        )

    async def _obtain(self, chunk: Chunk) -> Buffer:
        """Asks one replica after another, has them looked up again, and waits for those that may come
        back."""
        tried = _Tried()
        began_s = trio.current_time()
        refreshed = self._only_last_resorts(chunk)
        if refreshed:
            await self._refresh(chunk, tried)
        while True:
            data = await self._ask(chunk, tried)
            if data is not None:
                return data
            tried.failed.clear()
            if not refreshed:
                refreshed = True
                await self._refresh(chunk, tried)
                continue
            wait_s = self._opens_in_s(chunk, tried)
            patience_s = self._patience.busy_s if tried.busy else self._patience.failing_s
            if wait_s is None or trio.current_time() + wait_s > began_s + patience_s:
                raise ChunkUnavailable(chunk=chunk.index, path=chunk.path, reason=tried.reason())
            with trio.move_on_after(wait_s):
                await self._refresh(chunk, tried)  # who came back elsewhere need not be waited for
                opens_s = self._opens_in_s(chunk, tried)
                await trio.sleep(wait_s if opens_s is None else opens_s)

    def _opens_in_s(self, chunk: Chunk, tried: _Tried) -> float | None:
        """When somebody may be asked, or looked for, again; None when there is no hope."""
        now_s = trio.current_time()
        hopeful = [r for r in self._replicas.holders(chunk) if r.key not in tried.useless]
        if not hopeful and now_s < self._lost_s + self._patience.failing_s:
            return LOOK_FOR_LOST_S
        return self._ledger.opens_in_s(hopeful, now_s)

    def _only_last_resorts(self, chunk: Chunk) -> bool:
        """Whether other replicas are to be looked for, now and then, before those of last resort are asked."""
        holders = self._replicas.holders(chunk)
        now_s = trio.current_time()
        return bool(holders) and all(r.tier > 0 for r in holders) and now_s > self._refreshed_s + LOOK_AGAIN_S

    async def _refresh(self, chunk: Chunk, tried: _Tried) -> None:
        """Has the holders looked up, once for all flights that wait for that."""
        before_s = self._refreshed_s
        places = {replica.key: replica.name for replica in self._replicas.holders(chunk)}
        async with self._refreshing:
            if self._refreshed_s == before_s:
                await self._look_up()
        if self._refresh_trouble:
            tried.reasons["asking for other peers"] = self._refresh_trouble
        for replica in self._replicas.holders(chunk):
            if places.get(replica.key, replica.name) != replica.name:
                self._ledger.moved(replica.key)

    async def _look_up(self) -> None:
        trouble = ""
        with trio.move_on_after(REFRESH_S) as limit:
            try:
                await self._replicas.refresh()
            except (SwarmError, OSError) as error:
                trouble = f"failed: {why(error)}"
        if limit.cancelled_caught:
            trouble = f"took longer than {REFRESH_S:.0f} s"
        self._refresh_trouble, self._refreshed_s = trouble, trio.current_time()

    async def _ask(self, chunk: Chunk, tried: _Tried) -> Buffer | None:
        """One replica after another, a second one beside a slow one, until one gives it or none is left."""
        outcomes_in, outcomes = trio.open_memory_channel[_Attempt](math.inf)
        running: list[_Attempt] = []
        winner: _Attempt | None = None
        hedges = 0
        hedge_at_s = trio.current_time() + self._ledger.hedge_after_s()
        async with trio.open_nursery() as nursery:

            def launch() -> bool:
                now_s = trio.current_time()
                excluded = tried.useless | tried.failed | {attempt.replica.key for attempt in running}
                replica = self._ledger.choose(self._replicas.holders(chunk), now_s, frozenset(excluded))
                if replica is None:
                    return False
                running.append(_Attempt(replica, now_s, self._ledger.began(replica.key)))
                nursery.start_soon(self._attempt, running[-1], chunk, tried, outcomes_in)
                return True

            launch()
            try:
                while running and winner is None:
                    with trio.move_on_at(hedge_at_s) as waiting:
                        attempt = await outcomes.receive()
                    if waiting.cancelled_caught:
                        hedge_at_s += self._ledger.hedge_after_s()
                        arrived = any(attempt.arrived for attempt in running)  # and is being stored
                        if self._hedges < HEDGES_AT_ONCE and not arrived:
                            hedge_at_s = math.inf  # one is enough, and when there is nobody else so is none
                            started = launch()
                            self._hedges += started
                            hedges += started
                        continue
                    running.remove(attempt)
                    if attempt.data is not None or attempt.disk is not None:
                        winner = attempt
                    elif not running and launch():
                        hedge_at_s = trio.current_time() + self._ledger.hedge_after_s()
            finally:
                self._hedges -= hedges
                nursery.cancel_scope.cancel()
        if winner is None:
            return None
        if winner.disk is not None:
            raise winner.disk
        self._outrun(running, winner, chunk)
        return winner.data

    async def _attempt(
        self, attempt: _Attempt, chunk: Chunk, tried: _Tried, outcome: trio.MemorySendChannel[_Attempt]
    ) -> None:
        """Asks one replica and stores what it gives, if that is right."""
        replica, ledger = attempt.replica, self._ledger
        try:
            with trio.fail_after(ledger.policy.deadline_s):
                data = await replica.fetch(chunk)
            attempt.arrived = True
            seconds = trio.current_time() - attempt.began_s
            if len(data) != chunk.size:
                raise WrongBytes(address=chunk.address, found=f"{len(data)} bytes instead of {chunk.size}")
            await trio.to_thread.run_sync(self._keep, attempt, chunk, data, limiter=self._workers)
            now_s = trio.current_time()
            ledger.gave(replica.key, chunk.size, seconds, attempt.in_hand, now_s)
        except WrongBytes as error:
            tried.useless.add(replica.key)
            tried.reasons[replica.name] = "sent wrong bytes"
            banned_s = ledger.lied(replica.key, trio.current_time())
            self._replicas.accuse(replica, chunk, str(error), banned_s)
        except ReplicaLacks:
            tried.useless.add(replica.key)
            tried.reasons[replica.name] = "does not have it"
        except ReplicaBusy as error:
            tried.failed.add(replica.key)
            tried.reasons[replica.name] = f"asks to wait {error.retry_after_s:.0f} s"
            tried.busy = True
            ledger.was_busy(replica.key, trio.current_time(), error.retry_after_s)
        except _FAILURES as error:
            tried.failed.add(replica.key)
            too_slow = isinstance(error, trio.TooSlowError)
            tried.reasons[replica.name] = "did not answer in time" if too_slow else f"failed: {why(error)}"
            self._lost_s = trio.current_time()
            ledger.failed(replica.key, self._lost_s, attempt.began_s)
        finally:
            ledger.ended(replica.key)
        outcome.send_nowait(attempt)

    def _keep(self, attempt: _Attempt, chunk: Chunk, data: Buffer) -> None:
        """Checks and stores what came; in a thread. What the disk says is not the replica's fault."""
        try:
            self._store.put(chunk.address, data)
        except OSError as error:
            attempt.disk = error
        else:
            attempt.data = data

    def _outrun(self, losers: list[_Attempt], winner: _Attempt, chunk: Chunk) -> None:
        """Remembers who was still at it when a second replica, asked later, had answered."""
        now_s = trio.current_time()
        for loser in losers:
            seconds = now_s - loser.began_s
            if loser.began_s < winner.began_s and seconds > 2 * (now_s - winner.began_s):
                banned_s = self._ledger.was_slow(loser.replica.key, seconds, loser.in_hand, now_s)
                if banned_s:
                    reason = f"nothing came in {seconds:.1f} s while others answered"
                    self._replicas.accuse(loser.replica, chunk, reason, banned_s)
