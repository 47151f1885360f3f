"""Experts in bounded memory: the same rows whatever fits, failures named, packed copies on disk believed
only when whole."""

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint import Checkpoint
from engine.engine import Engine, Options
from engine.errors import Closed, ExpertsUnavailable, SettingsError
from engine.expert_bank import ExpertBank, LocalExperts
from engine.generate import greedy
from engine.kernels import quantize_rows
from engine.models import family_of
from engine.packed_cache import PackedCache, clean, used_bytes
from engine.readers import Readers
from engine.residency import NOBODY, Residency
from engine.source import DirectorySource
from tests.engine.reference import golden, opened


class Broken:
    """A directory whose reads fail while told to."""

    def __init__(self, folder: Path) -> None:
        self._source = DirectorySource(folder)
        self.broken = False
        self.hints: list[tuple[str, int, int]] = []

    def files(self) -> Mapping[str, int]:
        return self._source.files()

    def read(self, path: str, offset: int, length: int) -> bytes | bytearray | memoryview:
        if self.broken:
            raise OSError("the disk is gone")
        return self._source.read(path, offset, length)

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        self.hints.extend(ranges)

    def fingerprint(self) -> str | None:
        return self._source.fingerprint()


def bank_of(source: Broken, slots: int, cache: Path | None = None) -> ExpertBank:
    checkpoint = Checkpoint.open(source)
    family = family_of(checkpoint.config)
    layout = family.experts(family.parse(checkpoint.config))
    probe = ExpertBank(checkpoint, layout, "q8", cache=None)
    one = probe.shape(0).nbytes
    probe.close()
    return ExpertBank(checkpoint, layout, "q8", slots * one, cache)


@pytest.fixture
def source(oracle: Path) -> Broken:
    return Broken(oracle / "olmoe")


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    luck = np.random.default_rng(3)
    rows = luck.standard_normal((5, 64)).astype(np.float32)
    expert = luck.integers(0, 8, 15).astype(np.int32)
    return rows, expert, np.repeat(np.arange(5, dtype=np.int32), 3)


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 32])
def test_rows_are_the_same_whatever_fits(source: Broken, slots: int, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, expert, row = pairs
    whole = bank_of(source, 32)
    small = bank_of(source, slots)
    for layer in (0, 3, 0, 1, 0):
        expected = whole.run(layer, quantize_rows(rows), expert, row)
        small.prefetch(layer, expert[:4].tolist())
        found = small.run(layer, quantize_rows(rows), expert, row)
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.scale, expected.scale)
        assert len(small.resident()) <= slots
    assert small.streams == (slots < 32)
    assert small.stats.misses + small.stats.hits == 5 * len(set(expert.tolist()))
    assert whole.stats.misses == 3 * len(set(expert.tolist()))
    for bank in (whole, small):
        bank.close()


def test_greedy_tokens_do_not_depend_on_the_budget(oracle: Path) -> None:
    answers = golden(oracle / "olmoe")
    engine = Engine.open(DirectorySource(oracle / "olmoe"), Options("native", expert_ram_bytes=200_000))
    assert engine.experts.looks_ahead
    tokens, _ = greedy(engine.model, engine.experts, answers.prompt, 24)
    assert tokens == answers.greedy
    assert engine.bank.stats.ahead > 0
    assert engine.bank.capacity_bytes <= 200_000
    engine.close()


def test_a_budget_below_one_expert_is_refused(source: Broken) -> None:
    with pytest.raises(SettingsError, match="must hold at least one"):
        bank_of(source, 0)


def test_bytes_that_cannot_be_had_are_named_and_had_later(source: Broken, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, expert, row = pairs
    bank = bank_of(source, 4)
    source.broken = True
    for _ in range(2):
        with pytest.raises(
            ExpertsUnavailable, match=r"expert \d of layer 1 cannot be read .the disk is gone"
        ):
            bank.run(1, quantize_rows(rows), expert, row)
    source.broken = False
    good = bank_of(source, 32)
    np.testing.assert_array_equal(
        bank.run(1, quantize_rows(rows), expert, row).values,
        good.run(1, quantize_rows(rows), expert, row).values,
    )
    bank.close()
    good.close()


def test_the_source_is_told_before_it_is_read(source: Broken, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, expert, row = pairs
    bank = bank_of(source, 32)
    source.hints.clear()
    bank.run(0, quantize_rows(rows), expert, row)
    named = len(set(expert.tolist())) * 3 * 64 * 48 * 2
    assert sum(length for _, _, length in source.hints) == named
    bank.close()


def test_preloading_fills_memory(source: Broken) -> None:
    bank = bank_of(source, 20)
    seen: list[tuple[int, int]] = []
    bank.preload(lambda done, total: seen.append((done, total)))
    assert len(bank.resident()) == 20
    assert seen[-1] == (20, 20)
    assert bank.has(0, 0)
    bank.close()


def test_local_experts_take_f32_rows(oracle: Path) -> None:
    engine = opened(oracle / "olmoe", "q8")
    rows = np.ones((2, 64), np.float32)
    ids, weights = np.array([[1, 2], [3, 1]], np.int32), np.full((2, 2), 0.5, np.float32)
    together = LocalExperts(engine.bank).begin(0, rows, ids, weights)()
    np.testing.assert_array_equal(
        LocalExperts(engine.bank).begin(0, rows[:1], ids[1:], weights[:1])()[0], together[1]
    )


# The packed cache.


def test_packed_experts_are_read_back_without_the_model(source: Broken, tmp_path: Path, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, expert, row = pairs
    first = bank_of(source, 32, tmp_path)
    expected = first.run(2, quantize_rows(rows), expert, row)
    first.close()
    second = bank_of(source, 32, tmp_path)
    source.broken = True
    found = second.run(2, quantize_rows(rows), expert, row)
    np.testing.assert_array_equal(found.values, expected.values)
    assert second.stats.from_cache == len(set(expert.tolist()))
    assert second.cache_trouble is None
    second.close()


def test_an_engine_keeps_packed_experts_only_of_a_model_that_does_not_fit(
    oracle: Path, tmp_path: Path
) -> None:
    found = []
    for ram_bytes in (None, 200_000, 200_000):
        options = Options("q8", ram_bytes, tmp_path / "packed")
        with DirectorySource(oracle / "olmoe") as source, Engine.open(source, options) as engine:
            found.append(greedy(engine.model, engine.experts, [1, 2, 3, 4], 4)[0])
            packed = engine.bank.reader.shape(0).nbytes
            converted = engine.bank.stats.bytes_read - engine.bank.stats.from_cache * packed
        assert (used_bytes(tmp_path / "packed") > 0) == (ram_bytes is not None)
        assert (converted > 0) == (len(found) < 3)
    assert found[0] == found[1] == found[2]


def test_a_damaged_copy_is_not_believed(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, "key")
    blob = np.arange(256, dtype=np.uint8)
    cache.write(0, 1, blob)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    good = file.read_bytes()
    out = np.zeros_like(blob)
    assert cache.read(0, 1, out)
    np.testing.assert_array_equal(out, blob)
    assert cache.has(0, 1)
    assert not cache.read(0, 2, out)
    for bad in (
        good[:-1],
        good + b"x",
        good[:100] + b"\xff" + good[101:],
        b"\xff" + good[1:],
        b"",
        bytes(len(good)),
    ):
        file.write_bytes(bad)
        assert not cache.read(0, 1, out)
    assert not PackedCache(tmp_path, "another key").has(0, 1)


def test_a_disk_that_refuses_is_left_alone(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    cache = PackedCache(blocker, "key")
    cache.write(0, 0, np.zeros(64, np.uint8))
    assert cache.full is not None
    assert "no longer kept" in cache.full
    cache.write(0, 1, np.zeros(64, np.uint8))
    assert not cache.read(0, 0, np.zeros(64, np.uint8))


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.packed_cache.LEAST_FREE_BYTES", 1 << 62)
    cache = PackedCache(tmp_path, "key")
    cache.write(0, 0, np.zeros(64, np.uint8))
    assert cache.full is not None
    assert "nearly full" in cache.full
    assert used_bytes(tmp_path) == 0


def test_what_was_not_opened_for_long_is_removed(tmp_path: Path) -> None:
    old, new = PackedCache(tmp_path, "old"), PackedCache(tmp_path, "new")
    for cache in (old, new):
        cache.write(0, 0, np.zeros(64, np.uint8))
    used = used_bytes(tmp_path)
    os.utime(old.directory, (1000, 1000))
    os.utime(new.directory, (1000, 1000))
    PackedCache(tmp_path, "new")  # opened again
    assert clean(tmp_path, 3600) == used // 2
    assert (old.has(0, 0), new.has(0, 0)) == (False, True)
    assert clean(tmp_path, 0) == used // 2
    assert clean(tmp_path / "nothing", 0) == used_bytes(tmp_path / "nothing") == 0


def test_what_was_packed_for_another_layout_is_packed_again(
    source: Broken,
    tmp_path: Path,
    pairs: tuple[np.ndarray, np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, expert, row = pairs
    for layout, from_cache in ((1, 0), (1, len(set(expert.tolist()))), (2, 0)):
        monkeypatch.setattr("engine.expert_reader.LAYOUT_VERSION", layout)
        bank = bank_of(source, 32, tmp_path)
        bank.run(2, quantize_rows(rows), expert, row)
        assert bank.stats.from_cache == from_cache
        bank.close()


# Who stays, and who reads.


def test_what_is_used_most_stays() -> None:
    residency = Residency(10, 3)
    for expert in (0, 1, 2):
        assert residency.place(expert, set()) is not None
        residency.use(np.array([expert]))
    for _ in range(5):
        residency.use(np.array([0]))
    residency.use(np.array([2]))
    residency.use(np.array([7]))
    slot = residency.place(7, set())
    assert slot is not None
    assert residency.resident() == [0, 2, 7]
    assert residency.slot_of[1] == NOBODY
    kept = {int(residency.slot_of[one]) for one in (0, 2, 7)}
    assert residency.place(5, kept) is None
    residency.release([2])
    assert residency.place(5, kept - {slot}) is not None
    assert residency.resident() == [0, 5, 7]


def test_old_uses_fade() -> None:
    residency = Residency(3, 2)
    for expert in (0, 1):
        residency.place(expert, set())
    for _ in range(50):
        residency.use(np.array([0]))
    for _ in range(30_000):
        residency.use(np.array([], np.int64))
    residency.use(np.array([1]))
    residency.use(np.array([2]))
    residency.place(2, set())
    assert residency.resident() == [1, 2]


def test_urgent_reads_come_first_and_errors_reach_who_waits() -> None:
    readers = Readers(1)
    order: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go.wait(10)

    def fail() -> None:
        raise OSError("no")

    readers.submit(hold, urgent=True)
    assert begun.wait(10)
    later = readers.submit(lambda: order.append("ahead"), urgent=False)
    hurried = readers.submit(lambda: order.append("hurried"), urgent=False)
    soon = readers.submit(lambda: order.append("urgent"), urgent=True)
    bad = readers.submit(fail, urgent=True)
    readers.hurry(hurried)
    go.set()
    for job in (later, hurried, soon):
        job.wait()
    with pytest.raises(OSError, match="no"):
        bad.wait()
    assert order == ["hurried", "urgent", "ahead"]
    readers.close()
    with pytest.raises(Closed):
        readers.submit(fail, urgent=True)


def test_a_closed_bank_refuses_in_the_engines_own_words(source: Broken, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, expert, row = pairs
    bank = bank_of(source, 8)
    bank.close()
    with pytest.raises(Closed, match="closed"):  # an audit that runs behind a chat which ends is not a fault
        bank.run(0, quantize_rows(rows), expert, row)


def test_wrong_guesses_are_no_longer_read(source: Broken, pairs) -> None:  # type: ignore[no-untyped-def]
    rows, _, row = pairs
    bank = bank_of(source, 8)

    def rounds(guess: int, truth: int, count: int) -> int:
        before = bank.stats.ahead
        for _ in range(count):
            bank.prefetch(1, [guess])
            bank.run(1, quantize_rows(rows), np.full(15, truth, np.int32), row)
            bank.run(0, quantize_rows(rows), np.arange(15, dtype=np.int32) % 8, row)
        return bank.stats.ahead - before

    assert rounds(guess=5, truth=5, count=5) > 0
    rounds(guess=6, truth=5, count=60)
    assert rounds(guess=6, truth=5, count=5) == 0
    rounds(guess=5, truth=5, count=60)
    assert rounds(guess=5, truth=5, count=5) > 0
    bank.close()


def test_engines_of_one_process_share_a_packed_cache(oracle: Path, tmp_path: Path) -> None:
    for turn in range(4):
        folder = tmp_path / str(turn)
        engines = [
            Engine.open(DirectorySource(oracle / "olmoe"), Options("q8", 200_000, folder)) for _ in range(3)
        ]
        everything = list(engines[0].bank.layout.all())
        readers = [
            threading.Thread(target=engine.bank.preload, kwargs={"wanted": everything}) for engine in engines
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert [engine.bank.cache_trouble for engine in engines] == [None] * 3
        for engine in engines:
            engine.close()
        kept = [file.name for model in folder.iterdir() for file in model.iterdir()]
        assert len(kept) == len(everything)
        assert not any(name.endswith(".tmp") for name in kept)


def test_what_killed_writers_left_is_removed_and_strangers_files_are_not(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, "key")
    cache.write(0, 1, np.ones(64, np.uint8))
    left, writing = (cache.directory / f"layer-000-expert-000{number}.x.tmp" for number in (2, 3))
    for file in (left, writing, tmp_path / "note.txt"):
        file.write_bytes(b"half")
    os.utime(left, (1.0, 1.0))
    again = PackedCache(tmp_path, "key")
    assert (left.exists(), writing.exists(), again.has(0, 1)) == (False, True, True)
    assert used_bytes(tmp_path) > 64
    clean(tmp_path, 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
