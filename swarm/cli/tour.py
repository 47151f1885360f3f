"""The tour of `swarm demo`: one question, asked again and again while the swarm around it falls apart.

The answer must not change. It is computed first from the files alone, in this process, and every answer that comes
over the network is compared with it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.cli.demonstration import QUESTION, DemoModel, Swarm, ready, running_swarm
from swarm.cli.output import say
from swarm.demo.machines import DemoFailed, Machine, environment, machine
from swarm.errors import clean_text
from swarm.units import plural

STEPS = 5
AUDITED = "100%"


class AnswerChanged(DemoFailed):
    """The answer changed {when}: “{answer}” instead of “{expected}”. This is a fault in Swarm."""


class NoAnswer(DemoFailed):
    """The demonstration's {part} gave no answer: {reason}"""


def show(place: Path, model: DemoModel) -> int:
    """Prints the tour; 0 when everything happened as promised. Raises DemoFailed otherwise."""
    began_s = time.monotonic()
    expected = alone(model)
    with running_swarm(place, model) as swarm:
        Tour(swarm, expected, began_s).run()
    print("\nThat was a swarm. `swarm serve --model DIR` starts one of yours.", flush=True)
    return 0


def alone(model: DemoModel) -> str:
    """The answer computed from the model's files, here; compiles the kernels where that was not done yet."""
    from engine.chat import ChatSettings, Conversation, Finished
    from engine.engine import Engine
    from engine.kernels import on_compile
    from engine.source import DirectorySource
    from swarm.cli.demonstration import GENERATED_TOKENS

    compiled = 0

    def compiling(_kernel: str) -> None:
        nonlocal compiled
        if not compiled:
            say("Compiling kernels for this CPU; once a machine, a minute or two …")
        compiled += 1

    started_s = time.monotonic()
    limit = None if model.speaks else GENERATED_TOKENS
    with on_compile(compiling), DirectorySource(model.directory) as source, Engine.open(source) as engine:
        for event in Conversation(engine).say(QUESTION, ChatSettings(max_tokens=limit)):
            if isinstance(event, Finished):
                text = event.text
    if compiled:
        say(f"  {compiled} kernels compiled and kept in {time.monotonic() - started_s:.0f} s")
    return text


class Tour:
    """The steps, in order. Each prints what it does, then what came of it."""

    def __init__(self, swarm: Swarm, expected: str, began_s: float) -> None:
        self._swarm = swarm
        self._expected = expected
        self._began_s = began_s
        self._step = 0

    def run(self) -> None:
        """All steps."""
        swarm, options = self._swarm, self._swarm.model.options
        with machine("chat", swarm.place / "chat", "chat", swarm.invite, "--json", *options) as chat:
            self._head(
                "Ask. This chat holds the tokenizer, the attention and the words; donors run the experts."
            )
            stats = self._ask(chat, "first")
            waited_s = time.monotonic() - self._began_s
            self._tell(f"First answer {waited_s:.1f} s after the start. {_work(stats)}")
            self._tell(
                "The same words come from this machine alone, from the files: bit for bit the same numbers."
            )
            self._show_swarm(chat)
            self._head("Kill a donor of compute in mid reply.")
            stats = self._ask(chat, "when a donor died", after_text=swarm.donors[0].kill)
            self._tell(
                f"The first donor was killed after the second word; not a word changed. {_work(stats)}"
            )
        self._catch_a_liar()
        with machine("chat", swarm.place / "chat", "chat", swarm.invite, "--json", *options) as chat:
            self._head("Stop the server: no tracker, no origin. A chat that is open goes on.")
            self._ask(chat, "before the server stopped", shown=False)
            swarm.origin.end()
            stats = self._ask(chat, "without tracker and origin")
            self._tell(f"The second donor answered. {_work(stats)}")
        self._offline()

    def _catch_a_liar(self) -> None:
        swarm = self._swarm
        self._head(
            f"Let a donor lie in one number of each answer; audit {AUDITED} of all answers (5% by default)."
        )
        liar_home = swarm.place / "liar"
        arguments = ("chat", swarm.invite, "--json", "--audit", AUDITED, *swarm.model.options)
        with machine("lying donor", liar_home, swarm.invite, module="swarm.demo.liar") as liar:
            ready(liar)
            with machine("chat", swarm.place / "chat", *arguments) as chat:
                notices: list[str] = []
                stats = self._ask_until_right(chat, notices.append)
                self._tell(f"Not a word changed. {_work(stats)}")
                for notice in notices:
                    self._tell(clean_text(notice))
                chat.tell("/swarm")
                for ban in chat.event("swarm")["bans"]:
                    self._tell(f"banned: peer {ban['peer']}: {clean_text(ban['reason'])}")
        bans = self._bans()
        if not bans:
            raise DemoFailed(part="audit", reason="the tracker banned nobody")
        for ban in bans:
            self._tell(
                f"The tracker checked the proof itself and banned {ban['donor'][:16]}: {ban['reason']}."
            )

    def _ask_until_right(self, chat: Machine, notice: Callable[[str], None]) -> dict[str, Any]:
        """Asks; and again when a lie was found out only after it had been used, which the chat says itself."""
        try:
            return self._ask(chat, "when a donor lied", notice=notice)
        except NoAnswer as error:
            self._tell(f"The reply was stopped: {error.fields['reason']}")
            return self._ask(chat, "when a donor lied", notice=notice)

    def _bans(self) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "swarm", "audit", "bans", self._swarm.invite, "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment(self._swarm.place / "chat")
        )
        if done.returncode:
            raise DemoFailed(part="audit", reason=done.stderr.strip())
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _offline(self) -> None:
        swarm = self._swarm
        self._head("End every other machine. Where the disk donor kept the model, chat without any network.")
        for donor in (*swarm.donors, swarm.disk):
            donor.end()
        arguments = ("chat", swarm.invite, "--offline", "--json", *swarm.model.options)
        with machine("chat", swarm.disk_home, *arguments) as chat:
            stats = self._ask(chat, "offline")
            self._tell(f"Answered from verified chunks on disk. {_work(stats)}")

    def _ask(
        self,
        chat: Machine,
        when: str,
        *,
        after_text: Callable[[], None] | None = None,
        notice: Callable[[str], None] = lambda _: None,
        shown: bool = True,
    ) -> dict[str, Any]:
        """Asks the question in a new conversation; what the reply took. Raises AnswerChanged, DemoFailed."""
        chat.tell("/new")
        chat.tell(QUESTION)
        answer, pieces = "", 0
        while True:
            event = chat.event("text", "notice", "finished", "failed")
            match event["event"]:
                case "text":
                    answer += event["text"]
                    pieces += 1
                    if pieces == 2 and after_text is not None:
                        after_text()
                case "notice":
                    notice(event["text"])
                case "finished":
                    break
                case _:
                    raise NoAnswer(part="chat", reason=event["message"])
        if shown:
            print(f"   > {QUESTION}\n   {clean_text(answer)}", flush=True)
        if answer.strip() != self._expected.strip():
            raise AnswerChanged(part="chat", reason="", when=when, answer=answer, expected=self._expected)
        return dict(event["stats"])

    def _show_swarm(self, chat: Machine) -> None:
        chat.tell("/swarm")
        view = chat.event("swarm")
        for peer in view["peers"]:
            held = f", holds {peer['held']}" if peer["held"] else ""
            served = f", {peer['calls']} expert calls" if peer["calls"] else ""
            self._tell(f"peer {peer['number']}: {peer['role']}, {peer['state']}{held}{served}")

    def _head(self, text: str) -> None:
        self._step += 1
        print(f"\n{self._step}/{STEPS} {text}", flush=True)

    @staticmethod
    def _tell(text: str) -> None:
        print(f"   · {text}", flush=True)


def _work(stats: dict[str, Any]) -> str:
    calls, local = stats["remote_calls"], stats["local_calls"]
    parts = [f"{stats['reply_tokens']} tokens; expert calls: {calls} by donors, {local} here"]
    parts += [plural(stats[name], name.removesuffix("s")) for name in ("hedges", "failovers") if stats[name]]
    if stats["audits"]:  # an answer is that of one donor for one layer: several expert calls
        parts.append(f"{plural(stats['audits'], 'answer')} audited")
    return ", ".join(parts) + "."
