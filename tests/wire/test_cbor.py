"""Canonical CBOR: one encoding a value, and everything else refused."""

import math
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.wire.cbor import MAX_DEPTH, MOST_VALUES, BadEncoding, decode, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.binary(max_size=300)
    | st.text(max_size=80)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=30), inner, max_size=6),
    max_leaves=25,
)


def deep(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(deep, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(deep, value.values()), default=0)
    return 0


@settings(max_examples=300, deadline=None)
@given(values)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    if deep(value) > MAX_DEPTH:
        return
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data
    assert cbor2.loads(data) == value  # any other reader understands it, too


@pytest.mark.parametrize(
    ("value", "encoded"),
    # RFC 8949, appendix A, and the edges of each length of head.
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65535, "19ffff"),
        (65536, "1a00010000"),
        (2**32 - 1, "1affffffff"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-24, "37"),
        (-25, "3818"),
        (-(2**64), "3bffffffffffffffff"),
        (1.1, "fb3ff199999999999a"),
        (math.inf, "fb7ff0000000000000"),
        (False, "f4"),
        (True, "f5"),
        (None, "f6"),
        (b"", "40"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("", "60"),
        ("ü", "62c3bc"),
        ([], "80"),
        ([1, [2, 3]], "8201820203"),
        ({}, "a0"),
        ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
        ({"b": 1, "aa": 2, "a": 3}, "a36161036162016261" + "6102"),
    ],
)
def test_known_encodings(value: Any, encoded: str) -> None:
    assert encode(value).hex() == encoded
    assert decode(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("", "end early"),
        ("18", "end early"),
        ("1b00", "end early"),
        ("0000", "before the bytes"),
        ("1800", "longer"),
        ("1817", "longer"),
        ("1900ff", "longer"),
        ("1a0000ffff", "longer"),
        ("1b00000000ffffffff", "longer"),
        ("3800", "longer"),
        ("5800", "longer"),
        ("7800", "longer"),
        ("9800", "longer"),
        ("b800", "longer"),
        ("1c", "reserved"),
        ("5f4101ff", "indefinite"),
        ("7f6161ff", "indefinite"),
        ("9f01ff", "indefinite"),
        ("bf616101ff", "indefinite"),
        ("ff", "no meaning"),
        ("41", "beyond the end"),
        ("5b7fffffffffffffff", "beyond the end"),
        ("9b7fffffffffffffff", "beyond the end"),
        ("bb7fffffffffffffff", "beyond the end"),
        ("9a000fffff00", "beyond the end"),
        ("82", "beyond the end"),
        ("a101", "beyond"),
        ("c000", "a tag"),
        ("c249010000000000000000", "a tag"),
        ("d9010f80", "a tag"),
        ("a10101", "not text"),
        ("a1416101", "not text"),
        ("a26161016161" + "02", "twice"),
        ("a2616201616102", "order"),
        ("a262616101616202", "order"),
        ("61ff", "UTF-8"),
        ("63eda080", "UTF-8"),
        ("62c080", "UTF-8"),
        ("f7", "no meaning"),
        ("f0", "no meaning"),
        ("f820", "no meaning"),
        ("f93c00", "no meaning"),
        ("fa3f800000", "no meaning"),
        ("fb7ff8000000000001", "NaN"),
        ("fb00", "end early"),
        ("81" * 30 + "00", "too deep"),
        ("a16161" * 20 + "00", "too deep"),
        ("8161", "early|beyond"),
    ],
)
def test_refused(encoded: str, reason: str) -> None:
    with pytest.raises(BadEncoding, match=reason):
        decode(bytes.fromhex(encoded))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=120))
def test_random_bytes_are_the_one_encoding_of_a_value_or_refused(data: bytes) -> None:
    try:
        value = decode(data)
    except BadEncoding:
        return
    assert encode(value) == data


@settings(max_examples=300, deadline=None)
@given(values, st.data())
def test_changed_encodings_are_another_value_or_refused(value: Any, data: st.DataObject) -> None:
    if deep(value) > MAX_DEPTH:
        return
    encoded = bytearray(encode(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert encode(decode(encoded)) == encoded
    except BadEncoding:
        return


def test_nan_has_one_form() -> None:
    assert math.isnan(float(str(decode(encode(math.nan)))))
    assert encode(-math.nan) == encode(math.nan)


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, 2**64, -(2**64) - 1, {1, 2}, [[[[[[[[[[[[[[1]]]]]]]]]]]]]]]
)
def test_what_has_no_encoding(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_there_are_no_more_values_than_a_caller_allows() -> None:
    value: Any = {"a": [1, 2, 3], "b": [[], {}]}  # two pairs, three numbers, two that are empty
    data = encode(value)
    assert decode(data, most_values=7) == value
    with pytest.raises(BadEncoding, match="more values"):
        decode(data, most_values=6)
    assert decode(encode([None] * MOST_VALUES)) == [None] * MOST_VALUES
    with pytest.raises(BadEncoding, match="more values"):
        decode(encode([None] * (MOST_VALUES + 1)))
