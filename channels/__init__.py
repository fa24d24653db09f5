"""Channels: what holds events between sources and sinks."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """The built-in channels."""
    from channels.file import FileChannel
    from channels.kafka import KafkaChannel
    from channels.memory import MemoryChannel
    from channels.spillable import SpillableMemoryChannel

    return [FileChannel, KafkaChannel, MemoryChannel, SpillableMemoryChannel]
