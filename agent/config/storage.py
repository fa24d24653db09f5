"""What only the whole agent shows about where its components write: files of two, and what no executor reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flafka.agent.config.kafka import Drains
from flafka.agent.options import is_local
from flafka.agent.topology import ComponentSpec, SinkSpec
from flafka.plugins import CommittingSink, StreamingSink

Error = tuple[ComponentSpec, str]


def shared(specs: Iterable[ComponentSpec]) -> Iterator[Error]:
    """A sentence for each component that would write the same files as one before it."""
    owners: dict[Path, str] = {}
    for spec in specs:
        kept: Any = spec.make().exclusive_resources()
        if not isinstance(kept, Mapping):  # a plugin of before, which names no options
            kept = dict.fromkeys(kept, "")
        for path, option in kept.items():
            owner = owners.setdefault(path.absolute(), spec.path)
            if owner != spec.path:
                write = f"; write {spec.path}.{option} = …" if option else ""
                yield spec, f"{option} {path} is that of {owner}: each needs its own{write}".strip()


def out_of_reach(sinks: Iterable[SinkSpec], master: str) -> Iterator[Error]:
    """A sentence for each sink whose state or files lie on the disk of whoever writes them, while a cluster runs it:
    they have to be where all executors reach them."""
    for spec in [] if is_local(master) else sinks:
        needs, sink = f"with spark.master = {master}", spec.make()
        if isinstance(sink, StreamingSink):
            if sink.checkpoint is None:
                yield spec, f"{needs} it needs a checkpoint that the executors can reach: hdfs://host:port/…"
        elif spec.runner == "spark" and isinstance(sink, CommittingSink) and sink.commit_log.startswith("file:"):
            yield spec, f"{needs} each executor would write to its own disk: write to hdfs://…"


def volatile(drains: Drains) -> Iterator[Error]:
    """A sentence for each sink that leaves events to a channel which loses them with the process."""
    for spec, channel in drains:
        if channel.make().durable or not issubclass(spec.cls, CommittingSink):
            continue
        if until := spec.make().commit_condition():
            # Without names, so that the warning is the same for all sinks and `migrate` shows it once.
            kind = f"leaves its events to a channel of type {channel.cls.type_name} {until}"
            lost = "which loses them where the agent is killed (Flume has them in a .tmp file)"
            yield spec, f"{kind}, {lost}: write type = file for that channel"
