"""Whose figures an agent shows: those of all its parts, of routes to channels and of interceptors."""

from __future__ import annotations

from collections.abc import Iterable

from flafka.agent.graph import metrics_of_interceptor, route_of
from flafka.agent.monitoring.registry import Registry
from flafka.agent.runner.changes import on_spark
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.runner.spark.supervisor import SparkRunner
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Metric, Metrics


def show_figures(
    registry: Registry,
    spec: AgentSpec,
    sources: Iterable[SourceRunner],
    channels: Iterable[ChannelRunner],
    sinks: Iterable[SinkRunner],
    spark: SparkRunner | None,
) -> None:
    """Show the figures of all parts, sources first. `spark` runs the sinks that `sinks` have not."""

    def intercepting(owner: SourceSpec | SinkSpec, name: str, metrics: Metrics, declared: tuple[Metric, ...]) -> None:
        registry.add("INTERCEPTOR", metrics_of_interceptor(spec, owner, name), metrics, declared)

    for source in sources:
        registry.add("SOURCE", source.spec.name, source.metrics, source.source.declared_metrics)
        for one in source.interceptors:
            intercepting(source.spec, one.name, one.metrics, one.declared_metrics)
        for channel_name, metrics in source.routed.items():
            registry.add("ROUTE", route_of(source.spec, channel_name), metrics)
    for channel in channels:
        registry.add(
            "CHANNEL", channel.name, channel.metrics, (*channel.channel.declared_metrics, *channel.declared_metrics)
        )
    for delivery in (member.delivery for runner in sinks for member in runner.members):
        registry.add("SINK", delivery.spec.name, delivery.metrics, delivery.sink.declared_metrics)
        for one in delivery.interceptors:
            intercepting(delivery.spec, one.name, one.metrics, one.declared_metrics)
    if spark is not None:
        for sink in on_spark(spec):
            registry.add("SINK", sink.name, spark.metrics[sink.name], sink.cls.declared_metrics)
            for interceptor in sink.interceptors:
                if (counted := spark.interceptors.get((sink.name, interceptor.name))) is not None:
                    intercepting(sink, interceptor.name, counted, interceptor.cls.declared_metrics)


def drained_by(
    spec: AgentSpec, sinks: Iterable[SinkRunner], spark: SparkRunner | None
) -> dict[str, list[tuple[str | None, Metrics]]]:
    """By channel: the group and the figures of each sink that drains it."""
    drained: dict[str, list[tuple[str | None, Metrics]]] = {}
    for delivery in (member.delivery for runner in sinks for member in runner.members):
        drained.setdefault(delivery.spec.channel, []).append((delivery.spec.group, delivery.metrics))
    if spark is not None:
        for sink in on_spark(spec):
            drained.setdefault(sink.channel, []).append((sink.group, spark.metrics[sink.name]))
    return drained
