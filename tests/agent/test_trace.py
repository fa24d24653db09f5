"""`agent trace`: the id in what a user has at hand, and channels that cannot be asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.deadletters.stored import StoredDeadLetter
from flafka.agent.topology import AgentSpec
from flafka.agent.tracing import SinkTrace, _asked, _at, _once_a_group, id_in
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
    found, problems = load(conf, components=Components())
    assert found is not None, problems
    return found


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
    assert id_in(spec, text) == EventId("web-logs~0123456789", 2, 17, 3)


def test_ids_of_other_topics(spec: AgentSpec) -> None:
    assert id_in(spec, "web-logs-2-17-3") == EventId("web-logs", 2, 17, 3)
    assert id_in(spec, "else~0123456789-2-17-3") == EventId("else~0123456789", 2, 17, 3)


@pytest.mark.parametrize("text", ["", "web-logs", "web-logs-1-2", "a b", "17"])
def test_what_is_no_id_is_refused_in_a_sentence(text: str, spec: AgentSpec) -> None:
    with pytest.raises(FlafkaError, match="is no event's id: one ends with partition"):
        id_in(spec, text)


def test_a_configuration_that_knows_nothing_of_an_id_says_so(conf: Path) -> None:
    alone = conf.with_name("memory.conf")
    text = CONF.replace("a1.channels = c m", "a1.channels = m").replace("channels = c m", "channels = m")
    alone.write_text("\n".join(line for line in text.splitlines() if ".c." not in line))
    shown = CliRunner().invoke(main, ["trace", "m-0-1-0", "-c", str(alone)])
    assert shown.exit_code == 1
    assert "those of a channel in memory end with the agent's run" in shown.stdout


def test_sinks_of_one_group_compete_for_an_event(spec: AgentSpec) -> None:
    (sink,) = spec.sinks
    sinks = [replace(sink, name=name, group=group) for name, group in (("k", None), ("l", None), ("m", "other"))]
    found = [
        SinkTrace("a1.sinks.k", "solr", "missing", "group c is past it"),
        SinkTrace("a1.sinks.l", "solr", "delivered", places=({"id": "x"},)),
        SinkTrace("a1.sinks.m", "solr", "missing", "group other is past it"),
    ]
    told = list(_once_a_group(sinks, found))
    assert [one.state for one in told] == ["elsewhere", "delivered", "missing"]
    assert told[0].why == "a1.sinks.l, of the same consumer group, got it"


@pytest.mark.parametrize(
    ("offset", "kept", "state", "why"),
    [
        (5, True, "dead letter", "the body is no JSON object"),
        (5, False, "missing", "at record 5; the sink's interceptors reject it: the body is no JSON object"),
        (4, False, "waiting", "is at record 4, 0 before it"),
    ],
)
def test_what_a_sink_s_interceptors_reject_is_a_dead_letter(
    conf: Path, offset: int, kept: bool, state: str, why: str
) -> None:
    conf.write_text(
        CONF + "a1.sinks.k.interceptors = j\na1.sinks.k.interceptors.j.type = json\n"
        "a1.sinks.k.interceptors.j.fields = user\na1.sinks.k.interceptors.j.onError = reject\n"
    )
    found, problems = load(conf, components=Components())
    assert found is not None, problems
    (sink,) = found.sinks
    batch = Batch.of([Event(b"no JSON")], Origin.of_records("m", 0, [4], [0]))
    id, committed = batch.id(0), assignment("cluster", "m", "", "group", 0, 0, next_offset=offset)
    letter = StoredDeadLetter("l", 0, sink.path, id, "the body is no JSON object", Event(b""), 0, False, False)
    told = _at(sink, id, EventLocation({}, None, "", {None: committed}), batch, (letter,) if kept else ())
    assert (told.state, told.places) == (state, ())
    assert why in told.why


def test_a_sink_that_breaks_when_it_is_asked_is_unknown_and_ends_nothing() -> None:
    class Broken:
        def trace(self, *_: object) -> list[object]:
            raise ValueError("no such column")

    spec: Any = SimpleNamespace(make=Broken)
    nothing: Any = None
    assert _asked(spec, nothing, nothing, nothing) == [{"unknown": "ValueError: no such column"}]


@pytest.mark.parametrize(
    ("places", "state", "left"),
    [
        ([{"path": "/logs/a", "first": 0, "last": 9, "replay": False}], "dead letter", 0),
        ([{"path": "/logs/a", "first": 0, "last": 9, "replay": True}], "dead letter", 1),
        ([{"index": "web", "id": "m-0-4-0"}], "delivered", 1),
        ([], "dead letter", 0),
    ],
)
@pytest.mark.parametrize("offset", [4, 5])
def test_a_rejected_event_is_not_taken_for_one_of_the_records_of_its_file(
    spec: AgentSpec,
    places: list[dict[str, Any]],
    state: str,
    left: int,
    offset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (sink,) = spec.sinks
    monkeypatch.setattr(sink.cls, "trace", lambda *_: places)
    batch = Batch.of([Event(b"no datum")], Origin.of_records("m", 0, [4], [0]))
    id, committed = batch.id(0), assignment("cluster", "m", "", "group", 0, 0, next_offset=offset)
    letter = StoredDeadLetter("l", 0, sink.path, id, "it is no datum", Event(b""), 0, False, False)
    for known in (batch, None):
        told = _at(sink, id, EventLocation({}, None, "", {None: committed}), known, (letter,))
        assert (told.state, len(told.places)) == (state, left)
