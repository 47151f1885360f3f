"""Swarms that announce themselves on the local network, by mDNS.

The library that speaks mDNS is optional: without it nothing is found, and nothing else changes.
"""

from __future__ import annotations

import threading
import time
from importlib.util import find_spec

from tui.views import Found

SERVICE = "_swarm-moe._tcp.local."


def swarms(seconds: float) -> tuple[Found, ...]:
    """What answers within some seconds, by name. OSError: the network cannot be asked."""
    if find_spec("zeroconf") is None:
        return ()
    from zeroconf import ServiceBrowser, ServiceStateChange, Zeroconf

    found: dict[str, Found] = {}
    lock = threading.Lock()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Added:
            return
        info = zeroconf.get_service_info(service_type, name, 1000)
        if info is None or not info.port:
            return
        for host in info.parsed_scoped_addresses():
            address = f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}"
            with lock:
                found.setdefault(name, Found(name.removesuffix("." + SERVICE), address))

    zeroconf = Zeroconf()
    try:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        time.sleep(seconds)
        browser.cancel()
    finally:
        zeroconf.close()
    with lock:
        return tuple(sorted(found.values(), key=lambda item: item.name))
