"""A configured agent, checked and typed: what `flafka.agent.config` makes of a file and the runners run."""

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
class Place:
    """Where something stands in a configuration: for error messages."""

    file: str
    line: int
    """From 1; 0 where it does not stand on a line of its own."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class ComponentSpec:
    """One component: its class, and its options read and checked."""

    name: str
    path: str
    """`a1.sources.s1`: how errors, logs and metrics call it."""
    cls: type[Component[Any]]
    config: Config
    properties: Mapping[str, str] = field(repr=False)
    """Its own properties as resolved text, for Flume's own checks."""
    place: Place

    def make(self) -> Any:
        """A new instance; no I/O. Its log is named by its path."""
        made = self.cls(self.config, self.name)
        made.log = logging.getLogger(self.path)
        return made


@dataclass(frozen=True)
class Route:
    """Which channels an event goes to."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Their failure is counted and otherwise ignored."""

    def channels(self, *, required: bool) -> tuple[str, ...]:
        """The required ones, or the optional ones."""
        return self.required if required else self.optional


@dataclass(frozen=True)
class SelectorSpec:
    """How a source chooses among its channels."""

    kind: SelectorKind = "replicating"
    otherwise: Route = Route()
    """Where events go that `routes` says nothing of; `load_balancing` takes one of its channels for each batch."""
    header: str = ""
    routes: Mapping[str, Route] = field(default_factory=dict)
    """By value of the header."""
    policy: Policy = "round_robin"

    def required(self) -> set[str]:
        """The channels that some event needs."""
        return {name for route in (self.otherwise, *self.routes.values()) for name in route.required}


@dataclass(frozen=True)
class SourceSpec(ComponentSpec):
    """A source with what stands between it and its channels."""

    channels: tuple[str, ...]
    selector: SelectorSpec
    interceptors: tuple[ComponentSpec, ...] = ()


@dataclass(frozen=True)
class ChannelSpec(ComponentSpec):
    """A channel."""

    @property
    def overflow(self) -> str | None:
        """Name of the channel where its events go while its brokers are away."""
        return self.config.overflow if isinstance(self.config, OverflowConfig) else None


@dataclass(frozen=True)
class Tolerance:
    """How many events a sink may reject before it pauses."""

    percent: int = 50
    """Of the latest events; 100 never pauses it, 0 at the first one."""
    window: int = 1000
    """The least number of events that the share is taken of."""


@dataclass(frozen=True)
class SinkSpec(ComponentSpec):
    """A sink, its channel, and how it is run."""

    channel: str
    interceptors: tuple[ComponentSpec, ...] = ()
    group: str | None = None
    """Its own consumer group; None: it shares its channel's."""
    runner: Runner = "local"
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True)
class SinkProcessorSpec:
    """How a sink group chooses among its sinks."""

    kind: SinkProcessorKind
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Of `failover`, by sink, no two alike: the highest works."""
    policy: Policy = "round_robin"
    backoff: bool = True
    """Whether a sink that failed is left alone for a while."""
    longest_penalty: float = 30.0
    """For how long at most, in seconds."""


@dataclass(frozen=True)
class SinkGroupSpec:
    """Sinks that drain one channel together, each batch by one of them."""

    name: str
    path: str
    place: Place
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
    option_places: Mapping[str, Place] = field(default_factory=dict)
    """Where the options stand that do, by name."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Every line of the agent in effect, by its full key, as it may be shown: secrets hidden."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """By whole key: the absolute form of each relative path."""
    more: tuple[str, ...] = ()
    """Files that were read after `file`."""

    def command(self, words: str) -> str:
        """Return the `agent` command of these words with this configuration, for a shell in any directory."""
        files = [str(Path(one).absolute()) for one in (self.file, *self.more)]
        option = "-c" if len(files) == 1 else "-f"
        named = " ".join(f"{option} {shlex.quote(one)}" for one in files)
        return f"agent {words} {named} -n {shlex.quote(self.name)}"

    def shown_of(self, path: str) -> dict[str, str]:
        """Those of one component, by option."""
        start = f"{path}."
        return {key.removeprefix(start): value for key, value in self.shown.items() if key.startswith(start)}

    def components(self) -> Iterator[ComponentSpec]:
        """Yield every component: channels, then sources and sinks, each before its interceptors."""
        yield from self.channels
        ends: tuple[SourceSpec | SinkSpec, ...] = (*self.sources, *self.sinks)
        for end in ends:
            yield end
            yield from end.interceptors

    def channel(self, name: str) -> ChannelSpec:
        """The channel of that name."""
        return next(channel for channel in self.channels if channel.name == name)
