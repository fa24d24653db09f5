"""Configured agent, checked and typed: result of `flafka.agent.config`, input of the runners."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flafka.agent.options import AgentOptions
from flafka.plugins import Component, Config, OverflowConfig

Runner = Literal["local", "spark"]
SelectorKind = Literal["replicating", "multiplexing", "load_balancing"]
Policy = Literal["round_robin", "random"]
SinkProcessorKind = Literal["default", "failover", "load_balance"]


@dataclass(frozen=True)
class ConfigLocation:
    """File and line of a property in a configuration, for error messages."""

    file: str
    line: int
    """Number of the line, from 1; 0 for the whole file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class ComponentSpec:
    """Component: its class and its checked options."""

    name: str
    path: str
    """`a1.sources.s1`: its name in errors and logs."""
    cls: type[Component[Any]]
    config: Config
    properties: Mapping[str, str] = field(repr=False)
    """Resolved properties as text, for Flume's own checks."""
    place: ConfigLocation

    def make(self) -> Any:
        """Return a new instance whose logger has the component's path. No I/O."""
        instance = self.cls(self.config, self.name)
        instance.log = logging.getLogger(self.path)
        return instance


@dataclass(frozen=True)
class Route:
    """Channels of an event."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Channels whose failures are counted, not raised."""

    def channels(self, *, required: bool) -> tuple[str, ...]:
        """Return the required channels if `required`, else the optional channels."""
        return self.required if required else self.optional


@dataclass(frozen=True)
class SelectorSpec:
    """Channel selector of a source."""

    kind: SelectorKind = "replicating"
    default: Route = Route()
    """Route of events without an entry in `routes`; `load_balancing` takes one of its channels for each batch."""
    header: str = ""
    routes: Mapping[str, Route] = field(default_factory=dict)
    """Value of the header → route."""
    policy: Policy = "round_robin"

    def required(self) -> set[str]:
        """Return the channels that are required for at least one event."""
        return {name for route in (self.default, *self.routes.values()) for name in route.required}


@dataclass(frozen=True)
class SourceSpec(ComponentSpec):
    """Source with its interceptors, its selector and its channels."""

    channels: tuple[str, ...]
    selector: SelectorSpec
    interceptors: tuple[ComponentSpec, ...] = ()


@dataclass(frozen=True)
class ChannelSpec(ComponentSpec):
    """Channel."""

    @property
    def overflow(self) -> str | None:
        """Name of the channel for disk overflow during an outage of the brokers; None without one."""
        return self.config.overflow if isinstance(self.config, OverflowConfig) else None


@dataclass(frozen=True)
class Tolerance:
    """Share of events that a sink may reject before it pauses."""

    percent: int = 50
    """Percentage of the latest events: 0 pauses at the first rejected event, 100 never."""
    window: int = 1000
    """Minimum number of events for the share."""


@dataclass(frozen=True)
class SinkSpec(ComponentSpec):
    """Sink with its interceptors, its channel and its runner."""

    channel: str
    interceptors: tuple[ComponentSpec, ...] = ()
    group: str | None = None
    """Consumer group of the sink; None for the group of its channel."""
    runner: Runner = "local"
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True)
class SinkProcessorSpec:
    """Sink processor of a sink group."""

    kind: SinkProcessorKind
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Sink → priority for `failover`, without duplicates; the highest is active."""
    policy: Policy = "round_robin"
    backoff: bool = True
    """True if a failed sink is suspended for a while."""
    max_penalty_seconds: float = 30.0
    """Maximum time of a suspension."""


@dataclass(frozen=True)
class SinkGroupSpec:
    """Sinks that drain one channel together, each batch by one of them."""

    name: str
    path: str
    place: ConfigLocation
    sinks: tuple[str, ...]
    """Names, in the order of the file."""
    processor: SinkProcessorSpec


@dataclass(frozen=True)
class AgentSpec:
    """One agent of a configuration file."""

    name: str
    file: str
    sources: tuple[SourceSpec, ...]
    channels: tuple[ChannelSpec, ...]
    sinks: tuple[SinkSpec, ...]
    groups: tuple[SinkGroupSpec, ...] = ()
    options: AgentOptions = field(default_factory=AgentOptions)
    option_locations: Mapping[str, ConfigLocation] = field(default_factory=dict)
    """Name → location of each option that the configuration sets."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Full key → value of each line in effect, without secrets."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Full key → absolute path of each relative path."""
    more: tuple[str, ...] = ()
    """Files read after `file`."""

    def command(self, words: str) -> str:
        """Return the shell command `agent <words>` with this configuration, for any working directory.

        An example for `words` is `dlq list`.
        """
        return f"agent {words} {self.arguments}"

    @property
    def arguments(self) -> str:
        """Arguments of commands that choose this agent, for any working directory: `-c /etc/agent.conf -n a1`."""
        files = [str(Path(file).absolute()) for file in (self.file, *self.more)]
        option = "-c" if len(files) == 1 else "-f"
        arguments = " ".join(f"{option} {shlex.quote(file)}" for file in files)
        return f"{arguments} -n {shlex.quote(self.name)}"

    def shown_options(self, path: str) -> dict[str, str]:
        """Return option → value of the component with this path, as written, without secrets."""
        prefix = f"{path}."
        return {key.removeprefix(prefix): value for key, value in self.shown.items() if key.startswith(prefix)}

    def components(self) -> Iterator[ComponentSpec]:
        """Yield every component: channels, then sources and sinks, each before its interceptors."""
        yield from self.channels
        ends: tuple[SourceSpec | SinkSpec, ...] = (*self.sources, *self.sinks)
        for end in ends:
            yield end
            yield from end.interceptors

    def channel(self, name: str) -> ChannelSpec:
        """Return the channel of that name. Raises StopIteration if there is none."""
        return next(channel for channel in self.channels if channel.name == name)
