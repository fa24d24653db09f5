"""Messages of `agent check` about Kafka components that do not fit together."""

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.plugins import Components
from flafka.sinks.kafka import KafkaSink

KAFKA = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = kafka
a1.sources.s1.channels = c1
a1.sources.s1.kafka.bootstrap.servers = h1:9092,h2:9092
a1.sources.s1.kafka.topics = in, {read}
a1.channels.c1.type = {channel}
a1.sinks.k1.type = kafka
a1.sinks.k1.channel = c1
a1.sinks.k1.kafka.bootstrap.servers = h2:9092
a1.sinks.k1.kafka.topic = {write}
"""
IN_KAFKA = "kafka\na1.channels.c1.kafka.bootstrap.servers = h2:9092\na1.channels.c1.kafka.topic = events"
APART = "\na1.sources.s1.setTopicHeader = false"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KAFKA.format(read="more", channel=IN_KAFKA, write="out") + APART, []),
        (
            KAFKA.format(read="more", channel=IN_KAFKA, write="out"),
            ["puts the topic of an event into header"],
        ),
        (KAFKA.format(read="out", channel=IN_KAFKA, write="out") + APART, ["reads topic out, to which a1.sinks.k1"]),
        (
            KAFKA.format(read="events", channel=IN_KAFKA, write="out") + APART,
            ["reads topic events, to which a1.c"],
        ),
        (KAFKA.format(read="more", channel="memory", write="out") + APART, ["delivers at least once: channel c1"]),
        (KAFKA.format(read="more", channel=IN_KAFKA, write="out") + APART + "\na1.audit.topic = audit", []),
        (
            KAFKA.format(read="more", channel="memory", write="out") + APART + "\na1.audit.topic = audit",
            ["delivers at least once: channel c1", "audit.topic has no effect: only channels in Kafka are audited"],
        ),
        (
            KAFKA.format(read="more", channel=IN_KAFKA.replace("h2", "h9"), write="out") + APART,
            ["delivers at least once, unless its brokers"],
        ),
    ],
)
def test_loops_of_topics_and_weaker_guarantees_are_warned_of(tmp_path, text, said):
    file = tmp_path / "a.conf"
    file.write_text(text)
    spec, diagnostics = load(file, None, components=Components(), mode="normal", system={}, notes=True)
    assert spec is not None
    warnings = [diagnostic for diagnostic in diagnostics if "Flume: " not in diagnostic.message]
    for diagnostic, words in zip(warnings, said, strict=True):
        assert words in diagnostic.message
        assert diagnostic.severity == ("note" if "at least once" in words else "warning")


GROUP_TEXT = (
    "consumer group 'für' has 'ü', and the Kafka client takes printable ASCII alone into a transaction: give it "
    "another name, and the new group begins with the first event that the channel holds"
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a1.sinks.k1.group = für", [f"a1.sinks.k1: {GROUP_TEXT}"]),
        (
            "a1.channels.c1.kafka.consumer.group.id = für",
            [f"a1.channels.c1: {GROUP_TEXT} (a1.sinks.k1 is exactly once)"],
        ),
        ("a1.channels.c1.kafka.consumer.group.id = für\na1.sinks.k1.group = a b", []),
        ("a1.sinks.k1.group = für\na1.sinks.k1.runner = spark", []),
    ],
)
def test_a_group_that_no_transaction_takes_is_an_error(tmp_path, line, said):
    file = tmp_path / "a.conf"
    text = KAFKA.format(read="more", channel=IN_KAFKA, write="out") + APART + "\n"
    number = len(text.splitlines()) + 1
    file.write_text(text + line, "utf-8")
    _, diagnostics = load(file, None, components=Components(), mode="normal", system={})
    errors = [
        str(diagnostic).replace(f"{tmp_path}/", "") for diagnostic in diagnostics if diagnostic.severity == "error"
    ]
    assert errors == [f"a.conf:{number}: {text}" for text in said]


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ("", [False]),
        ("a1.runner = spark", [True]),
        ("a1.sinkgroups.g.processor.type = default\na1.sinkgroups.g.sinks = k1", [False]),
        ("a1.sinkgroups.g.processor.type = load_balance\na1.sinkgroups.g.sinks = k1 k2", [True, True]),
    ],
)
def test_the_kafka_sink_takes_its_plain_form_where_it_cannot_commit_by_itself(tmp_path, more, plain):
    lines = [
        KAFKA.format(read="more", channel=IN_KAFKA, write="out"),
        "a1.sinkgroups = g" if "groups" in more else "",
        more,
    ]
    if len(plain) == 2:
        sink_lines = [line for line in lines[0].splitlines() if line.startswith("a1.sinks.k1")]
        lines += ["a1.sinks = k1 k2", *(line.replace("k1", "k2") for line in sink_lines)]
    file = tmp_path / "a.conf"
    file.write_text("\n".join(lines))
    spec, diagnostics = load(file, None, components=Components(), mode="normal", system={})
    assert spec is not None, diagnostics
    assert [sink.cls is KafkaSink.at_least_once for sink in spec.sinks] == plain


@pytest.mark.parametrize(
    "line", ["a1.channels.c1.kafka.topic = __consumer_offsets", "a1.audit.topic = __consumer_offsets"]
)
def test_nothing_is_to_be_written_to_a_topic_of_the_brokers_themselves(tmp_path, line):
    file = tmp_path / "a.conf"
    file.write_text(f"{KAFKA.format(read='more', channel=IN_KAFKA, write='out')}\n{line}\n")
    _, diagnostics = load(file, None, components=Components(), mode="normal", system={})
    (error,) = [
        f"{diagnostic.place.line} {diagnostic.message}"
        for diagnostic in diagnostics
        if diagnostic.severity == "error"
    ]
    assert error.startswith(f"{len(file.read_text().splitlines())} ")
    assert "must not be '__consumer_offsets', an internal topic of the brokers: name another topic" in error


@pytest.mark.parametrize(("brokers", "refused"), [("h1:9092,h2:9092", True), ("h9:9092", False)])
def test_a_sink_that_writes_into_its_own_channel_is_an_error(tmp_path, brokers, refused):
    file = tmp_path / "a.conf"
    text = KAFKA.format(read="more", channel=IN_KAFKA, write="events") + APART
    file.write_text(text.replace("k1.kafka.bootstrap.servers = h2:9092", f"k1.kafka.bootstrap.servers = {brokers}"))
    _, diagnostics = load(file, None, components=Components(), mode="normal", system={})
    messages = [(diagnostic.severity, diagnostic.place.line, diagnostic.message) for diagnostic in diagnostics]
    line = next(
        number for number, option in enumerate(file.read_text().splitlines(), 1) if "k1.kafka.topic" in option
    )
    why = "writes to topic events, which is the topic of its own channel: its events would circulate without end"
    assert messages == ([("error", line, why)] if refused else [])


SHARED = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1 k2
a1.sources.s1.type = seq
a1.sources.s1.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = h1:9092
a1.sinks.k1.type = hdfs
a1.sinks.k1.channel = c1
a1.sinks.k1.hdfs.path = hdfs://name:8020/logs/%{{host}}
a1.sinks.k2.type = hdfs
a1.sinks.k2.channel = c1
a1.sinks.k2.hdfs.path = {path}
{more}
"""


@pytest.mark.parametrize(
    ("path", "more", "warned"),
    [
        ("hdfs://name:8020/logs/%{host}/more", "", False),
        ("hdfs://name:8020/other", "", True),
        ("file:///tmp/other", "", False),
        ("hdfs://name:8020/other", "a1.sinks.k2.group = own", False),
        ("hdfs://name:8020/other", "a1.channels.c1.type = memory", False),
    ],
)
def test_two_locations_of_one_group_s_commit_log_are_warned_of(tmp_path, path, more, warned):
    """The agent that starts first moves the commit logs of all partitions, and the other is refused."""
    file = tmp_path / "a.conf"
    text = SHARED.format(path=path, more="")
    file.write_text(text.replace("a1.channels.c1.type = kafka", more) if "memory" in more else text + more)
    _, diagnostics = load(file, None, components=Components(), mode="normal", system={})
    messages = [
        diagnostic.message
        for diagnostic in diagnostics
        if "commit log" in diagnostic.message and diagnostic.severity == "warning"
    ]
    why = (
        "has its commit log in /other/.flafka, and k1 of the same consumer group in /logs/.flafka: after the next "
        "start, one of them delivers all events and the other none; give each sink its own group, so that each gets "
        "all events, or give both the same path, so that they share the events"
    )
    assert messages == ([why] if warned else [])


def test_a_move_to_two_paths_at_once_is_refused(tmp_path):
    file = tmp_path / "a.conf"
    file.write_text(SHARED.format(path="hdfs://name:8020/other", more=""))
    done = CliRunner().invoke(main, ["group", "move", "flafka", "-c", str(file), "--yes"])
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: sinks of group flafka have different paths: name one with --to PATH\n",
    )
