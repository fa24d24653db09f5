"""Default of `kafka.bootstrap.servers`: the brokers of `agent cluster`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, cast

from flafka.agent.jvm import ServiceError
from flafka.agent.topology import AgentSpec, ComponentSpec
from flafka.plugins import FlafkaError
from flafka.plugins.kafka.config import KafkaClientConfig

Spec = TypeVar("Spec", bound=ComponentSpec)


def with_default_brokers(spec: AgentSpec, *, verify_cluster: bool = False) -> AgentSpec:
    """Return the agent with the address of the project's cluster in each Kafka component that names no brokers.

    Such a component refuses another cluster on open. `verify_cluster` checks the cluster now, for a command that does
    not open its components. Raises FlafkaError if the project's cluster was never started, or if `verify_cluster`
    finds another one. No effect if all components name brokers.
    """
    if verify_cluster and any(
        _lacks_brokers(component) for component in (*spec.sources, *spec.channels, *spec.sinks)
    ):
        _refuse_another_cluster()
    return replace(
        spec,
        sources=tuple(map(_with_brokers, spec.sources)),
        channels=tuple(map(_with_brokers, spec.channels)),
        sinks=tuple(map(_with_brokers, spec.sinks)),
    )


def _with_brokers(component: Spec) -> Spec:
    """Return a component with the project's cluster if it names no brokers.

    Raises FlafkaError if it was never started.
    """
    if not _lacks_brokers(component):
        return component
    # A late import: the modules that start servers are not needed by most configurations.
    from flafka.agent.services.kafka import KafkaCluster

    own = KafkaCluster.default()
    try:
        config = cast(KafkaClientConfig, component.config).of_cluster(own.bootstrap_servers, own.cluster_id)
    except ServiceError:
        raise FlafkaError(
            f"{component.place}: {component.path}: kafka.bootstrap.servers is not set, and the cluster of `agent "
            "cluster start` was never started: run `agent cluster start`, or add "
            f"{component.path}.kafka.bootstrap.servers = host:port"
        ) from None
    return replace(component, config=config)


def _lacks_brokers(component: ComponentSpec) -> bool:
    """Return True for a Kafka component without `kafka.bootstrap.servers`."""
    return getattr(component.config, "bootstrap_servers", "") is None


def _refuse_another_cluster() -> None:
    """Raise FlafkaError if another cluster answers on the ports of the project's cluster."""
    from flafka.agent.services.kafka import KafkaCluster

    with suppress(ServiceError):  # never started: `_with_brokers` raises an error that names the component
        if foreign := KafkaCluster.default().find_foreign_cluster():
            raise FlafkaError(f"{foreign}\n  to use it, name its brokers: kafka.bootstrap.servers")
