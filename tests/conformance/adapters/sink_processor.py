"""`sink_processor`: the sink of a group that gets each batch."""

from __future__ import annotations

from typing import Any

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties
from flafka.agent.config.properties import Property
from flafka.agent.config.sinkgroups import SinkGroupReader
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinkprocessors import sink_processor_of
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import ConfigLocation, SinkSpec
from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Batch, Config, Event, Retry, Sink

PLACE = ConfigLocation("case", 1)


class Scripted(Sink[Config]):
    """Sink that fails on request."""

    type_name = "scripted"
    batch_size = 1
    failing = False

    def write(self, batch: Batch) -> None:
        if self.failing:
            raise Retry("told to fail")


def op_sink_group(input: dict[str, Any]) -> Any:
    """Return the sink that delivered at each call of `process`."""
    report = DiagnosticCollector("normal")
    specs = {
        name: SinkSpec(name, f"a.sinks.{name}", Scripted, Config(), {}, PLACE, channel="m") for name in input["sinks"]
    }
    texts = {"sinks": " ".join(specs)} | {f"processor.{name}": value for name, value in input["config"].items()}
    lines = {name: Property(f"a.sinkgroups.g.{name}", value, PLACE) for name, value in texts.items()}
    group = SinkGroupReader(
        ComponentProperties("sink group", "g", "a.sinkgroups.g", PLACE, lines), specs, {}, report
    ).read()
    if group is None or report.has_errors:
        return {"error": [str(diagnostic) for diagnostic in report.diagnostics()]}
    channel = ChannelRunner("a.channels.m", "m", MemoryChannel(MemoryConfig(), "m"))
    letters: Any = None
    runner = SinkRunner([specs[name] for name in group.sinks], channel, letters, "member", group)
    now = 0.0
    runner.processor = sink_processor_of(group.processor, group.sinks, lambda: now)
    runner.open()
    handled: list[str] = []
    for step in input["steps"]:
        verb, _, argument = step.partition(" ")
        if verb == "process":
            handled += [_process(runner, channel.channel) for _ in range(int(argument))]
        elif verb == "sleep":
            now += int(argument) / 1000
        else:  # an idle sink counts as working: it is called only when there are events
            for sink in runner.members:
                if sink.name == argument:
                    sink.sink.failing = verb == "fail"
    runner.close()
    return {"processed_by": handled}


def _process(runner: SinkRunner, channel: Any) -> str:
    """Let the group deliver one event; after a failed call it delivers that event."""
    if not channel.metrics.get("ChannelSize"):
        channel.put(Batch.of([Event(b"")]))
    before = {sink.name: sink.metrics.get("EventDrainSuccessCount") for sink in runner.members}
    while runner.run_turn():
        for sink in runner.members:
            if sink.metrics.get("EventDrainSuccessCount") > before[sink.name]:
                return sink.name
    return "EventDeliveryException"


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors."""
    return {"error": True} if "error" in value else value
