"""Configurations that people really have, on real servers: what their sources are sent arrives at their sinks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.config import load
from agent.services import ServiceError
from agent.services.hbase import HBaseCluster
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.opensearch import OpenSearchCluster
from agent.topology import AgentSpec
from plugins import Components
from tests.conformance import real_files
from tests.conformance.arrival import Collector, Run


class Shared:
    """The servers of this run's fixtures, each started when the first file needs it."""

    def __init__(self, request: pytest.FixtureRequest, collector: Collector) -> None:
        self._request = request
        self.collector = collector

    @property
    def kafka(self) -> KafkaCluster:
        cluster: KafkaCluster = self._request.getfixturevalue("kafka_cluster")
        return cluster

    @property
    def hdfs(self) -> HdfsCluster:
        cluster: HdfsCluster = self._request.getfixturevalue("hdfs_cluster")
        return cluster

    @property
    def hbase(self) -> HBaseCluster:
        cluster: HBaseCluster = self._request.getfixturevalue("hbase_cluster")
        return cluster

    @property
    def opensearch(self) -> OpenSearchCluster:
        cluster: OpenSearchCluster = self._request.getfixturevalue("opensearch_cluster")
        return cluster


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with Collector.started(tmp_path_factory.mktemp("collector") / "home") as collector:
        yield Shared(request, collector)


def agents() -> list[tuple[dict[str, Any], AgentSpec]]:
    """Each agent of each file that runs here."""
    components, found = Components(), []
    with tempfile.TemporaryDirectory() as directory:
        for case in real_files.files():
            if real_files.judge(case, components).reason:
                continue
            file = Path(directory, f"{case['id']}.conf")
            file.write_text(case["input"]["properties"], "utf-8", newline="")
            for name, kept in case["expected"]["agents"].items():
                given = {"environment": real_files.environment(case["id"]), "system": real_files.system(case["id"])}
                spec = load(file, name, components=components, **given)[0] if kept else None
                found += [(case, spec)] if spec else []
    return found


def told_of(
    every: Sequence[tuple[dict[str, Any], AgentSpec]],
    shared: Shared,
    home: Path,
    *,
    at_once: int = 1,
    lines: Sequence[bytes] = (),
) -> dict[str, object]:
    """Run them, so many at a time; by file and agent, what did not arrive, or why nothing could.

    `lines` are put into the events, where a file lets them be anything.
    """
    runs = {}
    for case, spec in every:  # made one by one, as this starts the servers
        run = Run(case["id"], spec, home / f"{case['id']}-{spec.name}", shared, lines)
        runs[f"{case['id']} {spec.name}"] = run, case["input"]["properties"]
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda one: _told(*one), runs.values())
        return {name: told for name, told in zip(runs, found, strict=True) if told}


def _told(run: Run, text: str) -> object:
    try:
        run.execute(text)
        return run.differences() or (run.altered() if run.lines else [])
    except (AssertionError, ServiceError) as e:
        return str(e)
