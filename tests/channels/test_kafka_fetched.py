"""Reader's queue between Kafka's client and the sink: in order, once, and counted."""

import threading
from typing import NamedTuple

from confluent_kafka import KafkaError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flafka.channels.kafka.consumer import FetchBuffer
from flafka.plugins import LastRecord
from flafka.plugins.kafka.consumer import memory_bytes
from tests.fixtures.partitions import assignment

ASSIGNMENTS = [assignment("cluster", "t", "id", "g", -1, partition) for partition in range(3)]
PARTITIONS = st.sampled_from(range(3))


class Message(NamedTuple):
    """Part of the client's message that is used."""

    partition_number: int
    number: int
    epoch: int = 0
    end: bool = False

    def __len__(self) -> int:
        return self.number % 7

    def partition(self):
        return self.partition_number

    def offset(self):
        return self.number

    def error(self):
        return KafkaError(KafkaError._PARTITION_EOF) if self.end else None

    def leader_epoch(self):
        return self.epoch

    def timestamp(self):
        return 1, self.number

    def key(self):
        return None

    def value(self):
        return b"%d-%d" % (self.partition_number, self.number)

    def headers(self):
        return None


def started(*partitions, offset=0):
    fetched = FetchBuffer(threading.Condition())
    fetched.add([ASSIGNMENTS[partition].with_offset(offset) for partition in partitions])
    return fetched


def waiting_of(fetched):
    return len(fetched._confirming) + len(fetched._unconfirmed) + sum(map(len, fetched._confirmed.values()))


def confirm(fetched):
    fetched.start_confirmation()
    fetched.finish_confirmation(confirmed=True)


class Reading(RuleBasedStateMachine):
    """The brokers deliver offsets in order; a pending seek takes effect with `seek`."""

    def __init__(self):
        super().__init__()
        self.fetched = FetchBuffer(threading.Condition())
        self.broker: dict[int, int] = {}
        """Next offset that the client receives, by partition."""
        self.due: dict[int, int] = {}
        """Next offset to deliver, by partition."""
        self.asking = False

    @rule(partition=PARTITIONS, offset=st.integers(0, 9))
    def assigned(self, partition, offset):
        if partition not in self.broker:
            self.fetched.add([ASSIGNMENTS[partition].with_offset(offset)])
            self.broker[partition] = self.due[partition] = offset

    @rule(partition=PARTITIONS)
    def revoked(self, partition):
        self.fetched.remove({partition})
        self.broker.pop(partition, None)
        self.due.pop(partition, None)

    @rule(partition=PARTITIONS, count=st.integers(1, 4))
    def received(self, partition, count):
        first = self.broker.get(partition, 0)
        for number in range(first, first + count):
            assert self.fetched.add_message(Message(partition, number))
        if partition in self.broker:
            self.broker[partition] += count

    @rule(partition=PARTITIONS, back=st.integers(0, 5))
    def rewind(self, partition, back):
        to = max(0, self.due.get(partition, 0) - back)
        self.fetched.rewind([ASSIGNMENTS[partition].with_offset(to)])
        if partition in self.due:
            self.due[partition] = to

    @rule()
    def seek(self):
        self.broker.update(self.fetched.take_seeks())

    @precondition(lambda self: not self.asking)
    @rule()
    def ask(self):
        self.fetched.start_confirmation()
        self.asking = True

    @precondition(lambda self: self.asking)
    @rule(confirmed=st.booleans())
    def answer(self, confirmed):
        self.fetched.finish_confirmation(confirmed=confirmed)
        self.asking = False

    @rule(most=st.integers(1, 5), revoke=st.booleans())
    def hand_out(self, most, revoke):
        """Take at most this many; a partition may be lost meanwhile."""
        ready = self.fetched.has_confirmed
        polled = self.fetched.take_records()
        assert (polled is not None) == ready
        if polled is None:
            return
        partition, records = polled[0].partition, polled[1]
        for _ in range(most):
            record = next(records, None)
            if record is None:
                break
            assert record.offset == self.due[partition], "in order, and each once"
            self.due[partition] += 1
        if revoke:
            self.revoked(partition)
            assert next(records, None) is None
        records.close()

    @invariant()
    def counted(self):
        seeking = self.fetched._seeks.keys()
        waiting = {p: range(self.due[p], end) for p, end in self.broker.items() if p not in seeking}
        messages = [Message(p, n) for p, numbers in waiting.items() for n in numbers]
        assert self.fetched.bytes == sum(map(memory_bytes, messages))
        assert waiting_of(self.fetched) == sum(map(len, waiting.values()))
        next_offsets = {p: self.due[p] if p in seeking else end for p, end in self.broker.items()}
        assert self.fetched.next_offsets() == next_offsets
        assert self.fetched.first_pending_offsets() == self.due


TestReading = Reading.TestCase


def test_partitions_take_turns():
    fetched = started(0, 1)
    for number in range(4):
        fetched.add_message(Message(number % 2, number // 2))
    confirm(fetched)
    order = []
    while polled := fetched.take_records():
        of, records = polled
        order.append((of.partition, next(records).offset))
        records.close()
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_the_end_of_a_partition_is_after_its_last_transaction_marker():
    fetched = started(0)
    fetched.add_message(Message(0, 0))
    fetched.add_message(Message(0, 2, end=True))
    assert fetched.next_offsets() == {0: 2}
    assert waiting_of(fetched) == 1


def test_the_leader_epoch_is_that_of_the_record_before():
    fetched = started(0, 1)
    fetched.add([ASSIGNMENTS[2].with_offset(5, LastRecord(leader_epoch=3))])
    for number, epoch in enumerate([4, 4, 6, 6], start=5):
        fetched.add_message(Message(2, number, epoch))
    assert [fetched.leader_epoch(2, end) for end in range(4, 10)] == [-1, 3, 4, 4, 6, 6]
    assert fetched.leader_epoch(1, 5) == -1


def test_records_after_a_rewind_have_its_generation():
    fetched = started(0)
    fetched.rewind([ASSIGNMENTS[0].replace(epoch=7).with_offset(4), ASSIGNMENTS[1].with_offset(4)])
    assert fetched.take_seeks() == {0: 4}
    fetched.add_message(Message(0, 4))
    confirm(fetched)
    of, records = fetched.take_records()
    assert (of.generation.epoch, next(records).offset) == (7, 4)
    assert fetched.assignments.keys() == {0}


def test_records_of_other_partitions_are_not_kept():
    fetched = started(0, 1)
    fetched.stop_at({0: 1})
    assert fetched.add_message(Message(0, 0))
    assert not fetched.add_message(Message(0, 1))
    assert not fetched.add_message(Message(1, 0))
    assert waiting_of(fetched) == 1
    assert fetched.bounded({0, 1}) == {0}
