"""Who is banned, and whose proofs are kept: bounds, and what makes room. Pure.

Keys are free: anybody can make one, sign a wrong answer with it and report that, so what bans and proofs take is
bounded. A proof (up to 6 MiB) goes long before its ban does. The oldest goes of the network whose reports take
the largest share, so whoever floods the tracker drops its own; and no model's proofs take all the room. A ban
goes only when there are very many, and then that of the key which has not tried to use this tracker for longest:
who still comes here stays banned.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from swarm.wire.keys import PeerKey
from tracker.store import StoredBan

MOST_BANS = 16_384


@dataclass(frozen=True, slots=True)
class Bound:
    """How many proofs there may be, and how many bytes they may take."""

    proofs: int
    bytes: int

    def share(self, proofs: Sequence["KeptProof"]) -> float:
        """How much of it proofs take; more than 1 is too much."""
        return max(len(proofs) / self.proofs, sum(proof.bytes for proof in proofs) / self.bytes)


IN_ALL = Bound(proofs=1024, bytes=256 << 20)
A_MODEL = Bound(proofs=512, bytes=96 << 20)
A_NETWORK = Bound(proofs=128, bytes=32 << 20)


@dataclass(frozen=True, slots=True)
class KeptProof:
    """A proof that is kept: its ban, the model it is about, and who reported it."""

    number: int
    root: bytes
    network: str | None
    """None: this machine, or not known since the tracker started."""
    bytes: int


def proofs_to_drop(new: KeptProof, kept: Sequence[KeptProof]) -> list[int]:
    """The numbers of the proofs to drop so that a new one fits; `kept` is in order, the oldest first."""
    dropped: list[int] = []
    for bound, of_network, of_model in (
        (A_NETWORK, True, False),
        (A_MODEL, False, True),
        (IN_ALL, False, False),
    ):
        if of_network and new.network is None:
            continue
        counted = [
            proof
            for proof in kept
            if proof.number not in dropped
            and (not of_network or proof.network == new.network)
            and (not of_model or proof.root == new.root)
        ]
        while counted and bound.share([*counted, new]) > 1:
            leaving = _oldest_of_largest(counted, new, bound)
            counted.remove(leaving)
            dropped.append(leaving.number)
    return dropped


def _oldest_of_largest(counted: Sequence[KeptProof], new: KeptProof, bound: Bound) -> KeptProof:
    """The oldest proof of the network that has the largest share, counted with the new one."""
    by_network: dict[str | None, list[KeptProof]] = {}
    for proof in counted:
        by_network.setdefault(proof.network, []).append(proof)

    def share(network: str | None) -> float:
        theirs = by_network[network]
        return bound.share([*theirs, new] if network == new.network else theirs)

    return by_network[max(by_network, key=share)][0]


class Bans:
    """All bans, by key and by number."""

    def __init__(self, most: int = MOST_BANS) -> None:
        self._most = most
        self._by_key: OrderedDict[PeerKey, StoredBan] = OrderedDict()
        """Whose key tried to use the tracker last stands last."""
        self._by_number: list[StoredBan] = []
        self._by_digest: dict[bytes, StoredBan] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def next_number(self) -> int:
        """The number of the next ban; numbers only rise."""
        return self._by_number[-1].number + 1 if self._by_number else 1

    def of(self, key: PeerKey) -> StoredBan | None:
        """The ban of a peer, if it is banned."""
        return self._by_key.get(key)

    def came(self, key: PeerKey) -> StoredBan | None:
        """The same, for a peer that is here now: its ban will be kept for longer than those of others."""
        ban = self._by_key.get(key)
        if ban is not None:
            self._by_key.move_to_end(key)
        return ban

    def with_proof(self, digest: bytes) -> StoredBan | None:
        """The ban that has a proof of this digest, kept or not."""
        return self._by_digest.get(digest)

    def after(self, number: int, most: int) -> tuple[list[StoredBan], bool]:
        """At most `most` bans after a number, in order, and whether there are more."""
        start = bisect_right(self._by_number, number, key=attrgetter("number"))
        return self._by_number[start : start + most], len(self._by_number) > start + most

    def add(self, ban: StoredBan) -> list[StoredBan]:
        """Adds a ban with the highest number, and gives the bans that made room for it."""
        dropped = [self._drop_first() for _ in range(len(self) + 1 - self._most)]
        self._by_key[ban.key] = ban
        self._by_number.append(ban)
        self._by_digest[ban.digest] = ban
        return dropped

    def _drop_first(self) -> StoredBan:
        _, ban = self._by_key.popitem(last=False)
        del self._by_number[bisect_left(self._by_number, ban.number, key=attrgetter("number"))]
        if self._by_digest.get(ban.digest) is ban:
            del self._by_digest[ban.digest]
        return ban


class Proofs:
    """Which proofs are kept."""

    def __init__(self) -> None:
        self._kept: dict[int, KeptProof] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def add(self, new: KeptProof) -> list[int]:
        """Adds a proof, newer than all others, and gives the numbers of those that made room for it."""
        dropped = proofs_to_drop(new, list(self._kept.values()))
        self.forget(dropped)
        self._kept[new.number] = new
        return dropped

    def forget(self, numbers: Iterable[int]) -> None:
        """Forgets the proofs of bans."""
        for number in numbers:
            self._kept.pop(number, None)
