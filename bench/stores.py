"""A Kafka channel into HBase and into Solr, in comparison with a loop of the same client with equal batches.

The sinks deliver a channel of Arrow batches on threads of an agent. The loop is a process of a confluent-kafka
consumer and happybase or pysolr, with the same bodies, one per record. Both write a row with one column, or a
document with one field and its ID. Every row and document is read back and verified.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable

import happybase
import pyarrow as pa

from bench.frame import CPU, RATE, Bench, Figures, without_setup
from bench.frame.delivery import ARROW, DELIVERY, PLAIN, StoredEvents, drain
from bench.frame.kafka import assert_equal_bodies
from flafka.agent.audit.reconciliation import hbase_rows, solr_documents
from tests.fixtures.cores import create_core

BARE = {"hbase": "bare consumer and happybase", "solr": "bare consumer and pysolr"}


class Store:
    """HBase or Solr, with a table or core per run, and verification of its contents."""

    def __init__(self, bench: Bench, kind: str, stored: StoredEvents) -> None:
        self.bench, self.kind, self.stored = bench, kind, stored

    def create_target(self) -> list[str]:
        """Create a table or a core, and return its address and name, or its URL."""
        name = self.bench.directory(self.kind).name
        if self.kind == "solr":
            return [create_core(self.bench.solr, name)]
        address = self.bench.hbase.address
        host, _, port = address.partition(":")
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table(name, {"cf": {}})
        return [address, name]

    def check(self, target: list[str]) -> None:
        """Verify that every event is stored exactly once."""
        bodies: Iterable[bytes]
        if self.kind == "solr":
            bodies = [document["body_t"].encode() for document in solr_documents(target[0]).values()]
        else:
            bodies = [cells["pCol"] for cells in hbase_rows(*target).values()]
        assert_equal_bodies(pa.array(bodies, pa.binary()), self.stored.bodies, target[-1])

    def ours(self) -> Figures:
        """Run the sink on a thread of an agent, which exits once all events are committed."""
        target, home = self.create_target(), self.bench.directory("agent")
        topic = self.stored.topic(ARROW)
        if self.kind == "solr":
            options = [f"url = {target[0]}", "indexHeaders = false"]
        else:
            options = [f"thrift = {target[0]}", f"table = {target[1]}", "columnFamily = cf"]
        text = DELIVERY.format(
            servers=topic.servers,
            topic=topic.name,
            kind=self.kind,
            group=home.name,
            options="\n".join(f"a.sinks.k.{line}" for line in options),
        )
        with topic.group_progress(home.name) as delivered:
            drained = drain(home, text, self.stored.events, delivered)
        self.check(target)
        return drained.figures

    def bare(self) -> Figures:
        """Run `bench/frame/bare_store.py`."""
        target, topic = self.create_target(), self.stored.topic(PLAIN)
        arguments = [topic.servers, topic.name, str(self.stored.events), self.kind, *target]
        result = subprocess.run(
            [sys.executable, "-m", "bench.frame.bare_store", *arguments], check=True, capture_output=True
        )
        answer = json.loads(result.stdout)
        self.check(target)
        return {RATE: self.stored.events / answer["seconds"], CPU: answer["cpu"] / self.stored.events * 1e6}


def run(bench: Bench) -> None:
    """Compare for each store."""
    kinds = {"hbase": ("HBase", 600_000), "solr": ("Solr", 200_000)}
    stored: dict[int, StoredEvents] = {}  # equal numbers of events share topics
    for kind, (name, usual) in kinds.items():
        events = bench.events(usual, 2_000)
        stored[events] = stored.get(events) or StoredEvents(bench.kafka, events)
        store = Store(bench, kind, stored[events])
        bench.compare(f"channel to {name}", without_setup(store.ours), {BARE[kind]: without_setup(store.bare)})
