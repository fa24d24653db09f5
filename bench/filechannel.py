"""The channel `file`, in comparison with Flume's file channel, and with a bare write and fdatasync.

All use the same disk, in turns. Each put is durable before the next one of its thread. Flume's class runs in a JVM of
its own, after a warm-up. All events are taken out again, committed and compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.frame import Bench, Figures, without_setup
from bench.frame.varied import RFC5424, Events
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.channels.file import FileChannel
from flafka.plugins import Batch, conformance
from tests.interop.jvm import compiled

SHAPES = ((8, 1000, 60), (1, 100, 500))
"""Number of writers, events per put, and puts per writer."""


def run(bench: Bench) -> None:
    """Compare with many writers, and with one."""
    java = compiled(Path(__file__).parent / "java/FileChannelPuts.java", "flume", bench.directory("classes"))
    for writers, events, puts in SHAPES:
        puts = 5 if bench.smoke else puts
        content = Events(events)
        file = bench.directory("events") / "events"
        content.write(file)
        headers = content.headers(RFC5424)
        batch = Batch.of_columns(content.bodies(), {name: headers[name] for name in ("host", "timestamp")})

        def rates(
            measure: Callable[[Path], tuple[float, float]], count: int = writers * puts * events
        ) -> Callable[[], Figures]:
            def once() -> Figures:
                put, taken = measure(bench.directory("filechannel"))
                return {"events/s, put": count / put, **({"events/s, taken": count / taken} if taken else {})}

            return once

        peers = {
            "Apache Flume file channel": without_setup(rates(partial(by_flume, java, file, writers, puts))),
            "bare write and fdatasync": without_setup(rates(partial(bare, batch, puts))),
        }
        if writers > 1:
            del peers["bare write and fdatasync"]
        bench.compare(
            f"file channel, {writers} × {events:,}", without_setup(rates(partial(ours, batch, writers, puts))), peers
        )


def ours(batch: Batch, writers: int, puts: int, directory: Path) -> tuple[float, float]:
    """Return the seconds of all puts, and of all takes."""
    channel = conformance.make(
        FileChannel,
        {"checkpointDir": str(directory / "c"), "dataDirs": str(directory / "d"), "capacity": "10000000"},
    )
    channel.open()

    def put(times: int) -> None:
        for _ in range(times):
            channel.put(batch)

    put(20)
    _take(channel, 20 * len(batch))
    threads = [threading.Thread(target=put, args=(puts,)) for _ in range(writers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = time.perf_counter()
    taken = _take(channel, writers * puts * len(batch))
    finished = time.perf_counter()
    assert not channel.metrics.get("ChannelSize")
    channel.close()
    _check(taken, batch, writers * puts)
    return stored - started, finished - stored


def _take(channel: FileChannel, total: int) -> Batch:
    """Take and commit so many events, and return them."""
    owner = conformance.AssignmentListener()
    reader = channel.reader(owner, group=None, member="sink")
    batches: list[Batch] = []
    while sum(map(len, batches)) < total:
        taken = reader.take(1)
        assert taken is not None, "events are missing"
        batches.append(taken.batch)
        reader.commit([taken.assignment.with_offset(taken.offsets.end)])
    reader.close()
    return Batch.concat(batches)


def _check(taken: Batch, batch: Batch, puts: int) -> None:
    """Assert that the events taken are the events of the batch, each as often as it was put."""
    numbers = pc.binary_slice(taken.bodies, -9).cast(pa.string()).cast(pa.int64())
    assert (np.bincount(numbers, minlength=len(batch)) == puts).all(), "events are missing, or there are others"
    assert taken.bodies.equals(batch.bodies.take(numbers)), "contents differ"
    for name in batch.header_names:
        actual, expected = (each.header(name).dictionary_decode() for each in (taken, batch))
        assert actual.equals(expected.take(numbers)), f"headers {name} differ"


def by_flume(path: list[Path], events: Path, writers: int, puts: int, directory: Path) -> tuple[float, float]:
    """Return the seconds of all puts, and of all takes."""
    command = java_command(find_java(), path, "FileChannelPuts", heap_mb=1024, options=[])
    arguments = [directory, writers, puts, events]
    run = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=True)
    match = re.search(r"seconds (\S+) (\S+)", run.stdout)
    assert match is not None, run.stdout
    return float(match[1]), float(match[2])


def bare(batch: Batch, puts: int, directory: Path) -> tuple[float, float]:
    """Return the seconds of as many writes of the same size, each with an fdatasync, and 0."""
    data = batch.to_ipc().to_pybytes()
    file = os.open(directory / "bare", os.O_CREAT | os.O_WRONLY)
    started = time.perf_counter()
    for _ in range(puts):
        os.write(file, data)
        os.fdatasync(file)
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds, 0.0
