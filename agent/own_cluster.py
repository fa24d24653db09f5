"""Kafka channels, sources and sinks without brokers of their own use the project's cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from agent.services import ServiceError
from agent.services.kafka import KafkaCluster
from agent.topology import AgentSpec, ComponentSpec
from plugins import FlafkaError

Spec = TypeVar("Spec", bound=ComponentSpec)


def with_own_cluster(spec: AgentSpec) -> AgentSpec:
    """The agent with the address of the project's cluster wherever a Kafka component names no brokers.

    Raises FlafkaError, with the way out, where that cluster has never been started.
    """
    return replace(
        spec,
        sources=tuple(map(_filled, spec.sources)),
        channels=tuple(map(_filled, spec.channels)),
        sinks=tuple(map(_filled, spec.sinks)),
    )


def _filled(component: Spec) -> Spec:
    if getattr(component.config, "bootstrap_servers", "") is not None:
        return component
    try:
        servers = KafkaCluster.default().bootstrap_servers
    except ServiceError:
        raise FlafkaError(
            f"{component.place}: {component.path}: no kafka.bootstrap.servers, and the project's own cluster was "
            f"never started: run `agent cluster start`, or add {component.path}.kafka.bootstrap.servers = host:port"
        ) from None
    return replace(component, config=component.config.model_copy(update={"bootstrap_servers": servers}))
