"""Interface of sinks that consist of Spark queries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flafka.plugins.component import C, Component


@dataclass(frozen=True)
class KafkaStream:
    """Parameters for another engine, such as Spark, to read a channel that is a Kafka topic."""

    bootstrap_servers: str
    topic: str
    group: str
    client: Mapping[str, str] = field(default_factory=dict)
    """Properties of the Java client, such as `security.protocol`."""


class StreamingSink(Component[C]):
    """A sink that consists of Spark queries instead of taking batches. Runs on Spark only.

    The driver passes the channel as a streaming DataFrame (`EVENTS` of `plugins/dataframe.py`) and starts the
    queries. Their checkpoints hold the state and the authoritative offsets; the group's committed offsets are a copy.
    """

    @property
    @abstractmethod
    def checkpoint(self) -> str | None:
        """Directory of the checkpoints; None for the agent's state directory."""

    @property
    @abstractmethod
    def pipeline(self) -> str:
        """Name of the pipeline that owns the state; the checkpoint of another pipeline is refused."""

    @property
    def module_directory(self) -> str | None:
        """Directory for imports of the pipeline's modules, besides Python's path, here and on executors."""
        return None

    @abstractmethod
    def frames(self, events: Any) -> Mapping[str, Any]:
        """Return the streaming DataFrames to write, by name. Raises FlafkaError if the pipeline is wrong."""

    def topics(self) -> set[str]:
        """Return the topics that the sink writes to on the channel's brokers. `agent check` finds loops with them."""
        return set()

    def output_directory(self, name: str) -> str | None:
        """Return the directory of an output of files, in which Spark also numbers micro-batches; None for others."""
        return None

    @abstractmethod
    def writer(self, name: str, frame: Any, stream: KafkaStream) -> Any:
        """Return a `DataStreamWriter` for that frame, without checkpoint, name and trigger.

        `stream` is that of the channel.
        """
