"""One reply as it arrives: cleaned and collected, whatever interface shows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tui.cleaner import Cleaner
from tui.messages import Reasoning, Retracted, Text


@dataclass
class Reply:
    """The two texts of a reply so far, already clean."""

    text: str = ""
    reasoning: str = ""
    _text: Cleaner = field(default_factory=Cleaner, repr=False)
    _reasoning: Cleaner = field(default_factory=Cleaner, repr=False)

    def take(self, event: Text | Reasoning) -> str:
        """Add a piece; the clean form of it."""
        if isinstance(event, Text):
            piece = self._text.feed(event.text)
            # Many models begin with blank lines that mean nothing.
            piece = piece if self.text else piece.lstrip("\n")
            self.text += piece
        else:
            piece = self._reasoning.feed(event.text)
            self.reasoning += piece
        return piece

    def take_back(self, event: Retracted) -> bool:
        """Keep only what stands; whether that is less than what was shown."""
        before = self.text, self.reasoning
        self.text = self.reasoning = ""
        self._text, self._reasoning = Cleaner(), Cleaner()
        self.take(Text(event.text))
        self.take(Reasoning(event.reasoning))
        return before != (self.text, self.reasoning)
