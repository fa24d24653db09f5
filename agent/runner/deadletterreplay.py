"""Dead letters put back where they came from.

Where the channel lies in Kafka, what a sink rejected goes back into its topic, for that sink's group alone. The same
transaction notes in the topic of dead letters what was replayed: exactly once, whatever is killed. What a source
could not store is put as the source put it, and noted afterwards. A channel inside an agent cannot be reached from
outside. There the sink itself is run here until it has delivered its dead letters, which are noted then. Of these
two, a kill in between repeats up to `LOT` events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from flafka.agent.audit.publishing import audit_of
from flafka.agent.runner.deadletters.letters import (
    DeadLetters,
    FileDeadLetters,
    KafkaDeadLetters,
    dead_letters_of,
    marker,
)
from flafka.agent.runner.deadletters.stored import StoredDeadLetter, read
from flafka.agent.runner.local import alone
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import AgentSpec, ChannelSpec, SinkSpec
from flafka.plugins import Batch, Channel, Components, Record, Rejected, Retry
from flafka.plugins.kafka.clients import Access, Role, new_producer, stream_client
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.topic import KafkaBackedChannel

LOT, LOT_BYTES = 500, 4 << 20
"""Maximum number and bytes of dead letters that are replayed together; a larger one is a lot of its own."""
LEFT = f"Up to {LOT} letters may be delivered and are not noted as replayed"
"""Ends the messages of a replay that runs a sink itself and does not come to its end."""
REPLAY_SECONDS = 60.0
"""Time in which brokers answer each call of a replay, such as the flush of one lot."""
TRANSACTION_SECONDS = 30
"""A replay that is killed holds the topic's readers up until its transaction is that old, or another one begins."""

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

Outcome = Counter[str]
"""Number of events that could not be replayed, by the reason; under the empty text those that were."""


def replayer_of(spec: AgentSpec, channel: ChannelSpec) -> ThroughSink | ThroughTopic:
    """Return the one for this channel."""
    letters = dead_letters_of(spec.name, channel, channel.make(), spec.options, spec.file)
    if isinstance(letters, FileDeadLetters):
        return ThroughSink(spec, channel, letters)
    assert isinstance(letters, KafkaDeadLetters)
    return ThroughTopic(spec, channel, letters)


def lots(letters: DeadLetters, chosen: Collection[str], *, again: bool) -> Iterator[list[StoredDeadLetter]]:
    """Yield the chosen dead letters, each lot of one component, without what was replayed meanwhile."""
    waiting: dict[str, list[StoredDeadLetter]] = {}
    for kept in read(letters):
        if kept.letter not in chosen or (kept.replayed and not again):
            continue
        lot = waiting.setdefault(kept.component, [])
        if lot and (len(lot) == LOT or sum(len(k.event.body) for k in (*lot, kept)) > LOT_BYTES):
            yield waiting.pop(kept.component)
            lot = waiting[kept.component] = []
        lot.append(kept)
    yield from waiting.values()


REPLAY = Role(
    "`agent dlq replay`",
    (
        Access("the topic of a channel `kafka`", ("Write", "Describe")),
        Access("the transactional ids that begin with `flafka`", ("Write", "Describe")),
    ),
)


class Replayer:
    """Puts the dead letters of one channel back."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, letters: DeadLetters) -> None:
        self.spec, self.channel = spec, channel
        self.letters = letters
        self.sinks = {sink.path: sink for sink in spec.sinks if sink.channel == channel.name}
        self.sources = {source.path for source in spec.sources if channel.name in source.channels}


class ThroughTopic(Replayer):
    """Into the topic of a channel that lies in Kafka."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, letters: KafkaDeadLetters) -> None:
        super().__init__(spec, channel, letters)
        self._stream, self._topic = letters.stream, letters.topic
        self._made: KafkaBackedChannel = channel.make()
        self._audit = audit_of(self._made, spec.options)
        self._outcome: Outcome = Counter()
        self._partitions = 0
        self._opened = False

    def destination(self, kept: StoredDeadLetter) -> str | None:
        """Return the group, or all of them; None where the configuration no longer has the component."""
        if (sink := self.sinks.get(kept.component)) is not None:
            return f"group {self._group(sink)}"
        return "all groups" if kept.component in self.sources else None

    def _group(self, sink: SinkSpec) -> str:
        return self._made.kafka.stream(sink.group).group

    def replay(self, lots: Iterator[list[StoredDeadLetter]]) -> Outcome:
        """Replay them, lot by lot; lots are read after another replay's transaction on this channel has ended.

        Raises FlafkaError, which says what to do, where the rest has to wait.
        """
        producer = self._producer()
        try:
            for lot in lots:
                if lot[0].component in self.sinks:
                    self._put(producer, lot)
                else:
                    self._store(producer, lot)
        finally:
            producer.purge()
            if self._opened:
                self._made.close()
            if self._audit is not None:
                self._audit.close()
        return self._outcome

    def _producer(self) -> Any:
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
            raise Retry(f"Kafka does not accept transactions now, nothing was replayed: {sentence(e)}") from e
        self._partitions = len(topics[stream.topic].partitions)
        return producer

    def _put(self, producer: Any, lot: list[StoredDeadLetter]) -> None:
        """A transaction; one that holds a record too large for the topic is divided until that one is alone."""
        group = self._group(self.sinks[lot[0].component])
        try:
            self._transaction(producer, [(kept, self._again(kept, group)) for kept in lot])
        except _TooLarge as e:
            if len(lot) == 1:
                self._outcome[str(e)] += 1
                return
            middle = len(lot) // 2
            self._put(producer, lot[:middle])
            self._put(producer, lot[middle:])

    def _again(self, kept: StoredDeadLetter, group: str) -> Record:
        assert kept.id is not None
        event = kept.event
        if not kept.undecodable:
            return self._made.redelivery(event, kept.id, kept.arrival, group)
        key = event.headers.get("key")
        headers = [(name, text.encode()) for name, text in event.headers.items() if name != "key"]
        record = Record(-1, -1, key.encode() if key is not None else None, event.body, headers)
        return self._made.redelivery(record, kept.id, kept.arrival, group)

    def _store(self, producer: Any, lot: list[StoredDeadLetter]) -> None:
        """Put events as the source did; what the channel still refuses stays as it is."""
        if not self._opened:
            self._opened = True
            self._made.open()
            if self._audit is not None:
                self._audit.open()
        refused: dict[int, str] = {}
        try:
            self._made.put(Batch.of(kept.event for kept in lot))
        except Rejected as e:
            refused = {id.index: why for id, why in e.reasons.items()}
        self._outcome.update(refused.values())
        if stored := [(kept, None) for row, kept in enumerate(lot) if row not in refused]:
            if self._audit is not None:
                self._audit.put(Batch.of(kept.event for kept, _ in stored))
            self._transaction(producer, stored)

    def _transaction(
        self, producer: Any, lot: list[tuple[StoredDeadLetter, Record]] | list[tuple[StoredDeadLetter, None]]
    ) -> None:
        """Write the records, and the note that these dead letters were replayed: both or neither."""
        errors: list[Any] = []

        def heard(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        try:
            producer.begin_transaction()
            for kept, record in lot:
                if record is not None:
                    partition = kept.id.partition if kept.id is not None else -1
                    producer.produce(
                        self._stream.topic,
                        record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=partition if partition < self._partitions else -1,
                        on_delivery=heard,
                    )
            producer.produce(self._topic, **marker(kept.letter for kept, _ in lot), on_delivery=heard)
            left = producer.flush(REPLAY_SECONDS)
            if errors:
                raise KafkaException(errors[0])
            if left:
                raise Retry(f"no acknowledgement from Kafka within {REPLAY_SECONDS:.0f} s")
            producer.commit_transaction(REPLAY_SECONDS)
        except (KafkaException, SystemError, Retry) as e:  # SystemError: a fatal error amid callbacks
            try:
                producer.abort_transaction(REPLAY_SECONDS)
            except KafkaException as fatal:
                if fatal.args[0].code() in _FENCED:
                    raise Retry(
                        "the replay stopped: another replay of these dead letters began. Run it again once that is "
                        "over: it knows what was replayed"
                    ) from e
            known = next((error for error in (*errors, *e.args) if isinstance(error, KafkaError)), None)
            if known is not None and known.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise _TooLarge(f"it is larger than a record of topic {self._stream.topic} may be") from e
            why = known.str() if known is not None else str(e.__cause__ or e)
            stored = (
                "" if lot[0][1] is not None else f"; {len(lot)} letters of {lot[0][0].component} would come twice"
            )
            raise Retry(f"the replay stopped: {why}. Run it again: it knows what was replayed{stored}") from e
        self._outcome[""] += len(lot)


class _TooLarge(Exception):
    """A record of a transaction is more than the topic takes."""


class ThroughSink(Replayer):
    """Into a sink that is run for it, of a channel inside an agent."""

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, letters: FileDeadLetters) -> None:
        super().__init__(spec, channel, letters)
        self._file = letters

    def destination(self, kept: StoredDeadLetter) -> str | None:
        """Return the sink; None where the configuration no longer has it."""
        return f"sink {self.sinks[kept.component].name}, run here" if kept.component in self.sinks else None

    def replay(self, lots: Iterator[list[StoredDeadLetter]]) -> Outcome:
        """Have the sinks deliver, one after the other. Raises FlafkaError, as above."""
        with self._file.replaying():
            return self._deliver(lots)

    def _deliver(self, lots: Iterator[list[StoredDeadLetter]]) -> Outcome:
        outcome: Outcome = Counter()
        sink: SinkRunner | None = None
        try:
            for lot in lots:
                if sink is None or sink.path != lot[0].component:
                    self._stop(sink)
                    sink = self._start(self.sinks[lot[0].component])
                sink.channel.channel.put(Batch.of(kept.event for kept in lot))
                self._await(sink)
                self._file.mark(kept.letter for kept in lot)
                outcome[""] += len(lot)
        finally:
            self._stop(sink)
        return outcome

    def _start(self, spec: SinkSpec) -> SinkRunner:
        memory = cast("type[Channel]", Components().get("channel", "memory"))
        config, _ = memory.config_class.parse({"capacity": str(LOT), "transactionCapacity": str(LOT)})
        assert config is not None
        runner = ChannelRunner(self.channel.path, self.channel.name, memory(config, self.channel.name))
        runner.ready.set()
        return alone.started(spec, runner, self.letters, spec.path, LEFT)

    @staticmethod
    def _await(sink: SinkRunner) -> None:
        alone.wait(sink, lambda: not sink.channel.metrics.get("ChannelSize"), LEFT)

    @staticmethod
    def _stop(sink: SinkRunner | None) -> None:
        if sink is not None:
            alone.stop(sink)


def replay(replayer: ThroughSink | ThroughTopic, chosen: Collection[str], *, again: bool) -> Outcome:
    """Replay these dead letters, by name."""
    try:
        return replayer.replay(lots(replayer.letters, chosen, again=again))
    finally:
        replayer.letters.close()
