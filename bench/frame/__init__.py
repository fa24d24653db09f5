"""What all benchmarks have in common: contestants that take turns, rows, servers, a report.

A contestant is a context manager whose value is called once a round: it does the work, checks contents, and answers
with figures by unit, such as `{"events/s": 690_000, "µs CPU/event": 1.6}`. It is started once, so that a JVM is warm
when it counts: the first round of each comparison does not.
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
from bench.frame.warming import warm
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.spark import SparkCluster

ROUNDS = 5
RATE, CPU, BROKERS = "events/s", "µs CPU/event", "µs CPU/event of brokers"

Figures = Mapping[str, float]
"""Unit → what one run of one contestant measured."""
C = TypeVar("C", bound=Cluster)
Contestant = AbstractContextManager[Callable[[], Figures]]


class Missing(Exception):
    """A peer that this machine has not got; says why."""


@dataclass(frozen=True)
class Row:
    """One measure of ours beside one peer: medians, and the pair of each round. Without a peer those are None.

    `ratio` is ours divided by the peer's, the median of the rounds' ratios: of rates larger is better, of seconds,
    microseconds and bytes smaller is.
    """

    measure: str
    unit: str
    peer_name: str | None
    runs: Sequence[tuple[float, float | None]]

    @property
    def ours(self) -> float:
        """The median."""
        return statistics.median(ours for ours, _ in self.runs)

    @property
    def peer(self) -> float | None:
        """The median of the peer."""
        return statistics.median(self.peers) if self.peers else None

    @property
    def peers(self) -> list[float]:
        """Those of the rounds."""
        return [peer for _, peer in self.runs if peer is not None]

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        ratios = [ours / peer for ours, peer in self.runs if peer]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it; five significant digits, which is more than any of them means."""

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
    """One run of one benchmark. `with` it: at the end its servers are stopped and its directory is removed.

    Servers that are given are not stopped: so tests share theirs.
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
        """Peers that are not here, and why."""
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

    # --- what benchmarks ask for

    def events(self, usual: int, smoke: int) -> int:
        """How many events a run has: as asked for, `usual`, or `smoke`."""
        return self._events or (smoke if self.smoke else usual)

    def directory(self, name: str) -> Path:
        """An empty one."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))

    @property
    def kafka(self) -> KafkaCluster:
        """Three brokers, replication 3, min ISR 2, with the heap that benchmarks have; warm but for smoke runs."""
        new = KafkaCluster not in self._servers
        cluster = self._server(KafkaCluster, heap_mb=512)
        if new and not self.smoke:
            self.say("brokers get warm")
            warm(cluster.bootstrap_servers)
        return cluster

    def broker_cpu(self) -> float:
        """Seconds of CPU time that all brokers have taken so far."""
        servers = (self.kafka.server(name) for name in self.kafka.names())
        return sum(cpu_seconds(server.pid) for server in servers if server.pid is not None)

    @property
    def hdfs(self) -> HdfsCluster:
        """A NameNode and a DataNode."""
        return self._server(HdfsCluster)

    @property
    def hbase(self) -> HBaseCluster:
        """HBase and its Thrift server."""
        return self._server(HBaseCluster)

    @property
    def solr(self) -> SolrCluster:
        """One Solr."""
        return self._server(SolrCluster)

    @property
    def spark(self) -> SparkCluster:
        """A master and two workers, each with one core."""
        return self._server(SparkCluster)

    def _server(self, kind: type[C], **arguments: Any) -> C:
        if kind not in self._servers:
            cluster = kind(self.home / kind.service, fixed_ports=False, **arguments)
            self._servers[kind] = self._open.enter_context(cluster)
        found: C = self._servers[kind]
        return found

    # --- measuring

    def compare(
        self,
        measure: str,
        ours: Contestant,
        peers: Mapping[str, Contestant],
        *,
        rounds: int | None = None,
        warm: int = 1,
    ) -> list[Row]:
        """Run all in turns, and add a row for each unit and each peer that is here and knows it; these rows.

        Every round begins with another contestant, as what runs first finds the brokers at rest. So many rounds
        before them do not count as `warm` says; a smoke run has none. Nothing is done for a measure that was not
        asked for.
        """
        if self._only not in measure:
            return []
        rounds = rounds or self.rounds
        everybody = {"ours": ours, **peers}
        with contextlib.ExitStack() as stack:
            running = {}
            for name, contestant in everybody.items():
                try:
                    running[name] = stack.enter_context(contestant)
                except Missing as reason:
                    self.skip(name, str(reason))
            found: dict[str, list[Figures]] = {name: [] for name in running}
            try:
                for number in range(1 if self.smoke else 1 - warm, rounds + 1):
                    names = list(running)
                    for name in names[number % len(names) :] + names[: number % len(names)]:
                        try:
                            figures = running[name]()
                        except Missing as reason:
                            self.skip(name, f"{measure}: {reason}")
                            del running[name], found[name]
                            continue
                        told = ", ".join(f"{value:,.4g} {unit}" for unit, value in figures.items())
                        self.say(f"{measure}: round {number} of {rounds}: {name}: {told}")
                        if number > 0:
                            found[name].append(figures)
            finally:  # a run that is interrupted has the rounds that were complete
                rows = _rows(measure, found)
                self.rows += rows
        return rows

    def skip(self, peer: str, reason: str) -> None:
        """That peer is not here."""
        self.skipped[peer] = reason
        self.say(f"{peer} is skipped: {reason}")

    def say(self, text: str) -> None:
        """Progress, on standard error: standard output has results only."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def _rows(measure: str, found: Mapping[str, Sequence[Figures]]) -> list[Row]:
    """Of each round in which everybody had a turn."""
    complete = min(map(len, found.values()))
    if not complete:
        return []
    ours, rows = found["ours"][:complete], []
    for unit in ours[0]:
        with_it = [name for name in found if name != "ours" and unit in found[name][0]]
        for name in with_it:
            pairs = zip(ours, found[name], strict=False)
            rows.append(Row(measure, unit, name, [(mine[unit], peer[unit]) for mine, peer in pairs]))
        if not with_it:
            rows.append(Row(measure, unit, None, [(mine[unit], None) for mine in ours]))
    return rows


@contextlib.contextmanager
def simply(run: Callable[[], Figures]) -> Iterator[Callable[[], Figures]]:
    """A contestant that has nothing to start or stop."""
    yield run
