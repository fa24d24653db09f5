"""Failure paths: an error report that cannot fail, and a stop that does not wait for ever."""

from __future__ import annotations

import builtins
import importlib.metadata
import logging
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.cli import _error_text
from flafka.agent.config import load
from flafka.agent.runner import agent as running
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.retries import Retries
from flafka.agent.services.running import until
from flafka.channels.file import FileChannel
from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    Component,
    Components,
    Config,
    Conflict,
    Event,
    Interceptor,
    Metrics,
    MissingExtra,
    OffsetRange,
    Receipt,
    Retry,
    Sink,
    Source,
    hookimpl,
)
from flafka.plugins.component import require
from flafka.plugins.threads import ThreadFailures, start_thread
from flafka.sources.seq import SeqSource


class Unprintable(Exception):
    """Error of a plugin that raises when it is printed."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("error", [ValueError("five"), Unprintable(), Retry("away"), OSError(24, "no more files")])
def test_an_error_is_reported_without_any_file_or_import(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    Components()  # an agent has read its plugins before

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise OSError(24, "Too many open files")

    metrics = Metrics()
    retries = Retries("a1.sinks.k1", metrics)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "entry_points", refuse)
        patched.setattr(builtins, "open", refuse)
        patched.setattr(builtins, "__import__", refuse)  # last, as the patching imports
        seconds = retries.failed(error)
    assert 0 < seconds < 1
    assert metrics.last_error in ("ValueError: five", "Unprintable", "away", "OSError: [Errno 24] no more files")


def test_an_error_that_cannot_be_reported_is_a_failure_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr("flafka.agent.runner.retries.describe_error", refuse)
    metrics = Metrics()
    assert Retries("a1.sinks.k1", metrics).failed(Retry("away")) > 0
    assert metrics.last_error == "it failed, and the error cannot be reported"


def test_a_failed_import_leaves_no_part_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "half_imported"
    package.mkdir()
    (package / "__init__.py").write_text("from . import first\nimport half_imported.second\n")
    (package / "first.py").write_text("VALUE = 1\n")
    (package / "second.py").write_text("raise OSError(24, 'Too many open files')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match="Too many open files"):
        require("half_imported", "x")
    assert not [name for name in sys.modules if name.startswith("half_imported")]
    (package / "second.py").write_text("raise ImportError('libx.so: cannot open: Too many open files')\n")
    with pytest.raises(ImportError) as raised:
        require("half_imported", "x")
    assert not isinstance(raised.value, MissingExtra), "it is installed"


def test_a_command_without_file_descriptors_names_the_limit_to_raise() -> None:
    sentence = _error_text(OSError(24, "Too many open files", "/etc/a.conf"))
    assert sentence.startswith(
        "Too many open files: /etc/a.conf; this process has reached its limit of open files: raise"
    )


# --- threads


def test_a_thread_that_the_system_refuses_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([True, True, False])
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if next(refusals):
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    ran = threading.Event()
    start_thread(threading.Thread(target=ran.set))
    assert ran.wait(10)


def test_a_thread_without_memory_for_its_first_call_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([MemoryError()])
    bootstrap = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def begin(self: threading.Thread) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        bootstrap(self)

    monkeypatch.setattr(threading.Thread, "_bootstrap", begin)
    ended, ran = ThreadFailures(), threading.Event()
    ended.install()
    try:
        threading.Thread(target=ran.set).start()  # would wait for ever
    finally:
        ended.uninstall()
    assert ran.wait(10)
    assert not ended


class Panics(Source[Config]):
    """Source that ends its thread by an error which no component may raise."""

    type_name = "panics"

    def batches(self) -> Iterator[Batch]:
        raise KeyboardInterrupt


class Starts(Source[Config]):
    """Source whose own thread ends by an error."""

    type_name = "starts"

    def open(self) -> None:
        threading.Thread(target=lambda: [][1], name=f"{self.member}-own").start()

    def batches(self) -> Iterator[Batch]:
        yield Batch.of([Event(b"hello")])
        self.stopping.wait()


class Silent(Sink[Config]):
    """Sink that waits for an answer that never comes."""

    type_name = "silent"
    batch_size = 1
    answered = threading.Event()

    def write(self, batch: Batch) -> None:
        self.answered.wait()


COMPONENTS: list[type[Component[Any]]] = [Panics, Starts, Silent]


def made(directory: Path, *lines: str) -> Agent:
    """Make an agent of source `s`, channel `c` and sink `k`."""
    module = types.ModuleType("failing_plugin")
    module.components = hookimpl(lambda: COMPONENTS, specname="components")  # type: ignore[attr-defined]
    file = directory / "agent.conf"
    file.write_text(
        f"""
a1.sources = s
a1.channels = c
a1.sinks = k
a1.monitoring.port = 0
a1.sources.s.channels = c
a1.channels.c.type = file
a1.channels.c.checkpointDir = {directory}/checkpoint
a1.channels.c.dataDirs = {directory}/data
a1.channels.c.minimumRequiredSpace = 1048576
a1.sinks.k.channel = c
"""
        + "\n".join(lines)
    )
    spec, diagnostics = load(file, None, components=Components([module]))
    assert spec is not None, "\n".join(map(str, diagnostics))
    return Agent(spec)


@pytest.mark.parametrize("kind", ["panics", "starts"])
def test_a_component_whose_thread_has_ended_is_failing_and_the_stop_reports_it(tmp_path: Path, kind: str) -> None:
    agent = made(tmp_path, f"a1.sources.s.type = {kind}", "a1.sinks.k.type = null")
    agent.thread_failures.install()
    try:
        agent.start()
        until(lambda: "SOURCE.s" in agent.registry.failing(), "the source to be failing")
        assert agent.registry.state() == "failing"
        assert "its thread a1.sources.s" in agent.registry.failing()["SOURCE.s"]
    finally:
        clean = agent.stop()
        agent.thread_failures.uninstall()
    assert not clean


# --- tracebacks


def tear_once(component: Component[Any]) -> None:
    """Fail at the first call."""
    if component.name in TORN:
        return
    TORN.add(component.name)
    try:
        raise OSError("torn")
    except OSError as e:
        raise Retry("the tape is torn") from e


TORN: set[str] = set()


class TornSource(SeqSource):
    """Source that fails at its first batch."""

    type_name = "torn_source"

    def batches(self) -> Iterator[Batch]:
        tear_once(self)
        yield from super().batches()


class TornChannel(FileChannel):
    """Channel that fails at its first put."""

    type_name = "torn_channel"
    aliases = ()

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        tear_once(self)
        super().put_in_order(batch, enqueued)


class ShutChannel(FileChannel):
    """Channel that cannot be opened at first."""

    type_name = "shut_channel"
    aliases = ()

    def open(self) -> None:
        tear_once(self)
        super().open()


class TornInterceptor(Interceptor[Config]):
    """Interceptor that fails at its first batch."""

    type_name = "torn_interceptor"

    def intercept(self, batch: Batch) -> Batch:
        tear_once(self)
        return batch


class TornSink(Sink[Config]):
    """Sink that fails at its first batch."""

    type_name = "torn_sink"

    def write(self, batch: Batch) -> None:
        tear_once(self)


class LosingSink(CommittingSink[Config]):
    """Sink that loses its first commit to another owner."""

    type_name = "losing_sink"

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.written: set[int] = set()

    def resume(self, committed: Assignment) -> Assignment:
        return committed

    def write(self, batch: Batch) -> None:
        assert batch.origin is not None
        self.written.add(batch.origin.partition)

    def due_partitions(self) -> set[int]:
        return self.written

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        return Receipt(assignment, offsets, 1, None)

    def commit(self, receipt: Receipt) -> None:
        try:
            tear_once(self)
        except Retry as e:
            raise Conflict("the tape is torn") from e.__cause__

        self.written.clear()

    def reset(self, partition: int | None = None) -> None:
        self.written.clear()


COMPONENTS += [TornSource, TornChannel, ShutChannel, TornInterceptor, TornSink, LosingSink]


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("a1.sources.s.type = torn_source", "a1.sources.s"),
        ("a1.channels.c.type = torn_channel", "a1.sources.s"),  # the source puts it once more
        ("a1.channels.c.type = shut_channel", "a1.channels.c"),
        ("a1.sources.s.interceptors.i.type = torn_interceptor", "a1.sources.s"),
        ("a1.sinks.k.type = torn_sink", "a1.sinks.k"),
        ("a1.sinks.k.type = losing_sink", "a1.sinks.k"),
    ],
)
def test_a_retried_failure_has_a_traceback_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, path: str, level: str
) -> None:
    TORN.clear()
    caplog.set_level(level)
    agent = made(
        tmp_path,
        *("a1.sources.s.type = seq", "a1.sources.s.totalEvents = 1", "a1.sources.s.interceptors = i"),
        *("a1.sources.s.interceptors.i.type = host", "a1.sinks.k.type = null", line),
    )
    agent.start()
    try:
        until(lambda: agent.sinks[0].members[0].metrics.get("EventDrainSuccessCount") == 1, "the event to be there")
    finally:
        assert agent.stop()
    (failure,) = [record for record in caplog.records if record.getMessage() == "the tape is torn"]
    assert (failure.name, failure.levelname) == (path, "WARNING")
    traceback = logging.Formatter().formatException(failure.exc_info) if failure.exc_info else ""
    assert ("OSError: torn" in traceback, "in tear_once" in traceback) == (level == "DEBUG", level == "DEBUG")


# --- the stop


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLOCKED_SECONDS", "IDLE_STOP_SECONDS", "FAILED_SECONDS"):
        monkeypatch.setattr(running, name, 0.3)


def test_a_stop_does_not_wait_long_for_a_store_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    monkeypatch.setattr(Silent, "answered", threading.Event())
    agent = made(tmp_path, "a1.sources.s.type = seq", "a1.sources.s.totalEvents = 1", "a1.sinks.k.type = silent")
    agent.start()
    until(lambda: agent.sinks[0].members[0].metrics.get("EventDrainAttemptCount") == 1, "the sink to have it")
    began = time.monotonic()
    assert not agent.stop()
    assert time.monotonic() - began < 10
    assert agent.has_hanging_threads(), "the process must not wait for its threads"
    Silent.answered.set()
    agent.sinks[0].thread.join()


def test_a_stop_does_not_wait_long_for_a_channel_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    agent = made(
        tmp_path,
        *("a1.sources.s.type = netcat", "a1.sources.s.bind = 127.0.0.1", "a1.sources.s.port = 0"),
        *("a1.sinks.k.type = null", "a1.channels.c.minimumRequiredSpace = 9000000000000000"),
    )
    agent.start()
    source: Any = agent.sources[0].source
    until(lambda: agent.sources[0].was_open.is_set(), "the source to listen")
    with socket.create_connection(("127.0.0.1", source.port)) as sender:
        sender.sendall(b"one\n")
        until(lambda: agent.sources[0].metrics.get("EventReceivedCount") == 1, "the event to arrive")
        began = time.monotonic()
        assert not agent.stop()
        assert time.monotonic() - began < 10
