"""Channels without brokers of their own use the project's cluster."""

from __future__ import annotations

from dataclasses import replace

from agent.services import ServiceError
from agent.services.kafka import KafkaCluster
from agent.topology import AgentSpec, ChannelSpec
from plugins import FlafkaError


def with_own_cluster(spec: AgentSpec) -> AgentSpec:
    """The agent with the address of the project's cluster wherever a channel names no brokers.

    Raises FlafkaError, with the way out, where that cluster has never been started.
    """
    return replace(spec, channels=tuple(_filled(channel) for channel in spec.channels))


def _filled(channel: ChannelSpec) -> ChannelSpec:
    if getattr(channel.config, "bootstrap_servers", "") is not None:
        return channel
    try:
        servers = KafkaCluster.default().bootstrap_servers
    except ServiceError:
        raise FlafkaError(
            f"{channel.place}: {channel.path}: no kafka.bootstrap.servers, and the project's own cluster was "
            f"never started: run `agent cluster start`, or add {channel.path}.kafka.bootstrap.servers = host:port"
        ) from None
    return replace(channel, config=channel.config.model_copy(update={"bootstrap_servers": servers}))
