"""Replay of dead letters.

Channels in Kafka: dead letters of a sink go back into the channel's topic, for the consumer group of that sink alone.
The same transaction marks them as replayed, so replay is exactly-once. Dead letters of a source are put as the source
put them, and marked afterwards.

Channels inside an agent, which this process cannot reach: the sink itself runs here until it has delivered its dead
letters, which are marked afterwards.

Delivery and mark are two steps for dead letters of a source, and of channels inside an agent: at-least-once. A kill
between the steps repeats up to `REPLAY_BATCH_EVENTS` events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from flafka.agent.audit.publishing import audit_of
from flafka.agent.runner.deadletters.reading import StoredDeadLetter, read_dead_letters
from flafka.agent.runner.deadletters.store import (
    DeadLetterStore,
    FileDeadLetterStore,
    KafkaDeadLetterStore,
    dead_letter_store,
    replay_record,
)
from flafka.agent.runner.local import standalone
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import AgentSpec, ChannelSpec, SinkSpec
from flafka.plugins import Batch, Channel, Components, Record, Rejected, Retry
from flafka.plugins.kafka.clients import new_producer, stream_client
from flafka.plugins.kafka.errors import PURGED, explain_error, transaction_error
from flafka.plugins.kafka.rights import Access, Role
from flafka.plugins.kafka.topic import KafkaBackedChannel

REPLAY_BATCH_EVENTS, REPLAY_BATCH_BYTES = 500, 4 << 20
"""Maximum number and bytes of dead letters in one batch; a larger dead letter is a batch of its own."""
UNMARKED_HINT = f"Up to {REPLAY_BATCH_EVENTS} dead letters may be delivered and are not marked as replayed"
"""Last sentence of the errors of a replay that runs a sink itself and does not finish."""
REPLAY_SECONDS = 60.0
"""Longest wait for an answer of the brokers in each step of a replay, such as the flush of one batch."""
TRANSACTION_SECONDS = 30
"""Transaction timeout. The open transaction of a killed replay blocks readers of the topic for at most this time."""

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

Outcome = Counter[str]
"""Number of events by the reason why they could not be replayed; of the replayed ones under the empty text."""


def replayer_of(spec: AgentSpec, channel: ChannelSpec) -> SinkReplayer | TopicReplayer:
    """Return the replayer for the dead letters of a channel: `TopicReplayer` in Kafka, else `SinkReplayer`."""
    store = dead_letter_store(spec.name, channel, channel.make(), spec.options, spec.file)
    if isinstance(store, FileDeadLetterStore):
        return SinkReplayer(spec, channel, store)
    assert isinstance(store, KafkaDeadLetterStore)
    return TopicReplayer(spec, channel, store)


def replay_batches(
    store: DeadLetterStore, chosen: Collection[str], *, again: bool
) -> Iterator[list[StoredDeadLetter]]:
    """Yield the dead letters whose names are in `chosen`, in batches of one component each.

    A batch has at most `REPLAY_BATCH_EVENTS` events and `REPLAY_BATCH_BYTES`, unless a single event is larger. Dead
    letters that were replayed already, also since they were chosen, are skipped unless `again` is set. Raises Retry
    and FlafkaError as `read_dead_letters` does.
    """
    incomplete: dict[str, list[StoredDeadLetter]] = {}
    for dead_letter in read_dead_letters(store):
        if dead_letter.name not in chosen or (dead_letter.replayed and not again):
            continue
        batch = incomplete.setdefault(dead_letter.component, [])
        size = sum(len(one.event.body) for one in (*batch, dead_letter))
        if batch and (len(batch) == REPLAY_BATCH_EVENTS or size > REPLAY_BATCH_BYTES):
            yield incomplete.pop(dead_letter.component)
            batch = incomplete[dead_letter.component] = []
        batch.append(dead_letter)
    yield from incomplete.values()


REPLAY = Role(
    "`agent dlq replay`",
    (
        Access("topic", "the topic of a channel `kafka`", ("Write",)),
        Access("topic", "`<topic>.deadletters`", ("Read", "Write")),
        Access("transactional id", "the transactional ids that begin with `flafka.`", ("Write",)),
    ),
)


class Replayer:
    """Base class of replayers, each for the dead letters of one channel."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, store: DeadLetterStore) -> None:
        self.spec, self.channel = spec, channel
        self.store = store
        self.sinks = {sink.path: sink for sink in spec.sinks if sink.channel == channel.name}
        self.sources = {source.path for source in spec.sources if channel.name in source.channels}


class TopicReplayer(Replayer):
    """Replayer into the topic of a channel in Kafka."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, store: KafkaDeadLetterStore) -> None:
        super().__init__(spec, channel, store)
        self._stream, self._topic = store.stream, store.topic
        self._kafka_channel: KafkaBackedChannel = channel.make()
        self._audit = audit_of(self._kafka_channel, spec.options)
        self._outcome: Outcome = Counter()
        self._partitions = 0
        self._is_open = False

    def destination(self, dead_letter: StoredDeadLetter) -> str | None:
        """Return the destination of a dead letter: "group NAME" for one of a sink, "all groups" for one of a source.

        None if the configuration no longer has the component.
        """
        if (sink := self.sinks.get(dead_letter.component)) is not None:
            return f"group {self._group(sink)}"
        return "all groups" if dead_letter.component in self.sources else None

    def _group(self, sink: SinkSpec) -> str:
        """Return the name of the sink's consumer group in Kafka."""
        return self._kafka_channel.kafka.stream(sink.group).group

    def replay(self, batches: Iterator[list[StoredDeadLetter]]) -> Outcome:
        """Replay the batches in order, and return the number of events by outcome. A transaction marks each batch.

        The first batch is read only after the transaction of another replay of this channel has ended. Raises
        FlafkaError if a batch cannot be replayed now; earlier batches stay replayed.
        """
        producer = self._new_producer()
        try:
            for batch in batches:
                if batch[0].component in self.sinks:
                    self._redeliver(producer, batch)
                else:
                    self._put_as_source(producer, batch)
        finally:
            producer.purge()
            if self._is_open:
                self._kafka_channel.close()
            if self._audit is not None:
                self._audit.close()
        return self._outcome

    def _new_producer(self) -> Any:
        """Return a transactional producer, which fences the producer of another replay of the same topic.

        Raises Retry if the brokers accept no transactions now.
        """
        stream = self._stream
        properties = {
            **stream_client(stream),
            "transactional.id": f"flafka.dlq.{stream.topic}",
            "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
        }
        try:
            producer = new_producer(REPLAY, properties)
            producer.init_transactions(REPLAY_SECONDS)
            topics = producer.list_topics(stream.topic, timeout=REPLAY_SECONDS).topics
        except KafkaException as e:
            why = explain_error(e, transactional_id=properties["transactional.id"], client=properties)
            raise Retry(f"Kafka does not accept transactions now, nothing was replayed: {why}") from e
        self._partitions = len(topics[stream.topic].partitions)
        return producer

    def _redeliver(self, producer: Any, batch: list[StoredDeadLetter]) -> None:
        """Produce a sink's dead letters for its group, and mark them as replayed, in one transaction.

        If a record is too large for the topic, the batch is halved until that record is alone. It then counts as
        failed. Raises Retry.
        """
        group = self._group(self.sinks[batch[0].component])
        try:
            self._commit_transaction(producer, [(one, self._redelivery(one, group)) for one in batch])
        except _TooLarge as e:
            if len(batch) == 1:
                self._outcome[str(e)] += 1
                return
            middle = len(batch) // 2
            self._redeliver(producer, batch[:middle])
            self._redeliver(producer, batch[middle:])

    def _redelivery(self, dead_letter: StoredDeadLetter, group: str) -> Record:
        """Return the record that redelivers this dead letter to `group` under its former event ID."""
        assert dead_letter.id is not None
        event = dead_letter.event
        if not dead_letter.undecodable:
            return self._kafka_channel.redelivery(event, dead_letter.id, dead_letter.arrival, group)
        key = event.headers.get("key")
        headers = [(name, text.encode()) for name, text in event.headers.items() if name != "key"]
        record = Record(-1, -1, key.encode() if key is not None else None, event.body, headers)
        return self._kafka_channel.redelivery(record, dead_letter.id, dead_letter.arrival, group)

    def _put_as_source(self, producer: Any, batch: list[StoredDeadLetter]) -> None:
        """Put the events of a source's dead letters into the channel, then mark these dead letters as replayed.

        Events that the channel rejects again stay dead letters, and count under the reason. Raises Retry.
        """
        if not self._is_open:
            self._is_open = True
            self._kafka_channel.open()
            if self._audit is not None:
                self._audit.open()
        refused: dict[int, str] = {}
        try:
            self._kafka_channel.put(Batch.of(dead_letter.event for dead_letter in batch))
        except Rejected as e:
            refused = {id.index: why for id, why in e.reasons.items()}
        self._outcome.update(refused.values())
        if stored := [(dead_letter, None) for row, dead_letter in enumerate(batch) if row not in refused]:
            if self._audit is not None:
                self._audit.put(Batch.of(dead_letter.event for dead_letter, _ in stored))
            self._commit_transaction(producer, stored)

    def _commit_transaction(
        self, producer: Any, batch: list[tuple[StoredDeadLetter, Record]] | list[tuple[StoredDeadLetter, None]]
    ) -> None:
        """Produce the records and mark these dead letters as replayed, in one transaction; a record may be None.

        Raises _TooLarge if the topic refuses the size of a record, and Retry for other errors. In both cases nothing
        is marked.
        """
        errors: list[Any] = []

        def on_delivery(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        try:
            producer.begin_transaction()
            for dead_letter, record in batch:
                if record is not None:
                    partition = dead_letter.id.partition if dead_letter.id is not None else -1
                    producer.produce(
                        self._stream.topic,
                        record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=partition if partition < self._partitions else -1,
                        on_delivery=on_delivery,
                    )
            producer.produce(self._topic, **replay_record(one.name for one, _ in batch), on_delivery=on_delivery)
            unacknowledged = producer.flush(REPLAY_SECONDS)
            if errors:
                raise KafkaException(errors[0])
            if unacknowledged:
                raise Retry(f"no acknowledgement from Kafka within {REPLAY_SECONDS:.0f} s")
            producer.commit_transaction(REPLAY_SECONDS)
        except (KafkaException, SystemError, Retry) as e:  # confluent-kafka: SystemError after an error in a callback
            if errors and errors[0].code() in PURGED:
                errors.insert(0, transaction_error(producer) or errors[0])
            try:
                producer.abort_transaction(REPLAY_SECONDS)
            except KafkaException as fatal:
                if fatal.args[0].code() in _FENCED:
                    raise Retry(
                        "the replay stopped: another replay of these dead letters began. Run it again once that one "
                        "has ended: what was replayed is skipped"
                    ) from e
            kafka_error = next((error for error in (*errors, *e.args) if isinstance(error, KafkaError)), None)
            if kafka_error is not None and kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise _TooLarge(f"it is larger than a record of topic {self._stream.topic} may be") from e
            why = str(e.__cause__ or e)
            if kafka_error is not None:
                client, topics = stream_client(self._stream), (self._stream.topic, self._topic)
                why = explain_error(kafka_error, topic=topics, right="Write", client=client)
            first, record = batch[0]
            duplicates = (
                "" if record is not None else f"; {len(batch)} dead letters of {first.component} would be duplicated"
            )
            raise Retry(f"the replay stopped, and skips what it replayed if run again{duplicates}: {why}") from e
        self._outcome[""] += len(batch)


class _TooLarge(Exception):
    """Error for a record that is larger than the topic's maximum."""


class SinkReplayer(Replayer):
    """Replayer for a channel inside an agent: runs the sinks in this process."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, store: FileDeadLetterStore) -> None:
        super().__init__(spec, channel, store)
        self._file = store

    def destination(self, dead_letter: StoredDeadLetter) -> str | None:
        """Return "sink NAME, run here"; None if the configuration no longer has the sink."""
        sink = self.sinks.get(dead_letter.component)
        return f"sink {sink.name}, run here" if sink is not None else None

    def replay(self, batches: Iterator[list[StoredDeadLetter]]) -> Outcome:
        """Run the sinks in this process until they have delivered the batches, and return the number of events.

        Each batch is marked as replayed after its delivery. Raises Retry if a sink fails or hangs, or while another
        process replays the same file.
        """
        with self._file.replay_lock():
            return self._deliver(batches)

    def _deliver(self, batches: Iterator[list[StoredDeadLetter]]) -> Outcome:
        """Deliver and mark batch by batch, with the sink of the batch's component, and return the outcome."""
        outcome: Outcome = Counter()
        sink: SinkRunner | None = None
        try:
            for batch in batches:
                if sink is None or sink.path != batch[0].component:
                    self._stop(sink)
                    sink = self._start(self.sinks[batch[0].component])
                sink.channel.channel.put(Batch.of(dead_letter.event for dead_letter in batch))
                self._wait_until_delivered(sink)
                self._file.mark_replayed(dead_letter.name for dead_letter in batch)
                outcome[""] += len(batch)
        finally:
            self._stop(sink)
        return outcome

    def _start(self, spec: SinkSpec) -> SinkRunner:
        """Start the sink on a new memory channel, which holds one batch, and return its runner."""
        memory = cast("type[Channel]", Components().get("channel", "memory"))
        config, _ = memory.config_class.parse(
            {"capacity": str(REPLAY_BATCH_EVENTS), "transactionCapacity": str(REPLAY_BATCH_EVENTS)}
        )
        assert config is not None
        runner = ChannelRunner(self.channel.path, self.channel.name, memory(config, self.channel.name))
        runner.ready.set()
        return standalone.start(spec, runner, self.store, spec.path, UNMARKED_HINT)

    @staticmethod
    def _wait_until_delivered(sink: SinkRunner) -> None:
        """Block until the sink's memory channel is empty. Raises Retry if the sink fails or hangs."""
        standalone.wait(sink, lambda: not sink.channel.metrics.get("ChannelSize"), UNMARKED_HINT)

    @staticmethod
    def _stop(sink: SinkRunner | None) -> None:
        if sink is not None:
            standalone.stop(sink)


def replay(replayer: SinkReplayer | TopicReplayer, chosen: Collection[str], *, again: bool) -> Outcome:
    """Replay the dead letters with the chosen names, close the store, and return the numbers of events by outcome.

    Dead letters that were replayed before are skipped unless `again` is set. Raises FlafkaError.
    """
    try:
        return replayer.replay(replay_batches(replayer.store, chosen, again=again))
    finally:
        replayer.store.close()
