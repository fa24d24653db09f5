"""The sizing model behind `agent size`: what a load takes, computed from costs of one machine.

The costs are in `costs.toml`, each with where it was measured, or that it is assumed. The formulas are in
docs/performance.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flafka.plugins import FlafkaError

COSTS = Path(__file__).with_name("costs.toml")
SOURCES = ("syslog", "taildir", "avro")
SINKS = ("hdfs-text", "hdfs-parquet", "hbase", "solr")
SPARE_DISK = 0.2
"""What stays free, as brokers delete whole segments only."""
HOUR = 3600


@dataclass(frozen=True)
class Load:
    """What is to be carried: `events` a second of `bytes` each, from `hosts`; and how."""

    events: float
    bytes: float
    hosts: int = 1
    source: str = "syslog"
    masks: int = 1
    sink: str = "hdfs-text"
    runner: str = "local"
    retention: float = 168
    """Hours."""
    replication: int = 3
    busy: float = 0.5
    """Share of their capacity to which cores and readers are used: the rest is for peaks and for catching up."""
    roll: float = 300
    """Seconds after which files are closed; on Spark, the trigger's interval."""
    directories: int = 1
    """Directories that are written at a time, such as one for each host."""


class Need(NamedTuple):
    """One line of the answer."""

    what: str
    amount: float
    unit: str
    because: str
    """The formula, with its numbers."""


def costs(file: Path = COSTS) -> Mapping[str, Any]:
    """Read a file of costs. Raises `FlafkaError` where it is none."""
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError) as e:
        why = getattr(e, "strerror", None) or e
        raise FlafkaError(f"{file} is no file of costs: {why}; {COSTS} is one to copy") from None


def needs(load: Load, cost: Mapping[str, Any]) -> Iterator[Need]:
    """What that load takes. Raises `FlafkaError` where the file of costs lacks one."""
    try:
        yield from _needs(load, cost)
    except KeyError as e:
        raise FlafkaError(
            f"the file of costs has no {e.args[0]} for {load.source}, {load.sink} on {load.runner}"
        ) from e


def _needs(load: Load, cost: Mapping[str, Any]) -> Iterator[Need]:
    source, sink = cost["source"][load.source], cost["sink"][load.sink]
    process, kafka, mask = cost["process"], cost["kafka"], cost["mask"]["event"]
    local = load.runner == "local"
    micros = source["event"] + source["byte"] * load.bytes + load.masks * mask
    parts = f"{source['event']:g} + {source['byte']:g} × {load.bytes:g} bytes + {load.masks} × {mask:g}"
    base = process["base"]
    if local:
        micros += sink["event"]
        parts += f" + {sink['event']:g} for the sink"
        base += process["delivery"]
    working = load.events * micros / 1e6
    processes = math.ceil(max(working / load.busy / process["cores"], load.hosts / process["connections"]))
    yield Need(
        "cores of agents",
        (working + processes * base) / load.busy,
        "cores",
        f"({load.events:,.0f}/s × ({parts}) µs + {processes} agents × {base:g}) / {load.busy:.0%}",
    )
    yield Need(
        "agents",
        processes,
        "processes",
        f"{process['cores']:g} cores and {process['connections']:,} connections of each",
    )

    written = load.events * load.bytes
    brokers = (written * kafka["byte"] / 1e6 + processes * kafka["agent"]) / load.busy
    yield Need(
        "cores of brokers",
        brokers,
        "cores",
        f"({written:,.0f} bytes/s × {kafka['byte']:g} µs + {processes} agents × {kafka['agent']:g}) "
        f"/ {load.busy:.0%}",
    )
    count = max(load.replication, math.ceil(brokers / kafka["cores"]))
    yield Need("brokers", count, "servers", f"{kafka['cores']} cores each, at least one for each replica")

    if local:
        readers = load.events / (sink["reader"] * load.busy)
        because = (
            f"{load.events:,.0f}/s / ({sink['reader']:,}/s of a reader × {load.busy:.0%}), a multiple of brokers"
        )
    else:
        a_core = cost["spark"][load.sink]["core"]
        readers = load.events / (a_core * load.busy)
        because = f"one for each core that is busy with events, a multiple of brokers: {a_core:,}/s × {load.busy:.0%}"
    partitions = max(count, math.ceil(readers / count) * count)
    yield Need("partitions", partitions, "partitions", because)

    stored = written * kafka["stored"] * load.replication
    disk = stored * load.retention * HOUR / (1 - SPARE_DISK)
    yield Need(
        "disk of brokers",
        disk / 1e9,
        "GB",
        f"{written / 1e6:,.1f} MB/s × {kafka['stored']:g} × {load.replication} replicas × {load.retention:g} h, "
        f"{SPARE_DISK:.0%} free",
    )
    if not local:
        executors, driver = cost["spark"]["executors"], cost["spark"]["driver"]
        yield Need(
            "cores of executors",
            (load.events / a_core + executors["base"] + executors["batch"] / load.roll) / load.busy,
            "cores",
            f"({load.events:,.0f}/s / {a_core:,}/s of a core + {executors['base']:g} + {executors['batch']:g} s "
            f"for a micro-batch each {load.roll:g} s) / {load.busy:.0%}",
        )
        yield Need(
            "cores of the driver",
            (driver["base"] + driver["batch"] / load.roll) / load.busy,
            "cores",
            f"({driver['base']:g} + {driver['batch']:g} s for a micro-batch each {load.roll:g} s) / {load.busy:.0%}",
        )
    if load.sink.startswith("hdfs"):
        files = partitions * load.directories * HOUR / load.roll
        yield Need(
            "files an hour",
            files,
            "files",
            f"{partitions} partitions × {load.directories:,} directories, each {load.roll:g} s",
        )
