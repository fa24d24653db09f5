"""Headers in paths, templates and selectors: a header that nothing sets is reported at the option's line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import Mode, load
from flafka.plugins import Components

COMPONENTS = Components()
MEMORY = "type = memory"
FILE = "type = file,checkpointDir = /tmp/checkpoint,dataDirs = /tmp/data"
KAFKA = "type = kafka"
NETCAT = "type = netcat,bind = 127.0.0.1,port = 0"
SYSLOG = "type = syslogtcp,host = 127.0.0.1,port = 0"
MULTIPORT = "type = multiport_syslogtcp,host = 127.0.0.1,ports = 5140"
AVRO = "type = avro,bind = 127.0.0.1,port = 4545"
LOG4J = "type = log4j,bind = 127.0.0.1,port = 4546"
HTTP = "type = http,port = 8080"
TAILDIR = "type = taildir,filegroups = g,filegroups.g = /var/log/x,positionFile = /tmp/x.json"


def hdfs(path: str, *more: str) -> str:
    return ",".join(("type = hdfs", f"hdfs.path = webhdfs://nn:9870{path}", *more))


def messages(
    tmp_path: Path, source: str, channel: str, sink: str, mode: Mode = "normal", *, more: str = ""
) -> list[str]:
    """Return the messages, each as `option at its line|severity|text`; fail on others."""
    parts = {"sources.s1": f"{source},channels = c1", "channels.c1": channel, "sinks.k1": f"{sink},channel = c1"}
    lines = ["a1.sources = s1", "a1.channels = c1", "a1.sinks = k1"]
    lines += [f"a1.{part}.{option}" for part, options in parts.items() for option in options.split(",")]
    lines += more.splitlines()
    file = tmp_path / "agent.conf"
    file.write_text("\n".join(lines))
    spec, diagnostics = load(file, components=COMPONENTS, mode=mode)
    assert (spec is None) == any(diagnostic.severity == "error" for diagnostic in diagnostics)
    return [
        f"{lines[diagnostic.place.line - 1].split(' = ')[0]}|{diagnostic.severity}|{diagnostic.message}"
        for diagnostic in diagnostics
    ]


@pytest.mark.parametrize(
    ("sink", "option", "says"),
    [
        (hdfs("/h/%{host"), "hdfs.path", "hdfs.path: '%{host' has no closing brace: a header is written %{name}"),
        (hdfs("/h/%Q"), "hdfs.path", "hdfs.path: '%Q' is no escape: a header is %{name}, a percent sign %%, of the"),
        (hdfs("/h", "hdfs.filePrefix = x%{a b}"), "hdfs.filePrefix", "hdfs.filePrefix: %{a b} is no escape"),
        ("type = kafka,kafka.topic = logs-%{app", "kafka.topic", "kafka.topic: '%{app' has no closing brace"),
        (
            "type = solr,url = http://h:8983/solr/c,documentId = %{host",
            "documentId",
            "documentId: '%{host' is no escape here: a header is %{name}, and there are %[id], %[timestamp],",
        ),
        (
            "type = solr,url = http://h:8983/solr/c,field.day_s = %Y",
            "field.day_s",
            "field.day_s: '%Y' is no escape here",
        ),
        (
            "type = hbase,table = t,columnFamily = f,thrift = h:9090,rowKey = %{host}-%[id",
            "rowKey",
            "rowKey: '%[id' is no escape here",
        ),
        (
            "type = hbase,table = t,columnFamily = f,thrift = h:9090,serializer.rowPrefix = %{host",
            "serializer.rowPrefix",
            "serializer.rowPrefix: '%{host' is no escape here",
        ),
    ],
)
def test_an_unknown_escape_is_an_error_at_its_line(tmp_path: Path, sink: str, option: str, says: str) -> None:
    texts = messages(tmp_path, AVRO, FILE, sink)
    assert [text for text in texts if "|error|" in text] == texts[:1]
    assert texts[0].startswith(f"a1.sinks.k1.{option}|error|{says}")


def test_a_suffix_has_no_escapes(tmp_path: Path) -> None:
    (text,) = messages(tmp_path, AVRO, FILE, hdfs("/h", "hdfs.fileSuffix = .%Y"))
    assert text.startswith("a1.sinks.k1.hdfs.fileSuffix|warning|hdfs.fileSuffix has no escape sequences")


WAY = "; add an interceptor such as static or regex_extractor"
NO_TIME = (
    "needs the time of an event, header 'timestamp', which nothing sets: add an interceptor of type timestamp to "
    "a1.sources.s1, or set hdfs.useLocalTimeStamp = true"
)


def test_a_time_that_no_event_can_have_is_an_error_if_no_other_agent_fills_the_channel(tmp_path: Path) -> None:
    sink = hdfs("/h/%Y-%m-%d")
    assert messages(tmp_path, NETCAT, FILE, sink) == [f"a1.sinks.k1.hdfs.path|error|hdfs.path {NO_TIME}"]
    assert messages(tmp_path, NETCAT, KAFKA, sink) == [f"a1.sinks.k1.hdfs.path|warning|hdfs.path {NO_TIME}"]
    assert messages(tmp_path, NETCAT, KAFKA, sink, "strict") == [f"a1.sinks.k1.hdfs.path|error|hdfs.path {NO_TIME}"]
    prefix = hdfs("/h", "hdfs.filePrefix = %H")
    assert messages(tmp_path, TAILDIR, FILE, prefix) == [
        f"a1.sinks.k1.hdfs.filePrefix|error|hdfs.filePrefix {NO_TIME}"
    ]


def test_nothing_is_reported_if_an_unreadable_interceptor_may_set_the_header(tmp_path: Path) -> None:
    for interceptor in ("interceptors = i,interceptors.i.type = com.example.Own$Builder", "interceptors = i"):
        texts = messages(tmp_path, f"{NETCAT},{interceptor}", FILE, hdfs("/h/%Y/%{host}"))
        assert len(texts) == 1
        assert "hdfs.path" not in texts[0]


def test_nothing_is_reported_if_an_invalid_source_may_set_the_header(tmp_path: Path) -> None:
    texts = messages(tmp_path, f"{NETCAT},max-line-length = x", FILE, hdfs("/h/%Y/%{host}"))
    assert len(texts) == 1
    assert "max-line-length" in texts[0]


def test_a_missing_time_is_reported_beside_another_error_of_the_sink(tmp_path: Path) -> None:
    texts = messages(tmp_path, NETCAT, FILE, hdfs("/h/%Y-%m-%d", "hdfs.batchSize = many"))
    assert texts == [
        "a1.sinks.k1.hdfs.path|error|hdfs.path " + NO_TIME,
        "a1.sinks.k1.hdfs.batchSize|error|hdfs.batchSize must be a whole number, not 'many'",
    ]


def test_a_time_that_events_of_one_source_lack_is_a_warning(tmp_path: Path) -> None:
    sink, text = hdfs("/h/%Y"), NO_TIME.replace("which nothing sets", "which events of a1.sources.s1 do not have")
    warnings = [f"a1.sinks.k1.hdfs.path|warning|hdfs.path {text}"]
    for other in (AVRO, SYSLOG):  # which may set it, and which does
        more = "".join(f"a1.sources.s2.{option}\n" for option in (*other.split(","), "channels = c1"))
        texts = messages(tmp_path, NETCAT, FILE, sink, more=f"a1.sources = s1 s2\n{more}")
        assert [warning for warning in texts if "hdfs.path" in warning] == warnings


@pytest.mark.parametrize(
    ("source", "sink", "more"),
    [
        (SYSLOG, hdfs("/h/%Y/%{host}"), ""),
        (NETCAT, hdfs("/h/%Y", "hdfs.useLocalTimeStamp = true"), ""),
        (NETCAT, hdfs("/h/100%%"), ""),
        (f"{NETCAT},interceptors = i,interceptors.i.type = timestamp", hdfs("/h/%Y"), ""),
        *((source, hdfs("/h/%Y/%{anything}"), "") for source in (AVRO, LOG4J, HTTP)),
        (f"{SYSLOG},rfc5424Headers = true", hdfs("/h/%{sd.x.y}"), ""),
        (f"{TAILDIR},headers.g.app = shop,fileHeader = true,fileHeaderKey = path", hdfs("/%{app}/%{path}"), ""),
        (f"{MULTIPORT},portHeader = p,clientIPHeader = ip", hdfs("/%{p}/%{ip}/%{Priority}"), ""),
        (NETCAT, f"{hdfs('/h/%{app}')},interceptors = i,interceptors.i.type = static,interceptors.i.key = app", ""),
        (NETCAT, hdfs("/h/%{x}"), "a1.sources = s1 s2\na1.sources.s2.type = avro\n"),
    ],
)
def test_a_header_that_something_sets_or_may_set_is_not_reported(
    tmp_path: Path, source: str, sink: str, more: str
) -> None:
    if more:
        more += "a1.sources.s2.bind = x\na1.sources.s2.port = 4545\na1.sources.s2.channels = c1\n"
    texts = messages(tmp_path, source, FILE, sink, more=more)
    assert [text for text in texts if "a1.sources = s1" not in text and "a1.sources|" not in text] == []


@pytest.mark.parametrize(
    ("source", "sink", "warning"),
    [
        (
            SYSLOG,
            hdfs("/h/%{hots}"),
            "hdfs.path|warning|hdfs.path names header 'hots', which nothing in this configuration sets, did you mean "
            "'host'?",
        ),
        (
            MULTIPORT,
            "type = kafka,kafka.topic = logs-%{facility}",
            "kafka.topic|warning|kafka.topic names header 'facility', which nothing in this configuration sets, did "
            "you mean 'Facility'?",
        ),
        (
            f"{NETCAT},interceptors = i,interceptors.i.type = static,interceptors.i.key = app",
            "type = solr,url = http://h:8983/solr/c,documentId = %[id],field.where_s = %{place}",
            "field.where_s|warning|field.where_s names header 'place', which nothing in this configuration sets "
            f"(headers that are set: app){WAY}",
        ),
        (
            NETCAT,
            "type = hbase,table = t,columnFamily = f,thrift = h:9090,rowKey = %{user}",
            f"rowKey|warning|rowKey names header 'user', which nothing in this configuration sets{WAY}",
        ),
    ],
)
def test_a_header_that_nothing_sets_is_a_warning(tmp_path: Path, source: str, sink: str, warning: str) -> None:
    texts = messages(tmp_path, source, FILE, sink)
    assert f"a1.sinks.k1.{warning}" in texts


def test_nothing_is_reported_if_other_agents_fill_the_channel(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    sink = hdfs("/%Y/%{app}").replace(",", "\na1.sinks.k1.")
    file.write_text(
        "a1.channels = c1\na1.sinks = k1\na1.channels.c1.type = kafka\n"
        f"a1.sinks.k1.channel = c1\na1.sinks.k1.{sink}\n"
    )
    spec, diagnostics = load(file, components=COMPONENTS)
    assert (spec is not None, diagnostics) == (True, [])


def test_a_selector_by_a_header_that_nothing_sets_is_a_warning(tmp_path: Path) -> None:
    selector = "selector.type = multiplexing,selector.header = hots,selector.mapping.x = c1,selector.default = c1"
    assert messages(tmp_path, f"{SYSLOG},{selector}", MEMORY, "type = null") == [
        "a1.sources.s1.selector.header|warning|selector.header needs header 'hots', which nothing sets, did you "
        "mean 'host'?"
    ]
    assert messages(tmp_path, f"{AVRO},{selector}", MEMORY, "type = null") == []
