"""Three tiers as in `tests/interop/tiers.py`, one of which is a real Flume 1.11, each killed: `./dev soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from tests.interop.tiers import Tiers, campaign


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("channel", ["file", "kafka"])
@pytest.mark.parametrize("real", ["tails", "relays", "collector"])
def test_nothing_is_lost_with_flume_in_any_tier(
    tmp_path: Path,
    hdfs_cluster: HdfsCluster,
    real: str,
    channel: str,
    request: pytest.FixtureRequest,
    figures: list[str],
) -> None:
    kafka = request.getfixturevalue("kafka_cluster") if channel == "kafka" else None
    figures.append(campaign(Tiers(tmp_path, hdfs_cluster, kafka, [real], rate=100, selector="random")))
