"""Framework of all benchmarks: contestants that run in rounds, result rows, and servers.

A contestant is a context manager whose value is called once per round. The call does the work, verifies the contents,
and returns figures by unit, such as `{"events/s": 690_000, "µs CPU/event": 1.6}`. A contestant starts once, and the
first round of each comparison does not count, so that a JVM is warm in the others.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.frame.processes import cpu_seconds
from bench.frame.warm_up import warm_up
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.spark import SparkCluster

ROUNDS = 5
RATE, CPU, BROKERS = "events/s", "µs CPU/event", "µs CPU/event of brokers"

Figures = Mapping[str, float]
"""Unit → result of one run of one contestant."""
C = TypeVar("C", bound=Cluster)
Contestant = AbstractContextManager[Callable[[], Figures]]


class PeerMissing(Exception):
    """Peer that is not installed on this machine, with the reason."""


@dataclass(frozen=True)
class Row:
    """Results of one measure for Flafka and one peer: the pair of each round, and medians. None without a peer."""

    measure: str
    unit: str
    peer_name: str | None
    runs: Sequence[tuple[float, float | None]]

    @property
    def ours(self) -> float:
        """Median of Flafka's results."""
        return statistics.median(ours for ours, _ in self.runs)

    @property
    def peer(self) -> float | None:
        """Median of the peer's results; None without a peer."""
        return statistics.median(self.peers) if self.peers else None

    @property
    def peers(self) -> list[float]:
        """Results of the peer by round; empty without a peer."""
        return [peer for _, peer in self.runs if peer is not None]

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios, Flafka divided by the peer; None without a peer.

        A larger one is better for rates, a smaller one for seconds, microseconds and bytes.
        """
        ratios = [ours / peer for ours, peer in self.runs if peer]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """Return the row for `--json`, with five significant digits."""

        def short(number: float | None) -> float | None:
            return None if number is None else float(f"{number:.5g}")

        return {
            "measure": self.measure,
            "ours": short(self.ours),
            "peer": short(self.peer),
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": short(self.ratio),
            "runs": [[short(ours), short(peer)] for ours, peer in self.runs],
        }


class Bench:
    """One run of one benchmark, as a context manager that stops its servers and removes its directory.

    Servers passed as arguments are not stopped: tests share them.
    """

    def __init__(
        self,
        name: str,
        *,
        rounds: int = ROUNDS,
        smoke: bool = False,
        events: int | None = None,
        only: str = "",
        kafka: KafkaCluster | None = None,
        hdfs: HdfsCluster | None = None,
        hbase: HBaseCluster | None = None,
        solr: SolrCluster | None = None,
    ) -> None:
        self.name, self.smoke = name, smoke
        self.rounds = 1 if smoke else rounds
        self.rows: list[Row] = []
        self.skipped: dict[str, str] = {}
        """Missing peers → reason."""
        self._events, self._only = events, only
        self._servers: dict[type, Any] = {
            type(server): server for server in (kafka, hdfs, hbase, solr) if server is not None
        }
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Bench:
        self.home = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="flafka-bench-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # --- services for benchmarks

    def events(self, usual: int, smoke: int) -> int:
        """Return the number of events of a run: `--events` if given, or else `smoke` in a smoke run and `usual`."""
        return self._events or (smoke if self.smoke else usual)

    def directory(self, name: str) -> Path:
        """Create a new, empty directory whose name begins with `name`; return its path."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))

    @property
    def kafka(self) -> KafkaCluster:
        """Three brokers with replication 3, min ISR 2 and 512 MB of heap, started on first use.

        New brokers are warmed up, except for smoke runs.
        """
        new = KafkaCluster not in self._servers
        cluster = self._server(KafkaCluster, heap_mb=512)
        if new and not self.smoke:
            self.log_progress("the brokers are warmed up")
            warm_up(cluster.bootstrap_servers)
        return cluster

    def broker_cpu(self) -> float:
        """Return the CPU time of all brokers so far, in seconds."""
        servers = (self.kafka.server(name) for name in self.kafka.names())
        return sum(cpu_seconds(server.pid) for server in servers if server.pid is not None)

    @property
    def hdfs(self) -> HdfsCluster:
        """HDFS with a NameNode and a DataNode, started on first use."""
        return self._server(HdfsCluster)

    @property
    def hbase(self) -> HBaseCluster:
        """HBase and its Thrift server, started on first use."""
        return self._server(HBaseCluster)

    @property
    def solr(self) -> SolrCluster:
        """Solr server, started on first use."""
        return self._server(SolrCluster)

    @property
    def spark(self) -> SparkCluster:
        """Spark master and two workers with one core each, started on first use."""
        return self._server(SparkCluster)

    def _server(self, kind: type[C], **arguments: Any) -> C:
        """Return the server of this kind, which is started by the first call and stopped at the end of the run."""
        if kind not in self._servers:
            cluster = kind(self.home / kind.service, fixed_ports=False, **arguments)
            self._servers[kind] = self._open.enter_context(cluster)
        server: C = self._servers[kind]
        return server

    # --- measuring

    def compare(
        self,
        measure: str,
        ours: Contestant,
        peers: Mapping[str, Contestant],
        *,
        rounds: int | None = None,
        warm_up_rounds: int = 1,
    ) -> list[Row]:
        """Run all contestants in rounds; add and return a row for each unit and each peer that measures it.

        Every round begins with another contestant, as the first one finds idle brokers. `warm_up_rounds` rounds
        before the first do not count; a smoke run has none. A peer that raises PeerMissing is skipped. A measure
        whose name does not contain the text of `--only` is not run: the list is empty.
        """
        if self._only not in measure:
            return []
        rounds = rounds or self.rounds
        contestants = {"ours": ours, **peers}
        with contextlib.ExitStack() as stack:
            started = {}
            for name, contestant in contestants.items():
                try:
                    started[name] = stack.enter_context(contestant)
                except PeerMissing as reason:
                    self.skip(name, str(reason))
            results: dict[str, list[Figures]] = {name: [] for name in started}
            try:
                for number in range(1 if self.smoke else 1 - warm_up_rounds, rounds + 1):
                    names = list(started)
                    for name in names[number % len(names) :] + names[: number % len(names)]:
                        try:
                            figures = started[name]()
                        except PeerMissing as reason:
                            self.skip(name, f"{measure}: {reason}")
                            del started[name], results[name]
                            continue
                        text = ", ".join(f"{value:,.4g} {unit}" for unit, value in figures.items())
                        self.log_progress(f"{measure}: round {number} of {rounds}: {name}: {text}")
                        if number > 0:
                            results[name].append(figures)
            finally:  # an interrupted run reports its complete rounds
                rows = _rows(measure, results)
                self.rows += rows
        return rows

    def skip(self, peer: str, reason: str) -> None:
        """Record and print that a peer is missing, and why."""
        self.skipped[peer] = reason
        self.log_progress(f"{peer} is skipped: {reason}")

    def log_progress(self, text: str) -> None:
        """Print progress to standard error, as standard output has results only."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def _rows(measure: str, results: Mapping[str, Sequence[Figures]]) -> list[Row]:
    """Return the rows of the rounds that all contestants completed: one for each unit and peer.

    A unit that no peer measures has a row without a peer.
    """
    complete = min(map(len, results.values()))
    if not complete:
        return []
    ours, rows = results["ours"][:complete], []
    for unit in ours[0]:
        peers_with_unit = [name for name in results if name != "ours" and unit in results[name][0]]
        for name in peers_with_unit:
            pairs = zip(ours, results[name], strict=False)
            rows.append(Row(measure, unit, name, [(own[unit], peer[unit]) for own, peer in pairs]))
        if not peers_with_unit:
            rows.append(Row(measure, unit, None, [(own[unit], None) for own in ours]))
    return rows


@contextlib.contextmanager
def without_setup(run: Callable[[], Figures]) -> Iterator[Callable[[], Figures]]:
    """Return `run` as a contestant, which needs no start and no stop."""
    yield run
