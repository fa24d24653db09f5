"""Kafka core of channel, source, sink, dead letters, audit and commands: clients, offsets and consumer threads."""
