"""The benchmark runs and reports every figure."""

import pytest

from tracker import bench


async def test_every_question_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RELAYED_BYTES", 1 << 20)
    result = await bench.measure(peers=40, questions=3)
    assert len(result.figures) == 11
    for figure in result.figures:
        assert figure.count == 3
        assert 0 < figure.p50_ms <= figure.p99_ms <= figure.worst_ms
    assert result.relay_bytes_per_s > 0
