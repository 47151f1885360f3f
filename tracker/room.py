"""How much is kept of models, in all and for each network that publishes: bounds, and what makes room. Pure.

Anybody may publish at a public tracker, and keys are free, so what one network leaves behind is bounded. A name
stays its owner's while anybody serves the model, and while its manifest counts; a name that nobody has served for
some days goes when there is no room for another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import SwarmError

ABSENT_S = 3600.0
"""A name is not free before nobody has served it for so long: servers restart, and so do trackers."""
GONE_S = 3 * 86400.0
"""After so long without a server a name makes room for others when that is needed."""
COUNTS_S = 366 * 86400
"""How long a manifest counts at most after it was issued, as far as the right to a name goes."""


class NoRoom(SwarmError):
    """This tracker has no room for “{name}”: {reason}. Use another tracker, or ask whoever runs it: with
    --operator it keeps more, of the operators named."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many names there may be and how much memory they may take."""

    names: int
    bytes: int
    names_a_network: int
    bytes_a_network: int


STRANGERS = Room(names=1024, bytes=768 << 20, names_a_network=16, bytes_a_network=96 << 20)
"""For whoever comes. A model of 300 GB takes up to 20 MB a version, one of 2 TB (the longest manifest) 84 MB."""
OPERATORS = Room(names=1024, bytes=16 << 30, names_a_network=1024, bytes_a_network=16 << 30)
"""For operators that were named."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A version of a name, the network it was published from (None: not bounded), and the bytes it takes."""

    root: bytes
    name: str
    network: str | None
    bytes: int


def to_drop(
    new: Kept, older: Sequence[Kept], others: Sequence[Kept], gone: Sequence[str], room: Room
) -> list[bytes]:
    """The roots to drop so that a new version fits.

    Names that nobody serves go first, then earlier versions of the same name; never what others serve.

    Args:
        new: The new version.
        older: The earlier versions of its name, the oldest first.
        others: All versions of other names.
        gone: The names that nobody has served for `GONE_S`, longest first.
        room: The bounds.

    Raises:
        NoRoom: all that may be dropped is not enough.
    """
    older, others, dropped = list(older), list(others), list[bytes]()
    for network, most_names, most_bytes in _bounds(new, room):
        while True:
            counted = [one for one in others if network in (None, one.network)]
            names = {one.name for one in counted}
            crowded = len(names) >= most_names
            if not crowded and sum(one.bytes for one in [new, *older, *counted]) <= most_bytes:
                break
            leaving = next(
                ([one for one in counted if one.name == name] for name in gone if name in names), []
            )
            if not leaving and (crowded or not older):
                raise NoRoom(name=new.name, reason=_reason(network, crowded, most_names, most_bytes))
            leaving = leaving or older[:1]
            dropped += [one.root for one in leaving]
            older = [one for one in older if one not in leaving]
            others = [one for one in others if one not in leaving]
    return dropped


def _bounds(new: Kept, room: Room) -> list[tuple[str | None, int, int]]:
    """The network (None: all of them), and how many names and bytes it may have."""
    bounds: list[tuple[str | None, int, int]] = [(None, room.names, room.bytes)]
    if new.network is not None:
        bounds.append((new.network, room.names_a_network, room.bytes_a_network))
    return bounds


def _reason(network: str | None, crowded: bool, most_names: int, most_bytes: int) -> str:
    most = f"{most_names} names" if crowded else f"{most_bytes >> 20} MiB for manifests"
    return f"it keeps {most}" + (", all of them in use" if network is None else f" from {network}")
