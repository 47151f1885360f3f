"""One parser for ``[host]:port``: names, IPv4, IPv6 with or without brackets, zone ids, a default port."""

import ipaddress
import re
from dataclasses import dataclass

from swarm.errors import SwarmError

DEFAULT_PORT = 7300
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_ZONE = re.compile(r"[A-Za-z0-9_.~-]{1,32}")
_MAX_NAME = 253


class BadAddress(SwarmError):
    """“{text}” is not an address: {reason}. Write HOST, HOST:PORT or [IPV6]:PORT."""


@dataclass(frozen=True, order=True)
class Address:
    """A host (name, IPv4 or IPv6 without brackets, zone id after ``%``) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address, or None for a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def source(self) -> str:
        """Whose address it is taken for: the host's own, of IPv6 the /64, which one machine has to itself."""
        ip = self.ip
        if not isinstance(ip, ipaddress.IPv6Address) or ip.ipv4_mapped is not None:
            return self.host
        return str(ipaddress.IPv6Address(int(ip) >> 64 << 64))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.ip is None:
            return self.host.lower().rstrip(".") == "localhost"
        mapped = getattr(self.ip, "ipv4_mapped", None)
        return bool((mapped or self.ip).is_loopback)


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Reads an address; IP addresses come back in their shortest form, names in lower case.

    Raises BadAddress, saying what is wrong with it. Port 0 is allowed: it asks the system for a free one.
    """
    stripped = text.strip()
    if not stripped:
        raise BadAddress(text=text, reason="it is empty")
    if "://" in stripped:
        protocol = stripped.partition("://")[0]
        raise BadAddress(text=text, reason=f"{protocol}:// does not belong to it, nor what follows a slash")
    if stripped.startswith("["):
        host, closed, rest = stripped[1:].partition("]")
        if not closed:
            raise BadAddress(text=text, reason="its bracket is not closed")
        if rest and not rest.startswith(":"):
            raise BadAddress(text=text, reason="only a port may follow the bracket")
        port = _port(text, rest[1:]) if rest else default_port
        if ":" not in host:
            raise BadAddress(text=text, reason="brackets are for IPv6 addresses")
        return Address(_ipv6(text, host), port)
    if stripped.count(":") > 1:
        return Address(_ipv6(text, stripped), default_port)
    host, colon, digits = stripped.partition(":")
    return Address(_name(text, host), _port(text, digits) if colon else default_port)


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= 65535):
        raise BadAddress(text=text, reason="a port is a number from 0 to 65535")
    return int(digits)


def _ipv6(text: str, host: str) -> str:
    plain, percent, zone = host.partition("%")
    zone = zone.removeprefix("25")  # as RFC 6874 writes it in a URL
    if percent and not _ZONE.fullmatch(zone):
        raise BadAddress(text=text, reason="its zone id is not a name of an interface")
    try:
        return str(ipaddress.IPv6Address(plain)) + (f"%{zone}" if percent else "")
    except ValueError:
        raise BadAddress(text=text, reason="it has colons but is no IPv6 address") from None


def _name(text: str, host: str) -> str:
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise BadAddress(text=text, reason="its host name cannot be encoded") from None
    if re.fullmatch(r"[0-9.]+", ascii_host):
        try:
            return str(ipaddress.IPv4Address(ascii_host))
        except ValueError:
            raise BadAddress(text=text, reason="it looks like an IPv4 address but is none") from None
    labels = ascii_host.removesuffix(".").split(".")
    if not (0 < len(ascii_host) <= _MAX_NAME and all(_LABEL.fullmatch(label) for label in labels)):
        raise BadAddress(text=text, reason="its host is not a name")
    return ascii_host.lower()
