"""Channels: what holds events between sources and sinks."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:  # type: ignore[type-arg]
    """The built-in channels."""
    from channels.kafka import KafkaChannel
    from channels.memory import MemoryChannel

    return [KafkaChannel, MemoryChannel]
