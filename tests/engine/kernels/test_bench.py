"""The measurements run, and count what they claim to have read and multiplied; the time is not tested."""

import pytest

from engine import bench


def test_read_speed() -> None:
    speed = bench.read_speed(1 << 20, least_s=0)
    assert speed.nbytes == 1 << 20
    assert speed.gbytes_per_s > 0


@pytest.mark.parametrize("kind", bench.FORMATS)
def test_matmul_speed(kind: str) -> None:
    speed = bench.matmul_speed(kind, 96, 512, 3, least_s=0)
    assert speed.macs == 96 * 512 * 3
    assert speed.timing.low_s <= speed.timing.median_s <= speed.timing.high_s
    bits = {"q8": 8.5, "q4": 4.5, "int4": 4.5, "mxfp4": 4.25, "bf16": 16, "f32": 32, "fp8": 8}[kind]
    assert speed.nbytes == pytest.approx(96 * 512 * bits / 8, rel=0.07)  # panels end on multiples of 64 bytes


def test_one_row_takes_turns_with_a_plain_read() -> None:
    assert bench.matmul_speed("q8", 96, 128, 2, least_s=0).beside_read is None
    assert (bench.matmul_speed("q8", 96, 128, 1, least_s=0).beside_read or 0) > 0


def test_runs_take_turns() -> None:
    seen: list[str] = []
    seconds = bench.in_turns([lambda: seen.append("a"), lambda: seen.append("b")], least_rounds=2, least_s=0)
    assert seconds.shape == (2, 2)
    assert "".join(seen) == "ab" * 3


@pytest.mark.parametrize("stored", bench.STORED_BITS)
def test_packing_speed(stored: str) -> None:
    speed = bench.packing_speed(stored, 96, 128, least_s=0)
    given = bench.made_up_matrix(stored, 96, 128).grouped_bytes()
    blocks = (
        given.scales.nbytes
        if given.stride == given.scale_stride
        else given.values.nbytes + given.scales.nbytes
    )
    assert speed.nbytes == pytest.approx(blocks, rel=0.04)  # scales of fp8 are given once a row


def test_attention_speed() -> None:
    speed = bench.attention_speed(4, 2, 16, 40, 3, layers=2, least_s=0)
    assert speed.macs == 2 * 2 * (38 + 39 + 40) * 4 * 16
    assert speed.nbytes == 2 * 2 * 40 * 2 * 16 * 2
