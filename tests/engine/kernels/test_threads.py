"""Launches: threads that stay alone, and an environment that is left as it was found."""

import os
import threading

import pytest

from engine.kernels.threads import _Launches, launch, stay_alone, threads

LARGE = 1 << 40


def test_processes_started_later_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    _Launches().start()
    assert dict(os.environ) == before
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # the user's choice
    _Launches().start()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "GOMP_SPINCOUNT" not in os.environ or "GOMP_SPINCOUNT" in before


def test_a_thread_that_stays_alone_has_no_team() -> None:
    layers = _Launches()
    layers.start()
    counts: list[int] = []

    def work() -> None:
        stay_alone()
        with launch(LARGE) as count:
            counts.append(count)

    thread = threading.Thread(target=work)
    with launch(LARGE) as count:
        thread.start()
        if layers.layer in ("omp", "tbb"):  # others must take turns
            thread.join()
            assert counts == [1]
        assert count == threads()
    thread.join()
