"""One agent with every kind of source, channel and sink, and every command that queries a running agent.

Each command is run with the brokers up and with all of them down. Its answer is compared with the sent events: ids,
counts, units and names of components. A new command needs an entry in `ASKED` with tests here, or in `NOT_ASKED`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from flafka.agent.cli import main
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SolrCluster
from flafka.plugins import Components
from tests.fixtures.cores import create_core
from tests.fixtures.ports import free_port
from tests.system.running import in_hdfs, kafka_channel, send, unique
from tests.system.stores import stored, table_of
from tests.system.test_kafka_ends import create
from tests.system.test_solr_sink import documents

pytestmark = pytest.mark.timeout(1200)  # a busy machine takes ten times as long as an idle one

ASKED = {
    *("top", "tap", "trace", "replay", "audit", "graph", "reload", "check", "explain"),
    *("group describe", "group list", "group reset", "topic describe", "topic list"),
    *("dlq list", "dlq show", "dlq replay"),
}
"""Commands that are run here."""
NOT_ASKED = {
    "start": "it is the agent",
    "test": "it reads a file of tests",
    "migrate": "it reads a configuration of Flume",
    "size": "it calculates",
    "new": "it writes files",
    "template": "it prints a file",
    "env": "it prints the addresses of the project's own servers",
    "completion": "it prints a script",
    "grammar": "it writes files for editors",
    "demo": "it has its own agent",
    "dashboard": "it asks several agents: test_dashboard_discovery.py, agent/test_fleet.py",
    "process": "it previews a processor without the agent: test_processor_example.py",
    "spark upload": "it copies Python to HDFS: test_proofs_yarn.py",
    "group move": "the agents of the group have to be stopped: test_groups.py",
    "topic create": "it knows no agent: test_cluster_cli.py",
    "topic produce": "it knows no agent: test_kafka_commands.py",
    "topic consume": "it knows no agent: test_kafka_commands.py",
    "topic delete": "it knows no agent: test_cluster_cli.py",
}
GROUPS_NOT_ASKED = {
    "cluster": "it concerns servers: test_cluster_cli.py, test_kafka_commands.py",
    "sandbox": "it starts and stops servers",
    "flume-ng": "it has Flume's command line: test_flume_ng.py",
}

EACH = 3
"""Events for each source of `SOURCES`."""
SOURCES = {
    "tcp": "syslogtcp",
    "udp": "syslogudp",
    "ports": "multiport_syslogtcp",
    "text": "netcat",
    "datagrams": "netcatudp",
    "web": "http",
    "command": "exec",
    "drop": "spooldir",
    "files": "taildir",
    "java": "log4j",
    "numbers": "seq",
    "load": "stress",
    "from-avro": "avro",
    "from-thrift": "thrift",
    "from-topic": "kafka",
}
"""Type of each source, by name. The last three receive the events of `text`, `java` and `files` through the channels
`m`, `s` and `f` and their sinks."""
INTO_K = [name for name in SOURCES if name not in ("text", "java", "files")]
"""Sources of the Kafka channel."""
ALL = EACH * len(INTO_K)
"""Events in the Kafka channel."""
REPLICATED = {"archive": "hdfs", "rows": "hbase2", "index": "solr", "copy": "kafka", "directory": "file_roll"}
WELL = {**REPLICATED, "nothing": "null", "lines": "logger"}
"""Sinks that deliver each event of the Kafka channel, except for one event that Solr refuses."""
AWAY = {"search": "elasticsearch", "hook": "http"}
"""Sinks whose servers are unavailable."""
ON_SPARK = {"processed": "spark"}
FORWARDING = {"to-avro": "avro", "to-thrift": "thrift", "to-topic": "kafka"}
SINKS = {**WELL, **AWAY, **ON_SPARK, **FORWARDING}
CHANNELS = {"k": "kafka", "m": "memory", "s": "SPILLABLEMEMORY", "f": "file"}


@dataclass
class Scene:
    """Agent, its servers, and the sent events."""

    agent: RunningAgent
    topic: str
    kafka: KafkaCluster
    hdfs: HdfsCluster
    hbase: HBaseCluster
    solr: str
    state: Path
    taps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Bodies of all events of the Kafka channel, by id."""
    began: str = ""
    ended: str = ""

    @property
    def records(self) -> int:
        """Return the records of the Kafka channel's topic."""
        return len({id.rsplit("-", 1)[0] for id in self.bodies})

    def run(self, *words: str, configured: bool = True) -> Result:
        """Run an `agent` command with the agent's configuration."""
        named = ["-c", str(self.agent.file)] if configured else []
        return CliRunner(env={"XDG_STATE_HOME": str(self.state)}).invoke(main, [*words, *named])

    def answer(self, *words: str, configured: bool = True, code: int | None = 0) -> Any:
        """Return the answer of a command as JSON."""
        result = self.run(*words, "--json", configured=configured)
        assert code in (None, result.exit_code), result.output
        return json.loads(result.stdout)

    def kafka_answer(self, *words: str) -> Any:
        """Return the answer, as JSON, of a command that takes the brokers rather than a configuration."""
        return self.answer(*words, "--bootstrap-server", self.kafka.bootstrap_servers, configured=False)

    def group(self, sink: str) -> str:
        """Return the consumer group of a sink on the Kafka channel."""
        return f"{self.topic}-{sink}"

    def path(self, name: str) -> str:
        """Return a component's path after the agent's name."""
        return f"{'sources' if name in SOURCES else 'channels' if name in CHANNELS else 'sinks'}.{name}"

    def id(self, body: bytes) -> str:
        (event_id,) = [id for id, stored in self.bodies.items() if stored == body]
        return event_id

    def top(self) -> dict[str, dict[str, Any]]:
        """Return the figures of `agent top` by kind and name of component."""
        return {
            f"{component['kind']} {component['name']}": component for component in self.answer("top")["components"]
        }


def configuration(
    directory: Path, topic: str, kafka: KafkaCluster, hdfs: HdfsCluster, hbase: HBaseCluster, solr: str
) -> str:
    servers = kafka.bootstrap_servers
    avro, thrift = free_port(), free_port()
    (directory / "processors").mkdir()
    (directory / "processors/every.py").write_text("def bodies(events, options):\n    return events.select('body')\n")
    local = "bind = 127.0.0.1\nport = "
    options = {
        "sources.tcp": "host = 127.0.0.1\nport = 0",
        "sources.udp": "host = 127.0.0.1\nport = 0",
        "sources.ports": "host = 127.0.0.1\nports = 0",
        "sources.text": f"{local}0",
        "sources.datagrams": f"{local}0",
        "sources.web": f"{local}0",
        "sources.command": f"command = seq -f command_%.0f 0 {EACH - 1}",
        "sources.drop": f"spoolDir = {directory}/drop",
        "sources.files": f"filegroups = g\nfilegroups.g = {directory}/files.log\n"
        f"positionFile = {directory}/positions.json",
        "sources.java": f"{local}0",
        "sources.numbers": f"totalEvents = {EACH}",
        "sources.load": f"maxTotalEvents = {EACH}\nsize = 4",
        "sources.from-avro": f"{local}{avro}",
        "sources.from-thrift": f"{local}{thrift}",
        "sources.from-topic": f"kafka.bootstrap.servers = {servers}\nkafka.topics = {topic}-in\n"
        f"kafka.consumer.group.id = {topic}-in\nkafka.consumer.auto.offset.reset = earliest\n"
        "setTopicHeader = false",
        "channels.m": "capacity = 1000",
        "channels.s": f"dataDirs = {directory}/s/data\ncheckpointDir = {directory}/s/checkpoint",
        "channels.f": f"dataDirs = {directory}/f/data\ncheckpointDir = {directory}/f/checkpoint",
        "sinks.archive": f"hdfs.path = webhdfs://{hdfs.webhdfs}/{topic}\nhdfs.fileType = DataStream\n"
        "hdfs.rollInterval = 1\nhdfs.rollSize = 0\nhdfs.rollCount = 0",
        "sinks.rows": f"thrift = {hbase.address}\ntable = {topic}\ncolumnFamily = f\ncreateTable = true",
        "sinks.index": f"url = {solr}\nfield.number_i = %{{number}}\ninterceptors = seven\n"
        "interceptors.seven.type = static\ninterceptors.seven.key = number\ninterceptors.seven.value = 7",
        "sinks.copy": f"kafka.bootstrap.servers = {servers}\nkafka.topic = {topic}-copy",
        "sinks.directory": f"sink.directory = {directory}/out",
        "sinks.lines": "maxBytesToLog = 16",
        "sinks.search": f"hostNames = 127.0.0.1:{free_port()}",
        "sinks.hook": f"endpoint = http://127.0.0.1:{free_port()}/",
        "sinks.processed": f"processor = every:bodies\nprocessor.path = {directory}/processors\n"
        f"output.out.type = parquet\noutput.out.path = {directory}/bodies",
        "sinks.to-avro": f"hostname = 127.0.0.1\nport = {avro}",
        "sinks.to-thrift": f"hostname = 127.0.0.1\nport = {thrift}",
        "sinks.to-topic": f"kafka.bootstrap.servers = {servers}\nkafka.topic = {topic}-in",
    }
    channel_of = {"text": "m", "java": "s", "files": "f", "to-avro": "m", "to-thrift": "s", "to-topic": "f"}
    lines = [
        f"a1.sources = {' '.join(SOURCES)}",
        f"a1.channels = {' '.join(CHANNELS)}",
        f"a1.sinks = {' '.join(SINKS)}",
        f"a1.monitoring.port = {free_port()}",
        f"a1.audit.topic = {topic}.audit",
        "a1.spark.triggerInterval = 1",
        kafka_channel(kafka.bootstrap_servers, topic, name="k"),
        *(f"a1.channels.{name}.type = {kind}" for name, kind in CHANNELS.items() if name != "k"),
        *(f"a1.sources.{name}.type = {kind}" for name, kind in SOURCES.items()),
        *(f"a1.sources.{name}.channels = {channel_of.get(name, 'k')}" for name in SOURCES),
        *(f"a1.sinks.{name}.type = {kind}" for name, kind in SINKS.items()),
        *(f"a1.sinks.{name}.channel = {channel_of.get(name, 'k')}" for name in SINKS),
        *(f"a1.sinks.{name}.group = {topic}-{name}" for name in SINKS if name not in FORWARDING),
        *(f"a1.{path}.{line}" for path, text in options.items() for line in text.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def send_everything(scene: Scene, directory: Path) -> None:
    """Send three events to each source that does not generate them."""
    agent = scene.agent
    syslog = [f"<13>1 - web-1 app - - - {{}} {n}\n".encode() for n in range(EACH)]
    for name in ("tcp", "ports"):
        send(agent.port(name), b"".join(line.replace(b"{}", name.encode()) for line in syslog))
    send(agent.port("text"), b"".join(b"text %d\n" % n for n in range(EACH)))
    send(agent.port("java"), b"".join(b'{"message": "java %d"}\n' % n for n in range(EACH)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number, line in enumerate(syslog):
            sender.sendto(line.replace(b"{}", b"udp"), ("127.0.0.1", agent.port("udp")))
            sender.sendto(b"datagrams %d\n" % number, ("127.0.0.1", agent.port("datagrams")))
    posted = [{"headers": {}, "body": f"web {n}"} for n in range(EACH)]
    posted[0]["headers"] = {"number": "seven"}
    client = http.client.HTTPConnection("127.0.0.1", agent.port("web"), timeout=60)
    client.request("POST", "/", json.dumps(posted))
    assert client.getresponse().status == 200
    client.close()
    (directory / "dropped").write_bytes(b"".join(b"drop %d\n" % n for n in range(EACH)))
    (directory / "dropped").rename(directory / "drop/dropped")
    with (directory / "files.log").open("ab") as file:
        file.write(b"".join(b"files %d\n" % n for n in range(EACH)))


def sent() -> Counter[bytes]:
    """Return the bodies of the Kafka channel."""
    names = ["drop ", "datagrams ", "web ", "text ", "java ", "files ", "command_"]
    named = [b"%s%d" % (name.encode(), n) for name in names for n in range(EACH)]
    syslog = [b"app - - - %s %d" % (name, n) for name in (b"tcp", b"udp", b"ports") for n in range(EACH)]
    return Counter([*named, *syslog, *(b"%d" % n for n in range(EACH)), *[b"\x7f" * 4] * EACH])


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("everything")
    topic = unique("everything")
    for name in ("in", "copy"):
        create(kafka_cluster, f"{topic}-{name}")
    for name in ("drop", "out"):
        (directory / name).mkdir()
    (directory / "files.log").touch()
    solr = create_core(solr_cluster, topic)
    text = configuration(directory, topic, kafka_cluster, hdfs_cluster, hbase_cluster, solr)
    with RunningAgent(directory / "agent", text) as agent:
        state = directory / "agent/state"
        scene = Scene(agent, topic, kafka_cluster, hdfs_cluster, hbase_cluster, solr, state)
        scene.began = now()
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        taps = {name: Tap(scene, name) for name in ("text", "m", "to-avro")}
        send_everything(scene, directory)
        for source in SOURCES:
            agent.until(lambda s=source: agent.count(f"SOURCE.{s}", "EventAcceptedCount") == EACH, f"all of {source}")
        for sink in SINKS:
            wanted = EACH if sink in FORWARDING else 0 if sink in AWAY else ALL - (sink == "index")
            agent.until(
                lambda s=sink, n=wanted: agent.count(f"SINK.{s}", "EventDrainSuccessCount") >= n, f"all in {sink}"
            )
        scene.taps = {name: tap.events() for name, tap in taps.items()}
        scene.bodies = stored(kafka_cluster, topic)
        time.sleep(0.002)  # the time range of a replay ends after the millisecond of the last event
        scene.ended = now()
        agent.until(lambda: all(figure(scene, s, "Lag") == 0 for s in (*WELL, *ON_SPARK)), "all to be committed")
        agent.until(lambda: all(figure(scene, s, "LagSeconds") for s in AWAY), "the age of what is not")
        yield scene


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def figure(scene: Scene, sink: str, name: str) -> float | None:
    value = scene.agent.metrics().get(f"SINK.{sink}", {}).get(name)
    return None if value is None else float(value)


class Tap:
    """Process of `agent tap` for a component."""

    def __init__(self, scene: Scene, component: str) -> None:
        words = ["tap", component, "-c", str(scene.agent.file), "--json", "--limit", str(EACH)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flafka", *words],
            env={**os.environ, "XDG_STATE_HOME": str(scene.state)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()  # which appears once the agent passes events to it
        assert line.startswith(f"waiting for events at a1.{scene.path(component)};"), line

    def events(self) -> list[dict[str, Any]]:
        out, errors = self._process.communicate(timeout=60)
        assert (self._process.returncode, errors) == (0, "")
        return [json.loads(line) for line in out.splitlines()]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from leaves(subcommand, (*path, name))
    else:
        yield " ".join(path)


def test_every_command_is_run_here_or_needs_no_running_agent() -> None:
    commands = {name for name in leaves(main) if name.partition(" ")[0] not in GROUPS_NOT_ASKED}
    assert commands == ASKED | NOT_ASKED.keys()


def test_the_agent_has_every_kind_of_source_channel_and_sink() -> None:
    components = Components()
    expected = {"source": SOURCES, "channel": CHANNELS, "sink": SINKS}
    for kind, names in expected.items():
        classes = {components.get(kind, name) for name in names.values()}
        assert classes == {
            cls for cls in components.all(kind) if cls.__module__.split(".")[:2] == ["flafka", f"{kind}s"]
        }


# --- with all servers


def test_top_shows_the_deliveries_and_the_lag_of_each_component(scene: Scene) -> None:
    top = scene.top()
    for name, kind in SOURCES.items():
        row = top[f"source {name}"]
        assert (row["id"], row["type"], row["events"]) == (f"a1.sources.{name}", kind, EACH)
        assert (row["state"], row["lag"]) == ("ok", None)
    for name, held in (("m", 0), ("s", 0), ("f", 0), ("k", None)):
        row = top[f"channel {name}"]
        assert (row["events"], row["held"], row["state"]) == (ALL if name == "k" else EACH, held, "ok")
    for name in SINKS:
        row = top[f"sink {name}"]
        events, lag = (
            EACH if name in FORWARDING else 0 if name in AWAY else ALL,
            0 if name not in AWAY else scene.records,
        )
        assert (row["events"], row["dead_letters"] or 0) == (events - (name == "index"), int(name == "index"))
        assert (row["lag"], row["lag_unit"]) == (lag, "events" if name in FORWARDING else "records")
        assert row["state"] == ("failing" if name in AWAY else "degraded" if name == "index" else "ok")
    seconds = {name: top[f"sink {name}"]["lag_seconds"] for name in SINKS}
    assert {name for name, value in seconds.items() if value != 0} == set(AWAY), seconds
    problems = scene.answer("top")["problems"]
    grave = {problem["component"] for problem in problems if problem["severity"] != "warning"}
    assert grave == {"a1.sinks.search", "a1.sinks.hook", "a1.sinks.index"}
    lines = {line.split()[0]: line for line in scene.run("top").stdout.splitlines() if line}
    assert f"{scene.records} records" in lines["search"]
    assert "0 events" in lines["to-avro"]
    assert f" {ALL} " in lines["archive"]


def test_the_pages_have_the_figures_of_top(scene: Scene) -> None:
    agent, top = scene.agent, scene.top()
    assert agent.get("/readyz")[0] == 200
    status, body = agent.get("/healthz")
    health = json.loads(body)
    assert (status, health["state"], agent.failing().keys()) == (503, "failing", {"SINK.search", "SINK.hook"})
    assert agent.degraded().keys() == {"SINK.index"}
    prometheus = agent.get("/metrics/prometheus")[1].decode()
    for name in SINKS:
        lag = top[f"sink {name}"]["lag"]
        assert figure(scene, name, "Lag") == lag
        assert f'flafka_lag{{agent="a1",kind="sink",name="{name}"}} {lag}' in prometheus
    counted = re.findall(r'flafka_event_accepted_total{agent="a1",kind="source",name="([^"]+)"} (\S+)', prometheus)
    assert {name: float(value) for name, value in counted} == dict.fromkeys(SOURCES, float(EACH))
    state, graph = json.loads(agent.get("/api/state")[1]), json.loads(agent.get("/api/graph")[1])
    (cluster,) = state["kafka"]
    assert (cluster["topic"], cluster["partitions"], cluster["error"]) == (scene.topic, 3, "")
    assert ",".join(broker["address"] for broker in cluster["brokers"]) == scene.kafka.bootstrap_servers
    assert {node["metrics"] for node in graph["nodes"]} <= state["figures"].keys()
    files = json.loads(agent.get("/api/files?match=")[1])["files"]
    assert [(file["source"], file["position"]) for file in files] == [("files", EACH * len("files 0\n"))]
    history = json.loads(agent.get("/api/history?span=600&component=SINK.search")[1])
    assert history["series"]["SINK.search"]["Lag"][-1] == scene.records
    assert b"<html" in agent.get("/")[1]


def test_graph_and_explain_name_the_components(scene: Scene) -> None:
    drawn = scene.answer("graph")
    nodes = {node["id"]: node["type"] for node in drawn["nodes"]}
    named = [("sources", SOURCES), ("channels", CHANNELS), ("sinks", SINKS)]
    components = Components()
    types = {
        f"a1.{kind}.{name}": components.get(kind.removesuffix("s"), text).type_name
        for kind, names in named
        for name, text in names.items()
    }
    assert nodes == types
    ways = {(edge["start"], edge["end"]) for edge in drawn["edges"]}
    assert {(f"a1.sources.{name}", "a1.channels.k") for name in INTO_K} <= ways
    assert ("a1.channels.m", "a1.sinks.to-avro") in ways
    assert f"k → seven (static) → index (solr, group {scene.group('index')})" in scene.run("graph").stdout
    for path, text in types.items():
        kind = path.split(".")[1].removesuffix("s")
        answer = scene.answer("explain", kind, text, configured=False)
        assert (answer["kind"], answer["type"]) == (kind, text)


def test_tap_shows_the_events_that_passed(scene: Scene) -> None:
    for name, events in scene.taps.items():
        assert [event["body"] for event in events] == [f"text {n}" for n in range(EACH)], name


def test_check_connects_to_every_server_and_finds_no_mistake(scene: Scene) -> None:
    answer = scene.answer("check", "--connect", code=None)
    assert {(diagnostic["component"], diagnostic["severity"]) for diagnostic in answer["diagnostics"]} == {
        (f"a1.sinks.{name}", "error") for name in AWAY
    }, "the ports and directories that the agent has are its own"


def test_trace_finds_an_event_in_each_store(scene: Scene) -> None:
    id = scene.id(b"text 1")
    answer = scene.answer("trace", id)
    assert (answer["id"], answer["channel"], base64.b64decode(answer["body"])) == (id, "a1.channels.k", b"text 1")
    states = {entry["sink"].removeprefix("a1.sinks."): entry for entry in answer["sinks"]}
    waiting = {name for name, entry in states.items() if entry["state"] == "waiting"}
    delivered = {name for name, entry in states.items() if entry["state"] == "delivered"}
    assert (waiting, delivered) == (set(AWAY), {"archive", "rows", "index"})
    (document,), (row,) = states["index"]["places"], states["rows"]["places"]
    assert (document["id"], row["row"], row["cells"]) == (id, id, {"f:pCol": "text 1"})
    refused = scene.answer("trace", scene.id(b"web 0"))
    assert {entry["sink"] for entry in refused["sinks"] if entry["state"] == "dead letter"} == {"a1.sinks.index"}


def test_the_stores_have_what_was_sent(scene: Scene) -> None:
    bodies = Counter(scene.bodies.values())
    assert bodies == sent()
    assert Counter(in_hdfs(scene.hdfs, f"/{scene.topic}")) == bodies
    with table_of(scene.hbase, scene.topic) as table:
        assert {key.decode(): cells[b"f:pCol"] for key, cells in table.scan()} == scene.bodies
    assert documents(scene.solr).keys() == scene.bodies.keys() - {scene.id(b"web 0")}


def test_offsets_of_groups_and_topics_agree_with_the_lags(scene: Scene) -> None:
    groups = {group["group"] for group in scene.kafka_answer("group", "list")}
    assert {scene.group(name) for name in (*WELL, *ON_SPARK)} <= groups
    described = scene.kafka_answer("topic", "describe", scene.topic)["partitions"]
    ends = {partition["partition"]: partition["log_end_offset"] for partition in described}
    assert sum(ends.values()) == scene.records
    for name in (*WELL, *ON_SPARK):
        rows = scene.kafka_answer("group", "describe", scene.group(name))
        assert {row["topic"] for row in rows} == {scene.topic}
        assert {row["partition"]: row["current_offset"] for row in rows} == ends, name
        assert sum(row["lag"] for row in rows) == figure(scene, name, "Lag") == 0
        assert all(f".a1.{name}." in row["consumer_id"] for row in rows if name in WELL)
    names = {topic["topic"] for topic in scene.kafka_answer("topic", "list")}
    assert {scene.topic, f"{scene.topic}.audit", f"{scene.topic}.deadletters", f"{scene.topic}-copy"} <= names
    reset = scene.run(
        *("group", "reset", scene.group("archive"), "--to", "latest", "--yes"),
        *("--bootstrap-server", scene.kafka.bootstrap_servers),
        configured=False,
    )
    assert reset.exit_code == 1
    assert f"group {scene.group('archive')} is being read by" in reset.output


def test_the_audit_counts_every_event_at_every_sink(scene: Scene) -> None:
    rows = scene.answer("audit", "--all", "--grace", "0", code=1)
    events: Counter[str] = Counter()
    for row in rows:
        events[row["stage"]] += row["events"]
    assert events == {"put": ALL, **{scene.group(name): ALL for name in WELL}, **{scene.group(n): 0 for n in AWAY}}
    assert {row["stage"] for row in rows if row["difference"]} == {scene.group(name) for name in AWAY}


def test_a_replay_counts_the_events_of_its_span(scene: Scene) -> None:
    span = ("--from", scene.began, "--to", scene.ended)
    result = scene.run("replay", "--sink", "archive", *span, "--dry-run", "--json")
    rows = json.loads(result.stdout)
    assert (sum(row["events"] for row in rows), sum(row["records"] for row in rows)) == (ALL, scene.records)
    assert f"{ALL} events would be replayed to a1.sinks.archive (hdfs)" in result.stderr


def test_dead_letters_are_listed_shown_and_replayed_once_the_reason_is_gone(scene: Scene) -> None:
    id = scene.id(b"web 0")
    (lot,) = scene.answer("dlq", "list")
    assert (lot["channel"], lot["component"], lot["events"], lot["replayed"]) == ("k", "a1.sinks.index", 1, 0)
    (letter,) = scene.answer("dlq", "show")
    assert (letter["id"], base64.b64decode(letter["body"])) == (id, b"web 0")
    assert letter["headers"]["number"] == "seven"
    (planned,) = scene.answer("dlq", "replay", "--dry-run")
    assert (planned["component"], planned["to"], planned["events"]) == (
        *("a1.sinks.index", f"group {scene.group('index')}"),
        1,
    )
    text = scene.agent.file.read_text()
    scene.agent.file.write_text(text.replace("a1.sinks.index.field.number_i = %{number}\n", ""))
    answer = scene.answer("reload")
    assert (answer["ok"], answer["processes"]) == (True, [scene.agent.process.pid])
    assert answer["told"] == "sinks index"
    assert "1 dead letters replayed" in scene.run("dlq", "replay", "--yes").stderr
    scene.agent.until(lambda: id in documents(scene.solr), "the document")
    assert scene.answer("dlq", "list")[0]["replayed"] == 1
    assert scene.answer("reload")["told"] == "nothing"


# --- without brokers

REFUSED = {
    "trace": ("trace", "{id}"),
    "replay": ("replay", "--sink", "archive", "--from", "{began}", "--to", "{ended}", "--dry-run"),
    "audit": ("audit",),
    "dlq list": ("dlq", "list"),
    "dlq show": ("dlq", "show"),
    "dlq replay": ("dlq", "replay", "--yes"),
    "group list": ("group", "list", "{brokers}"),
    "group describe": ("group", "describe", "{group}", "{brokers}"),
    "group reset": ("group", "reset", "{group}", "--to", "latest", "--yes", "{brokers}"),
    "topic list": ("topic", "list", "{brokers}"),
    "topic describe": ("topic", "describe", "{topic}", "{brokers}"),
    "check": ("check", "--connect", "--json"),
}
"""Commands that query the brokers."""


@pytest.fixture(scope="module")
def answers_without_brokers(scene: Scene) -> Iterator[dict[str, subprocess.CompletedProcess[str]]]:
    """Answers of those commands while all brokers are down; they run at once, as each waits ten seconds."""
    values = {"id": scene.id(b"text 1"), "began": scene.began, "ended": scene.ended}
    values |= {"group": scene.group("archive"), "topic": scene.topic}

    def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        brokers = "{brokers}" in words
        named = ["--bootstrap-server", scene.kafka.bootstrap_servers] if brokers else ["-c", str(scene.agent.file)]
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "flafka",
                *(word.format(**values) for word in words if word != "{brokers}"),
                *named,
            ],
            env={**os.environ, "XDG_STATE_HOME": str(scene.state)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    scene.kafka.stop()
    try:
        with ThreadPoolExecutor(len(REFUSED)) as pool:
            answers = {name: pool.submit(run, words) for name, words in REFUSED.items()}
            tap = Tap(scene, "text")
            send(scene.agent.port("text"), b"".join(b"late %d\n" % n for n in range(EACH)))
            scene.taps["late"] = tap.events()
            yield {name: answer.result() for name, answer in answers.items()}
    finally:
        scene.kafka.start()


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"check"}))
def test_without_brokers_a_command_names_the_unavailable_ones(
    answers_without_brokers: dict[str, subprocess.CompletedProcess[str]], scene: Scene, name: str
) -> None:
    result = answers_without_brokers[name]
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.lower().startswith("error: ")
    for address in scene.kafka.bootstrap_servers.split(","):
        assert address in line
    assert "Connection refused" in line


def test_without_brokers_top_shows_no_lag_of_their_sinks(
    answers_without_brokers: dict[str, subprocess.CompletedProcess[str]], scene: Scene
) -> None:
    agent = scene.agent
    agent.until(lambda: all(figure(scene, name, "Lag") is None for name in SINKS if name not in FORWARDING), "no lag")
    top = scene.top()
    for name in (*WELL, *AWAY, *ON_SPARK):
        row = top[f"sink {name}"]
        assert (row["lag"], row["lag_seconds"]) == (None, None), name
    row = top["sink to-avro"]
    assert (row["lag"], row["lag_unit"]) == (EACH, "events"), "the source that it sends to waits for the brokers"
    assert row["lag_seconds"] > 0
    assert top["source text"]["events"] == 2 * EACH
    assert (top["channel m"]["held"], top["channel k"]["events"]) == (EACH, ALL)
    lines = {line.split()[0]: line for line in scene.run("top").stdout.splitlines()}
    assert lines["archive"].split()[4:6] == ["unknown", "unknown"]
    assert "3 events" in lines["to-avro"]
    first = scene.answer("top")["problems"][0]
    assert (first["kind"], first["component"]) == ("brokers-away", "a1.channels.k")
    assert all(address in first["error"] for address in scene.kafka.bootstrap_servers.split(","))
    agent.until(lambda: "CHANNEL.k" in agent.failing(), "the channel to fail")
    assert agent.get("/readyz")[0] == 200


def test_without_brokers_tap_graph_and_reload_answer_as_before(
    answers_without_brokers: dict[str, subprocess.CompletedProcess[str]], scene: Scene
) -> None:
    assert [event["body"] for event in scene.taps["late"]] == [f"late {n}" for n in range(EACH)]
    assert len(scene.answer("graph")["nodes"]) == len(SOURCES) + len(CHANNELS) + len(SINKS)
    assert scene.answer("reload")["told"] == "nothing"


def test_without_brokers_check_names_each_component_that_needs_them(
    answers_without_brokers: dict[str, subprocess.CompletedProcess[str]], scene: Scene
) -> None:
    diagnostics = json.loads(answers_without_brokers["check"].stdout)["diagnostics"]
    needing = {"a1.channels.k", "a1.sources.from-topic", "a1.sinks.copy", "a1.sinks.to-topic"}
    assert {diagnostic["component"] for diagnostic in diagnostics} == needing | {f"a1.sinks.{name}" for name in AWAY}
    for diagnostic in diagnostics:
        if diagnostic["component"] in needing:
            assert scene.kafka.bootstrap_servers in diagnostic["message"]


def test_events_of_the_outage_are_delivered_once_the_brokers_are_back(scene: Scene) -> None:
    """Last test: the brokers are started again by then."""
    late = {b"late %d" % n for n in range(EACH)}
    scene.kafka.start()
    scene.agent.until(lambda: late <= set(in_hdfs(scene.hdfs, f"/{scene.topic}")), "the events on HDFS")
    scene.agent.until(lambda: all(figure(scene, name, "Lag") == 0 for name in WELL), "no lag")
    assert "Traceback" not in scene.agent.log
