"""Joining a swarm from a command: which one, in a thread of its own, and left at the end."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from swarm.cli.options import invite_of_environment
from swarm.peers.network import NetworkThread
from swarm.peers.session import Session, join
from swarm.peers.settings import home, load_remembered
from swarm.peers.target import Target, parse_target


def where(target: str | None, token: str | None) -> Target:
    """The swarm at a target, else that of SWARM_INVITE, else the one used last. A usage error when there is none."""
    text = target or invite_of_environment() or load_remembered(home().settings).swarm
    if text is None:
        raise click.UsageError(
            "Say where the swarm is: its invite (here or as SWARM_INVITE), or --tracker HOST[:PORT]."
        )
    return parse_target(text, token)


@contextmanager
def joined(
    target: str | None, token: str | None, *, offline: bool = False
) -> Iterator[tuple[NetworkThread, Session]]:
    """Joins the swarm at a target (see `where`) for the length of a block.

    Raises:
        SwarmError: the target is malformed, or the swarm refuses or cannot be reached.
    """
    place = where(target, token)
    with NetworkThread() as network:
        yield network, network.enter(join, place, home(), offline)
