"""Shipped examples of conf/examples on real servers.

Every run takes one of them, by its seed, as each starts Spark; `./dev soak` takes all.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from conf.examples.game import play
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SolrCluster
from flafka.plugins import Batch, Event
from tests.fixtures.ports import free_port
from tests.system.running import KAFKA, ROOT, agent_command, in_hdfs, in_topic
from tests.system.test_kafka_ends import bodies, consumed
from tests.system.test_proofs_spark import at_the_end, driver_of
from tests.system.test_solr_sink import documents

EXAMPLES = ROOT / "conf/examples"
ALTERED = "as many, but altered"

pytestmark = pytest.mark.drawn(1, of="examples")


def listed(directory: Path) -> set[str]:
    """Return the alerts of a file."""
    rows = [json.loads(line) for file in directory.glob("*") for line in file.read_text().splitlines()]
    return {row["difference"] for row in rows}


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process, and kill it at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def minute_of(row: dict[str, str]) -> int:
    return int(datetime.fromisoformat(row["minute"]).timestamp()) // 60


def test_counts(tmp_path: Path, kafka_cluster: KafkaCluster, solr_cluster: SolrCluster) -> None:
    port = free_port()
    environment = {
        "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory),
        "COUNTS_SYSLOG": str(port),
        "FLAFKA_SOLR": solr_cluster.address,
        "COUNTS_INTERVAL": "1",
        "COUNTS_METRICS": "0",
    }

    def charted() -> dict[str, int]:
        counts: dict[str, int] = {}
        for document in documents(f"{solr_cluster.address}/events").values():
            if "severity_s" in document:
                assert document["minute_dt"].endswith(":00Z")
                severity = document["severity_s"]
                counts[severity] = counts.get(severity, 0) + document["count_l"]
        return counts

    def log(severity: str, times: int) -> None:
        command = ["logger", "--server", "127.0.0.1", "--port", str(port), "--tcp", "--rfc5424"]
        text = "".join(f"message {n}\n" for n in range(times))
        subprocess.run([*command, "--priority", f"user.{severity}"], input=text, text=True, check=True)

    with RunningAgent(tmp_path, EXAMPLES / "counts/counts.conf", environment=environment) as agent:
        agent.port("syslog")
        log("err", 5)
        log("info", 7)
        agent.until(lambda: charted() == {"err": 5, "info": 7}, "the counts in Solr")
        log("err", 3)
        agent.until(lambda: charted() == {"err": 8, "info": 7}, "the counts that have grown")
        assert agent.stop() == 0


def test_the_game(tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    """Kills and repeated events lose no alert, and add none."""
    port = free_port()
    environment = {
        "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory),
        "FLAFKA_HDFS": hdfs_cluster.webhdfs,
        "GAME_HTTP": str(port),
        "GAME_INTERVAL": "1",
        "GAME_ROLL": "1",
        "GAME_METRICS": "0",
        "GAME_ALERTS": str(tmp_path / "alerts"),
    }
    game = {"seed": 7, "players": 8, "thefts": 4, "begin": int(time.time()), "rate": 40}
    actions = play.game(**game)
    thefts = {action.id for action in actions if action.role == "theft"}
    arguments = [text for name, value in game.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, play.__file__, "--url", f"http://127.0.0.1:{port}", *arguments]

    def accepted(agent: RunningAgent) -> int:
        return agent.count("SOURCE.servers", "EventAcceptedCount")

    def alerts() -> dict[str, set[tuple[bytes, bytes]]]:
        """Return key and value of each record in the topic, by the id of the alert."""
        records: dict[str, set[tuple[bytes, bytes]]] = {}
        messages: list[Any] = consumed(kafka_cluster, "alerts")
        for message in messages:
            records.setdefault(json.loads(message.value())["id"], set()).add((message.key(), message.value()))
        return records

    def archived(kind: str) -> Counter[tuple[str, str]]:
        """Return days and ids of the events in files on HDFS."""
        reader = HdfsReader(hdfs_cluster.webhdfs)
        return Counter(
            (path.split("/")[3], id)
            for path in reader.visible(f"/game/{kind}")
            for id in pq.read_table(io.BytesIO(reader.read(path)))["id"].to_pylist()
        )

    def stored(topic: str) -> Counter[tuple[str, str]]:
        """Return days and ids of the events in a topic."""
        rows = [json.loads(event.body) for event in in_topic(kafka_cluster, topic)]
        return Counter((datetime.fromtimestamp(row["at"] / 1000, UTC).date().isoformat(), row["id"]) for row in rows)

    file = EXAMPLES / "game/game.conf"
    with started([*command, "--wait", "0"]) as playing:
        with RunningAgent(tmp_path, file, environment=environment) as agent:
            agent.until(lambda: accepted(agent) > len(actions) // 2, "one half of the game")
            playing.send_signal(signal.SIGSTOP)
            agent.until(lambda: agent.count("SINK.guard", "EventDrainSuccessCount"), "events in the processor", 600)
            agent.until(lambda: archived("events"), "events on HDFS")
            half = accepted(agent)
            playing.send_signal(signal.SIGCONT)
            agent.until(lambda: accepted(agent) > half, "more events")
            os.kill(driver_of(agent), signal.SIGKILL)
            agent.stop(signal.SIGKILL)
        with RunningAgent(tmp_path, file, environment=environment) as agent:
            printed, _ = playing.communicate(timeout=600)
            assert playing.returncode == 0
            assert {line.split()[1] for line in printed.splitlines() if line.startswith("theft ")} == thefts
            # All of it again, and the program waits for the alerts.
            again = [*command, "--wait", "600", "--alerts", environment["GAME_ALERTS"]]
            played = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=False, timeout=900)
            assert played.returncode == 0, played.stdout
            agent.until(lambda: at_the_end(kafka_cluster, "game", "guard"), "the repeated events in the processor")
            agent.until(lambda: archived("events") == stored("game"), "the events on HDFS")
            agent.until(lambda: archived("alerts") == stored("alerts"), "the alerts on HDFS")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
    assert alerts().keys() == thefts
    assert all(len(records) == 1 for records in alerts().values()), "an alert that was sent again is the same"
    assert {id for _, id in archived("events")} == {action.id for action in actions}
    assert {id for _, id in archived("alerts")} == thefts


def test_the_audit(tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    """Someone deletes, repeats and alters events between the agent that puts and the agent that takes."""
    port = free_port()
    file = EXAMPLES / "audit/audit.conf"
    environment = {
        "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory),
        "AUDIT_HTTP": str(port),
        "FLAFKA_HDFS": hdfs_cluster.webhdfs,
        "AUDIT_ROLL": "1",
        "AUDIT_GRACE": "1",
        "AUDIT_INTERVAL": "1",
        "AUDIT_METRICS": "0",
        "AUDIT_ALERTS": str(tmp_path / "alerts"),
    }
    begin = int(time.time()) // 60 - 10
    intact, deleted, repeated, altered, swapped = range(begin, begin + 5)

    def order(minute: int, number: int, goods: str = "apples") -> Event:
        return Event(f"{minute}: {number} {goods}".encode(), {"timestamp": str(minute * 60_000 + number)})

    orders = [order(minute, n) for minute in (intact, deleted, repeated, altered, swapped) for n in range(5)]
    with RunningAgent(tmp_path / "edge", file, "-n", "edge", "-c", str(file), environment=environment) as edge:
        edge.until(lambda: "listening on" in edge.log, "the source to listen")
        for chunk in (orders[start : start + 3] for start in range(0, len(orders), 3)):
            sent = json.dumps([{"headers": event.headers, "body": event.body.decode()} for event in chunk])
            urllib.request.urlopen(f"http://127.0.0.1:{port}", sent.encode(), timeout=60).close()
        assert edge.stop() == 0

    events = in_topic(kafka_cluster, "orders")
    assert sorted(event.body for event in events) == sorted(event.body for event in orders)
    for event in (order(deleted, 0), order(altered, 0), order(swapped, 0)):
        events.remove(event)
    events += [order(repeated, 0), order(altered, 0, "pears"), order(swapped, 1)]
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    partitions = admin.list_topics("orders", timeout=60).topics["orders"].partitions
    for future in admin.delete_records([TopicPartition("orders", p, OFFSET_END) for p in partitions]).values():
        future.result(60)
    config, _ = KAFKA.config_class.parse(
        {"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, "kafka.topic": "orders"}
    )
    channel: Any = KAFKA(config, "orders")
    channel.open()
    channel.put(Batch.of(events))
    channel.close()

    expected = {deleted: "1 missing", repeated: "1 too many", altered: ALTERED, swapped: ALTERED}

    def alerts() -> set[tuple[int, str]]:
        rows = map(json.loads, bodies(kafka_cluster, "audit-alerts"))
        return {(minute_of(row), row["difference"]) for row in rows}

    with RunningAgent(tmp_path / "store", file, "-n", "store", "-c", str(file), environment=environment) as store:
        store.until(lambda: len(in_hdfs(hdfs_cluster, "/orders")) == len(events), "the orders on HDFS")
        store.until(lambda: expected.items() <= alerts(), "the alerts", 600)
        store.until(lambda: set(expected.values()) <= listed(tmp_path / "alerts"), "the alerts in a file")
        assert store.stop() == 0

    books = agent_command("audit", "-n", "store", "-c", str(file), "--grace", "0", "--json", environment=environment)
    assert books.returncode == 1, books.stderr
    rows = json.loads(books.stdout)
    assert {(row["topic"], row["stage"]) for row in rows} == {("orders", "put"), ("orders", "archive")}
    reported = {minute_of(row): row["difference"] for row in rows if row["stage"] == "archive"}
    assert reported == {intact: None, **expected}
