"""An opened model that answers: the engine's conversation as events of the terminal.

Runs in the compute thread. `stop` and `live` may be called from any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from engine.chat import ChatSettings, Conversation, Finished, Progress, Restarted, Text
from engine.engine import Engine
from engine.errors import ContextFull, EngineError
from engine.sampling import Sampling as EngineSampling
from engine.sampling import preferred
from engine.template import Message
from swarm.errors import SwarmError
from tui import messages
from tui.backend import Ask, Turn
from tui.messages import EndReason, Event, Failed, Phase
from tui.options import Sampling
from tui.problems import explain
from tui.views import ReplyStats

_REASONS: Mapping[str, EndReason] = {
    "stop": EndReason.END,
    "length": EndReason.LENGTH,
    "context": EndReason.CONTEXT,
    "cancelled": EndReason.STOPPED,
}


class Speaker:
    """One model, one state: what a conversation has in common with the last one is not computed again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._conversation = Conversation(engine)
        self._stopped = threading.Event()
        self._prompt_tokens = 0
        self._prefilled_at = 0.0
        self._replying = False
        self._last = ReplyStats()
        self._bank = engine.bank.stats
        self._troubled = False

    def stop(self) -> None:
        """End the running reply after the step it is in."""
        self._stopped.set()

    def live(self) -> ReplyStats:
        """The running reply so far, as far as it can be told from outside; else the last one."""
        if not self._replying or not self._prefilled_at:
            return ReplyStats() if self._replying else self._last
        tokens = self._conversation.tokens
        return ReplyStats(
            prompt_tokens=self._prompt_tokens,
            reply_tokens=max(0, tokens - self._prompt_tokens),
            decode_s=time.monotonic() - self._prefilled_at,
            context_tokens=tokens,
        )

    def ask(self, request: Ask) -> Iterator[Event]:
        """Answer; ends with Finished or Failed."""
        self._stopped.clear()
        self._prompt_tokens, self._prefilled_at, self._replying = 0, 0.0, True
        try:
            yield from self._answer(request)
        except OSError as error:
            yield Failed(
                f"{explain(error)} The bytes that are missing are tried again with the next question.", True
            )
        except MemoryError:
            yield Failed("This machine has no memory left for that; a smaller --expert-ram frees some.")
        except (EngineError, SwarmError) as error:
            yield Failed(explain(error), too_long=isinstance(error, ContextFull))
        finally:
            self._replying = False

    def _answer(self, request: Ask) -> Iterator[Event]:
        conversation = self._conversation
        conversation.messages = [_message(turn) for turn in request.turns]
        settings = ChatSettings(
            sampling=chosen(request.sampling, self.engine.generation),
            max_tokens=request.sampling.max_tokens,
        )
        yield messages.Progress(Phase.PREFILL)
        self._bank = self.engine.bank.stats
        for event in conversation.reply(settings, self._stopped.is_set):
            match event:
                case Progress():
                    yield self._prefilled(event)
                case Text():
                    yield messages.Reasoning(event.text) if event.thinking else messages.Text(event.text)
                case Restarted():
                    yield messages.Retracted(event.reason, event.text, event.thinking)
                case Finished():
                    self._last = self._finished(event)
                    yield from self._trouble()
                    yield messages.Finished(_REASONS[event.reason], self._last)

    def _prefilled(self, event: Progress) -> Event:
        self._prompt_tokens = event.total
        if event.done < event.total:
            return messages.Progress(Phase.PREFILL, event.done, event.total, "tokens")
        self._prefilled_at = time.monotonic()
        return messages.Progress(Phase.DECODING)

    def _trouble(self) -> Iterator[Event]:
        """Says once that packed experts are no longer kept."""
        trouble = self.engine.bank.cache_trouble
        if trouble is not None and not self._troubled:
            self._troubled = True
            yield messages.Notice(messages.NoticeKind.OTHER, f"{trouble[:1].upper()}{trouble[1:]}.")

    def _finished(self, event: Finished) -> ReplyStats:
        stats, bank, before = event.stats, self.engine.bank.stats, self._bank
        streams = self.engine.bank.streams
        return ReplyStats(
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            reply_tokens=stats.reply_tokens,
            prefill_s=stats.prefill_s,
            decode_s=stats.decode_s,
            guessed_tokens=stats.guessed_tokens,
            guessed_right=stats.guessed_right,
            context_tokens=self._conversation.tokens,
            expert_hits=bank.hits - before.hits if streams else 0,
            expert_misses=bank.misses - before.misses if streams else 0,
            expert_bytes=bank.bytes_read - before.bytes_read if streams else 0,
            expert_wait_s=bank.wait_s - before.wait_s if streams else 0.0,
        )


def chosen(wish: Sampling, generation: Mapping[str, Any]) -> EngineSampling:
    """The user's sampling, where it says nothing the model's own generation_config; luck of our own."""
    said = dict(wish.chosen())
    said.pop("max_tokens", None)
    return preferred(generation, said)


def _message(turn: Turn) -> Message:
    message = {"role": turn.role, "content": turn.text}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    return message
