"""A bare consumer and store client in one process: records of a topic to rows of HBase or documents of Solr.

Arguments: `servers topic events hbase host:port table` or `servers topic events solr url`. A call has 1,000 events,
as in the sinks. Prints JSON: seconds and CPU seconds, from the subscription until the last call is answered.
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

CALL_EVENTS, MAX_CALLS = 1_000, 4
"""Rows or documents per call, and HBase calls in flight, one per connection, as in the sinks."""
ID_PREFIX = "bare-ZkE2M2Y0ZTctNWI4OS-Y2x1c3RlcnMtb3du-0-"
"""Prefix of IDs, of the same length as that of the sinks' globally unique IDs."""


def main() -> None:
    """Consume and store the events, and print the result."""
    servers, topic, count, kind, *target = sys.argv[1:]
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"bare-{kind}-{target[-1]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    cpu, started = _cpu_seconds(), time.perf_counter()
    consumer.subscribe([topic])
    first = [message.value() or b"" for message in consumer.consume(1, 60)]  # the group has joined
    store = _hbase if kind == "hbase" else _solr
    store(_calls(consumer, first, int(count)), *target)
    consumer.commit(asynchronous=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": _cpu_seconds() - cpu}))
    consumer.close()


def _calls(consumer: Consumer, bodies: list[bytes], count: int) -> Iterator[list[bytes]]:
    """Yield `count` bodies in lists of `CALL_EVENTS`, beginning with `bodies`; the last list may be shorter."""
    seen = len(bodies)
    while seen < count:
        number = min(CALL_EVENTS - len(bodies), count - seen)
        messages = consumer.consume(number, 1)  # blocks until as many have arrived
        bodies += [message.value() or b"" for message in messages]
        seen += len(messages)
        if len(bodies) == CALL_EVENTS:
            yield bodies
            bodies = []
    if bodies:
        yield bodies


def _hbase(calls: Iterator[list[bytes]], address: str, table: str) -> None:
    """Put the bodies as rows of a table, `MAX_CALLS` calls at a time, through the Thrift server at `address`."""
    host, _, port = address.partition(":")
    pool = happybase.ConnectionPool(MAX_CALLS, host=host, port=int(port), timeout=60_000)

    def put(bodies: list[bytes]) -> None:
        with pool.connection() as connection, connection.table(table).batch() as batch:
            for body in bodies:
                batch.put(ID_PREFIX.encode() + body[-9:], {b"cf:pCol": body})

    _put_concurrently(put, calls, MAX_CALLS)


def _solr(calls: Iterator[list[bytes]], url: str) -> None:
    """Add the bodies as documents of a Solr collection, one call at a time."""
    session = requests.Session()
    session.trust_env = False
    solr = pysolr.Solr(url, timeout=60, session=session, always_commit=False)
    for bodies in calls:
        documents = [{"id": f"{ID_PREFIX}{body[-9:].decode()}", "body_t": body.decode()} for body in bodies]
        solr.add(documents, commitWithin=1000)


def _put_concurrently(put: Callable[[list[bytes]], None], calls: Iterator[list[bytes]], max_calls: int) -> None:
    """Run `put` for each list on `max_calls` threads, and wait for all; raise the error of a call."""
    with ThreadPoolExecutor(max_calls) as threads:
        in_flight: set[Future[None]] = set()
        for bodies in calls:
            in_flight.add(threads.submit(put, bodies))
            if len(in_flight) >= 2 * max_calls:
                done, in_flight = wait(in_flight, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
        for future in in_flight:
            future.result()


def _cpu_seconds() -> float:
    """Return user and system time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
