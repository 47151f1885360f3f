"""Every code point of the small floats against the formula of its specification."""

import math
import struct

import numpy as np

from engine.formats import bf16_to_f32, e4m3_to_f32, e8m0_to_f32, f32_to_bf16
from engine.formats.codes import E2M1_DOUBLED, nibbles


def test_e4m3() -> None:
    values = e4m3_to_f32(np.arange(256, dtype=np.uint8))
    for code in range(256):
        sign, exponent, mantissa = (-1) ** (code >> 7), (code >> 3) & 15, code & 7
        if code & 0x7F == 0x7F:
            assert math.isnan(values[code])
        else:
            size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
            assert values[code] == sign * size
            assert math.copysign(1, values[code]) == sign
    assert values[0x7E] == 448


def test_e8m0() -> None:
    values = e8m0_to_f32(np.arange(256, dtype=np.uint8))
    assert all(values[code] == 2.0 ** (code - 127) for code in range(255))
    assert math.isnan(values[255])


def test_e2m1() -> None:
    assert (E2M1_DOUBLED[:8] / 2).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert (E2M1_DOUBLED[8:] == -E2M1_DOUBLED[:8]).all()


def test_bf16_both_ways() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bf16_to_f32(bits)
    assert values[0x3F80] == 1
    assert values[1] == struct.unpack("<f", struct.pack("<I", 1 << 16))[0]
    assert math.isinf(values[0xFF80])
    known = ~np.isnan(values)
    assert (f32_to_bf16(values)[known] == bits[known]).all()
    assert np.isnan(bf16_to_f32(f32_to_bf16(values[~known]))).all()


def test_rounding_to_bf16_is_to_even() -> None:
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    assert f32_to_bf16(values).tolist() == [0x3F80, 0x3F82, 0x3F81]


def test_nibbles_low_first() -> None:
    assert nibbles(np.array([[0x21, 0xF3]], np.uint8)).tolist() == [[1, 2, 3, 15]]
