"""A small model and its mirror, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mirror.cas import Store
from mirror.fetch import Mirror, open_mirror
from mirror.plan import Ledger, Policy
from tests.mirror.fakes import (
    CHUNK,
    Giver,
    Givers,
    make_model,
    small_tree,
)

MODEL = make_model({"config.json": 100, "empty": 0, "weights/a": 40 * CHUNK + 17, "weights/b": 3 * CHUNK})


TREE = small_tree(MODEL)


@asynccontextmanager
async def mirrored(store: Store, *givers: Giver, policy: Policy | None = None) -> AsyncIterator[Mirror]:
    async with open_mirror(TREE, store, Givers(*givers), ledger=Ledger(policy)) as mirror:
        yield mirror
