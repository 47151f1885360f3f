"""Swarms that announce themselves on the local network, by mDNS; and announcing one.

The library that speaks mDNS is optional: without it nothing is found or announced, and nothing else changes.
An announcement is a hint and nothing more: it holds a name and an address, never a key or a token. What answers
there must prove itself as any other.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from tui.views import Found

SERVICE = "_swarm-moe._tcp.local."
_RESOLVE_MS = 1000


def swarms(seconds: float, interfaces: Sequence[str] | None = None) -> tuple[Found, ...]:
    """What answers within some seconds, by name. OSError: the network cannot be asked."""
    if find_spec("zeroconf") is None:
        return ()
    from zeroconf import InterfaceChoice, ServiceBrowser, ServiceStateChange, Zeroconf

    found: dict[str, Found] = {}
    lock = threading.Lock()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Added:
            return
        info = zeroconf.get_service_info(service_type, name, _RESOLVE_MS)
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
    from zeroconf import InterfaceChoice, ServiceInfo, Zeroconf

    packed = [
        socket.inet_pton(socket.AF_INET6 if ":" in item else socket.AF_INET, item) for item in addresses
    ]
    label = name.replace(".", " ")[:60] or "swarm"
    info = ServiceInfo(
        SERVICE, f"{label}.{SERVICE}", port=port, addresses=packed, server=f"swarm-{port}.local."
    )
    zeroconf = Zeroconf(interfaces=list(interfaces) if interfaces else InterfaceChoice.All)
    try:
        zeroconf.register_service(info, allow_name_change=True)
        yield
        zeroconf.unregister_service(info)
    finally:
        zeroconf.close()
