"""Long versions of outages of Kafka, in tests/system/test_proofs_brokers.py: `./dev soak`."""

import os
from pathlib import Path

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import free_ports
from tests.system.outage import outage
from tests.system.overflow import overflow

SECONDS = int(os.environ.get("FLAFKA_SOAK_OUTAGE", "600"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1200)
def test_an_outage_of_kafka_for_ten_minutes(tmp_path: Path, kafka_cluster: KafkaCluster, figures: list[str]) -> None:
    figures.append(outage(tmp_path, kafka_cluster, SECONDS))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1200)
def test_sources_continue_for_ten_minutes_without_kafka(tmp_path: Path, servers: object, figures: list[str]) -> None:
    (tmp_path / "brokers").mkdir()
    cluster = KafkaCluster(tmp_path / "brokers")  # a new cluster, as it is killed
    cluster.save_state(ports=dict(zip(cluster.default_ports(), free_ports(6), strict=True)))
    try:
        cluster.start()
        figures.append(overflow(tmp_path / "agent", cluster, SECONDS))
    finally:
        for name in cluster.names():
            cluster.kill(name)
