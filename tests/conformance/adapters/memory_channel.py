"""`memory_channel`: Flume's transactions, as puts and takes of our channel.

A put happens as a whole when its transaction is committed; a take is committed by its offset, or rewound. A full
channel blocks a put, which raises Retry after a stop.
"""

from __future__ import annotations

from typing import Any

from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Batch, Event, PolledBatch, Retry
from flafka.plugins.conformance import AssignmentListener


class _Transactions:
    def __init__(self, channel: MemoryChannel) -> None:
        self.channel = channel
        self.owner = AssignmentListener()
        self.reader = channel.reader(self.owner, group=None, member="case")
        self.puts: list[Event] = []
        self.takes: list[PolledBatch] = []

    def step(self, step: str) -> Any:
        verb, _, argument = step.partition(" ")
        match verb:
            case "put":
                self.puts.append(Event(argument.encode()))
            case "take":
                return self.take()
            case "commit":
                return self.commit()
            case "rollback":
                self.rollback()
            case "configure":
                name, _, value = argument.partition("=")
                properties = self.channel.config.model_dump(by_alias=True) | {name: value}
                self.channel.config = MemoryConfig.model_validate(properties)
        return "ok"

    def take(self) -> str | None:
        polled = self.reader.take(0)
        if polled is None:
            return None
        self.takes.append(polled)
        (event,) = polled.batch
        return event.body.decode()

    def commit(self) -> Any:
        try:
            for event in self.puts:
                self.channel.put(Batch.of([event]))
        except Retry:
            return {"error": "ChannelFullException"}
        self.puts.clear()
        if self.takes:
            last = self.takes[-1]
            self.reader.commit([last.assignment.with_offset(last.offsets.end)])
            self.takes.clear()
        return "ok"

    def rollback(self) -> None:
        self.puts.clear()
        if self.takes:
            first = self.takes[0]
            self.reader.rewind([first.assignment.with_offset(first.offsets.start)])
            self.takes.clear()


def op_memory_channel(input: dict[str, Any]) -> Any:
    """Return the result of each step."""
    config, problems = MemoryConfig.parse(input["config"])
    if config is None:
        return {"error": str(problems)}
    channel = MemoryChannel(config)
    channel.stopping.set()
    transactions = _Transactions(channel)
    return {"results": [{"step": step, "result": transactions.step(step)} for step in input["steps"]]}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors."""
    if "error" in value:
        return {"error": True}
    for result in value["results"]:
        if isinstance(result["result"], dict):
            result["result"] = {"error": True}
    return value
