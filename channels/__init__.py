"""Channels, which store events between sources and sinks."""

from flafka.plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """Return the built-in channels."""
    from flafka.channels.file import FileChannel
    from flafka.channels.kafka import KafkaChannel
    from flafka.channels.memory import MemoryChannel
    from flafka.channels.spillable import SpillableMemoryChannel

    return [FileChannel, KafkaChannel, MemoryChannel, SpillableMemoryChannel]
