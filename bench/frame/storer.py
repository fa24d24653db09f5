"""A bare consumer and a bare client of a store in one process: a topic with a record each to rows or documents.

`servers topic events hbase host:port table` or `servers topic events solr url`; 1,000 a call, as the sinks have them.
Prints JSON: seconds and CPU seconds, from the subscription until the last call is answered.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import happybase
import pysolr
import requests
from confluent_kafka import Consumer

CALL, AT_ONCE = 1_000, 4
"""Rows or documents of a call, and calls of HBase under way, one for each connection, as the sink has them."""
UNIQUE = "bare-ZkE2M2Y0ZTctNWI4OS-Y2x1c3RlcnMtb3du-0-"
"""What an id begins with that is unique over topics and clusters: as many characters as the sinks' have."""


def main() -> None:
    """Consume, store, print."""
    servers, topic, count, kind, *place = sys.argv[1:]
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"bare-{kind}-{place[-1]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    cpu, started = _cpu(), time.perf_counter()
    consumer.subscribe([topic])
    first = [message.value() or b"" for message in consumer.consume(1, 60)]  # the group is together
    store = _hbase if kind == "hbase" else _solr
    store(_calls(consumer, first, int(count)), *place)
    consumer.commit(asynchronous=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": _cpu() - cpu}))
    consumer.close()


def _calls(consumer: Consumer, bodies: list[bytes], count: int) -> Iterator[list[bytes]]:
    seen = len(bodies)
    while seen < count:
        found = consumer.consume(min(CALL - len(bodies), count - seen), 1)  # waits for as many
        bodies += [message.value() or b"" for message in found]
        seen += len(found)
        if len(bodies) == CALL:
            yield bodies
            bodies = []
    if bodies:
        yield bodies


def _hbase(calls: Iterator[list[bytes]], address: str, table: str) -> None:
    host, _, port = address.partition(":")
    pool = happybase.ConnectionPool(AT_ONCE, host=host, port=int(port), timeout=60_000)

    def put(bodies: list[bytes]) -> None:
        with pool.connection() as connection, connection.table(table).batch() as batch:
            for body in bodies:
                batch.put(UNIQUE.encode() + body[-9:], {b"cf:pCol": body})

    _all(put, calls, AT_ONCE)


def _solr(calls: Iterator[list[bytes]], url: str) -> None:
    session = requests.Session()
    session.trust_env = False
    solr = pysolr.Solr(url, timeout=60, session=session, always_commit=False)
    for bodies in calls:
        documents = [{"id": f"{UNIQUE}{body[-9:].decode()}", "body_t": body.decode()} for body in bodies]
        solr.add(documents, commitWithin=1000)


def _all(put: Callable[[list[bytes]], None], calls: Iterator[list[bytes]], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as threads:
        under_way: set[Future[None]] = set()
        for bodies in calls:
            under_way.add(threads.submit(put, bodies))
            if len(under_way) >= 2 * at_once:
                done, under_way = wait(under_way, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
        for future in under_way:
            future.result()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
