"""Long version of tests/system/test_faults.py: `./dev soak`."""

import signal
from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from tests.system.campaign import Campaign, Phase, Plan

LONG = Plan(
    lines=200_000,
    rate=2_000,
    phases=(
        Phase("local", agent=13, stop=3, leader=4, namenode=1, end=signal.SIGKILL),
        Phase("spark", agent=6, stop=1, leader=3, namenode=1, driver=5, jvm=1),
        Phase("local", agent=10, stop=3, leader=3),
    ),
    drain="spark",
)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_two_hundred_thousand_lines_through_fifty_kills(
    kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, tmp_path: Path, seed: int, figures: list[str]
) -> None:
    campaign = Campaign(LONG, kafka_cluster, hdfs_cluster, tmp_path, seed)
    evidence = campaign.run()
    figures.append(campaign.describe(evidence))
    assert campaign.kills == {"agent": 30, "leader": 10, "namenode": 2, "driver": 5, "jvm": 1}
    assert evidence.written >= LONG.lines
    assert evidence.differences() == []
    assert evidence.repeated()[1] <= campaign.kills["agent"]
    assert list(campaign.temporary.glob("flafka-spark-*")) == []
