"""Swarms that announce themselves on the local network, by mDNS; and announcing one.

The library that speaks mDNS is optional: without it nothing is found or announced, and nothing else changes.
An announcement is a hint and nothing more: it holds a name and an address, never a key or a token. What answers
there must prove itself as any other.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from swarm.errors import clean_text
from tui.views import Found

SERVICE = "_swarm-moe._tcp.local."
_RESOLVE_MS = 1000
_LABEL_BYTES = 60
"""A label of the domain name system has 63; three are left to tell two of one name apart."""


def swarms(seconds: float, interfaces: Sequence[str] | None = None) -> tuple[Found, ...]:
    """What answers within some seconds, by name. OSError: the network cannot be asked."""
    if find_spec("zeroconf") is None:
        return ()
    from zeroconf import Error, InterfaceChoice, ServiceBrowser, ServiceStateChange, Zeroconf

    found: dict[str, Found] = {}
    lock = threading.Lock()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Added:
            return
        try:
            info = zeroconf.get_service_info(service_type, name, _RESOLVE_MS)
        except Error:  # a name that breaks the rules for names
            return
        if info is None or not info.port:
            return
        for host in info.parsed_scoped_addresses():
            address = f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}"
            with lock:
                found.setdefault(name, Found(name.removesuffix("." + SERVICE), address))

    zeroconf = Zeroconf(interfaces=list(interfaces) if interfaces else InterfaceChoice.All)
    try:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        time.sleep(seconds)
        browser.cancel()
    finally:
        zeroconf.close()
    with lock:
        return tuple(sorted(found.values(), key=lambda item: item.name))


@contextmanager
def announced(
    name: str, port: int, addresses: Sequence[str], interfaces: Sequence[str] | None = None
) -> Iterator[None]:
    """Announce a swarm for the length of a block, at numeric addresses. OSError: the network cannot be used."""
    if find_spec("zeroconf") is None:
        yield
        return
    from zeroconf import Error, InterfaceChoice, ServiceInfo, Zeroconf

    packed = [
        socket.inet_pton(socket.AF_INET6 if ":" in item else socket.AF_INET, item) for item in addresses
    ]
    # Two machines may use one port: a host name that both had would lead to either.
    host = f"swarm-{secrets.token_hex(4)}.local."
    info = ServiceInfo(SERVICE, f"{_label(name)}.{SERVICE}", port=port, addresses=packed, server=host)
    zeroconf = Zeroconf(interfaces=list(interfaces) if interfaces else InterfaceChoice.All)
    try:
        try:
            zeroconf.register_service(info, allow_name_change=True)
        except Error as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        yield
        zeroconf.unregister_service(info)
    finally:
        zeroconf.close()


def _label(name: str) -> str:
    """A name of any kind as one label: without dots and control characters, short enough, never empty."""
    line = " ".join(clean_text(name).replace(".", " ").split())
    return line.encode()[:_LABEL_BYTES].decode("utf-8", "ignore").strip() or "swarm"
