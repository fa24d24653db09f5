"""Whose positions a group holds."""

import logging
import uuid
from types import SimpleNamespace

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from channels.kafka.positions import Log, TopicIds, claims_of, reader_id
from plugins import PartitionClaim

CLAIM = PartitionClaim("cluster", "t", "now", "group", 0, -1)
LOG = logging.getLogger()


def at(partition, offset, metadata=""):
    return TopicPartition("t", partition, offset, metadata)


def claim(partition, **said):
    return CLAIM._replace(partition=partition, **said)


def test_a_group_that_never_committed_has_the_new_ids():
    found = claims_of(CLAIM, [at(0, OFFSET_INVALID), at(1, OFFSET_INVALID)], LOG)
    assert found == {claim(0, ids=2): None, claim(1, ids=2): None}


def test_a_group_of_flume_or_of_an_older_version_keeps_its_ids_in_all_partitions():
    found = claims_of(CLAIM, [at(0, 4), at(1, 5, "epoch=3"), at(2, OFFSET_INVALID)], LOG)
    assert found == {claim(0): 4, claim(1, epoch=3, shared_epoch=3): 5, claim(2): None}


def test_what_was_committed_for_this_topic_counts():
    said = "epoch=1790000000000&topic=now&ids=2&record=hdfs%3A%2Flogs%2F.flafka"
    found = claims_of(CLAIM, [at(0, 4, said), at(1, OFFSET_INVALID)], LOG)
    assert found == {
        claim(0, epoch=1_790_000_000_000, ids=2, record="hdfs:/logs/.flafka"): 4,
        claim(1, ids=2): None,
    }


def test_what_was_committed_for_a_topic_deleted_since_does_not(caplog):
    caplog.set_level(logging.WARNING)
    found = claims_of(CLAIM, [at(0, 4, "epoch=1790000000000&topic=before&ids=2&record=x")], LOG)
    assert found == {claim(0, ids=2): None}
    assert "group group stood at offset 4 of a topic t that was deleted" in caplog.text


def test_while_older_members_read_the_group_too_all_that_begins_is_as_they_know_it():
    committed = [at(0, OFFSET_INVALID), at(1, 4, "epoch=3"), at(2, 5, "epoch=01790000000000"), at(3, 6, "epoch=0")]
    assert claims_of(CLAIM, committed, LOG, mixed=True) == {
        claim(0): None,
        claim(1, epoch=3, shared_epoch=3): 4,
        claim(2, epoch=1_790_000_000_000, shared_epoch=1_790_000_000_000): 5,
        claim(3): 6,
    }
    assert claims_of(CLAIM, committed[:1], LOG, mixed=True) == {claim(0): None}


def test_what_says_more_than_older_members_understand_goes_on_saying_it():
    said = "epoch=1790000000000&topic=now&ids=2&record=r"
    found = claims_of(CLAIM, [at(0, 4, said)], LOG, mixed=True)
    assert found == {claim(0, epoch=1_790_000_000_000, ids=2, record="r"): 4}


def test_a_group_that_was_reset_for_older_members_has_the_new_ids_once_they_are_gone():
    found = claims_of(CLAIM, [at(0, 4, "epoch=01790000000000"), at(1, 5, "epoch=2")], LOG)
    assert found == {claim(0, epoch=1_790_000_000_000, ids=2): 4, claim(1, epoch=2, shared_epoch=2): 5}


def test_members_of_version_0_1_are_told_by_what_their_clients_are_called():
    def member(client, instance="other"):
        return SimpleNamespace(
            id=f"{instance}-{uuid.uuid4()}", client_id=client, client_host="/10.0.0.1", assignment=b""
        )

    class Admin:
        def list_groups(self, group, timeout):
            members = [member("flafka-c1", "host.a1.k1.t"), member(reader_id("c1")), member("flink"), member("")]
            return [SimpleNamespace(id=group, state="Stable", error=None, members=members)]

    assert TopicIds(Admin(), "t").members("group").older == ("host.a1.k1.t on 10.0.0.1",)


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
    return Log(log, claim(0)).truncated(position, epoch)[0]


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
