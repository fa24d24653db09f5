"""`agent replay`: its time range, and its message about an empty one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner import replaying
from flafka.agent.runner.local.standalone import Hangs
from flafka.plugins import Assignment, Components, FlafkaError, KafkaStream, OffsetRange
from tests.fixtures.partitions import assignment

CONF = """
a1.sources = s
a1.channels = c
a1.sinks = k
a1.sources.s.type = seq
a1.sources.s.channels = c
a1.channels.c.type = kafka
a1.channels.c.kafka.bootstrap.servers = 127.0.0.1:1
a1.channels.c.kafka.topic = web-logs
a1.sinks.k.type = null
a1.sinks.k.channel = c
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "agent.conf"
    file.write_text(CONF)
    return file


def test_a_time_range_from_before_1970_starts_at_the_beginning(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka uses negative times for marks such as the end of the log, and a group's name has none."""
    requests: list[Any] = []

    @contextmanager
    def open_replay(spec: Any, name: str, start: int, end: int) -> Iterator[None]:
        requests.append((name, start, end))
        raise FlafkaError("that is all")
        yield

    monkeypatch.setattr(replaying, "open_replay", open_replay)
    span = ("--from", "1960-01-01T00:00+00:00", "--to", "1970-01-02T00:00+00:00")
    result = CliRunner().invoke(main, ["replay", "-c", str(conf), "--sink", "k", *span, "--yes"])
    assert "that is all" in result.output + result.stderr + str(result.exception)
    assert requests == [("k", 0, 86_400_000)]


class Topic:
    """Channel with one partition, whose time range, records 5 to 7, has only transaction markers."""

    kafka = property(lambda self: self)

    def __init__(self, offset: int | None) -> None:
        self.offset = offset

    def stream(self, group: str | None) -> KafkaStream:
        return KafkaStream("", "", group or "g")

    def committed(self, group: str | None) -> list[Assignment]:
        return [assignment("cluster", "web-logs", "id", group or "g", 0, 0, next_offset=self.offset)]

    def offsets_for_time(self, time: int) -> dict[int, int]:
        return {0: {1: 5, 2: 8}[time]}

    def beginning_offsets(self) -> dict[int, int]:
        return {0: 0}

    def is_empty_range(self, partition: int, start: int, end: int) -> bool:
        return True


@pytest.mark.parametrize(("offset", "begun"), [(None, False), (5, True)])
def test_an_empty_time_range_is_not_reported_as_a_complete_replay(
    conf: Path, offset: int | None, begun: bool
) -> None:
    spec, problems = load(conf, components=Components())
    assert spec is not None, problems
    topic: Any = Topic(offset)
    planned = replaying._plan(spec, spec.sinks[0], topic, topic.committed("g"), 1, 2)
    assert (planned.records, planned.is_begun) == (0, begun)


def test_a_sink_that_hangs_ends_the_command(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself would wait for the sink's threads without end."""
    end = threading.Event()
    start = assignment("", "", "", "g", 0, 0, next_offset=5)
    part = replaying.PartitionSpan(OffsetRange(5, 8), start, 0, None)

    class Planned(replaying.Replay):
        def duplicate_risk(self) -> str:
            return ""

        def run(self, on_progress: Any = None) -> Any:
            threading.Thread(target=end.wait, args=(60,)).start()
            raise Hangs("the replay stopped, a1.sinks.k hangs")

    @contextmanager
    def open_replay(spec: Any, name: str, start: int, end: int) -> Iterator[Any]:
        none: Any = None
        yield Planned(spec, spec.sinks[0], none, (part,))

    def leave(code: int) -> None:
        raise SystemExit(code + 40)

    monkeypatch.setattr(replaying, "open_replay", open_replay)
    monkeypatch.setattr(os, "_exit", leave)
    span = ("--from", "2026-01-01", "--to", "2026-01-02")
    try:
        result = CliRunner().invoke(main, ["replay", "-c", str(conf), "--sink", "k", *span, "--yes"])
    finally:
        end.set()
    assert result.exit_code == 41, result.exception
    assert "error: the replay stopped, a1.sinks.k hangs" in result.stderr
