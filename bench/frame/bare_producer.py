"""The lines of a file to Kafka, one record each, at the full speed of confluent-kafka: a process of its own.

Arguments: `servers topic file events [setting=value …] [one]`. With `one`, each record is acknowledged before the
next is sent.

Prints JSON: seconds, CPU seconds, acknowledged records, and with `one` percentiles of the latency of a record in
milliseconds.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": 8_000_000,
}
"""Settings of the channel `kafka`."""


def main() -> None:
    """Produce the records and print the result."""
    servers, topic, path, events = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    settings = dict(word.split("=") for word in sys.argv[5:] if "=" in word)
    producer = Producer({"bootstrap.servers": servers, **SETTINGS, **settings})
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    with Path(path).open("rb") as file:
        lines = [line[:-1] for _, line in zip(range(events), file, strict=False)]
    producer.list_topics(topic, timeout=30)
    answer: dict[str, Any] = {}
    cpu, started = _cpu_seconds(), time.perf_counter()
    if "one" in sys.argv[5:]:
        answer = _produce_one_by_one(producer, topic, lines, delivered)
    else:
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
    answer |= {"seconds": time.perf_counter() - started, "cpu": _cpu_seconds() - cpu, "acknowledged": acknowledged}
    print(json.dumps(answer))


def _produce_one_by_one(producer: Producer, topic: str, lines: list[bytes], delivered: Any) -> dict[str, float]:
    """Send each line after the acknowledgement of the one before; return percentiles of the latency, in ms."""
    latencies = []
    for line in lines:
        started = time.perf_counter()
        producer.produce(topic, line, on_delivery=delivered)
        producer.flush()
        latencies.append((time.perf_counter() - started) * 1e3)
    latencies.sort()
    return {"p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)], "max": latencies[-1]}


def _cpu_seconds() -> float:
    """Return user and system time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
