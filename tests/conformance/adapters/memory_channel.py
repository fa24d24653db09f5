"""`memory_channel`: Flume's transactions, as puts and takes of our channel.

A put happens as a whole when its transaction is committed; a take is committed by position, or rewound. A channel
that is full makes a put wait; told to stop, it says Retry instead.
"""

from __future__ import annotations

from typing import Any

from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Batch, Event, Retry, Taken
from flafka.plugins.conformance import ClaimsListener


class _Transactions:
    def __init__(self, channel: MemoryChannel) -> None:
        self.channel = channel
        self.owner = ClaimsListener()
        self.reader = channel.reader(self.owner, group=None, member="case")
        self.puts: list[Event] = []
        self.takes: list[Taken] = []

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
        taken = self.reader.take(0)
        if taken is None:
            return None
        self.takes.append(taken)
        (event,) = taken.batch
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
            self.reader.commit({self.owner.claims[last.partition]: last.end})
            self.takes.clear()
        return "ok"

    def rollback(self) -> None:
        self.puts.clear()
        if self.takes:
            self.reader.rewind({self.takes[0].partition: self.takes[0].start})
            self.takes.clear()


def op_memory_channel(input: dict[str, Any]) -> Any:
    """The result of each step."""
    config, problems = MemoryConfig.parse(input["config"])
    if config is None:
        return {"error": str(problems)}
    channel = MemoryChannel(config)
    channel.stopping.set()
    transactions = _Transactions(channel)
    return {"results": [{"step": step, "result": transactions.step(step)} for step in input["steps"]]}


def normalise(op: str, value: Any) -> Any:
    """That it fails is the same, in other words than Java's."""
    if "error" in value:
        return {"error": True}
    for result in value["results"]:
        if isinstance(result["result"], dict):
            result["result"] = {"error": True}
    return value
