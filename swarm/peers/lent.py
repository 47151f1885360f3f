"""What a donor of disk brought to this machine, remembered across its runs: that, and nothing that is here for other
reasons, it removes when it is to hold something else.

The file is the chunks' addresses one after another and the BLAKE3 of them. It is written before chunks come and after
they went, so that a crash leaves none that is not in it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from blake3 import blake3

from mirror.cas import TAG_BYTES, Store
from mirror.space import ADDRESS_BYTES
from swarm.trust.files import write_atomically
from swarm.trust.manifest import CHUNK_BYTES

BLOCK_BYTES = 4096
"""What a disk gives at a time."""
STORE_BYTES = 256 * BLOCK_BYTES + (64 << 10)
"""What a store takes besides chunks: a folder for each first byte of an address, locks, figures, the ends of lists."""
_FILE_BYTES = -(-(CHUNK_BYTES + TAG_BYTES) // BLOCK_BYTES) * BLOCK_BYTES
_LISTED_BYTES = 4 * ADDRESS_BYTES
"""A chunk is listed as pinned and as lent; and once more each while a list is replaced."""


def chunks_within(size_bytes: int) -> int:
    """How many chunks a disk of this size holds, with all that the store needs for them."""
    return max(0, (size_bytes - STORE_BYTES) // (_FILE_BYTES + _LISTED_BYTES))


class Lent:
    """See the module. Its methods block; OSError as the disk gives it."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._noted = self._load()

    def here(self, files: Mapping[bytes, int]) -> frozenset[bytes]:
        """What was brought and is among the files of the store, by address."""
        return frozenset(self._noted.intersection(files))

    def keep(self, wanted: Collection[bytes], files: Mapping[bytes, int]) -> None:
        """Removes what was brought here and is not among these addresses. What somebody else pins stays, as theirs."""
        gone = self._noted.difference(wanted)
        self._store.evict(gone.intersection(files))
        self._note(self._noted - gone)

    def expect(self, wanted: Collection[bytes], files: Mapping[bytes, int]) -> None:
        """Notes those of these addresses that will be brought, before they are: all that are not here."""
        self._note(self._noted.union(address for address in wanted if address not in files))

    def _note(self, addresses: frozenset[bytes]) -> None:
        if addresses != self._noted:
            joined = b"".join(sorted(addresses))
            write_atomically(self._path, joined + blake3(joined).digest())
            self._noted = addresses

    def _load(self) -> frozenset[bytes]:
        """What is noted; nothing where there is no such list."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return frozenset()
        joined, digest = data[:-32], data[-32:]
        if len(joined) % ADDRESS_BYTES or blake3(joined).digest() != digest:
            return frozenset()
        return frozenset(joined[at : at + ADDRESS_BYTES] for at in range(0, len(joined), ADDRESS_BYTES))
