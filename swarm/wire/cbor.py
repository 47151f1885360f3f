"""Canonical CBOR (RFC 8949, section 4.2.1), in the small part of it that headers and manifests use.

Values: None, bool, int of up to 64 bits, float64, bytes, str, list, dict with str keys. Every value has one
encoding: shortest heads, definite lengths, keys in byte order and once, floats in 64 bits, no tags. The
decoder refuses anything else, checks each length against the bytes that are left before it allocates, makes no more
values than its caller allows (an empty list is one byte there and sixty here), and knows nothing of who sent them.
"""

import math
import struct
from typing import TypeAlias

from swarm.errors import SwarmError

Value: TypeAlias = "bool | int | float | bytes | str | list[Value] | dict[str, Value] | None"

MAX_DEPTH = 12
MOST_VALUES = 1 << 16
_FLOAT64 = struct.Struct(">d")
_HEADS = (struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q"))
_SHORTEST = (24, 0x100, 0x10000, 0x100000000)


class BadEncoding(SwarmError):
    """Bytes that should be canonical CBOR are not: {reason} at byte {position}."""


def encode(value: Value) -> bytes:
    """The canonical bytes of a value. TypeError or ValueError for a value outside the list above."""
    out = bytearray()
    _encode(value, out, 0)
    return bytes(out)


class _Budget:
    """How many items of lists and maps may still come."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int, position: int) -> None:
        self.left -= count
        if self.left < 0:
            raise BadEncoding(reason="more values than belong there", position=position)


def decode(data: bytes | bytearray | memoryview, most_values: int = MOST_VALUES) -> Value:
    """The value whose canonical bytes are exactly ``data``. Raises BadEncoding for any others.

    ``most_values``: how many items of lists and maps (a pair is one) there may be in all.
    """
    data = bytes(data)
    value, position = _decode(data, 0, 0, _Budget(most_values))
    if position != len(data):
        raise BadEncoding(reason="the value ends before the bytes do", position=position)
    return value


def decode_count(data: bytes, position: int) -> tuple[int, int]:
    """The integer (0 or more) that stands at a position, and where it ends. Raises BadEncoding."""
    value, end = _decode(data, position, 0, _Budget(0))
    if type(value) is not int or value < 0:
        raise BadEncoding(reason="not a count", position=position)
    return value, end


def _head(major: int, argument: int, out: bytearray) -> None:
    if argument < 24:
        out.append(major | argument)
    elif argument < 0x100:
        out.append(major | 24)
        out.append(argument)
    else:
        size = 1 if argument < 0x10000 else 2 if argument < 0x100000000 else 3
        out.append(major | (24 + size))
        out += _HEADS[size].pack(argument)


def _encode(value: Value, out: bytearray, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if type(value) is str:
        text = value.encode("utf-8")
        _head(0x60, len(text), out)
        out += text
    elif value is None:
        out.append(0xF6)
    elif value is True:
        out.append(0xF5)
    elif value is False:
        out.append(0xF4)
    elif isinstance(value, int):
        if not -(1 << 64) <= value < 1 << 64:
            raise ValueError("an integer of more than 64 bits")
        _head(0, value, out) if value >= 0 else _head(0x20, -1 - value, out)
    elif isinstance(value, float):
        out.append(0xFB)
        out += _FLOAT64.pack(math.nan if value != value else value)
    elif isinstance(value, bytes | bytearray | memoryview):
        _head(0x40, len(value), out)
        out += value
    elif isinstance(value, str):
        _encode(str(value), out, depth)
    elif isinstance(value, list | tuple):
        _head(0x80, len(value), out)
        for item in value:
            _encode(item, out, depth + 1)
    elif isinstance(value, dict):
        _head(0xA0, len(value), out)
        for key, item in sorted((_text(key), item) for key, item in value.items()):
            out += key
            _encode(item, out, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} has no encoding")


def _text(key: object) -> bytes:
    if not isinstance(key, str):
        raise TypeError("a key that is not text")
    out = bytearray()
    _encode(key, out, 0)
    return bytes(out)


def _argument(data: bytes, position: int, info: int) -> tuple[int, int]:
    """The argument of a head whose first byte stands before ``position``, and where it ends."""
    if info < 24:
        return info, position
    if info > 27:
        raise BadEncoding(reason="an indefinite or reserved length", position=position - 1)
    head = _HEADS[info - 24]
    if len(data) - position < head.size:
        raise BadEncoding(reason="the bytes end early", position=position)
    argument: int = head.unpack_from(data, position)[0]
    if argument < _SHORTEST[info - 24]:
        raise BadEncoding(reason="a number longer than it needs to be", position=position)
    return argument, position + head.size


def _decode(data: bytes, position: int, depth: int, budget: _Budget) -> tuple[Value, int]:
    if depth > MAX_DEPTH:
        raise BadEncoding(reason="nested too deep", position=position)
    if position >= len(data):
        raise BadEncoding(reason="the bytes end early", position=position)
    first = data[position]
    if first < 24:
        return first, position + 1
    start, position, major = position, position + 1, first >> 5
    if major == 7:
        return _simple(data, start, first)
    argument, position = _argument(data, position, first & 31)
    if major == 0:
        return argument, position
    if major == 1:
        return -1 - argument, position
    if major == 6:
        raise BadEncoding(reason="a tag", position=start)
    # Each item of a list takes a byte at least, each pair of a map two: what cannot be there is not awaited.
    if argument * (2 if major == 5 else 1) > len(data) - position:
        raise BadEncoding(reason="a length beyond the end", position=start)
    if major == 2:
        return data[position : position + argument], position + argument
    if major == 3:
        try:
            return data[position : position + argument].decode("utf-8"), position + argument
        except UnicodeDecodeError:
            raise BadEncoding(reason="text that is not UTF-8", position=start) from None
    if major == 4:
        budget.take(argument, start)
        items: list[Value] = []
        for _ in range(argument):
            item, position = _decode(data, position, depth + 1, budget)
            items.append(item)
        return items, position
    budget.take(argument, start)
    return _map(data, position, argument, depth, budget)


def _map(data: bytes, position: int, count: int, depth: int, budget: _Budget) -> tuple[Value, int]:
    pairs: dict[str, Value] = {}
    previous = b""
    for _ in range(count):
        start = position
        key, position = _decode(data, position, depth + 1, budget)
        if not isinstance(key, str):
            raise BadEncoding(reason="a key that is not text", position=start)
        if data[start:position] <= previous:
            raise BadEncoding(reason="keys out of order or twice", position=start)
        previous = data[start:position]
        pairs[key], position = _decode(data, position, depth + 1, budget)
    return pairs, position


def _simple(data: bytes, start: int, first: int) -> tuple[Value, int]:
    if first == 0xF6:
        return None, start + 1
    if first == 0xF5:
        return True, start + 1
    if first == 0xF4:
        return False, start + 1
    if first != 0xFB:
        raise BadEncoding(reason="a simple value or short float that has no meaning here", position=start)
    if len(data) - start < 9:
        raise BadEncoding(reason="the bytes end early", position=start)
    number: float = _FLOAT64.unpack_from(data, start + 1)[0]
    if number != number and data[start + 1 : start + 9] != _FLOAT64.pack(math.nan):
        raise BadEncoding(reason="a NaN in other than its usual form", position=start)
    return number, start + 9
