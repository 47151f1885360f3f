"""Which donor runs which experts of a layer: a pure function of what is known of the donors.

Experts that few hold are placed first; each goes where it would be done soonest, given what was placed there
before. A donor's first expert costs its round trip and queue, further ones only their work, so that few
donors are asked where that is quicker and many where it is not. Donors that are nearly as quick as the best
take turns. An executor of last resort is asked only for what nobody else holds, or where all others are known to
be much slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.peers.pace import much_slower_s

NEARLY = 1.25
"""Donors whose time is within this factor of the best count as equal."""
REQUEST_S = 0.0003
"""What one more request costs the one who asks."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A donor that may be asked now. Bit e of `ready` and `resident` stands for expert e of the layer."""

    ready: int
    resident: int
    call_s: float
    """Expected time of a call before its first pair: round trip, queue."""
    pair_s: float
    cold_s: float = 0.0
    """What reading an expert costs that is not in its memory."""
    last_resort: bool = False
    measured: bool = False
    """Whether the times are known, rather than told or assumed."""

    def takes_s(self, expert: int, pairs: int) -> float:
        """What a call for one expert should take."""
        cold_s = 0.0 if self.resident >> expert & 1 else self.cold_s
        return self.call_s + cold_s + pairs * self.pair_s


def choose(
    wanted: Sequence[tuple[int, int]], candidates: Sequence[Candidate], turn: int = 0
) -> tuple[Mapping[int, list[int]], list[int]]:
    """Places experts on candidates.

    Args:
        wanted: (expert, its pairs).
        candidates: Those that may be asked.
        turn: A number that grows from call to call; decides among equals.

    Returns:
        Experts by the candidate's place in the list, and the experts that none of them holds.
    """
    if len(candidates) == 1:
        ready = candidates[0].ready
        mine = [expert for expert, _ in wanted if ready >> expert & 1]
        others = [expert for expert, _ in wanted if not ready >> expert & 1]
        return ({0: mine} if mine else {}), others
    count = len(candidates)
    finish = [-1.0] * count
    placed: dict[int, list[int]] = {}
    nobody: list[int] = []
    holders = {expert: _holders(expert, pairs, candidates) for expert, pairs in wanted}
    for expert, pairs in sorted(wanted, key=lambda item: (len(holders[item[0]]), -item[1])):
        options = []
        for place in holders[expert]:
            candidate = candidates[place]
            begin_s = finish[place] if finish[place] >= 0 else candidate.call_s + REQUEST_S
            cold_s = 0.0 if candidate.resident >> expert & 1 else candidate.cold_s
            options.append((begin_s + cold_s + pairs * candidate.pair_s, place))
        if not options:
            nobody.append(expert)
            continue
        near_s = NEARLY * min(options)[0]
        equals = [option for option in options if option[0] <= near_s]
        until_s, best = min(equals, key=lambda option: (finish[option[1]], (option[1] - turn) % count))
        finish[best] = until_s
        placed.setdefault(best, []).append(expert)
    return placed, nobody


def _holders(expert: int, pairs: int, candidates: Sequence[Candidate]) -> list[int]:
    found = [place for place, candidate in enumerate(candidates) if candidate.ready >> expert & 1]
    others = [place for place in found if not candidates[place].last_resort]
    if not others or len(others) == len(found):
        return found
    best_s = min(candidates[place].takes_s(expert, pairs) for place in others)
    for place in found:
        one = candidates[place]
        if one.last_resort and one.measured and much_slower_s(one.takes_s(expert, pairs)) < best_s:
            others.append(place)
    return others
