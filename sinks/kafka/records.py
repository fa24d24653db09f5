"""Base of both forms of the Kafka sink, which converts events to records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException

from flafka.plugins import Assignment, Batch, Conflict, EventId, FlafkaError, Metric, Retry, Sink
from flafka.plugins.kafka.admin import CONNECTIVITY_SECONDS, NO_BROKERS, connectivity_errors, connectivity_problems
from flafka.plugins.kafka.clients import new_admin
from flafka.plugins.kafka.errors import explain_error, fetch_metadata, is_fatal
from flafka.plugins.kafka.logins import SECURITY_PREFIXES
from flafka.plugins.kafka.metrics import SEND_TIMER
from flafka.plugins.kafka.properties import client_properties, parse_number
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.wire import flumeevent
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.kafka.config import SINK, KafkaSinkConfig
from flafka.sinks.kafka.producers import RecordProducer
from flafka.sinks.kafka.topics import BATCH_BYTES, TopicCache, TopicSettings

EVENT_ID_HEADER = "flafka.id"
"""Record header with the event's id, by which readers recognize duplicates."""


class KafkaRecordSink(Sink[KafkaSinkConfig]):
    """Sink that produces events as records."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = (SEND_TIMER,)
    adds_event_ids: ClassVar[bool] = False
    """True if records have the header `EVENT_ID_HEADER`."""

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._cluster_id = ""
        self._renewal: ClientRenewal | None = None
        self._topics: TopicCache | None = None
        self._path = BucketPath(config.topic)
        self._single_record_batches = False
        """True after a refusal: the next transaction has a request batch for each record, to find the refused one."""
        self._stored = set[EventId]()
        """Events of a failed flush that topics keep, and that are not produced again."""
        self._refused: dict[EventId, str] = {}
        """Events whose own request batch brokers have refused, with the reason."""

    def open(self) -> None:
        """Connect to the cluster. Raises Retry if no broker answers, or kafka.topic, without escapes, is missing.

        Raises FlafkaError if no brokers are configured.
        """
        if not self.config.bootstrap_servers:
            raise FlafkaError(f"sink {self.name}: {NO_BROKERS}")
        for error in connectivity_errors(self._client, self.config, self.config.produced_topics(), "Write"):
            raise Retry(error)
        self._cluster_id = self._find_cluster()
        self._renewal = ClientRenewal(self.config.producer, self._client, self.log)
        client = self._client()
        self._topics = TopicCache(self.config, new_admin(SINK, client), client)

    def close(self) -> None:
        """Drop the settings of topics, and the knowledge of stored and refused events."""
        self._topics, self._single_record_batches = None, False
        self._stored.clear()
        self._refused.clear()

    def _renew_clients(self) -> Mapping[str, Any] | None:
        """Replace the admin client if the certificates have changed, and return the new properties; else None.

        Producers have to be replaced as well, once they are idle.
        """
        if self._renewal is None or self._topics is None:
            return None
        made = self._renewal.renew(lambda properties: (new_admin(SINK, properties), properties))
        if made is None:
            return None
        self._topics.use(*made)
        return made[1]

    def check_connectivity(self) -> Iterator[str]:
        """Yield the problems if no broker answers, or kafka.topic, without escapes, does not exist."""
        yield from connectivity_problems(self._client, self.config, self.config.produced_topics(), "Write")

    def uses_headers(self) -> dict[str, frozenset[str]]:
        """Return the headers in the escapes of kafka.topic, by this option."""
        return {"kafka.topic": self._path.headers}

    def destinations(self, batch: Batch) -> list[dict[str, Any]]:
        """Return topic and key of each event's record, or `rejected` if its topic cannot be known. Asks no broker."""
        keys = batch.header("key").to_pylist()
        return [
            {"rejected": str(topic)} if isinstance(topic, ValueError) else {"topic": topic, "key": key}
            for topic, key in zip(self._topics_of(batch), keys, strict=True)
        ]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return topic and key of the event's record, without them if `batch` is None. Topics are not searched."""
        destination = self.destinations(batch)[0] if batch is not None else {}
        why = f"they have it in the header {EVENT_ID_HEADER}" if self.adds_event_ids else "they have no event ids"
        return [{"unknown": f"records of the topic are not searched: {why}", **destination}]

    def _is_own_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if this topic, named like the channel of the batch, is that channel; False in this base."""
        return False

    def _writable_topic(self, name: str, batch: Batch) -> TopicSettings | str:
        """Return the topic's settings, or the reason why no event of this batch can be written to it.

        Raises Retry.
        """
        assert self._topics is not None
        assert batch.origin is not None
        if name == batch.origin.topic and self._is_own_channel(name, batch):
            return (
                f"topic {name} is that of the sink's own channel, which would get the event again in an endless loop"
            )
        return self._topics.get(name)

    def _produce(self, producer: RecordProducer, batch: Batch) -> dict[EventId, str]:
        """Produce the events, and return the reason for each rejected one. Raises Retry, and Conflict if fenced.

        Events that topics keep since a failed flush, and events that brokers have refused, are not produced again.
        """
        config = self.config
        rejected: dict[EventId, str] = {}
        values: list[bytes] = (
            flumeevent.encode(batch) if config.use_flume_event_format else batch.bodies
        ).to_pylist()
        keys = batch.header("key").to_pylist()
        topics = self._topics_of(batch)
        partitions = self._header_numbers(batch, config.partition_id_header)
        times = self._header_numbers(batch, config.timestamp_header)
        headers = [(record_name, batch.header(name).to_pylist()) for name, record_name in config.headers.items()]
        if self.adds_event_ids:
            headers.append((EVENT_ID_HEADER, [str(batch.id(row)) for row in range(len(batch))]))
        known = {name: self._writable_topic(name, batch) for name in {*topics} if isinstance(name, str)}
        for row, value in enumerate(values):
            if self._stored and batch.id(row) in self._stored:
                producer.events += 1
                continue
            if self._refused and batch.id(row) in self._refused:
                rejected[batch.id(row)] = self._refused[batch.id(row)]
                continue
            try:
                topic_name = topics[row]
                topic = known[topic_name] if isinstance(topic_name, str) else str(topic_name)
                if isinstance(topic, str):
                    raise ValueError(topic)
                record: dict[str, Any] = {"value": value, "key": keys[row]}
                partition = partitions[row] if partitions[row] is not None else config.default_partition_id
                if partition is not None:
                    record["partition"] = partition
                if times[row] is not None and times[row] >= 0:
                    record["timestamp"] = times[row]
                if headers:
                    record["headers"] = [(name, column[row]) for name, column in headers if column[row] is not None]
                topic.check(record)
                producer.produce(topic.name, event=(batch, row), **record)
            except ValueError as e:
                rejected[batch.id(row)] = str(e)
            except Retry:
                self._record_failure(producer)
                raise
            except KafkaException as e:
                if is_fatal(e):
                    raise Conflict(explain_error(e)) from e
                if e.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise Retry(f"sink {self.name}: {producer.explain(e)}") from e
                rejected[batch.id(row)] = "its record, with key and headers, is larger than the client allows"
        return rejected

    def _flush(self, producer: RecordProducer) -> None:
        """Flush the producer. After a failure, note which events are stored. Raises Retry, and Conflict if fenced."""
        try:
            producer.flush()
        except (Conflict, Retry):
            self._record_failure(producer)
            raise

    def _record_failure(self, producer: RecordProducer) -> None:
        """Note, before the abort, which events are stored, and which are refused; clear the settings of topics.

        After a refusal in a larger request batch, the next producer sends each record alone, to find the refused
        ones.
        """
        if self._topics is not None:
            self._topics.clear()
        if producer.keeps_acknowledged:
            self._stored |= {batch.id(row) for batch, row in producer.acknowledged}
        if producer.refused:
            self._single_record_batches = True
        if producer.single_record_batches:
            self._refused |= {
                batch.id(row): f"the topic does not accept it: {error.str()}"
                for (batch, row), error in producer.refused
            }

    def _forget_committed(self, partition: int | None = None) -> None:
        """Forget which committed events were stored or refused, for one partition, or for all if None."""
        self._stored = {id for id in self._stored if partition not in (None, id.partition)}
        self._refused = {id: why for id, why in self._refused.items() if partition not in (None, id.partition)}

    def _topics_of(self, batch: Batch) -> list[str | ValueError]:
        """Return the topic name of each event, from its header or kafka.topic, or the error that rejects it."""
        buckets = self._path.resolve_batch(batch)
        topics: list[str | ValueError] = [buckets.paths[code] for code in buckets.codes.tolist()]
        if self.config.allow_topic_override and self.config.topic_header in batch.header_names:
            named = batch.header(self.config.topic_header).to_pylist()
            empty = ValueError(f"the header {self.config.topic_header!r} is empty, and must name a topic")
            topics = [topic if name is None else name or empty for name, topic in zip(named, topics, strict=True)]
        return topics

    def _header_numbers(self, batch: Batch, header: str | None) -> list[Any]:
        """Return each row's number in a header: None without the header, -1 for any text but 1 to 15 digits."""
        if header is None:
            return [None] * len(batch)
        texts = batch.header(header).to_pylist()
        return [
            None if text is None else int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1
            for text in texts
        ]

    # --- clients

    def _find_cluster(self) -> str:
        """Return the id of the sink's cluster; empty if brokers do not report one. Raises Retry."""
        return str(fetch_metadata(self._client(), CONNECTIVITY_SECONDS).cluster_id or "")

    def _client(self) -> dict[str, Any]:
        """Return the properties that all clients have in common: brokers, TLS and login."""
        properties = client_properties(self.config.producer).items()
        security = {name: value for name, value in properties if name.startswith(SECURITY_PREFIXES)}
        return {**self.config.client(self.name), **security}

    def _properties(self) -> dict[str, Any]:
        """Return the properties of a producer without transactions, with batches that all known topics accept."""
        properties = self.config.producer_properties(client_properties(self.config.producer))
        del properties["transactional.id"]
        limit = self._topics.max_batch_bytes if self._topics is not None else BATCH_BYTES
        configured = int(parse_number(properties.get("batch.size")) or limit)
        return {**self.config.client(self.name), **properties, "batch.size": min(configured, limit)}
