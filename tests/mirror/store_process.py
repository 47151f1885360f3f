"""Stores and reads chunks until killed: STORE SEED LIMIT. Prints a line a round; ends with status 3 at a
wrong byte.

The chunks are those of `block`, so that every process knows what is right.
"""

import itertools
import sys
from hashlib import sha256
from random import Random

from mirror.cas import Store

BLOCKS = 24
BLOCK_BYTES = 20_000


def block(number: int) -> bytes:
    """The content of chunk `number`."""
    return Random(number).randbytes(BLOCK_BYTES)


def main(root: str, seed: int, limit_bytes: int) -> None:
    luck = Random(seed)
    blocks = [block(number) for number in range(BLOCKS)]
    addresses = [sha256(data).digest() for data in blocks]
    with Store(root, limit_bytes=limit_bytes) as store:
        for number in itertools.count():
            choice = luck.randrange(BLOCKS)
            if luck.random() < 0.6:
                store.put(addresses[choice], blocks[choice])
            found = store.read(addresses[choice], BLOCK_BYTES)
            if (found is not None and found != blocks[choice]) or store.used_bytes > limit_bytes:
                sys.exit(3)
            if number % 97 == 50:
                store.flush()
            if number % 5 == 0:
                print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
