"""`agent start` as users run it: signals, a failing plugin, metrics, Flume's command line."""

import re
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flafka.agent.cli.start import DUPLICATE_SIGNAL_SECONDS
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import WAIT_TIMEOUT_SECONDS, RunningAgent
from tests.fixtures.ports import free_port
from tests.system.running import NO_HDFS, agent_command, hdfs_sink, in_hdfs, in_topic, kafka_channel, send, unique

HEAD = b"<13>Oct 11 22:14:15 web-1 "
LINES = [b"line %05d" % number for number in range(3000)]

SYSLOG = """
a1.sources = syslog
a1.sources.syslog.type = syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.port = 0
a1.sources.syslog.channels = c1
a1.channels = c1
"""


def send_lines(agent: RunningAgent) -> None:
    """Send `LINES`, and wait until the channel has them."""
    send(agent.port("syslog"), b"".join(HEAD + line + b"\n" for line in LINES))
    agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") == len(LINES), "all lines in the channel")


# --- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_what_was_taken(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, number: signal.Signals
) -> None:
    topic = unique("signal")
    configuration = f"""
{SYSLOG}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
a1.sinks = k1
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}", roll_seconds=3600)}
"""
    with RunningAgent(tmp_path, configuration) as agent:
        send_lines(agent)
        agent.until(lambda: agent.count("SINK.k1", "EventDrainAttemptCount") == len(LINES), "all lines to be staged")
        assert in_hdfs(hdfs_cluster, f"/proofs/{topic}") == []
        assert agent.stop(number) == 0
        assert agent.log.endswith("stopped\n")
    assert Counter(in_hdfs(hdfs_cluster, f"/proofs/{topic}")) == Counter(LINES)


def test_a_stop_empties_the_memory_channel(tmp_path: Path, hdfs_cluster: HdfsCluster) -> None:
    root = unique("/proofs/memory")
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
{hdfs_sink(hdfs_cluster.webhdfs, root, roll_seconds=3600)}
"""
    with RunningAgent(tmp_path, configuration) as agent:
        send_lines(agent)
        assert agent.stop() == 0
        assert "lost" not in agent.log
    assert Counter(in_hdfs(hdfs_cluster, root)) == Counter(LINES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
{hdfs_sink(f"127.0.0.1:{free_port()}", "/never")}
"""
    with RunningAgent(tmp_path, configuration) as agent:
        send_lines(agent)
        agent.process.send_signal(number)
        agent.until(lambda: "stopping: draining" in agent.log, "the agent to stop")
        agent.process.send_signal(number)  # one request: GNU timeout sends the signal to the process and to its group
        time.sleep(DUPLICATE_SIGNAL_SECONDS)
        assert agent.process.poll() is None
        agent.process.send_signal(number)
        assert agent.wait_for_exit() == 128 + number
        assert agent.log.endswith(
            f"WARNING agent: second {number.name}: the agent ends at once. Not finished: sinks k1 (durable "
            f"channels redeliver uncommitted events); {len(LINES)} events in memory channels, which are lost\n"
        )


def test_a_burst_of_signals_counts_once(tmp_path: Path, hdfs_cluster: HdfsCluster) -> None:
    root = unique("/proofs/burst")
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
{hdfs_sink(hdfs_cluster.webhdfs, root, roll_seconds=3600)}
"""
    with RunningAgent(tmp_path, configuration) as agent:
        send_lines(agent)
        agent.process.send_signal(signal.SIGTERM)
        agent.until(lambda: "stopping: draining" in agent.log, "the agent to stop")
        assert agent.stop() == 0
        assert agent.log.endswith("stopped\n")
    assert Counter(in_hdfs(hdfs_cluster, root)) == Counter(LINES)


def test_undelivered_events_stay_in_kafka(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic = unique("left")

    def configuration(webhdfs: str) -> str:
        return f"""
{SYSLOG}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
a1.sinks = k1
{hdfs_sink(webhdfs, f"/proofs/{topic}", roll_seconds=3600)}
"""

    nobody = f"127.0.0.1:{free_port()}"
    with RunningAgent(tmp_path, configuration(nobody)) as agent:
        send_lines(agent)
        agent.until(lambda: agent.failing() == {"SINK.k1": NO_HDFS.format(nobody)}, "the missing HDFS to be reported")
        assert agent.stop() == 1
        assert "not everything could be delivered" in agent.log
    with RunningAgent(
        tmp_path, configuration(hdfs_cluster.webhdfs), "-c", str(tmp_path / "agent.conf"), "--drain"
    ) as agent:
        assert agent.wait_for_exit() == 0
    assert Counter(in_hdfs(hdfs_cluster, f"/proofs/{topic}")) == Counter(LINES)


def test_sigquit_logs_the_stack_of_each_thread_and_ends_nothing(tmp_path: Path) -> None:
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
    with RunningAgent(tmp_path, configuration) as agent:
        agent.port("syslog")
        stacks = agent.stacks(seconds=WAIT_TIMEOUT_SECONDS)
        for frame in (
            "Thread a1.sources.syslog (",
            "Thread a1.sinks.k1 (",
            "Thread MainThread (",
            "agent/cli/start.py",
        ):
            assert frame in stacks
        send_lines(agent)
        assert agent.stop() == 0


# --- running

PLUGIN = '''
from collections.abc import Iterator
from flafka.plugins import Batch, Component, Config, Event, Interceptor, Sink, Source, hookimpl


class Flaky(Source[Config]):
    """Yields one event, and fails."""

    type_name = "flaky"

    def batches(self) -> Iterator[Batch]:
        yield Batch.of([Event(b"from flaky")])
        raise ZeroDivisionError("a mistake in the plugin")


class Broken(Sink[Config]):
    """Fails at every event."""

    type_name = "broken"

    def write(self, batch: Batch) -> None:
        raise KeyError("no such thing")


@hookimpl
def components() -> list[type[Component]]:
    return [Flaky, Broken]
'''


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """Environment in which that plugin is installed."""
    (tmp_path / "mistaken.py").write_text(PLUGIN)
    metadata = tmp_path / "mistaken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mistaken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[flafka]\nmistaken = mistaken\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_a_component_that_fails_takes_no_other_down(
    tmp_path: Path, kafka_cluster: KafkaCluster, plugin: dict[str, str]
) -> None:
    topic, out = unique("failing"), tmp_path / "out"
    configuration = f"""
{SYSLOG}
a1.sources = syslog flaky
a1.sources.flaky.type = flaky
a1.sources.flaky.channels = c1
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
a1.sinks = k1 k2
a1.sinks.k1.type = broken
a1.sinks.k1.channel = c1
a1.sinks.k1.group = {topic}-broken
a1.sinks.k2.type = file_roll
a1.sinks.k2.channel = c1
a1.sinks.k2.sink.directory = {out}
"""
    with RunningAgent(tmp_path / "a", configuration, environment=plugin) as agent:
        failures = {
            "SOURCE.flaky": "ZeroDivisionError: a mistake in the plugin",
            "SINK.k1": "KeyError: 'no such thing'",
        }
        # A source is healthy for a moment after each restart, so they need not fail at the same time.
        for component, error in failures.items():
            agent.until(
                lambda c=component, e=error: agent.failing().get(c, "").startswith(f"{e} ("),
                f"the failure of {component}",
            )
        send_lines(agent)
        agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") > len(LINES), "the good sink")
        # It is retried repeatedly, and reported once.
        agent.until(lambda: agent.count("SINK.k1", "FailureCount") > 1, "another try of the sink")
        agent.until(lambda: agent.count("SOURCE.flaky", "FailureCount") > 1, "another try of the source")
        assert len(re.findall(r"KeyError: 'no such thing' \(.*, plugin mistaken .*\)\nTraceback", agent.log)) == 1
        assert "SOURCE.syslog" not in agent.failing()
        assert agent.stop() == 1
    delivered = {line for file in out.iterdir() for line in file.read_bytes().splitlines()}
    assert delivered == {*LINES, b"from flaky"}


def test_metrics_are_flumes_and_prometheus(tmp_path: Path) -> None:
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {tmp_path}/out
"""
    with RunningAgent(tmp_path, configuration) as agent:
        send_lines(agent)
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == len(LINES), "all to be delivered")
        shown = agent.metrics()
        status, exposition = agent.get("/metrics/prometheus")
        assert agent.stop() == 0
    assert shown.keys() == {"SOURCE.syslog", "ROUTE.syslog.c1", "CHANNEL.c1", "SINK.k1"}
    assert all(isinstance(value, str) for counters in shown.values() for value in counters.values())
    kinds = {name: counters["Type"] for name, counters in shown.items()}
    assert kinds == {name: name.partition(".")[0] for name in shown}
    for component, counters in {
        "SOURCE.syslog": "EventReceivedCount EventAcceptedCount StartTime StopTime OpenConnectionCount",
        "CHANNEL.c1": "ChannelCapacity ChannelSize ChannelFillPercentage EventPutAttemptCount EventPutSuccessCount "
        "EventTakeAttemptCount EventTakeSuccessCount StartTime StopTime",
        "SINK.k1": "EventDrainAttemptCount EventDrainSuccessCount BatchCompleteCount BatchEmptyCount "
        "BatchUnderflowCount ConnectionCreatedCount ConnectionClosedCount ConnectionFailedCount StartTime StopTime",
    }.items():
        assert shown[component].keys() >= set(counters.split())

    assert status == 200
    samples = {
        (sample.name, sample.labels["kind"], sample.labels["name"]): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }
    sent = float(len(LINES))
    assert samples["flafka_event_accepted_total", "source", "syslog"] == sent
    assert samples["flafka_event_put_success_total", "channel", "c1"] == sent
    assert samples["flafka_event_drain_success_total", "sink", "k1"] == sent
    assert samples["flafka_channel_size", "channel", "c1"] == 0
    assert {value for (name, _, _), value in samples.items() if name == "flafka_up"} == {1.0}


def test_a_busy_monitoring_port_is_a_warning(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        configuration = f"""
{SYSLOG}
a1.channels.c1.type = memory
a1.sinks = k1
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {tmp_path}/out
a1.monitoring.port = {port}
"""
        with RunningAgent(tmp_path, configuration) as agent:
            send(agent.port("syslog"), HEAD + b"delivered\n")
            agent.until(lambda: list((tmp_path / "out").glob("*")), "the event")
            assert agent.stop() == 0
            assert (
                f"flafka.agent.monitoring.server: metrics are not served: cannot listen on 127.0.0.1:{port}: Address"
                in agent.log
            )
    assert [file.read_bytes() for file in (tmp_path / "out").iterdir()] == [b"delivered\n"]


# --- Flume's command line


def test_flumes_command_line(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    """`flume-ng agent -n a1 -c conf -f x.conf -D…`, with `agent start` in place of `flume-ng agent`."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "flume-env.sh").write_text("export JAVA_OPTS=-Xmx1g\n")
    configuration = f"""
other.sources = nothing
{SYSLOG}
a1.channels.c1.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.c1.format = arrow
a1.channels.c1.kafka.bootstrap.servers = {kafka_cluster.bootstrap_servers}
a1.channels.c1.kafka.topic = ${{sys:topic}}
"""
    topic, port = unique("flume"), free_port()
    monitoring = ["-Dflume.monitoring.type=http", f"-Dflume.monitoring.port={port}", f"-Dtopic={topic}"]
    file = str(tmp_path / "agent.conf")
    with RunningAgent(tmp_path, configuration, "-n", "a1", "-c", str(conf), "-f", file, *monitoring) as agent:
        send_lines(agent)
        assert f"metrics on http://127.0.0.1:{port}/metrics" in agent.log
        assert agent.stop() == 0


def test_a_kafka_channel_without_brokers_uses_the_projects_own(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic = unique("own")
    configuration = f"""
{SYSLOG}
a1.channels.c1.type = kafka
a1.channels.c1.kafka.topic = {topic}
"""
    own = {"FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory)}
    with RunningAgent(tmp_path, configuration, environment=own) as agent:
        send_lines(agent)
        assert agent.stop() == 0
    assert Counter(event.body for event in in_topic(kafka_cluster, topic)) == Counter(LINES)
    checked = agent_command("check", "-c", str(agent.file), "--connect", environment=own)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "  syslog (syslogtcp) → c1 (kafka)"), checked

    nowhere = {"FLAFKA_CLUSTER_DIR": str(tmp_path / "nowhere")}
    with RunningAgent(tmp_path, configuration, environment=nowhere) as agent:
        assert agent.wait_for_exit() == 1
        assert "run `agent cluster start`, or add a1.channels.c1.kafka.bootstrap.servers = host:port" in agent.log
        assert "Traceback" not in agent.log

    flumes = "= org.apache.flume.channel.kafka.KafkaChannel\na1.channels.c1.format = arrow"
    flume = configuration.replace("= kafka", flumes)
    with RunningAgent(tmp_path, flume, environment=own) as agent:
        assert agent.wait_for_exit() == 2
        assert "a1.channels.c1: kafka.bootstrap.servers is required: add " in agent.log
