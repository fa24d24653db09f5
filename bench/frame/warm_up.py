"""Warm-up of brokers, whose JVMs spend half of their CPU time on compilation at first.

A broker that started a minute ago takes two to three times as long for a request as one that has run for hours. Its
compiler threads also take cores from the measured programs.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

WARM_UP_SECONDS = 45.0
TOPIC = "warming"
SMALL_BYTES, LARGE_BYTES = 100, 150_000
"""Sizes of records: of a format with one record per event, and of batches."""


def warm_up(servers: str, seconds: float = WARM_UP_SECONDS) -> None:
    """Write and read small and large records for `seconds`, with many requests, as contestants do. Blocking.

    The topic `warming` is created before and deleted afterwards.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 6, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": "lz4"})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": TOPIC, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    small, large = os.urandom(SMALL_BYTES), os.urandom(LARGE_BYTES)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for value in [small] * 20 + [large]:
            producer.produce(TOPIC, value, headers=[("kind", b"warming")])
        producer.flush()
        consumer.consume(1_000, 0)
    consumer.close()
    admin.delete_topics([TOPIC])[TOPIC].result(60)
