"""History of metrics: a day in bounded memory, through a restart, and the quantiles of latencies."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from flafka.agent.monitoring import history as history_module
from flafka.agent.monitoring.history import MAX_SERIES, RESOLUTIONS, SERIES_BYTES, History
from flafka.agent.monitoring.latency import WINDOW_SECONDS, LatencyWindow
from flafka.agent.monitoring.registry import Registry
from flafka.plugins import Metrics

ROOT = Path(__file__).parents[2]
START = 1_767_225_600.0


class Recorder:
    """History of one sink under a clock of its own."""

    def __init__(self, start: float = START) -> None:
        self.at = start
        self.registry, self.metrics = Registry("a1"), Metrics()
        self.registry.add("SINK", "k1", self.metrics)
        self.history = History(self.registry, lambda: self.at, lambda: self.at)

    def run(self, seconds: float, step: float) -> None:
        end = self.at + seconds
        while self.at < end:
            self.metrics.add("EventDrainSuccessCount", 5 * step)
            self.metrics.set("Lag", self.at - START)
            self.history.sample()
            self.at += step

    def lags(self, span: float) -> tuple[list[float], list[float | None]]:
        answer = self.history.series(span, 0, ["SINK.k1"])
        return answer["times"], answer["series"]["SINK.k1"]["Lag"]


def test_a_day_is_kept_in_bounded_memory() -> None:
    recorder = Recorder()
    recorder.run(30 * 3600, 60)
    recorder.run(1200, 2)
    times, lags = recorder.lags(86400)
    assert times[-1] - times[0] >= 86400 - 120
    assert lags[-1] == pytest.approx(recorder.at - START, abs=60)
    rates = recorder.history.series(86400, 0, ["SINK.k1"])["series"]["SINK.k1"]["EventDrainSuccessCount"]
    assert np.median(rates[1:-30]) == pytest.approx(5)
    assert len(recorder.lags(600)[0]) >= RESOLUTIONS[0].slots - 2
    series = [values for ring in recorder.history._rings for values in ring.series.values()]
    own = [ring.series["SINK.k1", "Lag"].nbytes for ring in recorder.history._rings]
    assert sum(own) == SERIES_BYTES == 8640
    assert len({id(values) for values in series}) == len(series)
    assert f"{SERIES_BYTES:,} bytes" in (ROOT / "docs/operations.md").read_text("utf-8")
    assert f"{MAX_SERIES:,} series" in (ROOT / "docs/operations.md").read_text("utf-8")


def test_the_number_of_series_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_SERIES", 3)
    recorder = Recorder()
    recorder.run(60, 2)
    assert {len(ring.series) for ring in recorder.history._rings} == {3}


def test_it_continues_after_a_restart_with_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "start_thread", lambda thread: None)
    file = tmp_path / "state" / "history" / "a1.npz"
    before = Recorder()
    before.history.start(file)
    before.run(3600, 10)
    before.history.stop()
    assert [path.name for path in file.parent.iterdir()] == ["a1.npz"], "it is written at once, without leftovers"
    after = Recorder(before.at + 600)
    after.history.start(file)
    after.run(120, 10)
    times, lags = after.lags(86400)
    assert (times[0], times[-1]) == (START, after.at - 60)
    assert lags[0] == 0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sorted(gaps)[-2:] == [60, 660]
    assert None not in lags


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"x" * 100, "other"])
def test_a_damaged_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str) -> None:
    monkeypatch.setattr(history_module, "start_thread", lambda thread: None)
    file = tmp_path / "a1.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, numbers10=np.zeros(7), keys10=np.array("[]"), values10=np.zeros(0))
    recorder = Recorder()
    recorder.history.start(file)
    recorder.run(120, 2)
    recorder.history.stop()
    after = Recorder(recorder.at)
    after.history.start(file)
    assert len(after.history.series(86400, 0, ["SINK.k1"])["series"]["SINK.k1"]["Lag"]) == 2


def test_without_a_directory_it_is_in_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "start_thread", lambda thread: None)
    (tmp_path / "file").write_text("")
    recorder = Recorder()
    recorder.history.start(tmp_path / "file" / "history" / "a1.npz")
    recorder.run(120, 2)
    recorder.history.stop()
    assert recorder.lags(600)[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_quantiles_of_latencies_are_within_five_percent_and_forget() -> None:
    clock, metrics = [0.0], Metrics()
    window = LatencyWindow(metrics, lambda: clock[0])
    assert "LatencyP50Milliseconds" not in metrics.snapshot(), "unknown without a batch"
    seconds = [random.lognormvariate(-4, 1.5) for _ in range(5000)]
    for value in seconds:
        window.add(value)
    known = metrics.snapshot()
    for name, share in (("LatencyP50Milliseconds", 50), ("LatencyP99Milliseconds", 99)):
        assert known[name] == pytest.approx(1000 * np.percentile(seconds, share), rel=0.06)
    clock[0] += WINDOW_SECONDS
    assert metrics.snapshot() == known, "the minute before counts"
    clock[0] += 2 * WINDOW_SECONDS
    assert "LatencyP50Milliseconds" not in metrics.snapshot()
