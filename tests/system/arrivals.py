"""Users' real configurations on real servers: what their sources receive arrives at their sinks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from flafka.agent.services import ServiceError
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.conformance import real_files
from tests.conformance.arrival import Collector, Run
from tests.fixtures.opensearch import OpenSearchCluster


class Shared:
    """Servers of this run's fixtures, each started when the first file needs it."""

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


class Real(NamedTuple):
    """Agent of a real configuration file that can run here."""

    id: str
    text: str
    spec: AgentSpec

    def run(self, home: Path, shared: Shared, *, mark: str = "", lines: Sequence[bytes] = ()) -> Run:
        """Return a run of this agent; its own directory is created below `home`."""
        return Run(*self, home / f"{self.id}{mark}-{self.spec.name}", shared, lines, mark=mark)


def agents() -> list[Real]:
    """Return each agent of each file that can run here."""
    components, runnable = Components(), []
    with tempfile.TemporaryDirectory() as directory:
        for case in real_files.files():
            if real_files.judge(case, components).reason:
                continue
            file = Path(directory, f"{case['id']}.conf")
            file.write_text(case["input"]["properties"], "utf-8", newline="")
            for name, expected in case["expected"]["agents"].items():
                spec = real_files.loaded(case["id"], file, name, components)[0] if expected else None
                runnable += [Real(case["id"], case["input"]["properties"], spec)] if spec else []
    return runnable


def undelivered(runs: Iterable[Run], *, at_once: int = 1) -> dict[str, object]:
    """Run them, a few at a time. Return by file and agent what did not arrive, or why the agent could not run."""
    all_runs = list(runs)  # created one by one, as this starts the servers
    with ThreadPoolExecutor(at_once) as pool:
        results = pool.map(_undelivered, all_runs)
        return {
            f"{run.place} {run.spec.name}": result for run, result in zip(all_runs, results, strict=True) if result
        }


def _undelivered(run: Run) -> object:
    try:
        run.execute()
        return run.differences() or (run.altered() if run.lines else [])
    except (AssertionError, ServiceError) as e:
        return str(e)
