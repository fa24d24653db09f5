"""Run of a configured pipeline on sample events, up to the destinations in stores, without servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flafka.agent.runner.delivery import intercept, open_interceptors
from flafka.agent.runner.local.routing import Selector
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Batch, Event, FlafkaError, Origin, Sink

ARRIVAL_MILLISECONDS = 1_767_225_600_000
"""Default arrival of events in their channels, in milliseconds since the epoch: 2026-01-01T00:00:00Z."""


@dataclass
class PipelineOutput:
    """One event at a component."""

    event: Event
    destination: Mapping[str, Any] = field(default_factory=dict)
    """Destination in the sink's store, such as `path`, `topic` or `document`; or the reason as `rejected`."""


PipelineOutputs = dict[str, list[PipelineOutput]]
"""Component → its events, in the order in which events pass components.

Source: events behind its interceptors, then rejected ones. Channel: events put. Sink: all events of its channel.
"""


def find_source(spec: AgentSpec, name: str | None) -> SourceSpec:
    """Return the source of that name, or the only source for None. Raises FlafkaError."""
    sources = [source for source in spec.sources if name in (None, source.name)]
    if len(sources) != 1:
        names = ", ".join(source.name for source in spec.sources)
        raise FlafkaError(f"which source? There are: {names}" if name is None else f"no source {name}: {names}")
    return sources[0]


def run_pipeline(
    spec: AgentSpec, source: SourceSpec, events: Sequence[Event], arrival: int = ARRIVAL_MILLISECONDS
) -> PipelineOutputs:
    """Return the events at the source, and at each of its channels and their sinks, without opening any.

    `arrival` is the time at which channels take the events, in ms since the epoch. Interceptors are opened. Raises
    their errors.
    """
    rejected: list[PipelineOutput] = []
    with open_interceptors(source.interceptors) as interceptors:
        kept = intercept(Batch.of(events), interceptors, rejected=_collect_rejected(rejected))
    drains = [sink for sink in spec.sinks if sink.channel in source.channels]
    names = [source.name, *source.channels, *(sink.name for sink in drains)]

    def key(kind: str, name: str) -> str:
        """Return the name, with the kind if another component on the way has the same name."""
        return name if names.count(name) == 1 else f"{kind}.{name}"

    outputs: PipelineOutputs = {key("sources", source.name): [*(PipelineOutput(event) for event in kept), *rejected]}
    outputs |= {key("channels", name): [] for name in source.channels}
    outputs |= {key("sinks", sink.name): [] for sink in drains}
    for routed in Selector(source.selector).route(kept) if len(kept) else ():
        outputs[key("channels", routed.channel)] += [PipelineOutput(event) for event in routed.batch]
        origin = Origin.of_records(routed.channel, 0, range(len(routed.batch)), [arrival] * len(routed.batch))
        stored = Batch.of(list(routed.batch), origin)
        for sink in drains:
            if sink.channel == routed.channel:
                outputs[key("sinks", sink.name)] += _sink_outputs(sink, stored)
    return outputs


def _sink_outputs(spec: SinkSpec, batch: Batch) -> list[PipelineOutput]:
    """Return the events of a batch at a sink with their destinations, then events that its interceptors reject."""
    rejected: list[PipelineOutput] = []
    with open_interceptors(spec.interceptors) as interceptors:
        batch = intercept(batch, interceptors, rejected=_collect_rejected(rejected))
    sink = spec.make()
    destinations = sink.destinations(batch) if isinstance(sink, Sink) and len(batch) else None
    if destinations is None:
        return [*(PipelineOutput(event) for event in batch), *rejected]
    delivered = [PipelineOutput(event, to) for event, to in zip(batch, destinations, strict=True)]
    return [*delivered, *rejected]


def _collect_rejected(outputs: list[PipelineOutput]) -> Callable[[Batch, Sequence[str]], None]:
    """Return a callback for `intercept` that appends rejected events with their reasons to `outputs`."""

    def add(batch: Batch, reasons: Sequence[str]) -> None:
        outputs.extend(
            PipelineOutput(event, {"rejected": reason}) for event, reason in zip(batch, reasons, strict=True)
        )

    return add
