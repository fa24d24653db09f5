"""Long version of the campaign in tests/system/test_proofs_stores.py: `./dev soak`."""

from pathlib import Path

import pytest

from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster
from tests.system.stores import Campaign, Plan

LONG = Plan(events=100_000, rate=1_000, agent=6, broker=5, thrift=1, hbase=2, solr=3, everything=1, seconds=60)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_hundred_thousand_acknowledged_events_through_kills_of_everything(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
    seed: int,
    figures: list[str],
) -> None:
    campaign = Campaign(LONG, kafka_cluster, hbase_cluster, solr_cluster, tmp_path, seed)
    evidence = campaign.run()
    figures.append(campaign.describe(evidence))
    assert campaign.kills == {"agent": 6, "broker": 5, "thrift": 1, "hbase": 2, "solr": 3, "everything": 1}
    assert sum(client.acknowledged for client in evidence.clients) >= LONG.events
    assert evidence.problems() == []
    assert "Traceback" not in (tmp_path / "agent.log").read_text()
