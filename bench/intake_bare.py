"""The peer of `bench.intake`: the lines of a file to Kafka, one record each, as fast as confluent-kafka goes."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


def main() -> None:
    """`servers topic file events`; prints seconds, CPU seconds and acknowledged records as JSON."""
    servers, topic, path, events = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    admin = AdminClient({"bootstrap.servers": servers})
    settings = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, num_partitions=6, replication_factor=3, config=settings)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    with Path(path).open("rb") as file:
        lines = [line[:-1] for _, line in zip(range(events), file, strict=False)]
    cpu, started = _cpu(), time.perf_counter()
    for number, line in enumerate(lines):
        while True:
            try:
                producer.produce(topic, line, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": _cpu() - cpu, "acknowledged": acknowledged}))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
