"""Quantities as people write and read them."""

from __future__ import annotations

import re

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def format_bytes(count: float) -> str:
    """1.2 GB; decimal units, at most three digits."""
    for unit in _BYTE_UNITS:
        if abs(count) < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1000
    if unit == "B":
        return f"{count:.0f} B"
    return f"{count:.1f} {unit}" if abs(count) < 99.95 else f"{count:.0f} {unit}"


def parse_bytes(text: str) -> int:
    """The number of bytes in "8GB", "512 MiB" or "1000000". ValueError says what is expected."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a size; write it like 8GB, 512MB or 1.5GiB")
    number, prefix, binary = found.groups()
    factor = _FACTORS[prefix.lower()]
    if binary and prefix:
        factor = 1024 ** ("kmgt".index(prefix.lower()) + 1)
    return round(float(number) * factor)


def parse_share(text: str) -> float:
    """The share, 0 to 1, in "5%" or "0.05". ValueError says what is expected."""
    found = _SHARE.fullmatch(text)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not a share; write it like 5% or 0.05")
    return share


def parse_switch(text: str) -> bool:
    """Whether "on" or "off" was written. ValueError says what is expected."""
    if text.strip().lower() not in ("on", "off"):
        raise ValueError(f"{text!r} is neither on nor off")
    return text.strip().lower() == "on"


def format_count(count: float) -> str:
    """12,345"""
    return f"{count:,.0f}"


def plural(count: int, noun: str) -> str:
    """1 hedge, 2 hedges."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_seconds(seconds: float) -> str:
    """0.8 s, 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_ms(milliseconds: float | None) -> str:
    """A delay, or a dash when it was never measured."""
    if milliseconds is None:
        return "–"
    return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"


def format_share(share: float) -> str:
    """A share of 0 to 1 in whole percent; only all of it is 100 %."""
    percent = min(99, round(share * 100)) if share < 1 else 100
    return f"{percent} %"
