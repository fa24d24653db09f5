"""Sizing model of `agent size`: the resources for a load, computed from the costs on one machine.

The costs are in `costs.toml`, each measured or assumed. The formulas are in docs/performance.md.
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
"""Share of a disk that stays free, since brokers delete whole segments only."""
HOUR_SECONDS = 3600


@dataclass(frozen=True)
class Load:
    """Load, and the configuration that carries it."""

    events: float
    """Events per second."""
    bytes: float
    """Size of an event."""
    hosts: int = 1
    """Number of sending hosts."""
    source: str = "syslog"
    masks: int = 1
    """Number of masking interceptors."""
    sink: str = "hdfs-text"
    runner: str = "local"
    retention: float = 168
    """Retention of the topics, in hours."""
    replication: int = 3
    busy: float = 0.5
    """Utilization of cores and readers, from 0 to 1. The remainder is for peaks and for catching up."""
    roll: float = 300
    """Roll interval of files, or trigger interval on Spark, in seconds."""
    directories: int = 1
    """Number of directories with open files at the same time, such as one for each host."""


class Requirement(NamedTuple):
    """Required amount of one resource."""

    resource: str
    amount: float
    unit: str
    formula: str
    """Formula with its numbers."""


def batch_rate(events: float, linger: float) -> float:
    """Return the batches per second that a process makes of events per second, with a linger in seconds."""
    return events / (1 + events * linger)


def read_costs(file: Path = COSTS) -> Mapping[str, Any]:
    """Return the tables of a TOML file of costs. Raises FlafkaError if it cannot be read or parsed."""
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FlafkaError(f"{file} is not a file of costs: {reason}; copy and change {COSTS}") from None


def requirements(load: Load, cost: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yield the resources that a load requires, each with its formula. Raises FlafkaError if a cost is missing."""
    try:
        yield from _requirements(load, cost)
    except KeyError as e:
        raise FlafkaError(
            f"the file of costs has no {e.args[0]} for {load.source}, {load.sink} on {load.runner}: add it"
        ) from e


def _requirements(load: Load, cost: Mapping[str, Any]) -> Iterator[Requirement]:
    source, sink = cost["source"][load.source], cost["sink"][load.sink]
    process, kafka, mask = cost["process"], cost["kafka"], cost["mask"]["event"]
    is_local = load.runner == "local"
    event_micros = source["event"] + source["byte"] * load.bytes + load.masks * mask
    terms = f"{source['event']:g} + {source['byte']:g} × {load.bytes:g} bytes + {load.masks} × {mask:g}"
    batch_micros, broker_micros = process["batch"], kafka["batch"]
    if is_local:
        event_micros += sink["event"]
        terms += f" + {sink['event']:g} for the sink"
        batch_micros += process["delivery"]
        broker_micros += kafka["delivery"]
    event_cores = load.events * event_micros / 1e6
    processes = math.ceil(max(event_cores / load.busy / process["cores"], load.hosts / process["connections"]))
    # A batch takes what arrives within the linger from its first event on.
    batches = processes * batch_rate(load.events / processes, process["linger"])
    yield Requirement(
        "cores of agents",
        (event_cores + batches * batch_micros / 1e6 + processes * process["idle"]) / load.busy,
        "cores",
        f"({load.events:,.0f}/s × ({terms}) µs + {batches:,.3g} batches/s × {batch_micros:,.4g} µs + "
        f"{processes} agents × {process['idle']:g}) / {load.busy:.0%}",
    )
    yield Requirement(
        "agents",
        processes,
        "processes",
        f"{process['cores']:g} cores and {process['connections']:,} connections each",
    )

    bytes_per_second = load.events * load.bytes
    broker_cores = (bytes_per_second * kafka["byte"] + batches * broker_micros) / 1e6
    # An idle broker takes a share of its own cores.
    brokers = max(load.replication, math.ceil(broker_cores / (load.busy * kafka["cores"] - kafka["idle"])))
    yield Requirement(
        "cores of brokers",
        (broker_cores + brokers * kafka["idle"]) / load.busy,
        "cores",
        f"({bytes_per_second:,.0f} bytes/s × {kafka['byte']:g} µs + {batches:,.3g} batches/s × "
        f"{broker_micros:,.4g} µs + {brokers} brokers × {kafka['idle']:g}) / {load.busy:.0%}",
    )
    yield Requirement("brokers", brokers, "servers", f"{kafka['cores']} cores each, at least one for each replica")

    if is_local:
        readers = load.events / (sink["reader"] * load.busy)
        formula = (
            f"{load.events:,.0f}/s / ({sink['reader']:,}/s of a reader × {load.busy:.0%}), a multiple of brokers"
        )
    else:
        core_events = cost["spark"][load.sink]["core"]
        readers = load.events / (core_events * load.busy)
        formula = (
            f"one for each core that is busy with events, a multiple of brokers: {core_events:,}/s × {load.busy:.0%}"
        )
    partitions = max(brokers, math.ceil(readers / brokers) * brokers)
    yield Requirement("partitions", partitions, "partitions", formula)

    stored_per_second = bytes_per_second * kafka["stored"] * load.replication
    disk_bytes = stored_per_second * load.retention * HOUR_SECONDS / (1 - SPARE_DISK)
    yield Requirement(
        "disk of brokers",
        disk_bytes / 1e9,
        "GB",
        f"{bytes_per_second / 1e6:,.1f} MB/s × {kafka['stored']:g} × {load.replication} replicas × "
        f"{load.retention:g} h, {SPARE_DISK:.0%} free",
    )
    if not is_local:
        executors, driver = cost["spark"]["executors"], cost["spark"]["driver"]
        yield Requirement(
            "cores of executors",
            (load.events / core_events + executors["base"] + executors["batch"] / load.roll) / load.busy,
            "cores",
            f"({load.events:,.0f}/s / {core_events:,}/s of a core + {executors['base']:g} + {executors['batch']:g} s "
            f"for a micro-batch each {load.roll:g} s) / {load.busy:.0%}",
        )
        yield Requirement(
            "cores of the driver",
            (driver["base"] + driver["batch"] / load.roll) / load.busy,
            "cores",
            f"({driver['base']:g} + {driver['batch']:g} s for a micro-batch each {load.roll:g} s) / {load.busy:.0%}",
        )
    if load.sink.startswith("hdfs"):
        files = partitions * load.directories * HOUR_SECONDS / load.roll
        yield Requirement(
            "files an hour",
            files,
            "files",
            f"{partitions} partitions × {load.directories:,} directories, each {load.roll:g} s",
        )
