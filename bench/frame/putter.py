"""Batches of events into a Kafka channel, as a source puts them: a process of its own, one producer.

`servers topic events bytes batch [option=value …]`. Bodies are random capital letters that end with a number. Prints
JSON: seconds, CPU seconds, and for events the average, median, 95th, 99th percentile and maximum of the time from the
call of `put` until it returns, when the brokers have acknowledged them, in milliseconds.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time

import numpy as np
import pyarrow as pa

from bench.frame.kafka import CHANNEL
from flafka.plugins import Batch, Event

THREADS = 4
"""As many batches are on their way as a source has."""


def main() -> None:
    """Make the events, put them, print."""
    servers, topic, count, size, batch = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    options = dict(word.split("=") for word in sys.argv[6:])
    config, problems = CHANNEL.config_class.parse(
        {"kafka.bootstrap.servers": servers, "kafka.topic": topic, **options}
    )
    assert config is not None, problems
    channel = CHANNEL(config, "c")
    channel.open()
    batches = [made(start, min(batch, count - start), size) for start in range(0, count, batch)]
    taken: list[tuple[float, int]] = []

    def put(part: list[Batch]) -> None:
        for one in part:
            started = time.perf_counter()
            channel.put(one)
            taken.append(((time.perf_counter() - started) * 1e3, len(one)))

    threads = [threading.Thread(target=put, args=(batches[number::THREADS],)) for number in range(THREADS)]
    cpu, started = _cpu(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    answer = {"seconds": seconds, "cpu": _cpu() - cpu, **latencies(taken)}
    channel.close()
    print(json.dumps(answer))


def made(start: int, count: int, size: int) -> Batch:
    """A batch with numbers from `start` on."""
    letters = np.random.default_rng(start).integers(65, 91, (count, size), np.uint8)
    numbers = np.arange(start, start + count)
    for digit in range(9):
        letters[:, size - 1 - digit] = numbers // 10**digit % 10 + 48
    buffers = [None, pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32)), pa.py_buffer(letters)]
    bodies = pa.Array.from_buffers(pa.binary(), count, buffers)
    return Batch.of([Event(body) for body in bodies.to_pylist()])


def latencies(taken: list[tuple[float, int]]) -> dict[str, float]:
    """Of events: each takes as long as its batch."""
    times, events = (np.array(column, float) for column in zip(*sorted(taken), strict=True))
    upto = np.cumsum(events) / events.sum()
    found = {f"p{share}": float(times[np.searchsorted(upto, share / 100)]) for share in (50, 95, 99)}
    return {"average": float(np.average(times, weights=events)), **found, "max": float(times[-1])}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
