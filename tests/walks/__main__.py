"""`./dev walks`: count the code that one batch passes on its way through running agents."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from tests.fixtures.servers import of_this_run
from tests.walks.recording import Walk, size
from tests.walks.walking import RecordedAgents

IDLE_SECONDS = 15.0
"""Time without events: longer than the 10 s after which the slowest loop of these agents does all its work."""


def main() -> None:
    """Run agents on servers of this run, and print the size of each walk."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the end of `timeout` still stops the servers
    parser = argparse.ArgumentParser(prog="./dev walks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, with every function, and no table")
    parser.add_argument("--list", action="store_true", help="print the functions of each walk as well")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, metavar="SECONDS", help="time without events")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="flafka-walks-") as directory,
        of_this_run(KafkaCluster(Path(directory, "kafka"), fixed_ports=False)) as kafka,
        of_this_run(HdfsCluster(Path(directory, "hdfs"), fixed_ports=False)) as hdfs,
    ):
        intake, local, spark = RecordedAgents(Path(directory), kafka, hdfs, spark=True).run(arguments.idle)
    walks = [intake, local, spark.without(local, "spark beyond local")]
    if arguments.json:
        print(json.dumps([as_json(walk) for walk in walks], indent=1))
        return
    print(f"{'walk':20}{'files':>8}{'functions':>12}{'statements':>12}")
    for walk in walks:
        print("\n".join(table(walk)))
    for walk in walks if arguments.list else ():
        print("\n".join([f"\n{walk.name}", *listing(walk)]))


def table(walk: Walk) -> Iterator[str]:
    """Yield the sizes of a walk, and of its parts."""
    for name, functions in ((walk.name, walk.functions), ("  for batches", walk.batch), ("  loops", walk.loops)):
        files, count, statements = size(functions)
        yield f"{name:20}{files:8}{count:12}{statements:12}"


def listing(walk: Walk) -> Iterator[str]:
    """Yield the functions by file, in the order of their first call, with the thread of that call."""
    functions = walk.functions
    files = {file: order for order, file in reversed([*enumerate(f.file for f in functions)])}
    numbered = sorted(enumerate(functions, 1), key=lambda item: files[item[1].file])  # stable within a file
    for file, group in groupby(numbered, key=lambda item: item[1].file):
        yield f"  {file}"
        for number, function in group:
            loop = "  (loop)" if function in walk.loops else ""
            thread = functions[function].thread
            yield f"    {number:4} {function.name}:{function.line}  {function.statements}  [{thread}]{loop}"


def as_json(walk: Walk) -> dict[str, object]:
    """Return a walk as plain values."""
    return {
        "walk": walk.name,
        **size(walk.functions)._asdict(),
        "batch": size(walk.batch)._asdict(),
        "loops": size(walk.loops)._asdict(),
        "calls": [
            {**function._asdict(), **call._asdict(), "loop": function in walk.loops}
            for function, call in walk.functions.items()
        ],
    }


if __name__ == "__main__":
    main()
