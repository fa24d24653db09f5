"""Configurations of a source, a channel and a sink with comments, for `agent new agent`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flafka.agent.explain import OptionDescription, describe_component, first_sentence
from flafka.plugins import Components, FlafkaError, UnknownType

NAMES = {"source": "in", "channel": "c1", "sink": "out"}
"""Kind → name of the component in the configuration."""
DEFAULTS = {"source": "taildir", "channel": "file", "sink": "file_roll"}
"""Kind → type that is used unless another one is chosen."""
LINE_COLUMNS = 110


@dataclass(frozen=True)
class Setting:
    """Option that a new configuration sets."""

    option: str
    value: str
    """`{DIRECTORY}` and `{NAME}` stand for the new directory and the name of the agent."""
    asked: bool = False
    """True if the right value depends on the host, so that a user is asked for it."""


def _settings(**options: str) -> tuple[Setting, ...]:
    """Return settings. In names, `__` stands for a dot and `_` for a hyphen; a final `_` marks an asked one."""
    return tuple(
        Setting(name.rstrip("_").replace("__", ".").replace("_", "-"), value, name.endswith("_"))
        for name, value in options.items()
    )


def _listener(port: str) -> tuple[Setting, ...]:
    return _settings(bind="127.0.0.1", port_=port)


_FILE_CHANNEL = _settings(checkpointDir="{DIRECTORY}/channel/checkpoint", dataDirs="{DIRECTORY}/channel/data")
SETTINGS: dict[str, dict[str, tuple[Setting, ...]]] = {
    "source": {
        "taildir": _settings(
            filegroups="logs",
            filegroups__logs_="{DIRECTORY}/in/.*\\.log",
            positionFile="{DIRECTORY}/positions.json",
        ),
        "syslogtcp": _settings(host="127.0.0.1", port_="5140"),
        "syslogudp": _settings(host="127.0.0.1", port_="5140"),
        "multiport_syslogtcp": _settings(host="127.0.0.1", ports_="5140 5141"),
        "log4j": _listener("4560"),
        "http": _listener("8080"),
        "avro": _listener("4141"),
        "thrift": _listener("4353"),
        "kafka": _settings(
            kafka__bootstrap__servers_="localhost:9092", kafka__topics_="events", kafka__consumer__group__id="{NAME}"
        ),
        "spooldir": _settings(spoolDir_="{DIRECTORY}/in"),
        "exec": _settings(command_="df --output=target,pcent", restart="true", restartThrottle="60000"),
        "netcat": _listener("5150"),
        "netcatudp": _listener("5150"),
        "seq": _settings(totalEvents="1000"),
        "stress": _settings(size="200", maxEventsPerSecond="1000"),
    },
    "channel": {
        "file": _FILE_CHANNEL,
        "kafka": _settings(kafka__bootstrap__servers_="localhost:9092", kafka__topic_="{NAME}", retention="72"),
        "memory": _settings(capacity="10000", transactionCapacity="1000"),
        "SPILLABLEMEMORY": _FILE_CHANNEL,
    },
    "sink": {
        "file_roll": _settings(sink__directory_="{DIRECTORY}/out", sink__rollInterval="3600"),
        "hdfs": _settings(
            hdfs__path_="webhdfs://namenode:9870/logs/{NAME}/%Y-%m-%d",
            hdfs__fileType="DataStream",
            hdfs__rollInterval="300",
            hdfs__rollSize="134217728",
            hdfs__rollCount="0",
        ),
        "kafka": _settings(kafka__bootstrap__servers_="localhost:9092", kafka__topic_="{NAME}-out"),
        "hbase": _settings(table_="logs", columnFamily_="event", thrift_="localhost:9090"),
        "solr": _settings(url_="http://localhost:8983/solr/logs"),
        "elasticsearch": _settings(hostNames_="localhost:9200", indexName="logs"),
        "avro": _settings(hostname_="localhost", port_="4142"),
        "thrift": _settings(hostname_="localhost", port_="4354"),
        "http": _settings(endpoint_="http://localhost:8081/events"),
        "logger": _settings(maxBytesToLog="200"),
        "null": (),
    },
}
"""Kind → type → options to set; the types in the order in which they are offered."""
_ELSEWHERE = {"spark": "`agent new processor NAME` makes one with its function and its test"}
"""Type that needs more than a configuration → the command that makes it, as a sentence."""


@dataclass(frozen=True)
class Pipeline:
    """Types of the components of a new configuration."""

    source: str
    channel: str
    sink: str

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield kind and type of each component."""
        yield from (("source", self.source), ("channel", self.channel), ("sink", self.sink))

    def settings(self, kind: str) -> tuple[Setting, ...]:
        """Return the options to set of the component of this kind."""
        settings = SETTINGS[kind][dict(self.parts())[kind]]
        if kind == "source" and self.source == self.sink == "kafka":  # events would return to the topic they are from
            return (*settings, Setting("setTopicHeader", "false"))
        return settings

    def interceptors(self) -> tuple[str, ...]:
        """Return the lines of the source's interceptors, with a comment."""
        if dict(self.parts()) == DEFAULTS:
            return _MASK
        return _TIME if self.sink == "hdfs" else ()


def known_type(components: Components, kind: str, written: str) -> str:
    """Return the type for one of its names, such as a Java class. Raises FlafkaError if no configuration is known."""
    try:
        type_name = components.get(kind, written).type_name
    except UnknownType as e:
        hint = "" if str(e).endswith("?") else f"; choose one of {', '.join(SETTINGS[kind])}"
        raise FlafkaError(f"--{kind}: {e}{hint}") from e
    if type_name in SETTINGS[kind]:
        return type_name
    hint = _ELSEWHERE.get(type_name, f"choose one of {', '.join(SETTINGS[kind])}, and change the file")
    raise FlafkaError(f"--{kind} {written}: {hint}")


def describe_setting(components: Components, kind: str, type_name: str, option: str) -> str:
    """Return the first sentence of the description of an option, without a full stop, with its unit."""
    described = describe_component(components, kind, type_name).option(option)
    assert isinstance(described, OptionDescription), f"{type_name}: {option} has no effect"
    text = described.text.partition(". ")[0]
    return f"{text} ({described.unit})" if described.unit else text


def filled(value: str, name: str, directory: Path) -> str:
    """Return a value with the name of the agent and the absolute directory."""
    return value.replace("{NAME}", name).replace("{DIRECTORY}", str(directory.absolute()))


def render(
    components: Components, pipeline: Pipeline, name: str, directory: Path, answers: Mapping[tuple[str, str], str]
) -> str:
    """Return the configuration. `answers`: kind and option → value in place of that of the template."""
    lines = [
        f"# From the source {pipeline.source} through the channel {pipeline.channel} to the sink {pipeline.sink}.",
        "# `agent explain KIND TYPE` describes all options.",
        "#",
        "#   agent check -c agent.conf",
        "#   agent start -c agent.conf",
        "",
        *(f"a1.{kind}s = {NAMES[kind]}" for kind in NAMES),
    ]
    for kind, type_name in pipeline.parts():
        prefix = f"a1.{kind}s.{NAMES[kind]}"
        lines += ["", *_comment(describe_type(components, kind, type_name)), f"{prefix}.type = {type_name}"]
        for setting in pipeline.settings(kind):
            value = filled(answers.get((kind, setting.option), setting.value), name, directory)
            lines += _comment(describe_setting(components, kind, type_name, setting.option))
            lines.append(f"{prefix}.{setting.option} = {_escaped(value)}")
        if kind == "source":
            lines += [*pipeline.interceptors(), f"{prefix}.channels = {NAMES['channel']}"]
        elif kind == "sink":
            lines.append(f"{prefix}.channel = {NAMES['channel']}")
    return "\n".join(lines) + "\n"


_MASK = (
    "# Numbers of cards and addresses of mail are replaced before any channel has them",
    "a1.sources.in.interceptors = private",
    "a1.sources.in.interceptors.private.type = mask",
    "a1.sources.in.interceptors.private.patterns = card email",
)
_TIME = (
    "# The time of the put, for the names of directories, unless the source knows the time of the event",
    "a1.sources.in.interceptors = time",
    "a1.sources.in.interceptors.time.type = timestamp",
    "a1.sources.in.interceptors.time.preserveExisting = true",
)


def render_test(pipeline: Pipeline) -> str:
    """Return the test of the configuration."""
    return _MASK_TEST if pipeline.interceptors() is _MASK else _TEST


def describe_type(components: Components, kind: str, type_name: str) -> str:
    """Return the first sentence of the guarantee of a component, without a full stop."""
    return first_sentence(describe_component(components, kind, type_name).guarantee)


def _comment(sentence: str) -> list[str]:
    """Return a sentence as lines of a comment."""
    return textwrap.wrap(sentence, LINE_COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _escaped(value: str) -> str:
    """Return a value as a file of properties spells it."""
    return value.replace("\\", "\\\\")


_TEST = """\
# Test of agent.conf: agent test agent.test.toml

[[test]]
name = "an event reaches the sink as it came"
lines = ["hello"]

[[test.expect]]
at = "out"
event = [{ body = "hello" }]
"""
_MASK_TEST = """\
# Test of agent.conf: agent test agent.test.toml

[[test]]
name = "card numbers reach neither the channel nor any file"
lines = ["hello, card 4111 1111 1111 1111", "nothing to hide"]

[[test.expect]]
at = "out"
event = [{ body_matches = '^hello, card \\D+$' }, { body = "nothing to hide" }]
"""
