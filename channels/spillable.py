"""Spillable memory channel, for configurations of Flume: a file channel that does not wait for the disk."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from flafka.channels.file import FileChannel, FileChannelConfig
from flafka.channels.file.channel import LOST, METRICS
from flafka.channels.file.compatibility import FILES, SPILLABLE
from flafka.plugins import option

MEMORY = "all events are written to files at once; recent ones are read from the page cache"


class SpillableMemoryConfig(FileChannelConfig):
    """Options of the spillable memory channel."""

    options_without_effect = MappingProxyType(
        {
            "memoryCapacity": MEMORY,
            "byteCapacity": MEMORY,
            "byteCapacityBufferPercentage": MEMORY,
            "avgEventSize": MEMORY,
            "overflowTimeout": MEMORY,
            "overflowDeactivationThreshold": MEMORY,
            "capacity": "overflowCapacity counts",
        }
    )
    capacity: int = option(
        100_000_000,
        name="overflowCapacity",
        unit="events",
        description="Maximum number of events in the channel. Sources wait while it is full. 0 or less is the "
        "default.",
    )


class SpillableMemoryChannel(FileChannel):
    """Stores events in files on this host without waiting for the disk: as fast as memory, but safe from kills.

    Flume's channel of this name stores events in memory until that is full, and loses them with the process. Here,
    only a power failure loses events: the ones of the last seconds, which the system had not written to the disk.
    Otherwise, the channel is a channel `file`.
    """

    type_name = "SPILLABLEMEMORY"
    aliases = ("org.apache.flume.channel.SpillableMemoryChannel",)
    compatibility_notes = (*FILES, *SPILLABLE)
    config_class = SpillableMemoryConfig
    declared_metrics = (*(replace(metric, shown="known") for metric in METRICS), LOST)
    synced = False
