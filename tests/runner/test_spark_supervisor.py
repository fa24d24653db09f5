"""Agent's side of the Spark runner: ended drivers, and their remains."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flafka.agent.config import load
from flafka.agent.runner.spark import supervisor
from flafka.agent.runner.spark.scratch import lock_scratch_directory, scratch_directory
from flafka.agent.runner.spark.supervisor import SparkRunner
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Forked


def be_killed(temporary: Path) -> None:
    tempfile.tempdir = str(temporary)
    with scratch_directory() as directory:
        Path(directory, "left").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_files_of_a_killed_agent_are_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = forked.start(be_killed, tmp_path)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (leftover,) = tmp_path.glob("*/left")
    with scratch_directory() as first, scratch_directory() as second:
        assert not leftover.exists()
        assert sorted(tmp_path.iterdir()) == sorted([Path(first), Path(second)])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_removed_after_all_its_processes_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_directory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        with lock_scratch_directory() as descriptors:
            makes_again = ["sh", "-c", 'sleep 0.3; mkdir -p "$0"', directory]
            process = subprocess.Popen(makes_again, pass_fds=descriptors)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_its_lock_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("flafka.agent.runner.spark.scratch._END_SECONDS", 3600)
    with scratch_directory() as directory:
        Path(directory, "owner").unlink()
        monkeypatch.setattr(tempfile, "tempdir", directory)
        with lock_scratch_directory() as descriptors:
            assert descriptors == []
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


class Impatient(threading.Event):
    """Process that waits for a moment only, and records the requested timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout or 0)
        return super().wait(0.01)


class Patient(threading.Event):
    """Process that waits for the end."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait()


def read(tmp_path: Path, port: int) -> AgentSpec:
    """Return an agent whose Spark master should be at that port."""
    file = tmp_path / "agent.conf"
    file.write_text(f"""
a1.channels = c1
a1.sinks = k1
a1.spark.master = spark://127.0.0.1:{port}
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
a1.sinks.k1.runner = spark
""")
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    return spec


def test_a_lag_from_before_a_failure_is_not_shown_any_more(tmp_path: Path) -> None:
    spec = read(tmp_path, 1)
    runner = SparkRunner(spec, list(spec.sinks), lambda *_: None)
    metrics = runner.metrics["k1"]

    def send_progress(gauges: dict[str, float], error: str | None = None) -> None:
        runner._handle_report(json.dumps({"sink": "k1", "counts": {}, "gauges": gauges, "error": error}).encode())

    metrics.set("LagSeconds", 20)  # as the monitor found it before
    send_progress({"Lag": 0, "BatchMilliseconds": 5})
    assert (metrics.snapshot()["Lag"], metrics.snapshot()["LagSeconds"]) == (0, 0)
    send_progress({}, "the store is away")
    assert metrics.snapshot() == {"BatchMilliseconds": 5}  # otherwise a drain would take it for delivered
    send_progress({"Lag": 3})
    assert metrics.snapshot()["Lag"] == 3


def test_the_application_of_the_driver_that_runs_is_known(tmp_path: Path) -> None:
    spec = read(tmp_path, 1)
    runner = SparkRunner(spec, list(spec.sinks), lambda *_: None)
    assert runner.job.configuration == str(tmp_path / "agent.conf")
    assert runner.application == {}
    runner._handle_report(b'{"application": {"application": "application_1_0001", "tracking": "http://rm/1"}}\n')
    assert runner.application == {"application": "application_1_0001", "tracking": "http://rm/1"}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(json.dumps({'end': 'the SparkContext was stopped'})); sys.exit(3)", "the SparkContext was stopped"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the Spark driver was killed by SIGKILL (as the kernel does"),
        ("sys.exit(7)", "the Spark driver ended with code 7; its log: "),
    ],
)
def test_a_driver_s_end_is_reported_until_each_sink_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str, reason: str
) -> None:
    """The first three drivers end; in the fourth one of the sinks works again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    python, ends = tmp_path / "python", tmp_path / "ends"
    works = {"sink": "k1", "counts": {}, "gauges": {"Lag": 0}, "error": None}
    python.write_text(
        f"#!{sys.executable}\n"
        f"import json, os, signal, sys\n"
        f"with open({str(ends)!r}, 'a') as ends:\n    ends.write('.')\n    started = ends.tell()\n"
        f"if started > 3:\n    print({json.dumps(works)!r}, flush=True)\n    sys.stdin.read()\n"
        f"{program}\n"
    )
    python.chmod(0o755)
    spec = read(tmp_path, 1)
    first = spec.sinks[0]
    runner = SparkRunner(spec, [first, replace(first, name="k2")], lambda *_: None)
    runner._stopping = waiting = Impatient()
    monkeypatch.setattr(supervisor, "sys", SimpleNamespace(executable=str(python)))
    working, failing = runner.metrics["k1"], runner.metrics["k2"]
    with caplog.at_level("WARNING", "spark"):
        runner.start()
        try:
            until(lambda: "Lag" in working.snapshot(), "the first sink to work again")
            assert working.last_error == ""
            assert failing.last_error.startswith(reason)
            for metrics in (working, failing):
                assert metrics.get("FailureCount") == metrics.get("DriverRestartCount") == 3
        finally:
            runner.stop(180)
    (warning,) = [record.getMessage() for record in caplog.records if "is restarted" in record.getMessage()]
    assert warning.startswith(f"the Spark driver has ended and is restarted: {reason}")
    assert working.get("DriverRestartCount") == 3  # a regular stop is no failure
    assert working.get("FailureCount") == 3
    # Each wait is longer.
    assert waiting.asked[:3] == sorted(set(waiting.asked[:3]))


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_driver_that_cannot_be_started_has_its_traceback_at_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    spec = read(tmp_path, 1)
    runner = SparkRunner(spec, list(spec.sinks), lambda *_: None)

    def no_directory() -> None:
        runner._stopping.wait = lambda *_: True  # type: ignore[method-assign]  # one attempt
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(supervisor, "scratch_directory", no_directory)
    with caplog.at_level(level, "spark"):
        runner._run()
    failure = caplog.records[0]
    assert failure.getMessage().endswith(
        "the Spark driver cannot be started: OSError: [Errno 24] Too many open files"
    )
    assert (failure.exc_info is not None) == (level == "DEBUG")
    if failure.exc_info:
        assert "in no_directory\n" in logging.Formatter().formatException(failure.exc_info)


def test_a_driver_without_a_master_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    port = free_port()
    spec = read(tmp_path, port)
    runner = SparkRunner(spec, list(spec.sinks), lambda *_: None)
    runner._stopping = Patient()
    metrics = runner.metrics["k1"]
    runner.start()
    try:
        # The message has the reason, rather than an exit code.
        until(
            lambda: metrics.last_error.startswith(f"no Spark master answers at spark://127.0.0.1:{port}"),
            "the reason",
        )
    finally:
        runner.stop(180)


@pytest.mark.usefixtures("servers")  # for Spark's jars
def test_a_stop_while_spark_starts_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java, started = tmp_path / "java home" / "bin" / "java", tmp_path / "started"
    java.parent.mkdir(parents=True)
    version = """echo 'openjdk version "17.0.1"' >&2"""
    java.write_text(f"#!/bin/sh\n[ \"$1\" = -version ] && {version} && exit\necho $$ > '{started}'\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    spec = read(tmp_path, 1)
    spec = replace(spec, options=spec.options.model_copy(update={"spark_master": "local[1]"}))
    runner = SparkRunner(spec, list(spec.sinks), lambda *_: None)
    runner.start()
    try:
        until(lambda: started.exists() and started.read_text().endswith("\n"), "the JVM to be started")
        assert runner.stop(60), "it was killed"
    finally:
        runner.stop(0)
    assert not Path("/proc", started.read_text().strip()).exists()
