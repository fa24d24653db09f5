"""Channels, which store events between sources and sinks."""

from flafka.plugins import Component, hookimpl

MODULES = {"spillablememory": "spillable"}
"""Modules of types that are not named by their type."""


@hookimpl
def components() -> list[type[Component]]:
    """Return the built-in channels."""
    from flafka.channels.file import FileChannel
    from flafka.channels.kafka import KafkaChannel
    from flafka.channels.memory import MemoryChannel
    from flafka.channels.spillable import SpillableMemoryChannel

    return [FileChannel, KafkaChannel, MemoryChannel, SpillableMemoryChannel]
