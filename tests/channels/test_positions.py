"""Whose positions a group holds."""

import logging
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from flafka.channels.kafka.offsets import PartitionLog, claims_of
from flafka.plugins import FlafkaError, PartitionClaim

CLAIM = PartitionClaim("cluster", "t", "now", "group", 0, -1)
LOG = logging.getLogger()


def at(partition, offset, metadata=""):
    return TopicPartition("t", partition, offset, metadata)


def claim(partition, **said):
    return CLAIM._replace(partition=partition, **said)


def test_a_group_that_never_committed_has_the_ids_of_its_topic():
    found = claims_of(CLAIM, [at(0, OFFSET_INVALID), at(1, OFFSET_INVALID)], LOG)
    assert found == {claim(0): None, claim(1): None}


@pytest.mark.parametrize("metadata", ["", "of another program", '{"topic": "t"}'])
def test_the_offset_of_a_flume_or_of_another_program_counts(metadata):
    assert claims_of(CLAIM, [at(0, 4, metadata)], LOG) == {claim(0): 4}


def test_what_was_committed_for_this_topic_counts():
    said = "epoch=1790000000000&topic=now&ids=2&record=hdfs%3A%2Flogs%2F.flafka"
    found = claims_of(CLAIM, [at(0, 4, said), at(1, OFFSET_INVALID)], LOG)
    assert found == {
        claim(0, epoch=1_790_000_000_000, record="hdfs:/logs/.flafka"): 4,
        claim(1): None,
    }


def test_what_was_committed_for_a_topic_deleted_since_does_not(caplog):
    caplog.set_level(logging.WARNING)
    found = claims_of(CLAIM, [at(0, 4, "epoch=1790000000000&topic=before&ids=2&record=x")], LOG)
    assert found == {claim(0): None}
    assert "group group stood at offset 4 of a topic t that was deleted" in caplog.text


WAY_OUT = (
    "deliver what the topic holds with the agent that wrote it (agent start --drain), then run "
    "agent group reset group --topic t:1 --to current"
)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("epoch=0", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("epoch=3\x7f", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("topic=now&record=x", "has event-ID scheme 1, and this agent knows scheme 2 and later ones"),
        ("epoch=3&topic=now&ids=2&version=2", "has metadata of version 2, and this agent reads version 1"),
    ],
)
def test_an_offset_of_another_version_is_refused_with_the_way_out(metadata, why):
    with pytest.raises(FlafkaError) as refused:
        claims_of(CLAIM, [at(0, 4), at(1, 5, metadata)], LOG)
    assert str(refused.value) == f"the offset of group group in t-1 {why}: {WAY_OUT}"


def test_that_is_said_once_however_often_positions_are_asked_for(caplog):
    caplog.set_level(logging.WARNING)
    told = set()
    for _ in range(3):
        claims_of(CLAIM, [at(0, 4, "topic=before"), at(1, 5, "topic=before")], LOG, told)
    assert [record.args[-1] for record in caplog.records] == [0, 1]


class OneLog:
    """A consumer of one partition: leader epochs by offset, and its two ends."""

    def __init__(self, epochs, low, high):
        self.epochs, self.low, self.high = epochs, low, high
        self.at, self.polls = 0, 0

    def get_watermark_offsets(self, _, timeout):
        return self.low, self.high

    def assign(self, partitions):
        (tp,) = partitions
        self.at = tp.offset

    def poll(self, _):
        self.polls += 1
        assert self.at >= self.low
        offset = min((one for one in self.epochs if one >= self.at), default=None)
        end = KafkaError._AUTO_OFFSET_RESET if self.at > self.high else KafkaError._PARTITION_EOF
        error = KafkaError(end) if offset is None else None
        return SimpleNamespace(
            error=lambda: error, offset=lambda: offset, leader_epoch=lambda: self.epochs.get(offset, -1)
        )


def truncated(log, position, epoch):
    return PartitionLog(log, claim(0)).truncated(position, epoch)


@given(st.data())
def test_records_that_took_the_place_of_those_read_are_found_also_beside_gaps(data):
    offsets = st.integers(0, 60)
    end, position = sorted((data.draw(offsets), data.draw(offsets)))
    epochs = {offset: data.draw(st.integers(0, 3)) for offset in range(end)}
    epochs = dict(zip(epochs, sorted(epochs.values()), strict=True))
    high = end + data.draw(st.integers(0, 60))
    replaced = epochs | {offset: 4 + (offset > end + 5) for offset in range(end, high)}
    gone = data.draw(st.sets(offsets))
    low = data.draw(st.integers(0, end))
    left = {offset: epoch for offset, epoch in replaced.items() if offset not in gone and offset >= low}
    found = truncated(OneLog(left, low, high), position, 3)
    if high >= position and not any(end <= offset < position for offset in left):
        assert found is None
    else:
        older = [offset for offset in left if offset < end]
        assert found == max(older, default=low - 1) + 1


def test_what_was_read_is_there_after_a_look_at_one_record():
    log = OneLog(dict.fromkeys(range(1000), 5), 0, 1000)
    assert truncated(log, 900, 5) is None
    assert log.polls == 1
