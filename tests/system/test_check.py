"""`agent check` as users run it: all mistakes at once, and the answers of the servers."""

import json
import socket
from pathlib import Path

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import free_ports
from tests.system.running import NO_HDFS, agent_command, hdfs_sink, kafka_channel, unique

MISTAKEN = """\
a1.sources = s1 s2
a1.channels = events
a1.sinks = k1
a1.sources.s1.type = syslogtpc
a1.sources.s1.port = 5140
a1.sources.s1.channels = events
a1.sources.s2.type = syslogudp
a1.sources.s2.host = 127.0.0.1
a1.sources.s2.port = many
a1.sources.s2.channels = evnets
a1.channels.events.type = memory
a1.channels.events.capacity = many
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = events
a1.sinks.k1.sink.direktory = {directory}
"""
DIAGNOSTICS = """\
{file}:4: a1.sources.s1: unknown source type 'syslogtpc', did you mean 'syslogtcp'?
{file}:9: a1.sources.s2: port must be a whole number, not 'many'
{file}:10: a1.sources.s2: channel 'evnets' is not declared, did you mean 'events'?
{file}:12: a1.channels.events: capacity must be a whole number, not 'many'
{file}:13: a1.sinks.k1: sink.directory is required: add a1.sinks.k1.sink.directory = …
{file}:15: warning: a1.sinks.k1: unknown option 'sink.direktory', did you mean 'sink.directory'? (ignored)
5 errors, 1 warning"""


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file, out = tmp_path / "agent.conf", tmp_path / "out"
    file.write_text(MISTAKEN.format(directory=out))
    checked = agent_command("check", "-c", str(file))
    assert (checked.returncode, checked.stderr) == (2, "")
    assert checked.stdout == DIAGNOSTICS.format(file=file) + ": it would not start\n"
    started = agent_command("start", "-c", str(file))
    assert (started.returncode, started.stdout) == (2, "")
    assert started.stderr == DIAGNOSTICS.format(file=file) + "; nothing was started\n"
    assert not out.exists()


def test_a_check_with_connect_finds_what_is_not_there(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    alone = unique("alone")
    brokers = ("--bootstrap-server", kafka_cluster.bootstrap_servers)
    assert agent_command("topic", "create", alone, "--replication-factor", "1", *brokers).returncode == 0
    nobody, closed = (f"127.0.0.1:{port}" for port in free_ports(2))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = tmp_path / "agent.conf"
        file.write_text(f"""
a1.sources = s1 s2
a1.channels = c1 c2 c3
a1.sinks = k1 k2
a1.sources.s1.type = syslogtcp
a1.sources.s1.host = 127.0.0.1
a1.sources.s1.port = {port}
a1.sources.s1.channels = c1 c3
a1.sources.s2.type = taildir
a1.sources.s2.filegroups = logs
a1.sources.s2.filegroups.logs = {tmp_path}/missing/.*[.]log
a1.sources.s2.positionFile = {tmp_path}/positions.json
a1.sources.s2.channels = c2
{kafka_channel(nobody, "any", name="c1")}
{kafka_channel(kafka_cluster.bootstrap_servers, unique("four"), name="c2")}
a1.channels.c2.replication = 4
{kafka_channel(kafka_cluster.bootstrap_servers, alone, name="c3")}
{hdfs_sink(closed, "/never")}
a1.sinks.k1.hdfs.stagingDir = {file}/staging
a1.sinks.k2.type = file_roll
a1.sinks.k2.channel = c2
a1.sinks.k2.sink.directory = {file}/out
""")
        checked = agent_command("check", "-c", str(file), "--connect", "--json")
    assert checked.returncode == 2, checked
    reported: dict[str, list[str]] = {}
    for diagnostic in json.loads(checked.stdout)["diagnostics"]:
        assert diagnostic["severity"] == ("warning" if diagnostic["component"] == "a1.channels.c3" else "error")
        assert diagnostic["file"] == str(file)
        reported.setdefault(diagnostic["component"], []).append(diagnostic["message"])
    for component, expected in {
        "a1.sources.s1": [f"cannot listen on 127.0.0.1:{port} (TCP): another program listens there"],
        "a1.sources.s2": [f"directory {tmp_path}/missing cannot be read: No such file or directory"],
        "a1.channels.c1": [f"no Kafka broker answers at {nobody}"],
        "a1.channels.c2": ["replication = 4, but only 3 brokers are up"],
        "a1.channels.c3": [f"topic {alone} has 1 replicas: with 3, the loss of a broker causes no pause"],
        "a1.sinks.k1": [f"cannot write into the staging directory {file}/staging", NO_HDFS.format(closed)],
        "a1.sinks.k2": [f"cannot write into {file}/out"],
    }.items():
        messages = reported.pop(component)
        assert len(messages) == len(expected)
        assert all(part in message for part, message in zip(expected, messages, strict=True)), messages
    assert reported == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.conf"]


def test_a_topic_that_the_agent_itself_creates_is_not_missing(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    first, second, audit, nobody = (unique(name) for name in ("first", "second", "audit", "nobody"))
    brokers = kafka_cluster.bootstrap_servers
    file = tmp_path / "agent.conf"
    file.write_text(f"""
a1.sources = s1
a1.channels = c1 c2
a1.sinks = k1 k2 k3
a1.audit.topic = {audit}
a1.monitoring.port = 0
a1.sources.s1.type = kafka
a1.sources.s1.channels = c1
a1.sources.s1.kafka.bootstrap.servers = {brokers}
a1.sources.s1.kafka.topics = {audit}
a1.sources.s1.setTopicHeader = false
{kafka_channel(brokers, first, name="c1")}
{kafka_channel(brokers, second, name="c2")}
a1.sinks.k1.type = kafka
a1.sinks.k1.channel = c1
a1.sinks.k1.kafka.bootstrap.servers = {brokers.partition(",")[0]}
a1.sinks.k1.kafka.topic = {second}
a1.sinks.k2.type = kafka
a1.sinks.k2.channel = c1
a1.sinks.k2.group = others
a1.sinks.k2.kafka.bootstrap.servers = {brokers}
a1.sinks.k2.kafka.topic = {nobody}
a1.sinks.k3.type = null
a1.sinks.k3.channel = c2
""")
    checked = agent_command("check", "-c", str(file), "--connect", "--json")
    reported = [
        (diagnostic["component"], diagnostic["message"]) for diagnostic in json.loads(checked.stdout)["diagnostics"]
    ]
    missing = f"there is no topic {nobody} at {brokers}: agent topic create {nobody} --bootstrap-server {brokers}"
    assert reported == [("a1.sinks.k2", missing)]
    assert agent_command("topic", "create", nobody, "--bootstrap-server", brokers).returncode == 0
    checked = agent_command("check", "-c", str(file), "--connect")
    assert checked.returncode == 0, checked
