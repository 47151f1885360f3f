"""Who guesses the tokens of a reply that is known."""

import random
from collections.abc import Sequence

from engine.drafts import Drafter, Pace


class Told(Drafter):
    """Guesses what it was told, with mistakes."""

    def __init__(self, ids: Sequence[int], mistakes: float, luck: int = 0) -> None:
        super().__init__(Pace())
        self.ids, self.mistakes, self.luck = list(ids), mistakes, random.Random(luck)

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """The next tokens of what it was told."""
        if most < 1:
            return []
        guess = self.ids[len(ids) : len(ids) + self.luck.randint(1, most)]
        return [token ^ 1 if self.luck.random() < self.mistakes else token for token in guess]
