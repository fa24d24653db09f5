"""HBase and Solr behind a real agent: every event once, whatever is killed; what a store refuses holds up nothing."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import happybase

from agent.books import read_topic
from agent.services.hbase import MASTER, THRIFT, HBaseCluster
from agent.services.kafka import KafkaCluster
from agent.services.solr import SOLR, SolrCluster
from tests.system.running import KAFKA, Agent, kafka_channel, unique
from tests.system.test_proofs_dead_letters import dead_letters, tailed
from tests.system.test_solr_sink import documents


def hbase_sink(hbase: HBaseCluster, table: str, *options: str) -> str:
    """Lines of a sink `k1` of agent `a1`, with a group of its own."""
    return "\n".join(
        f"a1.sinks.k1.{line}"
        for line in (
            "type = hbase2",
            "channel = c1",
            f"group = {table}-hbase",
            f"thrift = {hbase.address}",
            f"table = {table}",
            "timeout = 10000",
            *options,
        )
    )


def solr_sink(url: str, topic: str, *options: str) -> str:
    """Lines of a sink `k2` of agent `a1`, with a group of its own."""
    lines = ("type = solr", "channel = c1", f"group = {topic}-solr", f"url = {url}", "commitWithin = 60000", *options)
    return "\n".join(f"a1.sinks.k2.{line}" for line in lines)


@contextlib.contextmanager
def table_of(hbase: HBaseCluster, name: str) -> Iterator[happybase.Table]:
    host, _, port = hbase.address.partition(":")
    with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        yield connection.table(name)


def stored(kafka: KafkaCluster, topic: str) -> dict[str, bytes]:
    """What the channel holds: bodies by event id."""
    batches = [taken.batch for takes in read_topic(kafka.bootstrap_servers, topic, KAFKA).values() for taken in takes]
    return {
        str(id): body for batch in batches for id, body in zip(batch.ids(), batch.bodies.to_pylist(), strict=True)
    }


class Writer(threading.Thread):
    """Appends numbered lines to a file until it is told to stop."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.written, self.enough = path, 0, threading.Event()

    def run(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            for number in itertools.count():
                file.write(b"".join(b"good %d\n" % (number * 20 + n) for n in range(20)))
                self.written = (number + 1) * 20
                if self.enough.wait(0.05):
                    return


def test_every_event_is_in_both_stores_once_whatever_is_killed(
    tmp_path: Path, kafka_cluster: KafkaCluster, hbase_cluster: HBaseCluster, solr_cluster: SolrCluster
) -> None:
    topic, log = unique("stores"), tmp_path / "good.log"
    url = solr_cluster.create_core(topic)
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {"max_versions": 10}})  # so that a second write would be seen
    configuration = f"""
a1.sources = c1files
a1.channels = c1
a1.sinks = k1 k2
{tailed(tmp_path, [("good", "shop")], "c1")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hbase_sink(hbase_cluster, topic, "columnFamily = f")}
{solr_sink(url, topic)}
"""
    stores = [(hbase_cluster, [THRIFT, MASTER]), (solr_cluster, [SOLR])]
    writer = Writer(log)
    writer.start()
    try:
        for killed in (None, *stores):
            with Agent(tmp_path / "a", configuration) as agent:
                for sink in ("SINK.k1", "SINK.k2"):
                    agent.until(lambda s=sink: agent.count(s, "EventDrainSuccessCount"), f"events of {sink}")  # type: ignore[misc]
                if killed is not None:
                    cluster, names = killed
                    path = "SINK.k1" if cluster is hbase_cluster else "SINK.k2"
                    for name in names:
                        cluster.kill(name)
                    agent.until(lambda p=path: " is away: no " in agent.failing().get(p, ""), f"{path} to fail")  # type: ignore[misc]
                    cluster.start()
                    agent.healthy()
                agent.stop(signal.SIGKILL)
    finally:
        for cluster, _ in stores:
            cluster.start()
        writer.enough.set()
        writer.join()
    with Agent(tmp_path / "a", configuration) as agent:
        agent.until(lambda: agent.count("SOURCE.c1files", "EventAcceptedCount"), "what was written last")

        def rest() -> bool:
            lags = [agent.metrics().get(sink, {}).get("Lag") for sink in ("SINK.k1", "SINK.k2")]
            return lags == ["0", "0"] and len(set(stored(kafka_cluster, topic).values())) == writer.written

        agent.until(rest, "everything to be delivered")
        assert agent.stop() == 0
    channel = stored(kafka_cluster, topic)
    assert set(channel.values()) == {b"good %d" % n for n in range(writer.written)}
    with table_of(hbase_cluster, topic) as table:
        rows = {key.decode(): cells for key, cells in table.scan()}
        assert {id: cells[b"f:pCol"] for id, cells in rows.items()} == channel
        twice = [id for id in list(rows)[::20] if len(table.cells(id, b"f:pCol", versions=10)) > 1]
        assert not twice
    assert {id: document["body_t"].encode() for id, document in documents(url).items()} == channel


def test_what_a_store_refuses_becomes_a_dead_letter_and_a_missing_family_none(
    tmp_path: Path, kafka_cluster: KafkaCluster, hbase_cluster: HBaseCluster, solr_cluster: SolrCluster
) -> None:
    topic = unique("refused")
    url = solr_cluster.create_core(topic)
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {}})
    for name in ("good", "bad"):
        (tmp_path / f"{name}.log").write_bytes(b"".join(b"%s %d \xff\n" % (name.encode(), n) for n in range(300)))
    regex = ["serializer = regex", "serializer.regex = (good) (.*)", "serializer.colNames = kind,text"]
    configuration = f"""
a1.sources = c1files
a1.channels = c1
a1.sinks = k1 k2
{tailed(tmp_path, [("good", "7"), ("bad", "seven")], "c1")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hbase_sink(hbase_cluster, topic, "columnFamily = late", *regex)}
{solr_sink(url, topic, "field.app_i = %{app}")}
"""
    good = {b"good %d \xff" % n for n in range(300)}
    bad = {b"bad %d \xff" % n for n in range(300)}
    with Agent(tmp_path / "a", configuration) as agent:
        counts = {"EventDrainSuccessCount": 300, "EventRejectedCount": 300}
        agent.until(
            lambda: {name: agent.count("SINK.k2", name) for name in counts} == counts, "Solr to have its half"
        )
        agent.until(lambda: "SINK.k1" in agent.failing(), "the family to be missed")
        assert "has no column family 'late', only f" in agent.failing()["SINK.k1"]
        assert agent.count("SINK.k1", "EventRejectedCount") == 0
        with table_of(hbase_cluster, topic) as table:
            table.connection.delete_table(topic, disable=True)
            table.connection.create_table(topic, {"f": {}, "late": {}})
        agent.until(
            lambda: {name: agent.count("SINK.k1", name) for name in counts} == counts, "HBase to have its half"
        )
        agent.healthy()
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    channel = stored(kafka_cluster, topic)
    assert set(channel.values()) == good | bad
    expected = {id: body for id, body in channel.items() if body in good}
    with table_of(hbase_cluster, topic) as table:
        rows = {key.decode(): cells for key, cells in table.scan()}
    assert rows.keys() == expected.keys()
    assert {cells[b"late:text"] for cells in rows.values()} == {f"{n} \ufffd".encode() for n in range(300)}
    assert documents(url).keys() == expected.keys()
    letters = dead_letters(kafka_cluster, topic)
    assert Counter(letter.body for letter in letters) == dict.fromkeys(bad, 2)
    reasons = Counter(
        (letter.headers["flafka.component"], letter.headers["flafka.reason"][:40]) for letter in letters
    )
    assert {key: reasons[key] for key in reasons} == {
        ("a1.sinks.k1", "its body does not match serializer.regex"): 300,
        ("a1.sinks.k2", "Solr refuses its document: [doc=refused-"): 300,
    }
    assert all(channel[letter.headers["flafka.id"]] == letter.body for letter in letters)
