"""Kafka channels, sources and sinks without brokers of their own use the project's cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, cast

from flafka.agent.jvm import ServiceError
from flafka.agent.topology import AgentSpec, ComponentSpec
from flafka.plugins import FlafkaError
from flafka.plugins.kafka.config import KafkaEndConfig

Spec = TypeVar("Spec", bound=ComponentSpec)


def with_own_cluster(spec: AgentSpec, *, ask: bool = False) -> AgentSpec:
    """The agent with the address of the project's cluster wherever a Kafka component names no brokers.

    Those refuse the brokers of another cluster when they are opened; `ask` is for who does not open them. Raises
    FlafkaError, with the way out, where that cluster has never been started, or another one answers.
    """
    if ask and any(_unnamed(component) for component in (*spec.sources, *spec.channels, *spec.sinks)):
        _ask()
    return replace(
        spec,
        sources=tuple(map(_filled, spec.sources)),
        channels=tuple(map(_filled, spec.channels)),
        sinks=tuple(map(_filled, spec.sinks)),
    )


def _filled(component: Spec) -> Spec:
    if not _unnamed(component):
        return component
    from flafka.agent.services.kafka import (
        KafkaCluster,  # brings what starts servers, which most configurations do not need
    )

    own = KafkaCluster.default()
    try:
        config = cast(KafkaEndConfig, component.config).of_cluster(own.bootstrap_servers, own.cluster_id)
    except ServiceError:
        raise FlafkaError(
            f"{component.place}: {component.path}: kafka.bootstrap.servers is not set, and the cluster of `agent "
            "cluster start` was never started: run `agent cluster start`, or add "
            f"{component.path}.kafka.bootstrap.servers = host:port"
        ) from None
    return replace(component, config=config)


def _unnamed(component: ComponentSpec) -> bool:
    return getattr(component.config, "bootstrap_servers", "") is None


def _ask() -> None:
    from flafka.agent.services.kafka import KafkaCluster

    with suppress(ServiceError):  # never started: the component that needs it says so
        if foreign := KafkaCluster.default().foreign_answer():
            raise FlafkaError(f"{foreign}\n  if it is the one you mean, name its brokers: kafka.bootstrap.servers")
