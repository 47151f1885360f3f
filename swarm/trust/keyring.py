"""An operator's keys through time: each vouched for by the one before, the latest signing over them all.

A rotation takes three steps without a gap: [old] → [old, new], both active → [old, new], only new active.
Whoever remembers an old key follows the chain of vouchers to the new one; whoever has seen the new one
never goes back.
"""

from dataclasses import dataclass

from swarm.errors import SwarmError
from swarm.wire import cbor
from swarm.wire.keys import KEY_BYTES, SIGNATURE_BYTES, BadSignature, KeyPair, PeerKey, verify

MAX_KEYS = 16
_VOUCHER_TAG = b"swarm key succession v1\0"
_RING_TAG = b"swarm keyring v1\0"


class BadKeyring(SwarmError):
    """The operator's keyring was refused: {reason}."""


@dataclass(frozen=True)
class Keyring:
    """Keys from the oldest to the latest; those from ``first_active`` on may sign."""

    keys: tuple[PeerKey, ...]
    vouchers: tuple[bytes, ...]
    """Signature i is that of key i over key i + 1."""
    first_active: int
    signature: bytes
    """That of the latest key over keys and first_active."""

    @property
    def active(self) -> tuple[PeerKey, ...]:
        """The keys that may sign."""
        return self.keys[self.first_active :]

    @property
    def latest(self) -> PeerKey:
        """The newest key."""
        return self.keys[-1]

    @classmethod
    def start(cls, operator: KeyPair) -> "Keyring":
        """The keyring of an operator's first key."""
        return _signed(operator, (operator.key,), (), 0)

    def succeed(self, latest: KeyPair, new: KeyPair) -> "Keyring":
        """Adds a key after the latest one; both (and whatever was active) may sign.

        Past 16 keys the oldest is forgotten. Raises BadKeyring when ``latest`` is not the latest key.
        """
        if latest.key != self.latest:
            raise BadKeyring(reason="only the latest key can name its successor")
        if new.key in self.keys:
            raise BadKeyring(reason="the new key is in it already")
        voucher = latest.sign(_VOUCHER_TAG + latest.key + new.key)
        keys, vouchers = (*self.keys, new.key), (*self.vouchers, voucher)
        surplus = max(len(keys) - MAX_KEYS, 0)
        return _signed(new, keys[surplus:], vouchers[surplus:], max(self.first_active - surplus, 0))

    def retire(self, latest: KeyPair) -> "Keyring":
        """Lets only the latest key sign from now on. Raises BadKeyring when ``latest`` is not it."""
        if latest.key != self.latest:
            raise BadKeyring(reason="only the latest key can retire the others")
        return _signed(latest, self.keys, self.vouchers, len(self.keys) - 1)

    def follows(self, earlier: "Keyring") -> bool:
        """Whether this is the same operator as ``earlier``, now or later: its latest key leads to ours."""
        if earlier.latest not in self.keys:
            return False
        place = self.keys.index(earlier.latest)
        # What both know must be the same history, and a key that was retired stays so.
        shared = min(place + 1, len(earlier.keys))
        if self.keys[place + 1 - shared : place + 1] != earlier.keys[len(earlier.keys) - shared :]:
            return False
        # Counted from the key that both know: the oldest active key only moves forward.
        return self.first_active - place >= earlier.first_active - (len(earlier.keys) - 1)

    def encode(self) -> bytes:
        """The bytes that travel with a manifest."""
        return cbor.encode(
            {
                "format": 1,
                "keys": list(self.keys),
                "vouchers": list(self.vouchers),
                "first_active": self.first_active,
                "signature": self.signature,
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> "Keyring":
        """Reads and verifies a keyring. Raises BadKeyring."""
        try:
            value = cbor.decode(data)
        except cbor.BadEncoding as error:
            raise BadKeyring(reason=str(error)) from None
        names = {"format", "keys", "vouchers", "first_active", "signature"}
        if not isinstance(value, dict) or value.keys() != names or value["format"] != 1:
            raise BadKeyring(reason="it is not of format 1")
        keys = _strings(value["keys"], KEY_BYTES)
        vouchers = _strings(value["vouchers"], SIGNATURE_BYTES)
        first_active, signature = value["first_active"], value["signature"]
        if not 1 <= len(keys) <= MAX_KEYS or len(set(keys)) != len(keys) or len(vouchers) != len(keys) - 1:
            raise BadKeyring(reason="its keys and vouchers do not fit together")
        if type(first_active) is not int or not 0 <= first_active < len(keys):
            raise BadKeyring(reason="none of its keys is active")
        if not isinstance(signature, bytes):
            raise BadKeyring(reason="its signature is missing")
        try:
            for old, new, voucher in zip(keys, keys[1:], vouchers, strict=False):
                verify(old, _VOUCHER_TAG + old + new, voucher)
            verify(keys[-1], _ring_message(keys, first_active), signature)
        except BadSignature as error:
            raise BadKeyring(reason=str(error)) from None
        return cls(tuple(PeerKey(key) for key in keys), tuple(vouchers), first_active, signature)


def _signed(
    latest: KeyPair, keys: tuple[PeerKey, ...], vouchers: tuple[bytes, ...], first_active: int
) -> Keyring:
    return Keyring(keys, vouchers, first_active, latest.sign(_ring_message(keys, first_active)))


def _ring_message(keys: tuple[PeerKey, ...] | list[bytes], first_active: int) -> bytes:
    return _RING_TAG + bytes([first_active]) + b"".join(keys)


def _strings(value: cbor.Value, length: int) -> list[bytes]:
    found = [item for item in value if isinstance(item, bytes)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(found) != len(value) or any(len(item) != length for item in found):
        raise BadKeyring(reason="a key or voucher has the wrong form")
    return found
