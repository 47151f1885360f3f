"""Anything a stranger may say, within the messages' own bounds, is answered or refused by a typed error."""

import dataclasses
import random
import typing
from typing import Any

import pytest
import trio

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages import Bounds, Message
from swarm.wire.messages.tracker import PeerRegistered, RegisterPeer
from tests.tracker.kit import FakeCaller, HandClock, keys, manifest, published
from tracker.judge import Verdict
from tracker.quota import Rate
from tracker.server import Options, open_tracker
from tracker.store import MemoryStore

ROUNDS = 150
FREELY = Rate(per_second=1e9, burst=1e9)


class Guess:
    """Makes messages up: random within their bounds, often with numbers and roots that mean something."""

    def __init__(self, luck: random.Random, known: dict[str, list[Any]]) -> None:
        self.luck = luck
        self.known = known

    def message(self, kind: type[Message]) -> Message:
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(
            **{field.name: self.field(field.name, hints[field.name]) for field in dataclasses.fields(kind)}
        )

    def field(self, name: str, hint: Any) -> Any:
        if name in self.known and self.luck.random() < 0.8:
            return self.luck.choice(self.known[name])
        return self.value(hint)

    def value(self, hint: Any) -> Any:
        if hint is bool:
            return self.luck.random() < 0.5
        kind, bounds = typing.get_args(hint)[0], next(x for x in hint.__metadata__ if isinstance(x, Bounds))
        least, greatest = int(bounds.least), int(bounds.greatest)
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        if kind is int:
            return self.luck.choice([least, greatest, min(greatest, 7), self.luck.randint(least, greatest)])
        size = self.luck.randint(least, min(greatest, least + 40))
        if kind is str:
            return "".join(self.luck.choice("a.:[]%\u202e\x00é127") for _ in range(size))
        if kind is bytes:
            return self.luck.randbytes(size)
        return tuple(self.value(typing.get_args(kind)[0]) for _ in range(min(size, 5)))

    def payload(self, kind: type[Message]) -> bytes:
        some = IndexSet(self.luck.getrandbits(100)).encode()
        made = self.luck.choice([b"", some, some * 2, self.luck.randbytes(self.luck.randrange(60))])
        return made[: kind.payload_limit]


@pytest.mark.parametrize("seed", range(3))
async def test_only_typed_errors_come_of_anything_said(seed: int) -> None:
    luck = random.Random(seed)

    async def dial_back(address: Address, key: PeerKey) -> None:
        await trio.lowlevel.checkpoint()
        if luck.random() < 0.5:
            raise OSError("not there")

    async def verifier(accused: PeerKey, root: bytes, profile: bytes, proof: bytes) -> Verdict:
        return Verdict(False, "this proves nothing")

    options = Options(requests_a_key=FREELY, requests_a_network=FREELY, registrations_a_key=FREELY)
    async with open_tracker(
        keys(0), MemoryStore(), options=options, verifier=verifier, dial_back=dial_back, clock=HandClock()
    ) as tracker:
        new = published(manifest(chunks=100))
        root = await tracker.publishing.accept(new.encoded, new.layout, new.layout_signature)
        handlers = tracker.handlers()
        caller = FakeCaller(handlers, keys(1), Address("198.51.7.7", 50000))
        reply, _ = await caller.ask(RegisterPeer("fuzz", (), 7300))
        assert isinstance(reply, PeerRegistered)
        known: dict[str, list[Any]] = {
            "root": [root],
            "generation": [reply.generation],
            "base": [0],
            "parts": [(1,), (14,), (14, 14), (13, 13)],
            "addresses": [(), ("198.51.7.8:1", "127.0.0.1", "[::1]:4")],
        }
        guess = Guess(luck, known)
        answered: list[object] = []
        refused: list[str] = []
        for _ in range(ROUNDS):
            for kind in handlers:
                message = guess.message(kind)
                try:
                    outcome = await caller.handlers[kind](caller, message, guess.payload(kind))
                except SwarmError as error:
                    refused.append(str(error))
                else:
                    answered.append(outcome and outcome[0])
                registered = tracker.registry.get(caller.key)
                known["generation"] = [registered.generation] if registered else known["generation"]
        assert len(answered) > ROUNDS
        assert all(answer is None or isinstance(answer, Message) for answer in answered)
        assert len(refused) > ROUNDS
        assert all(refused)
