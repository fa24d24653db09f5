"""Whose positions a group holds."""

import logging

from confluent_kafka import OFFSET_INVALID, TopicPartition

from channels.kafka.positions import claims_of
from plugins import Claim

CLAIM = Claim("cluster", "t", "now", "group", 0, -1)
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
    assert found == {claim(0): 4, claim(1, epoch=3): 5, claim(2): None}


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
