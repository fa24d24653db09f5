"""`agent trace`: event ids in users' data, and channels without lookup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.deadletters.reading import StoredDeadLetter
from flafka.agent.topology import AgentSpec
from flafka.agent.tracing import SinkTrace, _query_sink, _resolve_groups, _trace_at_sink, parse_event_id
from flafka.plugins import Batch, Components, Event, EventId, EventLocation, FlafkaError, Origin
from tests.fixtures.partitions import assignment

CONF = """
a1.sources = s
a1.channels = c m
a1.sinks = k
a1.sources.s.type = seq
a1.sources.s.channels = c m
a1.channels.c.type = kafka
a1.channels.c.kafka.bootstrap.servers = 127.0.0.1:1
a1.channels.c.kafka.topic = web-logs
a1.channels.m.type = memory
a1.sinks.k.type = null
a1.sinks.k.channel = m
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "agent.conf"
    file.write_text(CONF)
    return file


@pytest.fixture
def spec(conf: Path) -> AgentSpec:
    spec, problems = load(conf, components=Components())
    assert spec is not None, problems
    return spec


@pytest.mark.parametrize(
    "text",
    [
        "web-logs~0123456789-2-17-3",
        "host-1-web-logs~0123456789-2-17-3",
        "2026/web-logs~0123456789-2-17-3/web",
        " web-logs~0123456789-2-17-3\n",
    ],
)
def test_an_id_is_found_in_the_key_of_a_row(text: str, spec: AgentSpec) -> None:
    assert parse_event_id(spec, text) == EventId("web-logs~0123456789", 2, 17, 3)


def test_ids_of_other_topics(spec: AgentSpec) -> None:
    assert parse_event_id(spec, "web-logs-2-17-3") == EventId("web-logs", 2, 17, 3)
    assert parse_event_id(spec, "else~0123456789-2-17-3") == EventId("else~0123456789", 2, 17, 3)


@pytest.mark.parametrize("text", ["", "web-logs", "web-logs-1-2", "a b", "17"])
def test_an_invalid_id_is_refused(text: str, spec: AgentSpec) -> None:
    with pytest.raises(FlafkaError, match="is no event ID: an ID ends with partition"):
        parse_event_id(spec, text)


def test_an_id_outside_of_the_configuration_is_reported(conf: Path) -> None:
    alone = conf.with_name("memory.conf")
    text = CONF.replace("a1.channels = c m", "a1.channels = m").replace("channels = c m", "channels = m")
    alone.write_text("\n".join(line for line in text.splitlines() if ".c." not in line))
    result = CliRunner().invoke(main, ["trace", "m-0-1-0", "-c", str(alone)])
    assert result.exit_code == 1
    assert "IDs of a channel in memory are valid until the agent ends" in result.stdout


def test_sinks_of_one_group_compete_for_an_event(spec: AgentSpec) -> None:
    (sink,) = spec.sinks
    sinks = [replace(sink, name=name, group=group) for name, group in (("k", None), ("l", None), ("m", "other"))]
    traces = [
        SinkTrace("a1.sinks.k", "solr", "missing", "group c is past it"),
        SinkTrace("a1.sinks.l", "solr", "delivered", places=({"id": "x"},)),
        SinkTrace("a1.sinks.m", "solr", "missing", "group other is past it"),
    ]
    resolved = list(_resolve_groups(sinks, traces))
    assert [trace.state for trace in resolved] == ["elsewhere", "delivered", "missing"]
    assert resolved[0].why == "a1.sinks.l, of the same consumer group, got it"


@pytest.mark.parametrize(
    ("offset", "kept", "state", "why"),
    [
        (5, True, "dead letter", "the body is not a JSON object"),
        (5, False, "missing", "at record 5; the sink's interceptors reject it: the body is not a JSON object"),
        (4, False, "waiting", "is at record 4, 0 before it"),
    ],
)
def test_rejections_of_a_sink_s_interceptors_are_dead_letters(
    conf: Path, offset: int, kept: bool, state: str, why: str
) -> None:
    conf.write_text(
        CONF + "a1.sinks.k.interceptors = j\na1.sinks.k.interceptors.j.type = json\n"
        "a1.sinks.k.interceptors.j.fields = user\na1.sinks.k.interceptors.j.onError = reject\n"
    )
    spec, problems = load(conf, components=Components())
    assert spec is not None, problems
    (sink,) = spec.sinks
    batch = Batch.of([Event(b"no JSON")], Origin.of_records("m", 0, [4], [0]))
    id, committed = batch.id(0), assignment("cluster", "m", "", "group", 0, 0, next_offset=offset)
    letter = StoredDeadLetter("l", 0, sink.path, id, "the body is not a JSON object", Event(b""), 0, False, False)
    trace = _trace_at_sink(sink, id, EventLocation({}, None, "", {None: committed}), batch, (letter,) if kept else ())
    assert (trace.state, trace.places) == (state, ())
    assert why in trace.why


def test_a_sink_whose_trace_fails_is_unknown_and_does_not_end_the_command() -> None:
    class Broken:
        def trace(self, *_: object) -> list[object]:
            raise ValueError("no such column")

    spec: Any = SimpleNamespace(make=Broken)
    nothing: Any = None
    assert _query_sink(spec, nothing, nothing, nothing) == [{"unknown": "ValueError: no such column"}]


@pytest.mark.parametrize(
    ("places", "state", "locations"),
    [
        ([{"path": "/logs/a", "first": 0, "last": 9, "replay": False}], "dead letter", 0),
        ([{"path": "/logs/a", "first": 0, "last": 9, "replay": True}], "dead letter", 1),
        ([{"index": "web", "id": "m-0-4-0"}], "delivered", 1),
        ([], "dead letter", 0),
    ],
)
@pytest.mark.parametrize("offset", [4, 5])
def test_a_rejected_event_is_not_reported_in_the_file_of_its_neighbours(
    spec: AgentSpec,
    places: list[dict[str, Any]],
    state: str,
    locations: int,
    offset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (sink,) = spec.sinks
    monkeypatch.setattr(sink.cls, "trace", lambda *_: places)
    batch = Batch.of([Event(b"no datum")], Origin.of_records("m", 0, [4], [0]))
    id, committed = batch.id(0), assignment("cluster", "m", "", "group", 0, 0, next_offset=offset)
    letter = StoredDeadLetter("l", 0, sink.path, id, "it is no datum", Event(b""), 0, False, False)
    for known in (batch, None):
        trace = _trace_at_sink(sink, id, EventLocation({}, None, "", {None: committed}), known, (letter,))
        assert (trace.state, len(trace.places)) == (state, locations)
