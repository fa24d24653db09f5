"""The long version of the campaign in tests/system/test_upgrade.py: `./dev soak`."""

import random
from collections import Counter
from pathlib import Path

import pytest

from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.solr import SolrCluster
from tests.system.older import older
from tests.system.upgrade import NEWER, OLDER, SINKS, Change, Upgrade

CHANGES = 40


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_upgrades_and_downgrades(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    solr_cluster: SolrCluster,
    seed: int,
    figures: list[str],
) -> None:
    chance = random.Random(seed)
    changes = [Change(chance.choice(("h1", "h2")), chance.choice((OLDER, NEWER))) for _ in range(CHANGES)]
    changes += [Change("h1", NEWER), Change("h2", NEWER)]
    upgrade = Upgrade(older(tmp_path), kafka_cluster, hdfs_cluster, solr_cluster, tmp_path, seed)
    events = upgrade.run(changes)
    figures.append(upgrade.describe(events))
    expected = Counter(b"event %d" % number for number in range(events))
    for sink in SINKS:
        assert upgrade.delivered(sink) == expected, sink
