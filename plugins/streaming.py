"""Interface of sinks that are made of Spark queries of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flafka.plugins.component import C, Component


@dataclass(frozen=True)
class KafkaStream:
    """Parameters with which another engine (Spark) reads a channel that lies in Kafka."""

    bootstrap_servers: str
    topic: str
    group: str
    client: Mapping[str, str] = field(default_factory=dict)
    """Java client properties: security and the like."""


class StreamingSink(Component[C]):
    """A sink that is one or more Spark queries of its own rather than one that takes batches; it runs on Spark only.

    The driver hands it the channel as a streaming DataFrame (`EVENTS` of `plugins/shared/frames.py`) and starts what
    it makes of it. The queries' checkpoints are their state and their positions; the group's offsets are a copy.
    """

    @property
    @abstractmethod
    def checkpoint(self) -> str | None:
        """Directory of the checkpoints; None: in the agent's state directory."""

    @property
    @abstractmethod
    def pipeline(self) -> str:
        """Name of the pipeline that the state belongs to; the checkpoint of another pipeline is refused."""

    @property
    def modules(self) -> str | None:
        """Directory that its modules are imported from besides Python's own path: executors get it, too."""
        return None

    @abstractmethod
    def frames(self, events: Any) -> Mapping[str, Any]:
        """The streaming DataFrames to write, by name. FlafkaError says what is wrong with them."""

    def topics(self) -> set[str]:
        """Return the topics that the sink writes to on the channel's brokers, for `check` to find loops."""
        return set()

    def files(self, name: str) -> str | None:
        """Directory of an output that Spark writes files to: it counts micro-batches there as well."""
        return None

    @abstractmethod
    def writer(self, name: str, frame: Any, stream: KafkaStream) -> Any:
        """A `DataStreamWriter` for that frame, without checkpoint, name and trigger. `stream` is the channel's."""
