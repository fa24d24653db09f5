"""Changes that another configuration makes to a running agent."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flafka.agent.options import AgentOptions
from flafka.agent.topology import AgentSpec, ComponentSpec, ConfigLocation, SinkGroupSpec, SinkSpec, SourceSpec

_NOWHERE = ConfigLocation("", 0)
_UNKNOWN = "unknown"
"""Identity of a component that may or may not run: it differs from any other."""
_FILE = re.compile(r"(^|[._-])(keystore|truststore|location|certificate|key[._-]?file|ca[._-]?file)", re.IGNORECASE)
"""Names of options for files with certificates and keys, including those that are passed on to a client."""
_KEYSTORES = ("FLUME_SSL_KEYSTORE_PATH", "FLUME_SSL_TRUSTSTORE_PATH")
"""Environment variables that name keystores where no option does."""


@dataclass(frozen=True)
class SinkUnit:
    """Sinks that one thread runs: a single sink, or all sinks of a sink group."""

    sinks: tuple[SinkSpec, ...]
    group: SinkGroupSpec | None = None

    @property
    def path(self) -> str:
        """Path of the sink group; without a group, path of the only sink."""
        return self.group.path if self.group is not None else self.sinks[0].path

    @property
    def channel(self) -> str:
        """Name of the channel that the sinks drain."""
        return self.sinks[0].channel


def sink_units(spec: AgentSpec) -> list[SinkUnit]:
    """Return the sinks that run in the agent's process, one unit for each thread.

    Sinks without a group come first, then groups. A group of one sink counts as that sink. Sinks on Spark are left
    out.
    """
    groups = [group for group in spec.groups if len(group.sinks) > 1]
    grouped = {name for group in groups for name in group.sinks}
    sinks = {sink.name: sink for sink in spec.sinks}
    return [
        *(SinkUnit((sink,)) for sink in spec.sinks if sink.runner == "local" and sink.name not in grouped),
        *(SinkUnit(tuple(sinks[name] for name in group.sinks), group) for group in groups),
    ]


def spark_sinks(spec: AgentSpec) -> list[SinkSpec]:
    """Return the sinks with `runner = spark`, in the order of the file."""
    return [sink for sink in spec.sinks if sink.runner == "spark"]


@dataclass(frozen=True)
class Snapshot:
    """Identities of an agent's components when its configuration was read. Equal identities need no restart."""

    spec: AgentSpec
    channels: Mapping[str, Any]
    """Identities of channels by name."""
    sources: Mapping[str, Any]
    """Identities of sources by name."""
    units: Mapping[str, Any]
    """Identities of sink units by path."""
    spark: Any
    """Identity of the Spark runner with all its sinks; None without one."""
    server: Any
    """Identity of the monitoring server."""


def take_snapshot(spec: AgentSpec) -> Snapshot:
    """Return the identities of all components of a configuration that was just read.

    They include inode, size and modification time of the files that options name, such as certificates. A changed
    file is therefore a changed component.
    """
    options = spec.options
    of_channels = options.audit_topic, options.deadletters_directory
    spark = [_identity(sink) for sink in spark_sinks(spec)]
    settings = {name: value for name, value in options.model_dump().items() if name.startswith("spark_")}
    return Snapshot(
        spec,
        {channel.name: (_identity(channel), of_channels) for channel in spec.channels},
        {source.name: _identity(source) for source in spec.sources},
        {
            unit.path: ([_identity(sink) for sink in unit.sinks], unit.group and replace(unit.group, place=_NOWHERE))
            for unit in sink_units(spec)
        },
        (spark, settings, of_channels) if spark else None,
        (options.monitoring_host, options.monitoring_port, options.monitoring_token, *_certificate(options)),
    )


@dataclass(frozen=True)
class Changes:
    """Components that have to stop, start or restart for a new configuration."""

    new: AgentSpec
    channels: frozenset[str]
    """Names of the channels."""
    sources: frozenset[str]
    """Names of the sources."""
    units: frozenset[str]
    """Paths of the sink units."""
    spark: bool
    """True if the Spark runner has to restart."""
    server: bool
    """True if the monitoring server has to restart."""

    def __bool__(self) -> bool:
        return bool(self.channels or self.sources or self.units or self.spark or self.server)

    def __str__(self) -> str:
        """Return the text for the log, such as `sources s1, s2; sinks k1`."""
        by_kind = [("channels", self.channels), ("sources", self.sources)]
        texts = [f"{kind} {', '.join(sorted(names))}" for kind, names in by_kind if names]
        if self.units:
            names = sorted(path.partition(".")[2].partition(".")[2] for path in self.units)
            texts.append(f"sinks {', '.join(names)}")
        texts += ["the sinks on Spark"] * self.spark + ["the monitoring server"] * self.server
        return "; ".join(texts) or "nothing"


def changes_between(old: Snapshot, new: Snapshot) -> Changes:
    """Return the components that were added, removed or changed, and the components that depend on one of these.

    Sources and sinks depend on their channels. A channel and its overflow depend on each other. If one sink on Spark
    changes, the Spark runner restarts with all its sinks.
    """
    channels = _changed(old.channels, new.channels)
    for spec in (*old.spec.channels, *new.spec.channels):
        pair = {spec.name, spec.overflow} if spec.overflow is not None else set()
        if pair & channels:
            channels |= pair
    sources, units = _changed(old.sources, new.sources), _changed(old.units, new.units)
    for agent in (old.spec, new.spec):
        sources |= {source.name for source in agent.sources if channels.intersection(source.channels)}
        units |= {unit.path for unit in sink_units(agent) if unit.channel in channels}
    spark_channels = {sink.channel for agent in (old.spec, new.spec) for sink in spark_sinks(agent)}
    return Changes(
        *(new.spec, frozenset(channels), frozenset(sources), frozenset(units)),
        spark=old.spark != new.spark or bool(spark_channels & channels),
        server=old.server != new.server,
    )


def initial_changes(new: Snapshot) -> Changes:
    """Return changes that contain all components of `new`, for the start of an agent."""
    empty = replace(new.spec, sources=(), channels=(), sinks=(), groups=())
    return changes_between(Snapshot(empty, {}, {}, {}, None, None), new)


def after_failure(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """Return the snapshot of an agent in which `changes` failed: the next reload restarts these components.

    Each of them gets an identity that equals no other.
    """
    return replace(
        snapshot,
        channels={**snapshot.channels, **dict.fromkeys(changes.channels, _UNKNOWN)},
        sources={**snapshot.sources, **dict.fromkeys(changes.sources, _UNKNOWN)},
        units={**snapshot.units, **dict.fromkeys(changes.units, _UNKNOWN)},
        spark=_UNKNOWN if changes.spark else snapshot.spark,
        server=_UNKNOWN if changes.server else snapshot.server,
    )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Return the names that only one mapping has, or whose identities differ."""
    return {name for name in old.keys() | new.keys() if name not in old or name not in new or old[name] != new[name]}


def _identity(spec: ComponentSpec) -> Any:
    """Return a value that is equal for two configurations of a component exactly if it needs no restart.

    It consists of class, options, named files, interceptors and connections.
    """
    interceptors: Iterable[ComponentSpec] = ()
    connections: tuple[Any, ...] = ()
    if isinstance(spec, SourceSpec):
        interceptors, connections = spec.interceptors, (spec.channels, spec.selector)
    elif isinstance(spec, SinkSpec):
        interceptors, connections = spec.interceptors, (spec.channel, spec.group, spec.runner, spec.tolerance)
    own = spec.cls, spec.config, dict(spec.properties), _files(spec)
    return own, [_identity(interceptor) for interceptor in interceptors], connections


def _certificate(options: AgentOptions) -> tuple[Any, ...]:
    """Return the options for TLS of the monitoring server, with the state of the keystore's file."""
    keystore = options.keystore
    state = file_state(keystore) if keystore is not None else None
    return options.monitoring_ssl, keystore, options.monitoring_keystore_password, state


def _files(spec: ComponentSpec) -> Collection[tuple[str, Any]]:
    """Return name and state of each option that names a file: inode, size and modification time in ns.

    The state is None for a file that cannot be read. Options count if they are declared with `must_exist`, or if
    their name is like that of a certificate or key. With TLS, Flume's environment variables for keystores count too.
    """
    declared = {option.name for option in type(spec.config).options() if option.must_exist}
    files: list[tuple[str, Any]] = []
    for name, value in spec.properties.items():
        if name in declared or _FILE.search(name):
            files.append((name, file_state(value)))
    if getattr(spec.config, "tls", False):
        files += [(name, file_state(os.environ[name])) for name in _KEYSTORES if name in os.environ]
    return files


def file_state(path: str) -> tuple[int, int, int] | None:
    """Return inode, size and modification time in ns of a file; None if it cannot be read."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
