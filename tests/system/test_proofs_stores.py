"""HBase and Solr behind a real agent: every event once, whatever is killed; refused events delay no others."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SolrCluster
from tests.fixtures.cores import create_core
from tests.system.running import kafka_channel, unique
from tests.system.stores import Campaign, Plan, hbase_sink, solr_sink, stored, table_of
from tests.system.test_proofs_dead_letters import dead_letters, tailed
from tests.system.test_solr_sink import documents

EVENTS, RATE = 4_000, 200
KILLED = ("agent", "broker", "thrift", "hbase", "solr")
DRAWN = 3
"""Number of them that are killed, by the run's seed; the soak kills all."""


@pytest.mark.timeout(1200)  # a busy machine takes ten times as long as an idle one
def test_acknowledged_events_are_in_both_stores_once_whatever_is_killed(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
    seed: int,
    figures: list[str],
) -> None:
    kills = dict.fromkeys(random.Random(seed).sample(KILLED, DRAWN), 1)
    campaign = Campaign(
        Plan(events=EVENTS, rate=RATE, **kills), kafka_cluster, hbase_cluster, solr_cluster, tmp_path, seed
    )
    evidence = campaign.run()
    figures.append(campaign.describe(evidence))
    assert campaign.kills == kills
    assert sum(client.acknowledged for client in evidence.clients) >= EVENTS
    assert evidence.problems() == []
    assert "Traceback" not in (tmp_path / "agent.log").read_text()


def test_refused_events_become_dead_letters_and_events_of_a_missing_family_do_not(
    tmp_path: Path, kafka_cluster: KafkaCluster, hbase_cluster: HBaseCluster, solr_cluster: SolrCluster
) -> None:
    topic = unique("refused")
    url = create_core(solr_cluster, topic)
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
    with RunningAgent(tmp_path / "a", configuration) as agent:
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
        agent.wait_until_healthy()
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
