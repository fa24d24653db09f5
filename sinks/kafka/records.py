"""Base of both forms of the Kafka sink: makes records of topics from events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException

from flafka.plugins import Assignment, Batch, Conflict, EventId, FlafkaError, Metric, Retry, Sink
from flafka.plugins.kafka.admin import NO_BROKERS, PROBE_SECONDS, missing, probed
from flafka.plugins.kafka.clients import new_admin
from flafka.plugins.kafka.errors import metadata, sentence
from flafka.plugins.kafka.metrics import SEND_TIMER
from flafka.plugins.kafka.properties import client_properties, number
from flafka.plugins.shared import flumeevent
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.kafka.config import SINK, KafkaSinkConfig
from flafka.sinks.kafka.topics import BATCH_BYTES, Topics, TopicSettings
from flafka.sinks.kafka.writers import Writer

ID = "flafka.id"
"""Header of a record that may come twice: the event's id."""


class KafkaRecords(Sink[KafkaSinkConfig]):
    """Makes records of events and produces them."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = (SEND_TIMER,)
    names_events: ClassVar[bool] = False
    """True if records carry the header `ID`."""

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._cluster_id = ""
        self._topics: Topics | None = None
        self._path = BucketPath(config.topic)
        self._alone = False
        """True after a refusal: the next transaction sends each record alone, which shows the refused one."""
        self._stored = set[EventId]()
        """Events of a failed transaction that brokers keep all the same: they are not produced again."""
        self._refused: dict[EventId, str] = {}
        """Events that brokers have refused alone, with the reason."""

    def open(self) -> None:
        """Find the cluster. Raises Retry while brokers are away, or the topic is missing."""
        if not self.config.bootstrap_servers:
            raise FlafkaError(f"sink {self.name}: {NO_BROKERS}")
        for trouble in missing(self._client, self.config, self.config.writes()):
            raise Retry(trouble)
        self._cluster_id = self._find_cluster()
        self._topics = Topics(self.config, new_admin(SINK, self._client()))

    def close(self) -> None:
        """Forget the cluster."""
        self._topics, self._alone = None, False
        self._stored.clear()
        self._refused.clear()

    def check_connectivity(self) -> Iterator[str]:
        """Check that brokers answer and that the topic exists."""
        yield from probed(self._client, self.config, self.config.writes())

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """By option: the headers that its escapes need."""
        return {"kafka.topic": self._path.headers}

    def destinations(self, batch: Batch) -> list[dict[str, Any]]:
        """The topic and the key of each event's record."""
        keys = batch.header("key").to_pylist()
        return [
            {"rejected": str(topic)} if isinstance(topic, ValueError) else {"topic": topic, "key": key}
            for topic, key in zip(self._topics_of(batch), keys, strict=True)
        ]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """The topic and the key of its record, which is not looked for."""
        told = self.destinations(batch)[0] if batch is not None else {}
        by = f"they carry it in the header {ID}" if self.names_events else "they carry no event ids"
        return [{"unknown": f"records of the topic are not searched: {by}", **told}]

    def _is_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if this topic is the channel that the batch is of."""
        return False

    def _topic(self, name: str, batch: Batch) -> TopicSettings | str:
        """Return the topic, or the reason why nothing of this batch can be written there. Raises Retry."""
        assert self._topics is not None
        assert batch.origin is not None
        if name == batch.origin.topic and self._is_channel(name, batch):
            return f"topic {name} is that of the sink's own channel, which would get the event again without end"
        return self._topics.get(name)

    def _produce(self, writer: Writer, batch: Batch) -> dict[EventId, str]:
        """Produce the events that topics take, and return the reasons of the others. Raises Conflict if fenced."""
        config = self.config
        rejected: dict[EventId, str] = {}
        values: list[bytes] = (
            flumeevent.encode(batch) if config.use_flume_event_format else batch.bodies
        ).to_pylist()
        keys = batch.header("key").to_pylist()
        topics = self._topics_of(batch)
        wanted = self._numbers(batch, config.partition_id_header)
        times = self._numbers(batch, config.timestamp_header)
        headers = [(new, batch.header(name).to_pylist()) for name, new in config.headers.items()]
        if self.names_events:
            headers.append((ID, [str(batch.id(row)) for row in range(len(batch))]))
        known = {name: self._topic(name, batch) for name in {*topics} if isinstance(name, str)}
        for row, value in enumerate(values):
            if self._stored and batch.id(row) in self._stored:
                writer.events += 1
                continue
            if self._refused and batch.id(row) in self._refused:
                rejected[batch.id(row)] = self._refused[batch.id(row)]
                continue
            try:
                name = topics[row]
                topic = known[name] if isinstance(name, str) else str(name)
                if isinstance(topic, str):
                    raise ValueError(topic)
                record: dict[str, Any] = {"value": value, "key": keys[row]}
                number = wanted[row] if wanted[row] is not None else config.default_partition_id
                if number is not None:
                    record["partition"] = number
                if times[row] is not None and times[row] >= 0:
                    record["timestamp"] = times[row]
                if headers:
                    record["headers"] = [(new, column[row]) for new, column in headers if column[row] is not None]
                topic.check(record)
                writer.produce(topic.name, event=(batch, row), **record)
            except ValueError as e:
                rejected[batch.id(row)] = str(e)
            except Retry:
                self._note_failure(writer)
                raise
            except KafkaException as e:
                if e.args[0].fatal():
                    raise Conflict(sentence(e)) from e
                if e.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise Retry(f"sink {self.name}: {sentence(e)}") from e
                rejected[batch.id(row)] = "with its key and headers it is larger than a record may be"
        return rejected

    def _settle(self, writer: Writer) -> None:
        """Return when all is stored."""
        try:
            writer.settle()
        except (Conflict, Retry):
            self._note_failure(writer)
            raise

    def _note_failure(self, writer: Writer) -> None:
        """Note, before the abort, which events are stored all the same, and which never can be."""
        if self._topics is not None:
            self._topics.forget()
        if writer.keeps_acknowledged:
            self._stored |= {batch.id(row) for batch, row in writer.acknowledged}
        if writer.refused:
            self._alone = True
        if writer.alone:
            self._refused |= {
                batch.id(row): f"the topic does not take it: {error.str()}" for (batch, row), error in writer.refused
            }

    def _committed_all(self, partition: int | None = None) -> None:
        """Forget what was noted of events that are committed now, of one partition or of all."""
        self._stored = {id for id in self._stored if partition not in (None, id.partition)}
        self._refused = {id: why for id, why in self._refused.items() if partition not in (None, id.partition)}

    def _topics_of(self, batch: Batch) -> list[str | ValueError]:
        buckets = self._path.resolve_batch(batch)
        topics: list[str | ValueError] = [buckets.paths[code] for code in buckets.codes.tolist()]
        if self.config.allow_topic_override and self.config.topic_header in batch.header_names:
            named = batch.header(self.config.topic_header).to_pylist()
            empty = ValueError(f"the header {self.config.topic_header!r} is empty, and is to name a topic")
            topics = [topic if name is None else name or empty for name, topic in zip(named, topics, strict=True)]
        return topics

    def _numbers(self, batch: Batch, header: str | None) -> list[Any]:
        """Return the number in a header of each row, or -1 if it is not one."""
        if header is None:
            return [None] * len(batch)
        texts = batch.header(header).to_pylist()
        return [
            None if text is None else int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1
            for text in texts
        ]

    # --- clients

    def _find_cluster(self) -> str:
        return str(metadata(self._client(), PROBE_SECONDS).cluster_id or "")

    def _client(self) -> dict[str, Any]:
        """Return properties of any client: of the configured ones only TLS and login."""
        given = client_properties(self.config.producer).items()
        security = {name: value for name, value in given if name.startswith(("security.", "sasl.", "ssl."))}
        return {**self.config.client(self.name), **security}

    def _properties(self) -> dict[str, Any]:
        given = self.config.producer_properties(client_properties(self.config.producer))
        del given["transactional.id"]
        most = self._topics.smallest if self._topics is not None else BATCH_BYTES
        wanted = int(number(given.get("batch.size")) or most)
        return {**self.config.client(self.name), **given, "batch.size": min(wanted, most)}
