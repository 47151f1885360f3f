"""Where a swarm is, from what a user typed: an invite, or the address of a tracker and perhaps a token."""

from dataclasses import dataclass, field

from swarm.errors import SwarmError
from swarm.trust.invite import Invite, is_invite, parse_invite, token_from_text
from swarm.wire.address import Address, parse_address
from swarm.wire.keys import PeerKey


class TokenTwice(SwarmError):
    """The invite holds the swarm's token already; leave --token or --token-file out."""


@dataclass(frozen=True, slots=True)
class Target:
    """A swarm as far as it is known before anybody was asked."""

    address: Address
    operator: PeerKey | None = None
    """Whose signature counts; None: whoever is met first under a model's name."""
    tracker: PeerKey | None = None
    token: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """What `parse_target` reads this from again, the token with it."""
        if self.operator is None and self.tracker is None and self.token is None:
            return str(self.address)
        return str(Invite(self.address, self.operator, self.tracker, self.token))


def parse_target(text: str, token: str | None = None) -> Target:
    """Reads an invite, or HOST[:PORT] with the token of a private swarm.

    Raises:
        BadInvite, BadAddress, BadToken, TokenTwice: saying what is wrong with it.
    """
    if not is_invite(text):
        return Target(parse_address(text), token=None if token is None else token_from_text(token))
    invite = parse_invite(text)
    if token is not None and invite.token is not None:
        raise TokenTwice()
    secret = invite.token if token is None else token_from_text(token)
    return Target(invite.address, invite.operator, invite.tracker, secret)
