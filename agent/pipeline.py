"""A configured pipeline on sample events, without servers: up to where sinks would put them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flafka.agent.runner.delivery import intercepted, opened
from flafka.agent.runner.local.routing import Selector
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Batch, Event, FlafkaError, Origin, Sink

ARRIVAL = 1_767_225_600_000
"""When events come into their channels, where a test does not say it: 2026-01-01, midnight, UTC."""


@dataclass
class PipelineOutput:
    """One event where it came to."""

    event: Event
    told: Mapping[str, Any] = field(default_factory=dict)
    """What a sink says of it: `path`, `topic`, `document`, or `rejected`."""


Outcomes = dict[str, list[PipelineOutput]]
"""By component, in the order in which events pass them: of the source, what its interceptors leave, and reject; of a
channel, what is put into it; of a sink, all that it may get of its channel."""


def source_named(spec: AgentSpec, name: str | None) -> SourceSpec:
    """The source of that name, or the only one."""
    found = [source for source in spec.sources if name in (None, source.name)]
    if len(found) != 1:
        names = ", ".join(source.name for source in spec.sources)
        raise FlafkaError(f"which source? There are: {names}" if name is None else f"no source {name}: {names}")
    return found[0]


def run(spec: AgentSpec, source: SourceSpec, events: Sequence[Event], arrival: int = ARRIVAL) -> Outcomes:
    """What becomes of these events behind that source."""
    rejected: list[PipelineOutput] = []
    with opened(source.interceptors) as interceptors:
        kept = intercepted(Batch.of(events), interceptors, rejected=_into(rejected))
    drains = [sink for sink in spec.sinks if sink.channel in source.channels]
    names = [source.name, *source.channels, *(sink.name for sink in drains)]

    def key(kind: str, name: str) -> str:
        """Its name, with its kind where another component of these has it, too."""
        return name if names.count(name) == 1 else f"{kind}.{name}"

    found: Outcomes = {key("sources", source.name): [*(PipelineOutput(event) for event in kept), *rejected]}
    found |= {key("channels", name): [] for name in source.channels}
    found |= {key("sinks", sink.name): [] for sink in drains}
    for routed in Selector(source.selector).route(kept) if len(kept) else ():
        found[key("channels", routed.channel)] += [PipelineOutput(event) for event in routed.batch]
        origin = Origin.of_records(routed.channel, 0, range(len(routed.batch)), [arrival] * len(routed.batch))
        stored = Batch.of(list(routed.batch), origin)
        for sink in drains:
            if sink.channel == routed.channel:
                found[key("sinks", sink.name)] += _at(sink, stored)
    return found


def _at(spec: SinkSpec, batch: Batch) -> list[PipelineOutput]:
    rejected: list[PipelineOutput] = []
    with opened(spec.interceptors) as interceptors:
        batch = intercepted(batch, interceptors, rejected=_into(rejected))
    sink = spec.make()
    told = sink.destinations(batch) if isinstance(sink, Sink) and len(batch) else None
    if told is None:
        return [*(PipelineOutput(event) for event in batch), *rejected]
    return [*(PipelineOutput(event, one) for event, one in zip(batch, told, strict=True)), *rejected]


def _into(outcomes: list[PipelineOutput]) -> Callable[[Batch, Sequence[str]], None]:
    """What interceptors reject comes after what they leave."""

    def add(batch: Batch, reasons: Sequence[str]) -> None:
        outcomes.extend(PipelineOutput(event, {"rejected": why}) for event, why in zip(batch, reasons, strict=True))

    return add
