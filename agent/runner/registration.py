"""Registration of the metrics of an agent's components, of routes to channels, and of interceptors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flafka.agent.graph import metrics_of_interceptor, route_of
from flafka.agent.monitoring.registry import Registry
from flafka.agent.runner.changes import spark_sinks
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Metric, Metrics

if TYPE_CHECKING:
    from flafka.agent.runner.spark.supervisor import SparkRunner


def register_metrics(
    registry: Registry,
    spec: AgentSpec,
    sources: Iterable[SourceRunner],
    channels: Iterable[ChannelRunner],
    sinks: Iterable[SinkRunner],
    spark: SparkRunner | None,
) -> None:
    """Add the metrics of all components, with their routes and interceptors, to `registry`, sources first.

    `spark` is the runner of the sinks on Spark; None without such sinks.
    """

    def add_interceptor(
        owner: SourceSpec | SinkSpec, name: str, metrics: Metrics, declared: tuple[Metric, ...]
    ) -> None:
        registry.add("INTERCEPTOR", metrics_of_interceptor(spec, owner, name), metrics, declared)

    for source in sources:
        registry.add("SOURCE", source.spec.name, source.metrics, source.source.declared_metrics)
        for interceptor in source.interceptors:
            add_interceptor(source.spec, interceptor.name, interceptor.metrics, interceptor.declared_metrics)
        for channel_name, metrics in source.routed.items():
            registry.add("ROUTE", route_of(source.spec, channel_name), metrics)
    for channel in channels:
        registry.add(
            "CHANNEL", channel.name, channel.metrics, (*channel.channel.declared_metrics, *channel.declared_metrics)
        )
    for delivery in (member.delivery for runner in sinks for member in runner.members):
        registry.add("SINK", delivery.spec.name, delivery.metrics, delivery.sink.declared_metrics)
        for interceptor in delivery.interceptors:
            add_interceptor(delivery.spec, interceptor.name, interceptor.metrics, interceptor.declared_metrics)
    if spark is not None:
        for sink in spark_sinks(spec):
            registry.add("SINK", sink.name, spark.metrics[sink.name], sink.cls.declared_metrics)
            for spec_of_interceptor in sink.interceptors:
                name, declared = spec_of_interceptor.name, spec_of_interceptor.cls.declared_metrics
                if (own := spark.interceptors.get((sink.name, name))) is not None:
                    add_interceptor(sink, name, own, declared)


def sink_metrics_by_channel(
    spec: AgentSpec, sinks: Iterable[SinkRunner], spark: SparkRunner | None
) -> dict[str, list[tuple[str | None, Metrics]]]:
    """Return name of a channel → consumer group and metrics of each sink on that channel.

    The group is None for the default group of the channel. `spark` is the runner of the sinks on Spark, or None.
    """
    by_channel: dict[str, list[tuple[str | None, Metrics]]] = {}
    for delivery in (member.delivery for runner in sinks for member in runner.members):
        by_channel.setdefault(delivery.spec.channel, []).append((delivery.spec.group, delivery.metrics))
    if spark is not None:
        for sink in spark_sinks(spec):
            by_channel.setdefault(sink.channel, []).append((sink.group, spark.metrics[sink.name]))
    return by_channel
