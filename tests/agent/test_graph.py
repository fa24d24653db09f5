"""Graph of a configuration: nodes, edges, and every output form."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.graph import Graph, graph_of
from flafka.plugins import Components

CONFIGURATION = """
a1.sources = s1 s2
a1.channels = c1 c2
a1.sinks = k1 k2 k3
a1.sinkgroups = g
a1.sinkgroups.g.sinks = k1 k2
a1.sinkgroups.g.processor.type = failover
a1.sinkgroups.g.processor.priority.k1 = 2
a1.sinkgroups.g.processor.priority.k2 = 1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1 c2
a1.sources.s1.selector.type = multiplexing
a1.sources.s1.selector.header = kind
a1.sources.s1.selector.mapping.one = c1
a1.sources.s1.selector.default = c2
a1.sources.s1.interceptors = a b
a1.sources.s1.interceptors.a.type = timestamp
a1.sources.s1.interceptors.b.type = host
a1.sources.s2.type = syslogudp
a1.sources.s2.host = 127.0.0.1
a1.sources.s2.port = 0
a1.sources.s2.channels = c1 c2
a1.sources.s2.selector.optional = c2
a1.channels.c1.type = memory
a1.channels.c2.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.k2.type = avro
a1.sinks.k2.hostname = localhost
a1.sinks.k2.port = 4141
a1.sinks.k2.channel = c1
a1.sinks.k2.truststore-password = hidden1
a1.sinks.k3.type = logger
a1.sinks.k3.channel = c2
a1.sinks.k3.interceptors = c
a1.sinks.k3.interceptors.c.type = static
a1.sinks.k3.interceptors.c.value = <"x">
"""


def drawn(tmp_path: Path) -> tuple[Path, Graph]:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION)
    spec, diagnostics = load(file, None, components=Components(entry_points=True))
    assert spec is not None, diagnostics
    return file, graph_of(spec)


def test_each_path_of_an_event_is_an_edge(tmp_path: Path) -> None:
    _, graph = drawn(tmp_path)
    edges = {(e.start.removeprefix("a1."), e.end.removeprefix("a1."), e.kind, e.label) for e in graph.edges}
    assert edges == {
        ("sources.s1", "channels.c1", "events", "kind = one"),
        ("sources.s1", "channels.c2", "events", "default"),
        ("sources.s2", "channels.c1", "events", ""),
        ("sources.s2", "channels.c2", "optional", ""),
        ("channels.c1", "sinks.k1", "events", ""),
        ("channels.c1", "sinks.k2", "events", ""),
        ("channels.c2", "sinks.k3", "events", ""),
    }
    assert [(group.name, group.kind, group.sinks) for group in graph.groups] == [
        ("g", "failover", ("a1.sinks.k1", "a1.sinks.k2"))
    ]


def test_options_are_shown_and_secrets_are_not(tmp_path: Path) -> None:
    file, graph = drawn(tmp_path)
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["k2"].options["hostname"] == "localhost"
    assert "hidden1" not in json.dumps(asdict(graph))
    assert nodes["c1"].options == {"type": "memory"}
    assert nodes["c1"].defaults["capacity"] == "10000"
    assert [interceptor.name for interceptor in nodes["s1"].interceptors] == ["a", "b"]
    assert not any("interceptors." in name for name in nodes["s1"].options)
    assert nodes["k3"].interceptors[0].options["value"] == '<"x">'
    assert nodes["k1"].place.startswith(str(file))


SECRETS = """
a1.channels = c1
a1.sinks = k1 k2
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = localhost:9092
a1.channels.c1.kafka.producer.sasl.password = hidden1
a1.channels.c1.kafka.consumer.sasl.jaas.config = x.PlainLoginModule required username='u' password='hidden2';
a1.sinks.k1.type = http
a1.sinks.k1.channel = c1
a1.sinks.k1.endpoint = http://user:hidden3@localhost/events
a1.sinks.k2.type = null
a1.sinks.k2.channel = c1
a1.sinks.unlisted.password = hidden4
a1.monitoring.token = hidden5
a1.spark.conf.spark.ssl.keyPassword = hidden6
a1.spark.conf.spark.hadoop.fs.s3a.access.key = hidden7
"""


def test_no_line_of_the_configuration_shows_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(SECRETS)
    spec, diagnostics = load(file, None, components=Components(entry_points=True), notes=True)
    assert spec is not None, diagnostics
    shown = json.dumps(asdict(graph_of(spec)))
    assert "http://user:****@localhost/events" in shown
    assert "hidden" not in shown + repr(diagnostics)


def test_an_error_beside_a_jaas_text_keeps_its_words(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(SECRETS.replace("k1.type = http", "k1.type = kafka"))
    _, diagnostics = load(file, None, components=Components(entry_points=True))
    assert any("topic is required: add" in diagnostic.message for diagnostic in diagnostics), diagnostics


def test_every_form_names_every_component(tmp_path: Path) -> None:
    file, graph = drawn(tmp_path)
    for form in ("text", "mermaid", "svg", "json"):
        printed = CliRunner().invoke(main, ["graph", "-c", str(file), "--format", form]).output
        assert all(node.name in printed for node in graph.nodes), form
    picture = tmp_path / "graph.svg"
    assert CliRunner().invoke(main, ["graph", "-c", str(file), "--format", "svg", "-o", str(picture)]).exit_code == 0
    boxes = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == len(graph.nodes)


def test_a_processors_topic_leads_to_the_channel_that_reads_it() -> None:
    spec, _ = load(Path("conf/flafka.conf"), None, components=Components(entry_points=True))
    assert spec is not None
    assert [(e.start, e.end) for e in graph_of(spec).edges if e.kind == "topic"] == [
        (f"{spec.name}.sinks.levels", f"{spec.name}.channels.counts")
    ]
