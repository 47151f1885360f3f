"""gpt-oss's replies to a request with tools: messages for the user, asides, and messages addressed to a tool.

    <|channel|>analysis<|message|>THOUGHT<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

Source: developers.openai.com/cookbook/articles/openai-harmony.
"""

import json
from collections.abc import Iterator

from engine.thinking import Channels, Said
from swarm.api.toolcalls import Piece
from swarm.api.toolformats import ToolCall

_TOOLS = "functions."


class Harmony:
    """Sorts the pieces of a reply like `engine.thinking.Channels`, calls among them."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._open: Said | None = None  # the call that is being written
        self._body = ""

    @property
    def called(self) -> bool:
        """Whether the reply has said that it waits for a tool."""
        return self._channels.called

    def push(self, token: int, text: str) -> Iterator[tuple[Piece, bool]]:
        """(piece, whether it is an aside) …"""
        for said in self._channels.read(token, text):
            if self._open is not None and said.message != self._open.message:
                yield from self._close()
            if said.recipient is not None and said.recipient.startswith(_TOOLS):
                self._open = said
                self._body += said.text
            elif said.text:
                yield said.text, said.channel != "final"
        if self.called:
            yield from self._close()

    def end(self) -> Iterator[tuple[Piece, bool]]:
        """What was held back."""
        yield from self._close()
        if rest := self._channels.rest():
            yield rest, False

    def _close(self) -> Iterator[tuple[Piece, bool]]:
        if self._open is None:
            return
        said, body = self._open, self._body.strip() or "{}"
        self._open, self._body = None, ""
        assert said.recipient is not None
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            yield body, True
            return
        yield ToolCall(said.recipient.removeprefix(_TOOLS), body), False
