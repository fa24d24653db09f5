"""Nothing is lost, and nothing comes twice out of the channel, whatever is killed."""

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from tests.system.campaign import Campaign, Phase, Plan
from tests.system.evidence import Evidence, Snapshot

SHORT = Plan(
    lines=20_000,
    rate=1_000,
    phases=(
        Phase("local", agent=2, leader=1, end=signal.SIGKILL),
        Phase("spark", driver=1, jvm=1),
        Phase("local", agent=1, namenode=1),
    ),
)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def campaign(
    kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Campaign:
    return Campaign(SHORT, kafka_cluster, hdfs_cluster, tmp_path_factory.mktemp("campaign"), seed)


@pytest.fixture(scope="module")
def evidence(campaign: Campaign, figures: list[str]) -> Evidence:
    evidence = campaign.run()
    figures.append(campaign.describe(evidence))
    return evidence


def test_every_line_is_on_hdfs_once_after_every_kind_of_kill(campaign: Campaign, evidence: Evidence) -> None:
    assert campaign.kills == {"agent": 4, "leader": 1, "namenode": 1, "driver": 1, "jvm": 1}
    assert evidence.written >= SHORT.lines
    assert evidence.differences() == []
    # One batch at a time is on its way into the channel, so a kill makes it repeat one at most.
    assert evidence.repeated()[1] <= campaign.kills["agent"]
