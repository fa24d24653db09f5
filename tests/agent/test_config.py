"""Agent of a configuration, whatever its file contains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.topology import Route, SelectorSpec, Tolerance
from flafka.plugins import Components
from tests.agent.config_read import agent, read
from tests.agent.config_sample import COMPONENTS, FlumeKafkaConfig, Index, Kafka, KafkaConfig
from tests.agent.test_config_errors import changed
from tests.fixtures.examples import examples


def test_everything_lands_where_it_belongs(tmp_path: Path) -> None:
    spec = agent(
        """
        # the agent
        a1.sources : tail
        a1.channels= c1 c2
        a1.sinks   k1\tk2
        a1.sources.tail.type = taildir
        a1.sources.tail.channels = c1 \\
            c2
        a1.sources.tail.filegroups = f1 f2
        a1.sources.tail.filegroups.f1 = /var/log/.*\\\\.log
        a1.sources.tail.interceptors = up h
        a1.sources.tail.interceptors.up.type = upper
        a1.sources.tail.interceptors.h.type = org.apache.flume.interceptor.HostInterceptor$Builder
        a1.sources.tail.interceptors.h.useIP = FALSE
        a1.sources.tail.selector.optional = c2
        a1.channels.c1.type = kafka
        a1.channels.c2.type = MEMORY
        a1.sinks.k1.type = org.apache.flume.sink.hdfs.HDFSEventSink
        a1.sinks.k1.channel = c1
        a1.sinks.k1.hdfs.path = /logs/%Y
        a1.sinks.k1.interceptors = up
        a1.sinks.k1.interceptors.up.type = upper
        a1.sinks.k1.group = archive
        a1.sinks.k2.type = index
        a1.sinks.k2.channel = c2
        a1.sinks.k2.runner = local
        a1.runner = spark
        a1.spark.master = local[4]
        a1.spark.conf.spark.executor.memory = 1g
        """,
        tmp_path,
    )
    (tail,), (c1, c2), (k1, k2) = spec.sources, spec.channels, spec.sinks
    config: Any = tail.config
    assert (tail.path, tail.place.line, tail.channels) == ("a1.sources.tail", 6, ("c1", "c2"))
    assert (config.filegroups, config.groups) == (["f1", "f2"], {"f1": "/var/log/.*\\.log"})
    assert [(i.name, i.cls.type_name, dict(i.properties)) for i in tail.interceptors] == [
        ("up", "upper", {}),
        ("h", "host", {"useIP": "FALSE"}),
    ]
    host: Any = tail.interceptors[1].config
    assert host.use_ip is False
    assert tail.selector == SelectorSpec("replicating", Route(("c1",), ("c2",)))
    assert (c1.cls, c2.properties) == (Kafka, {})
    assert (k1.runner, k1.group, k1.channel, k1.interceptors[0].path) == (
        "spark",
        "archive",
        "c1",
        "a1.sinks.k1.interceptors.up",
    )
    assert k1.properties == {"hdfs.path": "/logs/%Y"}
    assert (k2.runner, k2.group, k2.cls) == ("local", None, Index)
    assert spec.options.model_dump(exclude_defaults=True) == {
        "runner": "spark",
        "spark_master": "local[4]",
        "spark_conf": {"spark.executor.memory": "1g"},
    }
    assert isinstance(k2.make(), Index)


@pytest.mark.parametrize(
    ("written", "read"), [("none", (0, 1000)), ("all", (100, 1000)), ("7\na1.sinks.k1.errors.window = 20", (7, 20))]
)
def test_what_a_sink_may_reject(written: str, read: tuple[int, int], tmp_path: Path) -> None:
    spec = agent(changed(f"9 | a1.sinks.k1.errors.tolerance = {written}"), tmp_path)
    assert spec.sinks[0].tolerance == Tolerance(*read)
    assert not any(name.startswith("errors.") for name in spec.sinks[0].properties)
    assert agent(changed(), tmp_path).sinks[0].tolerance == Tolerance(50, 1000)


def test_options_may_depend_on_the_name_the_type_is_written_with(tmp_path: Path) -> None:
    spec = agent(changed("6 | a1.channels.c1.type = kafka"), tmp_path)
    assert type(spec.channels[0].config) is KafkaConfig
    flumes = agent(
        changed(
            "6 | a1.channels.c1.type = org.apache.flume.channel.kafka.KafkaChannel",
            "+ | a1.channels.c1.kafka.bootstrap.servers = k:9092",
        ),
        tmp_path,
    )
    assert type(flumes.channels[0].config) is FlumeKafkaConfig


def test_unknown_options_do_not_reach_the_executors(tmp_path: Path) -> None:
    spec = agent(changed("9 | a1.channels.c1.foo = 1", "+ | a1.channels.c1.capacity = 500"), tmp_path)
    assert spec.channels[0].properties == {"capacity": "500"}


def test_flumes_monitoring_properties(tmp_path: Path) -> None:
    given = {"flume.monitoring.type": "http", "flume.monitoring.port": "34545", "flume.root.logger": "INFO,console"}
    spec = agent(changed("9 | a1.monitoring.port = 1"), tmp_path, system=given)
    assert (spec.options.monitoring_type, spec.options.monitoring_port) == ("http", 34545)
    _, diagnostics = read(changed(), tmp_path, system={"flume.monitoring.type": "ganglia"})
    assert [str(d) for d in diagnostics] == [
        "-Dflume.monitoring.type: a1: monitoring.type must be 'http', not 'ganglia'"
    ]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(ends: str, tmp_path: Path) -> None:
    text = changed("9 | # note", "+ | ", "+ | a1.sinks.k1.url = a\\", "+ |   b", "+ | a1.sinks.k1.limit = x")
    (tmp_path / "agent.conf").write_bytes(text.replace("\n", ends).encode())
    _, diagnostics = load(tmp_path / "agent.conf", components=COMPONENTS)
    assert [d.place.line for d in diagnostics] == [13]


def test_a_file_in_latin_1_as_java_would_read_it(tmp_path: Path) -> None:
    (tmp_path / "agent.conf").write_bytes(changed("9 | a1.sinks.k1.url = /zürich").encode("latin-1"))
    spec, _ = load(tmp_path / "agent.conf", components=COMPONENTS)
    assert spec is not None
    assert spec.sinks[0].properties["url"] == "/zürich"


# --- arbitrary contents

NAMES = (
    "a1 a2 sources channels sinks sinkgroups configfilters s1 c1 k1 type channel interceptors i1 selector optional"
)
TYPES = "group runner spark memory kafka index hdfs TAILDIR ticks host env external command false load_balancing"
SIGNS = "${ } :- ${file:x} ${env:A} \\u00e9 \\ud800 . = : \\ , # ! \x00 \x1b é 日本 capacity 10 -1 filegroups."
BLANK = [" ", "\t", "\n", "a1.sources = s1\n", "a1.sources =\n", "a1.channels = c1\n", "a1.sinks = k1\n"]
WORDS = st.sampled_from([*f"{NAMES} {TYPES} {SIGNS}".split(" "), *BLANK])


@settings(max_examples=examples(300))
@given(
    text=st.one_of(st.text(), st.lists(WORDS, max_size=60).map("".join)),
    mode=st.sampled_from(["normal", "strict"]),
    name=st.sampled_from([None, "a1"]),
)
def test_no_text_raises_an_exception(text: str, mode: Any, name: str | None, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.conf"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    spec, diagnostics = load(file, name, components=COMPONENTS, mode=mode, environment={"A": "${env:A}"})
    assert (spec is None) == any(diagnostic.severity == "error" for diagnostic in diagnostics)
    for diagnostic in diagnostics:
        line = str(diagnostic)
        assert line.isprintable()
        line.encode()


@settings(max_examples=examples(200))
@given(lines=st.lists(st.tuples(st.integers(1, 12), st.lists(WORDS, max_size=8).map("".join)), max_size=6))
def test_no_change_to_a_valid_configuration_raises_an_exception(
    lines: list[tuple[int, str]], tmp_path_factory: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.conf"
    file.write_bytes(changed(*(f"{n} | {line}" for n, line in lines)).encode("utf-8", "surrogatepass"))
    for mode in ("normal", "strict"):
        load(file, "a1", components=COMPONENTS, mode=mode, environment={})


def test_many_errors_stay_quick(tmp_path: Path) -> None:
    lines = [f"a1.sinks.k1.opt{n} = ${{none{n}}}" for n in range(3000)]
    _, diagnostics = read(changed() + "\n" + "\n".join(lines), tmp_path)
    assert len(diagnostics) == 6000


def test_a_relative_path_begins_at_the_working_directory_or_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for directory in (home, work):
        directory.mkdir()
    (home / "trust.pem").touch()
    lines = {
        "channels": "c1 c2",
        "sources": "s1 s2",
        "sinks": "k1 k2 k3",
        "channels.c1.type": "kafka",
        "channels.c1.kafka.bootstrap.servers": "h:1",
        "channels.c1.kafka.producer.ssl.truststore.location": "trust.pem",
        "channels.c2.type": "file",
        "channels.c2.dataDirs": "one, /two,three",
        "channels.c2.checkpointDir": "../checkpoint",
        "sources.s1.type": "taildir",
        "sources.s1.channels": "c1",
        "sources.s1.filegroups": "g",
        "sources.s1.filegroups.g": "logs/.*",
        "sources.s1.positionFile": "positions.json",
        "sources.s2.type": "spooldir",
        "sources.s2.channels": "c2",
        "sources.s2.spoolDir": "spool",
        "sinks.k1.type": "avro",
        "sinks.k1.channel": "c1",
        "sinks.k1.hostname": "h",
        "sinks.k1.port": "1",
        "sinks.k1.ssl": "true",
        "sinks.k1.truststore": "trust.pem",
        "sinks.k2.type": "hdfs",
        "sinks.k2.channel": "c1",
        "sinks.k2.hdfs.path": "file:///out",
        "sinks.k2.hdfs.stagingDir": "staging",
        "sinks.k3.type": "file_roll",
        "sinks.k3.channel": "c2",
        "sinks.k3.sink.directory": "./out",
        "deadletters.directory": "letters",
        "monitoring.file": "/metrics.json",
    }
    (home / "agent.conf").write_text("".join(f"a1.{name} = {value}\n" for name, value in lines.items()))
    monkeypatch.chdir(work)
    spec, diagnostics = load(Path("../home/agent.conf"), components=Components())
    assert spec is not None, diagnostics
    assert spec.paths == {
        "a1.channels.c1.kafka.producer.ssl.truststore.location": f"{work}/trust.pem",
        "a1.channels.c2.dataDirs": f"{work}/one,/two,{work}/three",
        "a1.channels.c2.checkpointDir": f"{tmp_path}/checkpoint",
        "a1.sources.s1.filegroups.g": f"{work}/logs/.*",
        "a1.sources.s1.positionFile": f"{work}/positions.json",
        "a1.sources.s2.spoolDir": f"{work}/spool",
        "a1.sinks.k1.truststore": f"{work}/trust.pem",
        "a1.sinks.k2.hdfs.stagingDir": f"{home}/staging",
        "a1.sinks.k3.sink.directory": f"{work}/out",
        "a1.deadletters.directory": f"{home}/letters",
    }
    configs = {component.path: component.config for component in (*spec.channels, *spec.sources, *spec.sinks)}
    assert configs["a1.channels.c2"].data_dirs == f"{work}/one,/two,{work}/three"
    assert configs["a1.sources.s1"].position_file == f"{work}/positions.json"
    assert configs["a1.sinks.k2"].staging_dir == f"{home}/staging"
    assert spec.options.deadletters_directory == f"{home}/letters"
    messages = [diagnostic.message for diagnostic in diagnostics if "trust" in diagnostic.message]
    assert len(messages) == 2
    assert all(f"is {work}/trust.pem, which does not exist" in text for text in messages)
    assert all(text.endswith(f"if you mean {home}/trust.pem, write that path") for text in messages)
    result = CliRunner().invoke(main, ["check", "-c", "../home/agent.conf"])
    assert all(f"  {option} is {path}\n" in result.output for option, path in spec.paths.items()), result.output
    report = json.loads(CliRunner().invoke(main, ["check", "-c", "../home/agent.conf", "--json"]).stdout)
    assert report["paths"] == spec.paths
