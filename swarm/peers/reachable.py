"""What `swarm doctor` asks a tracker: is it there and who it should be, what time it has, and can it reach us?

Registers for a moment with a key of its own, so that nothing else that runs here is disturbed, and leaves.
"""

import time
from functools import partial

import trio

from swarm.errors import SwarmError
from swarm.peers.checkup import Finding
from swarm.peers.links import Links
from swarm.peers.target import Target
from swarm.peers.tracking import TrackerClient
from swarm.units import plural
from swarm.wire import rpc
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import LeaveSwarm, Left, PeerRegistered, RegisterPeer
from swarm.wire.race import plain_errors

AGENT = "swarm-doctor/1"
CLOCK_TOLERANCE_S = 60.0


async def ask_tracker(target: Target, port: int) -> list[Finding]:
    """Asks the tracker of a swarm, and has it dial back while this listens at `port` (0: any free one)."""
    keys = KeyPair.generate()
    async with plain_errors() as nursery:
        tracker = TrackerClient(Links(nursery, keys, target.token), target.address, target.tracker)
        try:
            started_s = time.perf_counter()
            key = await tracker.connect()
            took_ms = round(1000 * (time.perf_counter() - started_s), 1)
            models = await tracker.models()
        except SwarmError as error:
            remedy = "Check the address, the token and your firewall, or ask the operator for a new invite."
            found = [Finding("tracker", "bad", str(error), remedy, {"address": str(target.address)})]
        else:
            held = f"key {key.hex()[:16]} and {plural(len(models), 'model')}"
            text = f"{target.address} has {held}; connected in {took_ms} ms"
            facts = {
                "address": str(target.address), "key": key.hex(), "models": [model.name for model in models],
                "connect_ms": took_ms,
            }  # fmt: skip
            found = [Finding("tracker", "good", text, facts=facts)]
            found += await _dialled_back(keys, tracker, target, port)
        nursery.cancel_scope.cancel()
    return found


async def _dialled_back(keys: KeyPair, tracker: TrackerClient, target: Target, port: int) -> list[Finding]:
    try:
        listeners = await rpc.listen(None, port)
    except rpc.CannotListen:
        listeners = await rpc.listen(
            None, 0
        )  # a server of ours may be there; another port tells nearly as much
    try:
        async with plain_errors() as nursery:
            (here, *_) = await nursery.start(partial(rpc.serve, psk=target.token), listeners, keys, {})
            found = await _registered(tracker, here.port)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()
    return found


async def _registered(tracker: TrackerClient, port: int) -> list[Finding]:
    before_s = time.time()
    try:
        answer = (await tracker.ask(RegisterPeer(AGENT, (), port), PeerRegistered)).message
        after_s = time.time()
        await tracker.ask(LeaveSwarm(answer.generation), Left)
    except SwarmError as error:
        remedy = "Try again in a minute; a tracker takes only so many registrations."
        return [Finding("reachability", "note", str(error), remedy, {"reachable": None})]
    return [_reach(answer, port), *_clock(answer.unix_s, before_s, after_s)]


def _reach(registered: PeerRegistered, port: int) -> Finding:
    facts = {
        "reachable": bool(registered.address), "port": port, "observed": registered.observed,
        "address": registered.address, "obstacle": registered.obstacle,
    }  # fmt: skip
    if registered.address:
        text = f"the tracker reached this machine at {registered.address}"
        return Finding("reachability", "good", text, facts=facts)
    text = f"the tracker could not reach port {port} here: {registered.obstacle}"
    remedy = (
        "Chatting and lending work all the same, through the tracker's relay; for speed let TCP in: open the port "
        "in the firewall, forward it in the router, and name both with --port and --advertise HOST:PORT."
    )
    return Finding("reachability", "note", text, remedy, facts)


def _clock(theirs_s: int, before_s: float, after_s: float) -> list[Finding]:
    """How far the clocks are apart, less the time the question took; nothing when the tracker did not tell."""
    if not theirs_s:
        return []
    apart_s = max(before_s - (theirs_s + 1), theirs_s - after_s, 0.0)
    facts = {"tracker_unix_s": theirs_s, "apart_s": round(apart_s, 1)}
    if apart_s <= CLOCK_TOLERANCE_S:
        return [Finding("clocks", "good", "this machine and the tracker agree on the time", facts=facts)]
    ahead = "behind" if theirs_s > after_s else "ahead of"
    text = f"this machine is {apart_s:.0f} s {ahead} the tracker"
    remedy = (
        "Set the clock (`timedatectl set-ntp true`), here or there: it decides which manifests have expired."
    )
    return [Finding("clocks", "note", text, remedy, facts)]
