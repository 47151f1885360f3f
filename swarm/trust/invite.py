"""Invites: ``swarm://HOST:PORT/OPERATOR.TRACKER.TOKEN.CHECK``, everything that is needed to join a swarm.

OPERATOR and TRACKER are Ed25519 keys, TOKEN the secret of a private swarm, each as base64url or ``-`` when
there is none; CHECK (a hash of what stands before it) finds typing mistakes. Whoever has the invite of a
private swarm can join it.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

import nacl.pwhash.argon2id as argon2id

from swarm.errors import SwarmError
from swarm.wire.address import DEFAULT_PORT, Address, parse_address
from swarm.wire.keys import PeerKey

SCHEME = "swarm://"
TOKEN_BYTES = 32
_CHECK_CHARS = 8
_MAX_CHARS = 1000
_TOKEN_SALT = hashlib.sha256(b"swarm token v1").digest()[: argon2id.SALTBYTES]


class BadInvite(SwarmError):
    """This is not a whole invite: {reason}. Copy all of it, from “swarm://” to its end."""


class BadToken(SwarmError):
    """This token cannot be used: {reason}."""


@dataclass(frozen=True)
class Invite:
    """Where a swarm's tracker is, whose keys to expect, and the token of a private swarm."""

    address: Address
    operator: PeerKey | None = None
    tracker: PeerKey | None = None
    token: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        address = str(self.address).replace("%", "%25")
        text = f"{SCHEME}{address}/{_pack(self.operator)}.{_pack(self.tracker)}.{_pack(self.token)}"
        return f"{text}.{_check(text)}"


def is_invite(text: str) -> bool:
    """Whether a text is meant as an invite (whether it is a good one, `parse_invite` says)."""
    return text.strip().lower().startswith(SCHEME)


def parse_invite(text: str) -> Invite:
    """Reads an invite. Raises BadInvite, BadAddress; neither repeats the token."""
    text = text.strip()
    if not is_invite(text):
        raise BadInvite(reason="it does not begin with swarm://")
    if len(text) > _MAX_CHARS:
        raise BadInvite(reason="it is too long")
    host, slash, keys = text[len(SCHEME) :].partition("/")
    parts = keys.rstrip("/").split(".")
    if not slash or len(parts) != 4:
        raise BadInvite(reason="parts of it are missing")
    address = parse_address(host, DEFAULT_PORT)
    operator, tracker, token = (_unpack(part) for part in parts[:3])
    invite = Invite(
        address,
        None if operator is None else PeerKey(operator),
        None if tracker is None else PeerKey(tracker),
        token,
    )
    check = parts[3].encode("utf-8", "surrogatepass")  # the words of a command line may hold anything
    if not hmac.compare_digest(str(invite).rpartition(".")[2].encode(), check):
        raise BadInvite(reason="a character of it was changed")
    return invite


def new_token() -> bytes:
    """A fresh secret for a private swarm."""
    return secrets.token_bytes(TOKEN_BYTES)


def token_from_text(text: str) -> bytes:
    """The secret that belongs to a passphrase, the same everywhere (Argon2id, 64 MiB, about 0.1 s).

    Raises BadToken for an empty or overlong one.
    """
    if not text.strip():
        raise BadToken(reason="it is empty")
    if len(text) > _MAX_CHARS:
        raise BadToken(reason="it is too long")
    return argon2id.kdf(
        TOKEN_BYTES,
        text.strip().encode("utf-8", "surrogatepass"),
        _TOKEN_SALT,
        opslimit=argon2id.OPSLIMIT_INTERACTIVE,
        memlimit=argon2id.MEMLIMIT_INTERACTIVE,
    )


def _pack(value: bytes | None) -> str:
    return "-" if value is None else base64.urlsafe_b64encode(value).decode("ascii").rstrip("=")


def _unpack(part: str) -> bytes | None:
    if part == "-":
        return None
    try:
        value = base64.b64decode(part + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadInvite(reason="a key in it is damaged") from None
    if len(value) != TOKEN_BYTES or _pack(value) != part:
        raise BadInvite(reason="a key in it is damaged")
    return value


def _check(text: str) -> str:
    digest = hashlib.sha256(b"swarm invite v1\0" + text.encode("utf-8")).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")[:_CHECK_CHARS]
