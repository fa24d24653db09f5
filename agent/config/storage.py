"""Checks of storage across components: shared files, disks that executors cannot reach, and volatile channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flafka.agent.config.kafka import SinkChannels, SpecMessage
from flafka.agent.options import is_local_master
from flafka.agent.topology import ComponentSpec, SinkSpec
from flafka.plugins import CommittingSink, StreamingSink


def shared_resources(specs: Iterable[ComponentSpec]) -> Iterator[SpecMessage]:
    """Yield an error for each exclusive resource of a component that an earlier component in `specs` uses, too."""
    owners: dict[Path, str] = {}
    for spec in specs:
        resources: Any = spec.make().exclusive_resources()
        if not isinstance(resources, Mapping):  # an older plugin returns paths without options
            resources = dict.fromkeys(resources, "")
        for path, option in resources.items():
            owner = owners.setdefault(path.absolute(), spec.path)
            if owner != spec.path:
                remedy = f"; set {spec.path}.{option} = … to another path" if option else ""
                yield spec, f"{option} {path} is in use by {owner}: each component needs its own{remedy}".strip()


def unreachable_from_executors(sinks: Iterable[SinkSpec], master: str) -> Iterator[SpecMessage]:
    """Yield an error for each sink whose state or files are on a local disk although Spark's `master` is a cluster.

    The executors of a cluster have a disk each, and cannot read what another one has written. Empty for a local
    master.
    """
    for spec in [] if is_local_master(master) else sinks:
        condition, sink = f"with spark.master = {master}", spec.make()
        if isinstance(sink, StreamingSink):
            if sink.checkpoint is None:
                yield spec, f"{condition} it needs a checkpoint that the executors can reach: hdfs://host:port/…"
        elif spec.runner == "spark" and isinstance(sink, CommittingSink) and sink.commit_log.startswith("file:"):
            yield spec, f"{condition} each executor would write to its own disk: write to hdfs://…"


def volatile_channels(bindings: SinkChannels) -> Iterator[SpecMessage]:
    """Yield a warning for each sink that leaves events for a while in a channel that loses them with the process."""
    for spec, channel in bindings:
        if channel.make().durable or not issubclass(spec.cls, CommittingSink):
            continue
        if until := spec.make().commit_condition():
            # Without component names, the text is the same for all sinks, and `migrate` shows it once.
            kind = f"leaves its events in a channel of type {channel.cls.type_name} {until}"
            loss = "which loses them if the agent is killed (Flume has them in a .tmp file)"
            yield spec, f"{kind}, {loss}: write type = file for that channel"
