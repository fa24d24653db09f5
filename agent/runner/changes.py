"""What of a running agent another configuration of it changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flafka.agent.topology import AgentSpec, ComponentSpec, Place, SinkGroupSpec, SinkSpec, SourceSpec

_NOWHERE = Place("", 0)
_UNKNOWN = "unknown"
"""Description of a part that may or may not run: it is like no other one."""
_FILE = re.compile(r"(^|[._-])(keystore|truststore|location|certificate|key[._-]?file|ca[._-]?file)", re.IGNORECASE)
"""Options that name files with certificates and keys, also where the component passes them on to a client."""


@dataclass(frozen=True)
class Unit:
    """Sinks that one thread runs: one, or those of a group."""

    sinks: tuple[SinkSpec, ...]
    group: SinkGroupSpec | None = None

    @property
    def path(self) -> str:
        """Of the group, or of the sink."""
        return self.group.path if self.group is not None else self.sinks[0].path

    @property
    def channel(self) -> str:
        """The name of the channel that they drain."""
        return self.sinks[0].channel


def units_of(spec: AgentSpec) -> list[Unit]:
    """The sinks that threads of the agent run."""
    groups = [group for group in spec.groups if len(group.sinks) > 1]
    grouped = {name for group in groups for name in group.sinks}
    sinks = {sink.name: sink for sink in spec.sinks}
    return [
        *(Unit((sink,)) for sink in spec.sinks if sink.runner == "local" and sink.name not in grouped),
        *(Unit(tuple(sinks[name] for name in group.sinks), group) for group in groups),
    ]


def on_spark(spec: AgentSpec) -> list[SinkSpec]:
    """The sinks that Spark runs."""
    return [sink for sink in spec.sinks if sink.runner == "spark"]


@dataclass(frozen=True)
class Described:
    """All that says how an agent's parts run, as it was when its configuration was read, by their paths."""

    spec: AgentSpec
    channels: Mapping[str, Any]
    """By name."""
    sources: Mapping[str, Any]
    """By name."""
    units: Mapping[str, Any]
    """By path."""
    spark: Any
    server: Any


def described(spec: AgentSpec) -> Described:
    """Describe it, with the files that its options name as they are now: to be called when it is read."""
    options = spec.options
    of_channels = options.audit_topic, options.deadletters_directory
    spark = [_of(sink) for sink in on_spark(spec)]
    settings = {name: value for name, value in options.model_dump().items() if name.startswith("spark_")}
    return Described(
        spec,
        {channel.name: (_of(channel), of_channels) for channel in spec.channels},
        {source.name: _of(source) for source in spec.sources},
        {
            unit.path: ([_of(sink) for sink in unit.sinks], unit.group and replace(unit.group, place=_NOWHERE))
            for unit in units_of(spec)
        },
        (spark, settings, of_channels) if spark else None,
        (options.monitoring_host, options.monitoring_port, options.monitoring_token),
    )


@dataclass(frozen=True)
class Changes:
    """What has to stop, and what has to start."""

    new: AgentSpec
    channels: frozenset[str]
    """Names of those that end, begin or change; the same for `sources`, and by path for `units`."""
    sources: frozenset[str]
    units: frozenset[str]
    spark: bool
    server: bool

    def __bool__(self) -> bool:
        return bool(self.channels or self.sources or self.units or self.spark or self.server)

    def __str__(self) -> str:
        """`sources s1, s2; sinks k1`, as the log tells it."""
        found = [("channels", self.channels), ("sources", self.sources)]
        told = [f"{what} {', '.join(sorted(names))}" for what, names in found if names]
        if self.units:
            told.append(f"sinks {', '.join(sorted(path.partition('.')[2].partition('.')[2] for path in self.units))}")
        told += ["the sinks on Spark"] * self.spark + ["the monitoring server"] * self.server
        return "; ".join(told) or "nothing"


def between(old: Described, new: Described) -> Changes:
    """The parts that are not the same in both, with all that depends on them.

    A channel takes its sources and sinks with it, and the other one of an overflow.
    """
    channels = _different(old.channels, new.channels)
    for spec in (*old.spec.channels, *new.spec.channels):
        pair = {spec.name, spec.overflow} if spec.overflow is not None else set()
        if pair & channels:
            channels |= pair
    sources, units = _different(old.sources, new.sources), _different(old.units, new.units)
    for one in (old.spec, new.spec):
        sources |= {source.name for source in one.sources if channels.intersection(source.channels)}
        units |= {unit.path for unit in units_of(one) if unit.channel in channels}
    drained = {sink.channel for one in (old.spec, new.spec) for sink in on_spark(one)}
    return Changes(
        *(new.spec, frozenset(channels), frozenset(sources), frozenset(units)),
        spark=old.spark != new.spark or bool(drained & channels),
        server=old.server != new.server,
    )


def everything(new: Described) -> Changes:
    """Return the changes with which an agent starts: every part begins."""
    nothing = replace(new.spec, sources=(), channels=(), sinks=(), groups=())
    return between(Described(nothing, {}, {}, {}, None, None), new)


def after_failure(described: Described, changes: Changes) -> Described:
    """Return the description of an agent in which these changes have failed: the next reload makes them again."""
    return replace(
        described,
        channels={**described.channels, **dict.fromkeys(changes.channels, _UNKNOWN)},
        sources={**described.sources, **dict.fromkeys(changes.sources, _UNKNOWN)},
        units={**described.units, **dict.fromkeys(changes.units, _UNKNOWN)},
        spark=_UNKNOWN if changes.spark else described.spark,
        server=_UNKNOWN if changes.server else described.server,
    )


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    return {name for name in old.keys() | new.keys() if name not in old or name not in new or old[name] != new[name]}


def _of(spec: ComponentSpec) -> Any:
    """What makes two components the same: everything but where they stand in the file."""
    interceptors: Iterable[ComponentSpec] = ()
    more: tuple[Any, ...] = ()
    if isinstance(spec, SourceSpec):
        interceptors, more = spec.interceptors, (spec.channels, spec.selector)
    elif isinstance(spec, SinkSpec):
        interceptors, more = spec.interceptors, (spec.channel, spec.group, spec.runner, spec.tolerance)
    own = spec.cls, spec.config, dict(spec.properties), _files(spec)
    return own, [_of(one) for one in interceptors], more


def _files(spec: ComponentSpec) -> Collection[tuple[str, Any]]:
    """The files that its options name: what they are now."""
    declared = {option.name for option in type(spec.config).options() if option.file}
    found: list[tuple[str, Any]] = []
    for name, value in spec.properties.items():
        if name in declared or _FILE.search(name):
            try:
                status = Path(value).stat()
            except (OSError, ValueError):
                found.append((name, None))
            else:
                found.append((name, (status.st_ino, status.st_size, status.st_mtime_ns)))
    return found
