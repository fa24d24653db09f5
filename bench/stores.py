"""A Kafka channel into HBase and into Solr, beside a loop of the same client with the same batches.

The sinks deliver a channel of Arrow batches on threads of an agent; the loop, a process of a confluent-kafka consumer
and happybase or pysolr, has the same bodies from a topic with a record for each. Both write a row with one column, or
a document with one field beside its id. Every row and document is read back and compared.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable

import happybase
import pyarrow as pa

from bench.frame import CPU, RATE, Bench, Figures, simply
from bench.frame.delivery import ARROW, DELIVERY, PLAIN, Stored, drain
from bench.frame.kafka import same
from flafka.agent.audit.reconciliation import hbase_rows, solr_documents
from tests.fixtures.cores import create_core

BARE = {"hbase": "bare consumer and happybase", "solr": "bare consumer and pysolr"}


class Store:
    """One of the two: a table or a core for each run, and what is in it afterwards."""

    def __init__(self, bench: Bench, kind: str, stored: Stored) -> None:
        self.bench, self.kind, self.stored = bench, kind, stored

    def new(self) -> list[str]:
        """Where to write: address and table, or URL."""
        name = self.bench.directory(self.kind).name
        if self.kind == "solr":
            return [create_core(self.bench.solr, name)]
        address = self.bench.hbase.address
        host, _, port = address.partition(":")
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table(name, {"cf": {}})
        return [address, name]

    def check(self, place: list[str]) -> None:
        """All is there once."""
        bodies: Iterable[bytes]
        if self.kind == "solr":
            bodies = [document["body_t"].encode() for document in solr_documents(place[0]).values()]
        else:
            bodies = [cells["pCol"] for cells in hbase_rows(*place).values()]
        same(pa.array(bodies, pa.binary()), self.stored.bodies, place[-1])

    def ours(self) -> Figures:
        """The sink on a thread of an agent that ends once all is committed."""
        place, home = self.new(), self.bench.directory("agent")
        topic = self.stored.topic(ARROW)
        if self.kind == "solr":
            options = [f"url = {place[0]}", "indexHeaders = false"]
        else:
            options = [f"thrift = {place[0]}", f"table = {place[1]}", "columnFamily = cf"]
        text = DELIVERY.format(
            servers=topic.servers,
            topic=topic.name,
            kind=self.kind,
            group=home.name,
            options="\n".join(f"a.sinks.k.{line}" for line in options),
        )
        with topic.following(home.name) as delivered:
            drained = drain(home, text, self.stored.events, delivered)
        self.check(place)
        return drained.figures

    def bare(self) -> Figures:
        """`bench/frame/storer.py`."""
        place, topic = self.new(), self.stored.topic(PLAIN)
        told = [topic.servers, topic.name, str(self.stored.events), self.kind, *place]
        done = subprocess.run([sys.executable, "-m", "bench.frame.storer", *told], check=True, capture_output=True)
        answer = json.loads(done.stdout)
        self.check(place)
        return {RATE: self.stored.events / answer["seconds"], CPU: answer["cpu"] / self.stored.events * 1e6}


def run(bench: Bench) -> None:
    """One after the other."""
    kinds = {"hbase": ("HBase", 600_000), "solr": ("Solr", 200_000)}
    stored: dict[int, Stored] = {}  # two of as many events would have the same topics
    for kind, (name, usual) in kinds.items():
        events = bench.events(usual, 2_000)
        stored[events] = stored.get(events) or Stored(bench.kafka, events)
        store = Store(bench, kind, stored[events])
        bench.compare(f"channel to {name}", simply(store.ours), {BARE[kind]: simply(store.bare)})
