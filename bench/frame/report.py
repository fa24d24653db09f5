"""Report of a benchmark: a table of at most 80 columns, JSON, and a description of the machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.frame import Bench
from flafka.agent.jvm.jars import read_lock
from flafka.agent.jvm.java import find_java

WIDTH = 80
JARS = {"kafka": "kafka-clients", "hdfs": "hadoop-hdfs", "flume": "flume-ng-core"}
"""Lock file → jar whose version is that of the server."""


def as_json(bench: Bench) -> dict[str, Any]:
    """Return the result for `--json`: name of the benchmark, machine, and rows."""
    return {"name": bench.name, "machine": machine(), "rows": [row.as_json() for row in bench.rows]}


@functools.cache
def machine() -> dict[str, Any]:
    """Return the processor, its cores, memory in GiB, and the versions of libraries and servers."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = ("flafka", "pyarrow", "confluent-kafka", "pyspark")
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in python}}
    for service, artifact in JARS.items():
        versions[service] = next(jar.version for jar in read_lock(service) if jar.artifact == artifact)
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "os": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "java": find_java().version,
        "versions": versions,
    }


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Return the machine and the versions as one line of text."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, {machine['os']}, "
        f"Java {machine['java']}; {versions}"
    )


def print_table(result: Mapping[str, Any], skipped: Mapping[str, str]) -> None:
    """Print a table of medians, half of the range in percent of the median, and ratios to the peer.

    Lines for the missing peers and the machine follow. `skipped` maps a missing peer to the reason.
    """
    table = Table(box=None, pad_edge=False, title=result["name"], title_justify="left", title_style="bold")
    for heading in ("measure", "unit", "ours", "peer", "peer is", "ratio"):
        right = heading in ("ours", "peer", "ratio")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    previous = None
    for row in result["rows"]:
        measure = row["measure"] if row["measure"] != previous else ""
        previous = row["measure"]
        ours, peers = [a for a, _ in row["runs"]], [b for _, b in row["runs"] if b is not None]
        ratio = "" if row["ratio"] is None else short_number(row["ratio"])
        cells = (
            measure,
            row["unit"],
            median_and_spread(ours),
            median_and_spread(peers),
            row["peer_name"] or "",
            ratio,
        )
        table.add_row(*map(Text, cells))
    console = Console(width=WIDTH, highlight=False)
    console.print(table)
    for peer, reason in skipped.items():
        console.print(Text(f"skipped: {peer}: {reason}"))
    console.print(Text(describe_machine(result["machine"])))


def median_and_spread(values: Sequence[float]) -> str:
    """Return the median, and half of the range in percent of the median: `689 k ±3%`; "" without values."""
    if not values:
        return ""
    middle = statistics.median(values)
    half = (max(values) - min(values)) / 2
    return f"{short_number(middle)} ±{half / abs(middle):.0%}" if len(values) > 1 and middle else short_number(middle)


def short_number(number: float) -> str:
    """Return a number with three significant digits and the suffix k, M or G from 1,000 on: `689 k`, `1.61`."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size * 0.9995:
            return f"{float(f'{number / size:.3g}'):g}{suffix}"
    return f"{float(f'{number:.3g}'):g}"
