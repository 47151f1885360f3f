"""Joining a swarm from a command: which one, in a thread of its own, and left at the end."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import click

from swarm.cli import options
from swarm.cli.secrets import FROM_FILE
from swarm.errors import SwarmError
from swarm.peers.network import NetworkThread
from swarm.peers.session import Session, join
from swarm.peers.settings import home, load_remembered
from swarm.peers.target import Target, parse_target
from swarm.trust.invite import is_invite
from swarm.wire.address import BadAddress, parse_address


def where(target: str | None, token: str | None) -> Target:
    """The swarm at a target, else that of SWARM_INVITE, else the one used last. A usage error when there is none."""
    text = target or options.invite_of_environment() or load_remembered(home().settings).swarm
    if text is None:
        raise click.UsageError(
            "Say where the swarm is: its invite (here or as SWARM_INVITE), or --tracker HOST[:PORT]."
        )
    return parse_target(text, token)


def swarm_or_model(
    word: str | None, tracker: str | None, token: str | None, model: str | None
) -> tuple[str | None, str | None]:
    """The target and the model that are meant where one word may name either.

    An invite, or an address with a port or in digits, is a swarm; beside --tracker a word is a model; else it is a host
    if there is one, and a model if there is none.

    A usage error when it is both a host and a model of the swarm used last, or neither can be.
    """
    if word is None or model is not None or _says_where(word):
        return options.parse_target(word, tracker), model
    if tracker is not None:
        return options.parse_target(None, tracker), word
    known = options.invite_of_environment() or load_remembered(home().settings).swarm
    if _is_host(word):
        if known is not None and _has_model(word, token):
            raise click.UsageError(
                f"{word!r} is a host, and a model of the swarm used last: say --tracker {word} or --model {word}."
            )
        return word, None
    if known is None:
        raise click.UsageError(
            f"There is no host {word!r}, and no swarm was used before that could have a model of that name; say where "
            "it is: its invite, or --tracker HOST[:PORT]."
        )
    return None, word


def _says_where(word: str) -> bool:
    """Whether a word can only be meant as the place of a swarm."""
    if not word.strip() or word.startswith(FROM_FILE) or is_invite(word) or "://" in word:
        return True
    try:
        address = parse_address(word, 0)
        return address.port != 0 or bool(ipaddress.ip_address(address.host))
    except (BadAddress, ValueError):
        return False


def _is_host(word: str) -> bool:
    try:
        return bool(socket.getaddrinfo(parse_address(word, 0).host, None))
    except (BadAddress, OSError, UnicodeError):
        return False


def _has_model(name: str, token: str | None) -> bool:
    """Whether the swarm used last has a model of this name; no, when it cannot be asked."""
    try:
        with joined(None, token) as (network, session):
            return any(model.name == name for model in network.call(session.models))
    except (SwarmError, OSError):
        return False


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
