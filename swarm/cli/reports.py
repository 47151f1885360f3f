"""What a running server tells its operator: on a terminal, in a log, or as JSON events."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import trio

from swarm.cli.output import emit_json, say
from swarm.peers.announce import Standing
from swarm.peers.inspect import ModelFacts
from swarm.peers.maintainer import Maintainer
from swarm.system import moves_cursor
from swarm.trust.manifest import SignedManifest
from swarm.units import format_bytes
from swarm.wire.address import Address
from swarm.wire.rpc import Peer

ON_TERMINAL_S = 1.0
IN_LOG_S = 60.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is served and where."""

    signed: SignedManifest
    model: ModelFacts
    address: Address
    invite: str
    peer: bytes
    """This server's own key."""


def say_trouble(trouble: Sequence[str], as_json: bool) -> None:
    """Tells who serves a model what those who chat with it will be told: it is best mended before it is signed."""
    for reason in trouble:
        if as_json:
            emit_json({"event": "trouble", "reason": reason})
        else:
            say(f"Chats with this model as it is will fail: {reason}")


class ServeReport:
    """Reports of one server. All methods are called in the trio thread."""

    def __init__(self, maintainer: Maintainer, as_json: bool, line: "StatusLine | None" = None) -> None:
        self._maintainer = maintainer
        self._as_json = as_json
        self._line = line or StatusLine()
        self._peers: set[bytes] = set()
        self._own: set[bytes] = set()

    def serving(self, facts: Facts) -> None:
        """The server is ready."""
        manifest = facts.signed.manifest
        if self._as_json:
            self._event(
                "serving",
                model=manifest.name,
                version=manifest.version,
                root=manifest.root.hex(),
                bytes=manifest.total_bytes,
                family=facts.model.family,
                address=str(facts.address),
                operator=facts.signed.signer.hex(),
                peer=facts.peer.hex(),
                expires=manifest.expires,
                invite=facts.invite,
            )
            return
        until = datetime.fromtimestamp(manifest.expires, UTC).date()
        print(
            f"Serving {manifest.name}, version {manifest.version} ({facts.model.family}, "
            f"{format_bytes(manifest.total_bytes)}) at {facts.address}\n"
            f"Signed by operator {facts.signed.signer.hex()[:16]} until {until}.\n\n"
            f"Chat from any machine that reaches this one:\n\n  swarm chat {facts.invite}\n\nCtrl-C ends it.",
            flush=True,
        )

    def exposing(self, metrics: Address | None) -> None:
        """Prometheus may ask from now on."""
        if metrics is None:
            return
        if self._as_json:
            self._event("metrics", address=str(metrics))
        else:
            self._say(f"Metrics are at http://{metrics}/metrics.")

    def executing(self, held_bytes: int, total_bytes: int) -> None:
        """Experts are run for others from now on."""
        if self._as_json:
            self._event("executing", held_bytes=held_bytes, total_bytes=total_bytes)
        elif held_bytes < total_bytes:
            self._say(
                f"Running experts for others: {format_bytes(held_bytes)} of {format_bytes(total_bytes)} fit in memory, "
                "the others are read when they are asked for."
            )
        else:
            self._say(f"Running experts for others, all {format_bytes(total_bytes)} from memory.")

    def not_executing(self, reason: Exception) -> None:
        """Experts are not run for others, or no more."""
        if self._as_json:
            self._event("not-executing", reason=str(reason))
        else:
            self._say(f"Experts are not run for others: {reason}")

    def standing(self, standing: Standing) -> None:
        """The tracker sees this server otherwise than before."""
        if self._as_json:
            self._event(
                "standing", registered=standing.registered, problem=standing.problem or standing.obstacle
            )
        elif standing.problem:
            self._say(f"The tracker does not know this server now: {standing.problem}")
        elif standing.obstacle:
            self._say(f"Others may not reach this server directly: {standing.obstacle}")

    def withdrawn(self, path: str) -> None:
        """A file is served no longer."""
        if self._as_json:
            self._event("withdrawn", path=path)
        else:
            self._say(
                f"{path} changed since it was hashed and is not served any more. "
                "Start `swarm serve` again to sign what is there now."
            )

    def useless_source(self, address: str, reason: str) -> None:
        """A web source that the manifest names does not give what was signed."""
        if self._as_json:
            self._event("useless-source", source=address, reason=reason)
        else:
            self._say(f"The web source {address} will be of no use: {reason}")

    def renewed(self, version: int) -> None:
        """The manifest was signed again."""
        if self._as_json:
            self._event("renewed", version=version)
        else:
            self._say(f"The manifest was signed again before its time ran out; it is version {version} now.")

    async def peer(self, peer: Peer) -> None:
        """Counts a peer while it is connected."""
        self._peers.add(peer.key)
        try:
            await trio.sleep_forever()
        finally:
            self._peers.discard(peer.key)

    async def run(self) -> None:
        """Shows now and then what is served, until cancelled."""
        served, before, last = self._maintainer.served, 0, ""
        pause_s = ON_TERMINAL_S if self._line.live and not self._as_json else IN_LOG_S
        try:
            while True:
                await trio.sleep(pause_s)
                speed = (served.bytes - before) / pause_s
                before = served.bytes
                text = f"{len(self._peers)} connected, {format_bytes(served.bytes)} served, {format_bytes(speed)}/s"
                if self._as_json:
                    if text != last:
                        self._event(
                            "status", peers=len(self._peers), served_bytes=served.bytes, bytes_per_s=speed
                        )
                elif self._line.live:
                    self._line.show(text)
                elif text != last:
                    say(text)
                last = text
        finally:
            self._line.clear()

    def _say(self, text: str) -> None:
        self._line.clear()
        say(text)

    def _event(self, event: str, **fields: Any) -> None:
        emit_json({"event": event, **fields})


class StatusLine:
    """One line at the bottom of a terminal, written over again and again; nothing off a terminal."""

    def __init__(self, write: Callable[[str], object] | None = None, live: bool | None = None) -> None:
        self._write = write or sys.stderr.write
        self.live = moves_cursor(sys.stderr) if live is None else live
        self._shown = False

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self.live:
            width = shutil.get_terminal_size().columns  # a line that wraps could not be written over
            self._write(f"\r\x1b[K{text[: max(1, width - 1)]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            self._write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
