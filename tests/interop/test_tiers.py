"""Three tiers, one of them a real Flume 1.11: see `tests/interop/tiers.py`; tests/soak has the other combinations.

Every run kills one of the tiers, by its seed; the soak kills each.
"""

from __future__ import annotations

import random
from pathlib import Path

from flafka.agent.services.hdfs import HdfsCluster
from tests.interop.tiers import TIERS, Tiers, campaign


def test_relays_of_flumes_between_our_tail_agent_and_our_collector(
    tmp_path: Path, hdfs_cluster: HdfsCluster, seed: int, figures: list[str]
) -> None:
    killed = random.Random(seed).sample(TIERS, 1)
    figures.append(campaign(Tiers(tmp_path, hdfs_cluster, None, ["relays"], rate=100), killed))
