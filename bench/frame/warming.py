"""Brokers that have worked for a while: a JVM compiles what it runs often, with half of the CPU time at first.

A broker that was started a minute ago takes two to three times as long for a request as one that is up for hours, as
a user's are, and its compiler's threads take cores from whatever is measured beside it.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS = 45.0
TOPIC = "warming"
SMALL, LARGE = 100, 150_000
"""Bytes of records: as of a format with a record for each event, and as of batches."""


def warm(servers: str, seconds: float = SECONDS) -> None:
    """Write and read both kinds of records for so long, with many requests, as all contestants do."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 6, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": "lz4"})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": TOPIC, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    small, large = os.urandom(SMALL), os.urandom(LARGE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for value in [small] * 20 + [large]:
            producer.produce(TOPIC, value, headers=[("kind", b"warming")])
        producer.flush()
        consumer.consume(1_000, 0)
    consumer.close()
    admin.delete_topics([TOPIC])[TOPIC].result(60)
