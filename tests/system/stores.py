"""HBase and Solr behind a real agent, and a campaign: clients send numbered events while servers are killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import happybase

from flafka.agent.audit.reconciliation import bodies_by_id, differences, hbase_rows, read_topic, solr_documents
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hbase import MASTER, THRIFT, HBaseCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports
from flafka.agent.services.solr import SOLR, SolrCluster
from flafka.plugins import Batch, Event, Retry
from flafka.sinks.avro import AvroSink, AvroSinkConfig
from tests.fixtures.cores import create_core
from tests.system.running import KAFKA, kafka_channel, unique

TIMEOUT_SECONDS = 600.0
"""Timeout of operations that take a few seconds on an idle machine."""
HUNDRED = 100
"""Events in a request."""
SAMPLE = 500
"""Rows of which every version is read."""


def hbase_sink(hbase: HBaseCluster, table: str, *options: str) -> str:
    """Return lines of a sink `k1` of agent `a1`, with its own group."""
    return "\n".join(
        f"a1.sinks.k1.{line}"
        for line in (
            "type = hbase2",
            "channel = c1",
            f"group = {table}-hbase",
            f"thrift = {hbase.address}",
            f"table = {table}",
            "timeout = 10000",
            *options,
        )
    )


def solr_sink(url: str, topic: str, *options: str) -> str:
    """Return lines of a sink `k2` of agent `a1`, with its own group."""
    lines = ("type = solr", "channel = c1", f"group = {topic}-solr", f"url = {url}", "commitWithin = 60000", *options)
    return "\n".join(f"a1.sinks.k2.{line}" for line in lines)


@contextlib.contextmanager
def table_of(hbase: HBaseCluster, name: str) -> Iterator[happybase.Table]:
    host, _, port = hbase.address.partition(":")
    with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        yield connection.table(name)


def stored(kafka: KafkaCluster, topic: str) -> dict[str, bytes]:
    """Return the bodies in the channel by event id."""
    return bodies_by_id(read_topic(kafka.bootstrap_servers, topic, KAFKA))


@dataclass(frozen=True)
class Plan:
    """Least number of acknowledged events, and the number of each fault meanwhile."""

    events: int
    rate: int
    """Most events a second that each of the two clients sends."""
    agent: int = 0
    broker: int = 0
    thrift: int = 0
    hbase: int = 0
    solr: int = 0
    everything: int = 0
    """Number of kills of all servers and the agent at once."""
    seconds: float = 0
    """Least number of seconds before a killed Thrift server is started again."""

    def faults(self, chance: random.Random) -> list[str]:
        """Return all faults in a random order."""
        names = ("agent", "broker", "thrift", "hbase", "solr", "everything")
        faults = [name for name in names for _ in range(getattr(self, name))]
        chance.shuffle(faults)
        return faults


class Client(threading.Thread):
    """Client that sends numbered events, a hundred in a request, each request until it is acknowledged."""

    def __init__(self, port: int, rate: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.wanted = 0
        """Number of events to send at full rate; then one request follows each second, so that one is always in
        flight."""
        self.attempts: list[int] = []
        """Number of sends of each request."""
        self.enough = threading.Event()
        self._port, self._pause = port, HUNDRED / rate

    def body(self, number: int) -> bytes:
        """Return the body of that event."""
        return f"{type(self).__name__} {number}".encode()

    def send(self, bodies: list[bytes]) -> None:
        """Return once the events are acknowledged."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.enough.wait(self._pause if self.acknowledged < self.wanted else 1):
            start = self.acknowledged
            if start == len(self.attempts) * HUNDRED:
                self.attempts.append(0)
            self.attempts[-1] += 1
            with contextlib.suppress(Retry, OSError, http.client.HTTPException):
                self.send([self.body(start + n) for n in range(HUNDRED)])
                self.acknowledged += HUNDRED


class Avro(Client):
    """Client of Flume's RPC; each request has a new connection, as a failure makes a connection unusable."""

    def send(self, bodies: list[bytes]) -> None:
        config, _ = AvroSinkConfig.parse({"hostname": "127.0.0.1", "port": str(self._port)})
        assert config is not None
        sink = AvroSink(config)
        sink.open()
        try:
            sink.write(Batch.of(Event(body) for body in bodies))
            sink.flush()
        finally:
            sink.close()


class Http(Client):
    """Client of Flume's JSON."""

    def send(self, bodies: list[bytes]) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request("POST", "/", json.dumps([{"body": body.decode()} for body in bodies]))
            answer = connection.getresponse()
            if answer.status != 200:
                raise Retry(answer.read().decode())


@dataclass
class Evidence:
    """Contents of both stores and the channel at the end of a campaign."""

    clients: list[Client]
    channel: dict[str, bytes]
    hbase: dict[str, bytes]
    solr: dict[str, bytes]
    versions: dict[str, int]
    """Number of versions of the rows of a sample."""

    def problems(self) -> list[str]:
        """Return a sentence for each broken promise."""
        problems = [f"HBase: {text}" for text in differences(self.channel, self.hbase)]
        problems += [f"Solr: {text}" for text in differences(self.channel, self.solr)]
        problems += [f"HBase: {id} was written {count} times" for id, count in self.versions.items() if count != 1]
        times = Counter(self.channel.values())
        for client in self.clients:
            for number in range(len(client.attempts) * HUNDRED):
                body, sent = client.body(number), client.attempts[number // HUNDRED]
                if number < client.acknowledged and not times[body]:
                    problems.append(f"acknowledged, and not in the channel: {body!r}")
                if times[body] > sent:
                    problems.append(f"sent {sent} times, and {times[body]} times in the channel: {body!r}")
                times.pop(body, None)
        return problems + [f"in the channel, and never sent: {body!r}" for body in times]


class Campaign:
    """Run of a plan that gathers the evidence. The servers are running afterwards in every case."""

    def __init__(
        self, plan: Plan, kafka: KafkaCluster, hbase: HBaseCluster, solr: SolrCluster, directory: Path, seed: int
    ) -> None:
        self.plan, self.kafka, self.hbase, self.solr, self.directory = plan, kafka, hbase, solr, directory
        self.chance, self.seed = random.Random(seed), seed
        self.kills: Counter[str] = Counter()
        self.seconds = 0.0
        self.topic = unique("stores")
        self.url = create_core(solr, self.topic)
        with table_of(hbase, self.topic) as table:
            # More versions make a second write visible.
            table.connection.create_table(self.topic, {"f": {"max_versions": 10}})
        avro, web = free_ports(2)
        self.clients = [Avro(avro, plan.rate), Http(web, plan.rate)]
        self.configuration = directory / "stores.conf"
        self.configuration.write_text(f"""
a1.monitoring.port = 0
a1.sources = avro http
a1.channels = c1
a1.sinks = k1 k2
a1.sources.avro.type = avro
a1.sources.avro.bind = 127.0.0.1
a1.sources.avro.port = {avro}
a1.sources.avro.channels = c1
a1.sources.http.type = http
a1.sources.http.bind = 127.0.0.1
a1.sources.http.port = {web}
a1.sources.http.channels = c1
{kafka_channel(kafka.bootstrap_servers, self.topic)}
{hbase_sink(hbase, self.topic, "columnFamily = f")}
{solr_sink(self.url, self.topic)}
""")
        self.agent = self._agent()

    def run(self) -> Evidence:
        """Inject all faults; then deliver everything and stop."""
        began = time.monotonic()
        faults = self.plan.faults(self.chance)
        share = self.plan.events // len(self.clients) // (len(faults) + 1)
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._leave)
                self.agent.__enter__()
                for client in self.clients:
                    client.start()
                while faults:
                    self._flow(share, to=0.5)
                    fault = faults.pop()
                    with_agent = (
                        fault not in ("agent", "everything") and "agent" in faults and self.chance.random() < 0.4
                    )
                    if with_agent:
                        faults.remove("agent")
                    self._log_end(f"kill {fault}{' and the agent' if with_agent else ''}")
                    getattr(self, f"_kill_{fault}")(with_agent)
                    self.kills[fault] += 1
                    if with_agent:
                        self.kills["agent"] += 1
                self._flow(self.plan.events // len(self.clients) - self.clients[0].wanted, to=1)
            self.agent.wait_until_healthy()  # the last killed server may be unavailable to a sink for a moment
            assert self.agent.stop() == 0
            with self._agent("--drain") as drain:
                assert drain.wait_for_exit(TIMEOUT_SECONDS) == 0, drain.log[-4000:]
        finally:
            self.agent.__exit__()
        self.seconds = time.monotonic() - began
        return self._evidence()

    def describe(self, evidence: Evidence) -> str:
        """Return the figures in one line."""
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        acknowledged = sum(client.acknowledged for client in self.clients)
        repeats = len(evidence.channel) - len(set(evidence.channel.values()))
        resent = sum(sum(client.attempts) - len(client.attempts) for client in self.clients)
        return (
            f"seed {self.seed}: {acknowledged:,} events acknowledged in {self.seconds:.0f} s; killed: {kills}; "
            f"{resent} requests were sent again, which put {repeats} events into the channel once more; "
            f"HBase {len(evidence.hbase):,} rows, Solr {len(evidence.solr):,} documents"
        )

    def _evidence(self) -> Evidence:
        rows = hbase_rows(self.hbase.address, self.topic)
        sample = self.chance.sample(sorted(rows), min(SAMPLE, len(rows)))
        with table_of(self.hbase, self.topic) as table:
            versions = {id: len(table.cells(id, b"f:pCol", versions=10)) for id in sample}
        return Evidence(
            self.clients,
            stored(self.kafka, self.topic),
            {id: cells["pCol"] for id, cells in rows.items()},
            {id: document["body_t"].encode() for id, document in solr_documents(self.url).items()},
            versions,
        )

    # --- the agent and its clients

    def _agent(self, *arguments: str) -> RunningAgent:
        return RunningAgent(self.directory, self.configuration, "-c", str(self.configuration), *arguments)

    def _kill_agent(self, _: bool = False) -> None:
        self.agent.stop(signal.SIGKILL)
        self.agent = self._agent()
        self.agent.__enter__()

    def _flow(self, count: int, to: float) -> None:
        """Let clients send this many more, and wait until that part of them is acknowledged."""
        marks = []
        for client in self.clients:
            marks.append(client.wanted + int(count * to))
            client.wanted += count
        self._await(
            lambda: all(client.acknowledged >= mark for client, mark in zip(self.clients, marks, strict=True)),
            "events to be acknowledged",
        )

    def _delivers(self) -> None:
        """Wait until both stores have events of the present agent."""
        before = {sink: self.agent.count(sink, "EventDrainSuccessCount") for sink in ("SINK.k1", "SINK.k2")}
        self._await(
            lambda: all(self.agent.count(sink, "EventDrainSuccessCount") > n for sink, n in before.items()),
            "both sinks to deliver",
        )

    def _await(self, condition: object, what: str) -> None:
        self.agent.until(condition, what, TIMEOUT_SECONDS)

    # --- faults

    def _kill_broker(self, with_agent: bool) -> None:
        self.kafka.kill(self.chance.choice(self.kafka.names()))
        time.sleep(self.chance.uniform(0, 3))
        if with_agent:
            self._kill_agent()
        self.kafka.start()
        self._await(lambda: not self.kafka.status().under_replicated, "all replicas in sync")

    def _kill_thrift(self, with_agent: bool) -> None:
        self._kill_store(self.hbase, THRIFT, "SINK.k1", with_agent, self.plan.seconds)

    def _kill_hbase(self, with_agent: bool) -> None:
        self._kill_store(self.hbase, MASTER, "SINK.k1", with_agent)

    def _kill_solr(self, with_agent: bool) -> None:
        self._kill_store(self.solr, SOLR, "SINK.k2", with_agent)

    def _kill_store(self, store: Cluster, server: str, sink: str, with_agent: bool, seconds: float = 0) -> None:
        store.kill(server)
        killed = time.monotonic()
        if with_agent:
            self._kill_agent()
        self._await(lambda: sink in self.agent.failing(), f"{sink} to fail")
        self._await(lambda: time.monotonic() > killed + seconds, "the time to pass")
        store.start()
        self._delivers()

    def _kill_everything(self, _: bool) -> None:
        clusters: list[Cluster] = [self.kafka, self.hbase, self.solr]
        servers = [cluster.server(name) for cluster in clusters for name in cluster.names()]
        self.chance.shuffle(servers)
        for server in servers:
            server.signal(signal.SIGKILL)
        for server in servers:
            server.wait(TIMEOUT_SECONDS)
        self._kill_agent()
        self.chance.shuffle(clusters)
        for cluster in clusters:
            cluster.start()
        self._delivers()

    # --- ends

    def _log_end(self, event: str) -> None:
        """End of the agent's log, for the message of a failure."""
        with (self.directory / "agent.log").open("a") as log:
            log.write(f"--- {time.strftime('%H:%M:%S')} {event}\n")

    def _leave(self) -> None:
        for client in self.clients:
            client.enough.set()
        for cluster in (self.kafka, self.hbase, self.solr):
            cluster.start()
        for client in self.clients:
            if client.ident is not None:
                client.join(60)
