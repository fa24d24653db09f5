"""Committed offsets of a group, and their metadata."""

import logging
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import FlafkaError, Generation, LastRecord
from flafka.plugins.kafka.offsets import assignments_of, with_last_record
from flafka.plugins.kafka.truncation import PartitionLog
from tests.fixtures.partitions import assignment

TEMPLATE = assignment("cluster", "t", "now", "group", 0, -1)
LOG = logging.getLogger()


def committed_at(partition, offset, metadata=""):
    return TopicPartition("t", partition, offset, metadata)


def assignments_from(*committed, logged=None):
    return assignments_of(TEMPLATE, committed, LOG, logged)


def test_a_group_that_never_committed_has_the_ids_of_its_topic():
    assert assignments_from(committed_at(0, OFFSET_INVALID), committed_at(1, OFFSET_INVALID)) == [
        TEMPLATE.replace(partition=n) for n in (0, 1)
    ]


@pytest.mark.parametrize("metadata", ["", "of another program", '{"topic": "t"}'])
def test_an_offset_of_flume_or_of_another_program_counts(metadata):
    assert assignments_from(committed_at(0, 4, metadata)) == [TEMPLATE.replace(partition=0).with_offset(4)]


def test_an_offset_of_this_topic_id_counts():
    metadata = "epoch=1790000000000&topic=now&ids=2&record=hdfs%3A%2Flogs%2F.flafka"
    assignments = assignments_from(committed_at(0, 4, metadata), committed_at(1, OFFSET_INVALID))
    assert assignments == [
        TEMPLATE.replace(partition=0, epoch=1_790_000_000_000, commit_log="hdfs:/logs/.flafka").with_offset(4),
        TEMPLATE.replace(partition=1),
    ]


def test_the_last_record_is_that_of_the_metadata_and_of_the_leader_epoch_committed():
    committed = TopicPartition("t", 0, 4, "topic=now&ids=2&time=1790000000000", leader_epoch=7)
    assert [assignment.last_record for assignment in assignments_from(committed)] == [
        LastRecord(1_790_000_000_000, 7)
    ]


@pytest.mark.parametrize(
    ("offset", "ours", "theirs", "known"),
    [
        (4, LastRecord(), LastRecord(5, 7), LastRecord(5, 7)),
        (4, LastRecord(6, 8), LastRecord(5, 7), LastRecord(6, 7)),
        (4, LastRecord(6, 8), LastRecord(), LastRecord(6, 8)),
        (5, LastRecord(6), LastRecord(5, 7), LastRecord(6)),
        (None, LastRecord(), LastRecord(5, 7), LastRecord()),
    ],
)
def test_a_committed_offset_has_the_last_record_before_it(offset, ours, theirs, known):
    start, committed = TEMPLATE.replace(epoch=3).with_offset(offset, ours), TEMPLATE.with_offset(4, theirs)
    result = with_last_record(start, committed)
    assert (result.generation, result.next_offset, result.last_record) == (Generation(3), offset, known)


def test_an_offset_of_a_deleted_topic_does_not_count(caplog):
    caplog.set_level(logging.WARNING)
    assignments = assignments_from(committed_at(0, 4, "epoch=1790000000000&topic=before&ids=2&record=x"))
    assert assignments == [TEMPLATE.replace(partition=0)]
    assert "group group has committed offset 4 of a topic t that was deleted" in caplog.text


ADVICE = (
    "deliver the topic's events with the agent that wrote it (agent start --drain), then run "
    "agent group reset group --topic t:1 --to current"
)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ("epoch=0", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("epoch=3\x7f", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("topic=now&record=x", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("epoch=3&topic=now&ids=2&version=2", "has metadata of version 2, and this agent reads version 1"),
    ],
)
def test_an_offset_of_another_version_is_refused_with_advice(metadata, reason):
    with pytest.raises(FlafkaError) as refused:
        assignments_from(committed_at(0, 4), committed_at(1, 5, metadata))
    assert str(refused.value) == f"the offset of group group in t-1 {reason}: {ADVICE}"


def test_an_unreadable_offset_is_reported_once(caplog):
    caplog.set_level(logging.WARNING)
    logged = set()
    for _ in range(3):
        assignments_from(committed_at(0, 4, "topic=before"), committed_at(1, 5, "topic=before"), logged=logged)
    assert [record.args[-1] for record in caplog.records] == [0, 1]


class OneLog:
    """Consumer of one partition: leader epochs by offset, and its two ends."""

    def __init__(self, epochs, low, high):
        self.epochs, self.low, self.high = epochs, low, high
        self.position, self.polls = 0, 0

    def get_watermark_offsets(self, _, timeout):
        return self.low, self.high

    def assign(self, partitions):
        (tp,) = partitions
        self.position = tp.offset

    def poll(self, _):
        self.polls += 1
        assert self.position >= self.low
        offset = min((start for start in self.epochs if start >= self.position), default=None)
        end = KafkaError._AUTO_OFFSET_RESET if self.position > self.high else KafkaError._PARTITION_EOF
        error = KafkaError(end) if offset is None else None
        return SimpleNamespace(
            error=lambda: error, offset=lambda: offset, leader_epoch=lambda: self.epochs.get(offset, -1)
        )


def truncated(log, end, epoch):
    return PartitionLog(log, TEMPLATE.replace(partition=0)).truncated(end, epoch)


@given(st.data())
def test_records_at_the_offsets_of_lost_ones_are_detected_also_beside_gaps(data):
    offsets = st.integers(0, 60)
    end, position = sorted((data.draw(offsets), data.draw(offsets)))
    epochs = {offset: data.draw(st.integers(0, 3)) for offset in range(end)}
    epochs = dict(zip(epochs, sorted(epochs.values()), strict=True))
    high = end + data.draw(st.integers(0, 60))
    replaced = epochs | {offset: 4 + (offset > end + 5) for offset in range(end, high)}
    deleted = data.draw(st.sets(offsets))
    low = data.draw(st.integers(0, end))
    remaining = {offset: epoch for offset, epoch in replaced.items() if offset not in deleted and offset >= low}
    truncation = truncated(OneLog(remaining, low, high), position, 3)
    if high >= position and not any(end <= offset < position for offset in remaining):
        assert truncation is None
    else:
        older = [offset for offset in remaining if offset < end]
        assert truncation == max(older, default=low - 1) + 1


def test_unchanged_records_are_confirmed_by_reading_one():
    log = OneLog(dict.fromkeys(range(1000), 5), 0, 1000)
    assert truncated(log, 900, 5) is None
    assert log.polls == 1
