"""`./dev bench filechannel`: channel `file` beside Flume's own, and beside a bare write and fdatasync.

All on the same disk, in turns, each put durable before the next one of its thread. Flume's is its own class in a JVM
of its own, after a warm-up. What was put is taken out again, committed, and compared.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent.services.cluster import java_command
from agent.services.java import find_java
from channels.file import FileChannel
from plugins import Batch, Event, conformance
from tests.interop.jvm import compiled

BODY = "Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 id=000000000 " * 2
HEADERS = {"timestamp": "1700000000000", "host": "web-1"}
SHAPES = ((8, 1000, 60), (1, 100, 500))
"""Writers, events a put, puts of each writer."""


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(prog="./dev bench filechannel", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turns (default: 5)")
    parser.add_argument("--directory", help="where to write, on the disk to be measured (default: TMPDIR)")
    arguments = parser.parse_args()
    table = Table(box=None)
    for heading in ("put by", "", "events/s", "range", "taken/s", "file is faster by"):
        table.add_column(heading, justify="right" if heading.endswith("/s") else "left")
    with tempfile.TemporaryDirectory(prefix="flafka-bench-", dir=arguments.directory) as home:
        java = compiled(Path(__file__).parent / "java/FileChannelPuts.java", "flume", Path(home, "classes"))
        for writers, events, puts in SHAPES:
            batch = Batch.of([Event(BODY.encode(), HEADERS)] * events)
            runs: dict[str, list[tuple[float, float]]] = {"file": [], "Flume": [], "bare": []}
            for number in range(arguments.runs):
                place = Path(home, f"{writers}-{number}")
                runs["file"].append(ours(place / "ours", batch, writers, puts))
                runs["Flume"].append(flumes(place / "flume", java, batch, writers, puts))
                if writers == 1:
                    runs["bare"].append((bare(place / "bare", batch, puts), 0.0))
            count = writers * puts * events
            middle = {name: statistics.median(put for put, _ in times) for name, times in runs.items() if times}
            for name, seconds in middle.items():
                put, taken = zip(*runs[name], strict=True)
                table.add_row(
                    f"{writers} × {events:,}",
                    name,
                    f"{count / seconds:,.0f}",
                    f"{count / max(put):,.0f} to {count / min(put):,.0f}",
                    f"{count / statistics.median(taken):,.0f}" if any(taken) else "",
                    f"{seconds / middle['file']:.2f}",
                )
    Console().print(table)


def ours(directory: Path, batch: Batch, writers: int, puts: int) -> tuple[float, float]:
    """Seconds of the puts, and of the takes."""
    channel = conformance.make(
        FileChannel,
        {"checkpointDir": str(directory / "c"), "dataDirs": str(directory / "d"), "capacity": "10000000"},
    )
    channel.open()

    def put(times: int) -> None:
        for _ in range(times):
            channel.put(batch)

    put(20)
    _take(channel, 20 * len(batch), batch)
    threads = [threading.Thread(target=put, args=(puts,)) for _ in range(writers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = time.perf_counter()
    _take(channel, writers * puts * len(batch), batch)
    over = time.perf_counter()
    assert not channel.metrics.get("ChannelSize")
    channel.close()
    return stored - started, over - stored


def _take(channel: FileChannel, all: int, batch: Batch) -> None:
    owner = conformance.ClaimsListener()
    reader = channel.reader(owner, group=None, member="sink")
    count = 0
    while count < all:
        taken = reader.take(1)
        assert taken is not None, "events are missing"
        assert taken.batch.bodies[:: len(batch)].unique().to_pylist() == batch.bodies[:1].to_pylist()
        count += len(taken.batch)
        reader.commit({owner.claims[taken.partition]: taken.end})
    reader.close()


def flumes(directory: Path, path: list[Path], batch: Batch, writers: int, puts: int) -> tuple[float, float]:
    """Seconds of the puts, and of the takes."""
    directory.mkdir(parents=True)
    command = java_command(find_java(), path, "FileChannelPuts", heap_mb=1024, options=[])
    told = [directory, writers, puts, len(batch), BODY]
    run = subprocess.run([*command, *map(str, told)], capture_output=True, text=True, check=True)
    found = re.search(r"seconds (\S+) (\S+)", run.stdout)
    assert found is not None, run.stdout
    return float(found[1]), float(found[2])


def bare(path: Path, batch: Batch, puts: int) -> float:
    """Seconds for as many writes of the same size, each with an fdatasync."""
    data = batch.to_ipc().to_pybytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    started = time.perf_counter()
    for _ in range(puts):
        os.write(file, data)
        os.fdatasync(file)
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds


if __name__ == "__main__":
    main()
