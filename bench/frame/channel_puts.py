"""Batches of events into a Kafka channel, as a source puts them: a process with one producer.

Arguments: `servers topic events bytes batch [option=value …]`. Bodies are random capitals that end with a number.

Prints JSON: seconds, CPU seconds, and the latency of events in milliseconds: average, median, 95th and 99th
percentile, and maximum. Latency is the time of the call of `put`, which returns when the brokers have acknowledged
the events.
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
"""Number of batches in flight, as for a source."""


def main() -> None:
    """Create the events, put them, and print the result."""
    servers, topic, count, size, batch = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    options = dict(word.split("=") for word in sys.argv[6:])
    config, problems = CHANNEL.config_class.parse(
        {"kafka.bootstrap.servers": servers, "kafka.topic": topic, **options}
    )
    assert config is not None, problems
    channel = CHANNEL(config, "c")
    channel.open()
    batches = [make_batch(start, min(batch, count - start), size) for start in range(0, count, batch)]
    put_times: list[tuple[float, int]] = []

    def put(part: list[Batch]) -> None:
        for each in part:
            started = time.perf_counter()
            channel.put(each)
            put_times.append(((time.perf_counter() - started) * 1e3, len(each)))

    threads = [threading.Thread(target=put, args=(batches[number::THREADS],)) for number in range(THREADS)]
    cpu, started = _cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    answer = {"seconds": seconds, "cpu": _cpu_seconds() - cpu, **latencies(put_times)}
    channel.close()
    print(json.dumps(answer))


def make_batch(start: int, count: int, size: int) -> Batch:
    """Return a batch of `count` events: `size` bytes of random capitals that end with nine digits of a number.

    The numbers begin with `start`.
    """
    characters = np.random.default_rng(start).integers(65, 91, (count, size), np.uint8)
    numbers = np.arange(start, start + count)
    for digit in range(9):
        characters[:, size - 1 - digit] = numbers // 10**digit % 10 + 48
    buffers = [None, pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32)), pa.py_buffer(characters)]
    bodies = pa.Array.from_buffers(pa.binary(), count, buffers)
    return Batch.of([Event(body) for body in bodies.to_pylist()])


def latencies(put_times: list[tuple[float, int]]) -> dict[str, float]:
    """Return average, percentiles and maximum of the latency of events, in milliseconds.

    `put_times` has the milliseconds and the number of events of each batch; an event takes as long as its batch.
    """
    times, events = (np.array(column, float) for column in zip(*sorted(put_times), strict=True))
    cumulative_share = np.cumsum(events) / events.sum()
    by_percentile = {
        f"p{share}": float(times[np.searchsorted(cumulative_share, share / 100)]) for share in (50, 95, 99)
    }
    return {"average": float(np.average(times, weights=events)), **by_percentile, "max": float(times[-1])}


def _cpu_seconds() -> float:
    """Return user and system time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
