"""The long version of an outage of Kafka under applications, in tests/system/test_proofs_brokers.py: `./dev soak`."""

from pathlib import Path

import pytest

from agent.services.kafka import KafkaCluster
from tests.system.outage import outage

SECONDS = 600


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1200)
def test_kafka_is_away_for_ten_minutes(tmp_path: Path, kafka_cluster: KafkaCluster, figures: list[str]) -> None:
    figures.append(outage(tmp_path, kafka_cluster, SECONDS))
