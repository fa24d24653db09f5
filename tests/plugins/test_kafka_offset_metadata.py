"""What a committed offset says besides the offset."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import FlafkaError, PartitionClaim
from flafka.plugins.channel import next_epoch
from flafka.plugins.kafka.offsets import (
    NUL,
    VERSION,
    OffsetMetadata,
    RecordsLost,
    refusal,
    truncated,
    undone,
)

MILLIS = 10**12
EPOCHS = st.one_of(st.integers(1, 9), st.integers(MILLIS, 10 * MILLIS))
SAID = st.builds(
    OffsetMetadata,
    st.one_of(st.just(0), EPOCHS),
    st.text(),
    st.sampled_from([2, MILLIS]),
    st.text(),
    st.sampled_from(["", "30", "7?", "7+"]),
    st.just(VERSION),
    st.sampled_from([-1, 0, MILLIS]),
)


@given(SAID)
def test_it_is_read_as_it_was_written(said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(said.text()) == said
    assert OffsetMetadata.parse(f"{said.text()}\0") == said, "as confluent_kafka commits it"


@given(SAID, st.text())
def test_what_lies_behind_its_end_is_not_read(said: OffsetMetadata, behind: str) -> None:
    assert OffsetMetadata.parse(said.text() + NUL + behind) == said


@given(st.one_of(st.none(), st.text()))
def test_whatever_others_write_is_read(text: str | None) -> None:
    OffsetMetadata.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, OffsetMetadata()),
        ("", OffsetMetadata()),
        ("of another program", OffsetMetadata()),
        ("epoch=-3&ids=x&more=1", OffsetMetadata()),
        ("topic=a%2Bb%2F&ids=2", OffsetMetadata(topic_id="a+b/")),
        ("epoch=1790000000000&topic=a%2Bb%2F&ids=2", OffsetMetadata(1_790_000_000_000, "a+b/")),
        (
            "epoch=1790000000000&topic=i&ids=1780000000000&record=hdfs%3A%2Flogs%2F.flafka&lost=7%3F",
            OffsetMetadata(1_790_000_000_000, "i", 1_780_000_000_000, "hdfs:/logs/.flafka", "7?"),
        ),
    ],
)
def test_forms(text: str | None, said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(text) == said
    assert refusal(said) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epoch=3", "has event-ID scheme 1"),
        ("epoch=01790000000000", "has event-ID scheme 1"),
        ("topic=i", "has event-ID scheme 1"),
        ("topic=i&ids=0", "has event-ID scheme 0"),
        ("topic=i&ids=2&version=2", "has metadata of version 2, and this agent reads version 1"),
    ],
)
def test_metadata_of_another_version_is_known_as_such(text: str, why: str) -> None:
    assert refusal(OffsetMetadata.parse(text)).startswith(why)


def test_it_is_that_of_a_claim() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", MILLIS, 3, 2, "kafka:t.positions")
    assert OffsetMetadata.of(claim) == OffsetMetadata(MILLIS, "id", 2, "kafka:t.positions")


def test_an_epoch_is_later_than_the_one_before_and_than_any_from_before_now() -> None:
    now = int(time.time() * 1000)
    assert next_epoch(0) >= now
    assert next_epoch(7) >= now
    assert next_epoch(10 * MILLIS) == 10 * MILLIS + 1, "a clock that was set back makes no epoch twice"


def test_ids_begin_with_what_is_said_of_topics_of_one_name() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", 0, 0)
    stems = {one.stem for one in (claim, claim._replace(topic_id="new"), claim._replace(cluster_id="other"))}
    assert len(stems) == 3
    assert all(stem.startswith("t~") for stem in stems)
    assert claim._replace(epoch=9, group="other", partition=1).stem == claim.stem


def test_ids_are_others_where_records_took_the_place_of_lost_ones() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", MILLIS, 0)
    later = claim._replace(ids=MILLIS)
    assert later.stem != claim.stem
    assert later._replace(epoch=MILLIS + 1).stem == later.stem
    said = OffsetMetadata.of(later)
    assert OffsetMetadata.parse(said.text()) == said
    with pytest.raises(
        FlafkaError, match=r"records 20 to 39, 20 in all, .* offsets from 20 on\. .* --to 20 --new-ids$"
    ):
        raise truncated(claim, 40, 20)


@pytest.mark.parametrize("lost", ["20", "20?", "20+"])
def test_a_loss_that_retention_has_passed_advises_a_reset_that_brokers_take(lost: str) -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", MILLIS, 0)
    assert str(RecordsLost(claim, 40, lost, 20)).endswith("agent group reset group --topic t:0 --to 20 --new-ids")
    removed = str(RecordsLost(claim, 40, lost, 21))
    assert removed.endswith("agent group reset group --topic t:0 --to earliest --new-ids")
    assert ". Retention has removed records before offset 21 since. To " in removed
    assert "would be skipped" not in removed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epoch=2&topic=i", True),
        ("topic=i&ids=2", True),
        ("epoch=2", True),
        ("topic=j", True),
        ("epoch=9&topic=j", True),
        ("epoch=3&topic=i", False),
        ("epoch=4&topic=i", False),
        ("epoch=04", False),
        ("", False),
        (None, False),
        ("epoch=0", False),
        ("of another program", False),
    ],
)
def test_only_an_owner_of_an_earlier_epoch_or_topic_has_undone_a_position(text: str | None, found: bool) -> None:
    claim = PartitionClaim("c", "t", "i", "g", 3, 0)
    assert undone(claim, OffsetMetadata.parse(text)) is found
