"""Small components for the tests of the configuration: they can be read and checked, and deliver nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import SecretStr, model_validator

from flafka.plugins import (
    Batch,
    Channel,
    CommittingSink,
    Component,
    Components,
    Config,
    Interceptor,
    KafkaStream,
    Problem,
    Sink,
    Source,
    hookimpl,
    option,
)
from flafka.plugins.kafka.topic import KafkaBackedChannel


class TailConfig(Config):
    filegroups: list[str] = option(name="filegroups", description="Names of groups.")
    groups: dict[str, str] = option({}, name="filegroups.", description="Pattern of each.")
    batch_size: int = option(100, name="batchSize", description="Most events in a batch.", unit="events", ge=1)


class Tail(Source[TailConfig]):
    """Source with a type of Flume's."""

    type_name = "TAILDIR"
    aliases = ("org.apache.flume.source.taildir.TaildirSource",)

    def batches(self) -> Iterator[Batch]:
        raise NotImplementedError


class TicksConfig(Config):
    interval: float = option(1.0, name="interval", description="Time between ticks.", unit="s", gt=0)


class Ticks(Source[TicksConfig]):
    """Source of a plugin: Flume has no such type."""

    type_name = "ticks"

    def batches(self) -> Iterator[Batch]:
        raise NotImplementedError

    def check_connectivity(self) -> Iterator[str]:
        yield "the clock has stopped"


class MemoryConfig(Config):
    capacity: int = option(100, name="capacity", description="Most events in it.", unit="events", ge=1)
    transaction_capacity: int = option(100, name="transactionCapacity", description="Most in a batch.", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> MemoryConfig:
        if self.transaction_capacity > self.capacity:
            raise ValueError("transactionCapacity must not be larger than capacity")
        return self


class Memory(Channel[MemoryConfig]):
    type_name = "memory"
    aliases = ("org.apache.flume.channel.MemoryChannel",)

    def put(self, batch: Batch) -> None:
        raise NotImplementedError

    def reader(self, owner: Any, *, group: str | None, member: str) -> Any:
        raise NotImplementedError


class KafkaConfig(Config):
    servers: str = option("localhost:9092", name="kafka.bootstrap.servers", description="Brokers.")
    topic: str = option("flafka-channel", name="kafka.topic", description="Topic.")

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        return FlumeKafkaConfig if written_type.startswith("org.apache.flume.") else cls


class FlumeKafkaConfig(KafkaConfig):
    servers: str = option(name="kafka.bootstrap.servers", description="Brokers.")


class Kafka(KafkaBackedChannel[KafkaConfig]):
    type_name = "kafka"
    aliases = ("org.apache.flume.channel.kafka.KafkaChannel",)
    put = reader = decode = redelivery = NotImplemented
    kafka = property(lambda self: self)
    replication = 3
    holds_batches = True

    def stream(self, group: str | None) -> KafkaStream:
        return KafkaStream(self.config.servers, self.config.topic, group or "flafka")


class FilesConfig(Config):
    path: str = option(name="hdfs.path", description="Where to.")
    batch_size: int = option(100, name="hdfs.batchSize", description="Most in a batch.", ge=1, le=100_000)
    roll_size: int = option(1024, name="hdfs.rollSize", description="Size to roll at.", unit="bytes", ge=0)
    serializer: Literal["TEXT"] = option("TEXT", name="serializer", description="Form of an event.")


class Files(CommittingSink[FilesConfig]):
    type_name = "hdfs"
    aliases = ("org.apache.flume.sink.hdfs.HDFSEventSink",)
    resume = due_partitions = stage = commit = reset = write = NotImplemented


class IndexConfig(Config):
    url: str = option("http://localhost", name="url", description="Server.")
    password: SecretStr | None = option(None, name="credential", description="Password.", min_length=8)
    limit: int = option(10, name="limit", description="Most of something.", ge=1)


ANSWERED = threading.Event()
"""Event that a probe of http://slow waits for."""


class Index(Sink[IndexConfig]):
    type_name = "index"

    def write(self, batch: Batch) -> None:
        raise NotImplementedError

    def check_connectivity(self) -> Iterator[str]:
        if self.config.url == "http://slow":
            ANSWERED.wait()
        if self.config.url == "http://broken":
            raise RuntimeError("probe fell over")
        if self.config.url == "http://ending":
            raise SystemExit("there is no licence")
        yield from ()


class BrokenConfig(Config):
    later: bool = option(False, name="later", description="Break only when everything was read.")

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Any:
        if "later" in properties:
            return super().parse(properties)
        raise TypeError("unhashable type")

    def warnings(self) -> Iterator[Problem]:
        raise TypeError("unhashable caution")


class Broken(Sink[BrokenConfig]):
    type_name = "broken"

    def write(self, batch: Batch) -> None:
        raise NotImplementedError


class Upper(Interceptor[Config]):
    type_name = "upper"

    def intercept(self, batch: Batch) -> Batch:
        return batch


class HostConfig(Config):
    use_ip: bool = option(True, name="useIP", description="Address or name.")


class Host(Interceptor[HostConfig]):
    type_name = "host"
    aliases = ("org.apache.flume.interceptor.HostInterceptor$Builder",)
    pure: ClassVar[bool] = False

    def intercept(self, batch: Batch) -> Batch:
        return batch


class Plugin:
    """Stand-in for a plugin module."""

    @staticmethod
    @hookimpl
    def components() -> list[type[Component[Any]]]:
        return [Tail, Ticks, Memory, Kafka, Files, Index, Broken, Upper, Host]


COMPONENTS = Components([Plugin], entry_points=False)
