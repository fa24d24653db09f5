"""Sinks `logger` and `null`, and the names of all."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flafka import sinks
from flafka.plugins import Batch, Components, Event, Sink, conformance
from flafka.sinks.logger import LoggerConfig, LoggerSink
from flafka.sinks.null import NullSink


def test_sinks_are_found_by_flumes_names() -> None:
    components = Components([sinks], entry_points=False)
    for alias, name in {
        "HDFS": "hdfs",
        "org.apache.flume.sink.hdfs.HDFSEventSink": "hdfs",
        "FILE_ROLL": "file_roll",
        "org.apache.flume.sink.RollingFileSink": "file_roll",
        "org.apache.flume.sink.LoggerSink": "logger",
        "org.apache.flume.sink.NullSink": "null",
        "org.apache.flume.sink.http.HttpSink": "http",
        "org.apache.flume.sink.solr.morphline.MorphlineSink": "solr",
    }.items():
        assert components.get("sink", alias).type_name == name


def test_the_logger_writes_each_event(caplog: pytest.LogCaptureFixture) -> None:
    sink = LoggerSink(LoggerConfig.parse({"maxBytesToLog": "3"})[0], "k1")
    with caplog.at_level(logging.INFO):
        sink.write(Batch.of([Event(b"hello", {"a": "1", "b": "%s"}), Event(b"\x00\xff")]))
        sink.flush()
    pad = " " * 39
    assert caplog.messages == [
        f"Event: {{ headers:{{a=1, b=%s}} body: 68 65 6C {pad}hel }}",
        f"Event: {{ headers:{{}} body: 00 FF    {pad}.. }}",
    ]


@pytest.mark.parametrize("sink", [LoggerSink, NullSink])
def test_conformance(sink: type[Sink[Any]]) -> None:
    conformance.check_sink(sink, {})
