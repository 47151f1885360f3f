"""Several replies made together: sequences join and leave between any two steps, each as if it were alone.

A step is one forward pass. Every reply under way gives its newest token; replies whose prompt is not read
yet share a bounded number of further rows, so that a long prompt does not stop the others. As a row of the
model does not depend on the batch it is in, and luck depends only on a sequence's own seed and count, no
token depends on the company. Where experts are far away, a reply that is alone also gives tokens that may come
next (`engine.drafts`); those that do are read already, the others are forgotten.

When passes are withdrawn (`engine.doubts`), every state that rests on one is cut back and read again, many
tokens a step, and each token that was drawn from a withdrawn row is drawn again with the luck it had. As
long as the same tokens come, nothing is told; from the first other one on the reply is taken back
(`Retracted`) and goes on differently. A reply whose last pass is still being checked is complete, but is not
said to be: `Done` waits for the check, for a while.
"""

import time
from collections.abc import Callable
from typing import Literal

from engine.arrays import F32
from engine.doubts import MOST_REDOS, forward
from engine.drafts import ROWS
from engine.errors import Cancelled, ContextFull, EngineError, FalsifiedTooOften, NotComputed
from engine.experts import Experts
from engine.models import Model, Segment
from engine.reply import BatchEvent, Done, Prefilled, Reason, Reply
from engine.sampling import is_computed

PREFILL_ROWS = 512  # rows of prompts a step when nobody waits for a token
PREFILL_ROWS_SHARED = 64  # … and when somebody does; more where prompts outnumber those who do, …
MOST_PREFILL_ROWS_SHARED = 256  # … up to where the rows take much longer than reading the weights
REDO_ROWS = 64  # tokens a step that are drawn again
WAIT_S = 0.02  # how long a step without rows waits for checks


class ReplyBatch:
    """The replies that one model makes together. One thread at a time."""

    def __init__(
        self, model: Model, experts: Experts, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model = model
        self.experts = experts
        self._clock = clock
        self._replies: list[Reply] = []

    def __len__(self) -> int:
        return len(self._replies)

    def add(self, reply: Reply) -> None:
        """Lets a reply take part from the next step on. ContextFull when its prompt leaves no room for a
        token."""
        if len(reply.ids) > self.model.context_length:
            raise ContextFull(
                f"the prompt has {len(reply.ids):,} tokens, the model's context "
                f"{self.model.context_length:,}; shorten the conversation or start a new one"
            )
        self._replies.append(reply)

    def remove(self, reply: Reply) -> None:
        """Takes a reply out at once; its state stays valid up to `state.length`."""
        if reply in self._replies:
            self._replies.remove(reply)
            reply.finished = "cancelled"

    def end(self, reply: Reply, reason: Reason) -> None:
        """The reply is complete as it is; `Done` comes when its passes are checked."""
        if reply in self._replies and reply.ending is None:
            self._end(reply, reason)

    def step(self) -> list[BatchEvent]:
        """One forward pass. On an error all replies and states are as before it, and it can be tried
        again; ReplyFailed concerns one reply alone, which has left."""
        for reply in list(self._replies):
            self._cut_back(reply)
        segments, taking = self._segments()
        if not segments:
            return self._checked(WAIT_S)
        started = self._clock()
        before = [segment.state.length for segment in segments]
        guessed = [_guessed(segment, reply) for segment, reply in zip(segments, taking, strict=True)]
        try:
            logits = forward(self.model, segments, self.experts)
        except Cancelled:
            raise
        except EngineError:
            if not any(guessed):
                raise
            taking[0].drafter = None  # the guesses may have needed what cannot be had
            return self.step()
        self._refuse_damaged(segments, taking, before, logits, guessed)
        elapsed = self._clock() - started
        events: list[BatchEvent] = []
        row = 0
        for segment, reply, guesses in zip(segments, taking, guessed, strict=True):
            rows = _rows(segment)
            reply.last_pass = self.experts.doubts.current
            if reply.state.length <= reply.prompt_length:
                reply.stats.prefill_s += elapsed
                if not reply.generated:
                    events.append(Prefilled(reply, reply.state.length, reply.prompt_length))
            else:
                reply.stats.decode_s += elapsed
                if reply.drafter is not None and len(taking) == 1 and self.experts.far:
                    reply.drafter.pace.took(len(segment.tokens), elapsed)
            if self.experts.doubts.flaw(reply.state) is None:
                events.extend(self._advance(reply, segment, logits[row : row + rows], guesses))
            elif guesses:
                reply.state.read_again(reply.state.length - guesses)
            row += rows
        return events + self._checked(0.0)

    def _refuse_damaged(
        self, segments: list[Segment], taking: list[Reply], before: list[int], logits: F32, guessed: list[int]
    ) -> None:
        """Raises NotComputed if there is no largest of a reply's logits; the other states are cut back to `before`."""
        row = 0
        for segment, reply, guesses in zip(segments, taking, guessed, strict=True):
            stop = row + _rows(segment)
            believed = self.experts.doubts.flaw(reply.state) is None
            if believed and not all(map(is_computed, logits[row : stop - guesses])):
                for other, length in zip(segments, before, strict=True):
                    other.state.truncate(other.state.floor(length))
                self._replies.remove(reply)
                raise NotComputed(
                    "the model computed no number for the next token; its weights are damaged", reply
                )
            row = stop

    def _segments(self) -> tuple[list[Segment], list[Reply]]:
        rows = self._prompt_rows()
        segments: list[Segment] = []
        taking: list[Reply] = []
        for reply in self._replies:
            start, settled = reply.state.length, reply.settled
            if reply.is_complete:
                continue
            if start < settled - 1 or reply.waits_for_prompt:  # what is known, before the next is drawn
                stop = min(settled, start + rows)
                rows -= stop - start
                wanted: Literal["none", "last", "all"] = "last" if stop == settled else "none"
            elif settled < len(reply.ids):  # all but the last that was said are drawn again
                stop, wanted = min(len(reply.ids) - 1, start + REDO_ROWS), "all"
            else:
                stop, wanted = settled, "last"
            if stop > start:
                guess = [] if reply.waits_for_prompt or stop < len(reply.ids) else self._guess(reply)
                segments.append(
                    Segment(reply.state, reply.ids[start:stop] + guess, "all" if guess else wanted)
                )
                taking.append(reply)
        return segments, taking

    def _guess(self, reply: Reply) -> list[int]:
        """Tokens to be read along with the last ones of a reply."""
        if reply.drafter is None or len(self._replies) > 1 or not self.experts.far:
            return []
        known, switch = len(reply.ids), self.model.switches_at
        room = min(ROWS - (known - reply.state.length), self.model.context_length - known)
        if reply.max_tokens is not None:
            room = min(room, reply.max_tokens - reply.stats.reply_tokens - 1)
        if switch is not None and known <= switch:
            room = min(room, switch - known)
        return reply.drafter.draft(reply.ids, room)

    def _prompt_rows(self) -> int:
        """How many rows of prompts the next step may read. Whoever waits for a token waits for all of them; but each
        step reads the weights anew, so prompts that are many are read in fewer steps.
        """
        prompts = sum(reply.waits_for_prompt for reply in self._replies)
        others = len(self._replies) - prompts
        if others == 0:
            return PREFILL_ROWS
        return min(PREFILL_ROWS_SHARED * max(1, prompts // others), MOST_PREFILL_ROWS_SHARED)

    def _cut_back(self, reply: Reply) -> None:
        """Forgets what rests on passes that were withdrawn."""
        flaw = self.experts.doubts.flaw(reply.state)
        if flaw is None:
            return
        reply.redos += 1
        if reply.redos > MOST_REDOS:
            self.remove(reply)
            raise FalsifiedTooOften(
                f"the reply was falsified {reply.redos} times, the last time because {flaw.reason}; ask again",
                reply,
            )
        reply.flaw = flaw
        if reply.prompt_length + reply.sampler.drawn > len(reply.ids):
            reply.ending = None  # the token that ended it is drawn again as well
        reply.state.truncate(reply.state.floor(flaw.position))
        reply.sampler.rewind(max(0, flaw.position + 1 - reply.prompt_length))

    def _advance(self, reply: Reply, segment: Segment, logits: F32, guessed: int) -> list[BatchEvent]:
        """Draws from the last rows of the state, logits [n, V], whatever was not drawn from them yet; forgets of the
        `guessed` last tokens of the segment those that were not drawn."""
        events: list[BatchEvent] = []
        end = reply.state.length
        start, read = end - len(segment.tokens), end - guessed
        for index, row in enumerate(logits, end - len(logits) + 1):
            if index < reply.settled:
                continue
            if reply.ids[index - 1] != segment.tokens[index - 1 - start] or (
                index > read and not is_computed(row)
            ):
                break
            read = max(read, index)
            token = reply.sampler.choose(row)
            said = reply.as_told(token, row)
            if index < len(reply.ids):
                before = reply.said[index - reply.prompt_length :][:1]
                if token == reply.ids[index] and before in ([], [said]):
                    continue
                events.append(reply.take_back(index))
            if token in reply.stop_ids:
                self._end(reply, "stop")
                break
            reply.ids.append(token)
            reply.stats.reply_tokens += 1
            if reply.logprobs is not None:
                reply.said.append(said)
            events.append(said)
            if reply.max_tokens is not None and reply.stats.reply_tokens >= reply.max_tokens:
                self._end(reply, "length")
            elif len(reply.ids) > self.model.context_length:
                self._end(reply, "context")
            if reply.ending is not None:
                break
        reply.stats.guessed_tokens += guessed
        reply.stats.guessed_right += read - (end - guessed)
        if read < reply.state.length:
            reply.state.read_again(read)
        return events

    def _end(self, reply: Reply, reason: Reason) -> None:
        reply.ending, reply.ended_s = reason, self._clock()

    def _checked(self, wait_s: float) -> list[BatchEvent]:
        """Finishes what is complete and checked, or was waited for long enough."""
        doubts = self.experts.doubts
        complete = [reply for reply in self._replies if reply.is_complete]
        if complete and wait_s:
            doubts.wait(min(reply.last_pass for reply in complete), wait_s)
        events: list[BatchEvent] = []
        for reply in complete:
            waited_s = self._clock() - reply.ended_s
            checked = doubts.settled(reply.last_pass) or waited_s >= doubts.patience_s
            if checked and doubts.flaw(reply.state) is None:
                assert reply.ending is not None
                self._replies.remove(reply)
                reply.finished = reply.ending
                events.append(Done(reply, reply.ending))
        return events


def _rows(segment: Segment) -> int:
    """Of how many of its tokens logits come."""
    return {"none": 0, "last": 1, "all": len(segment.tokens)}[segment.logits]


def _guessed(segment: Segment, reply: Reply) -> int:
    """How many of a segment's last tokens, which were not read yet, are no part of the reply yet."""
    return max(0, segment.state.length + len(segment.tokens) - len(reply.ids))
