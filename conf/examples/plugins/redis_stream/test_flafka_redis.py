"""The source `redis_stream` on a real Redis, which the test starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from flafka import Batch
from flafka.plugins import conformance
from flafka_redis import RedisStreamSource

SERVER = shutil.which(os.environ.get("REDIS_SERVER", "redis-server"))
pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no redis-server here")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server of its own on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen([str(SERVER), *options], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {port}")


def test_it_keeps_the_promises_of_a_source(url: str) -> None:
    client = redis.Redis.from_url(url)

    def send(source: Any, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            client.xadd("logs", {"body": body, "host": "web1"})

    options = {"url": url, "stream": "logs"}
    failing = {**options, "url": "redis://127.0.0.1:1/0"}
    conformance.check_source(RedisStreamSource, options, send, failing=failing)


def opened(url: str, **options: str) -> tuple[RedisStreamSource, Iterator[Batch]]:
    source = conformance.make(RedisStreamSource, {"url": url, "stream": "logs", **options})
    source.open()
    return source, source.batches()


def test_what_is_acknowledged_is_what_the_channels_have(url: str) -> None:
    client: Any = redis.Redis.from_url(url)
    for number in range(5):
        client.xadd("logs", {"body": b"%d" % number, "host": "web1"})
    source, batches = opened(url, batchSize="2")
    source.stored(next(batches))
    unstored = next(batches)
    source.close()
    assert client.xpending("logs", "flafka")["pending"] == len(unstored) == 2
    source, batches = opened(url)
    again, rest = next(batches), next(batches)
    source.close()
    assert list(again) == list(unstored)
    assert [(event.body, event.headers) for event in rest] == [(b"4", {"host": "web1"})]


def test_entries_of_a_consumer_that_is_gone_are_taken_over(url: str) -> None:
    redis.Redis.from_url(url).xadd("logs", {"body": "left behind"})
    gone, batches = opened(url, consumer="gone")
    next(batches)
    gone.close()
    source, batches = opened(url, consumer="other", claimAfter="1")
    batch = next(batches)
    assert batch.bodies.to_pylist() == [b"left behind"]
    source.stored(batch)
    source.close()
