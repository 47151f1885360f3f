"""Listening on TCP: IPv4 and IPv6 alike, one port for all interfaces, errors that name the address."""

import errno
import socket
from collections.abc import Sequence

import trio

from swarm.errors import SwarmError
from swarm.wire.address import Address

_BACKLOG = 1024
_PORT_ATTEMPTS = 20
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


class CannotListen(SwarmError):
    """Cannot listen on {address}: {reason}."""


async def listen(host: str | None, port: int) -> list[trio.SocketListener]:
    """Listens on a host (None: every IPv4 and IPv6 interface) and a port; 0 takes one free port for all.

    Raises CannotListen.
    """
    hosts = await _addresses(host, port)
    for attempt in range(_PORT_ATTEMPTS):
        try:
            return await _bind_all(hosts, port)
        except OSError as error:
            if port != 0 or error.errno != errno.EADDRINUSE or attempt == _PORT_ATTEMPTS - 1:
                raise cannot_listen(host, port, error) from error
    raise AssertionError("unreachable")


def addresses_of(listeners: Sequence[trio.SocketListener]) -> list[Address]:
    """Where listeners listen."""
    return [address_of(listener.socket.getsockname()) for listener in listeners]


def address_of(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """The address in a socket's name; an IPv4 address in IPv6 clothes comes back as itself."""
    host = name[0]
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    return Address(host, name[1])


async def _addresses(host: str | None, port: int) -> list[str]:
    if host is None:
        return ["0.0.0.0", "::"] if socket.has_ipv6 else ["0.0.0.0"]
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise cannot_listen(host, port, error) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _bind_all(hosts: Sequence[str], port: int) -> list[trio.SocketListener]:
    listeners: list[trio.SocketListener] = []
    try:
        for host in hosts:
            try:
                found = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
            except OSError as error:
                if listeners and error.errno in _NO_SUCH_FAMILY:
                    continue
                raise
            listeners += found
            port = int(found[0].socket.getsockname()[1])
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


def cannot_listen(host: str | None, port: int, error: OSError | UnicodeError) -> CannotListen:
    """What the system said of listening at a host (None: all interfaces), in words."""
    address = f"port {port}" if host is None else str(Address(host, port))
    return CannotListen(address=address, reason=_reason(error, port))


def _reason(error: OSError | UnicodeError, port: int) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter: it cannot even be looked up
        return "there is no such host"
    if error.errno == errno.EADDRINUSE:
        return "the port is taken; stop the other program, or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return (error.strerror or str(error)).lower()
