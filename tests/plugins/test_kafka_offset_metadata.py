"""Metadata of a committed offset."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import FlafkaError, Generation, LastRecord, next_epoch
from flafka.plugins.kafka.offsets import (
    METADATA_VERSION,
    NUL,
    OffsetMetadata,
    RecordsLost,
    is_late_commit,
    truncation_error,
    unsupported_reason,
)
from tests.fixtures.partitions import assignment

MILLIS = 10**12
EPOCHS = st.one_of(st.integers(1, 9), st.integers(MILLIS, 10 * MILLIS))
SAID = st.builds(
    OffsetMetadata,
    st.builds(Generation, st.one_of(st.just(0), EPOCHS), st.sampled_from([2, MILLIS]), st.text()),
    st.text(),
    st.sampled_from(["", "30", "7?", "7+"]),
    st.just(METADATA_VERSION),
    st.sampled_from([-1, 0, MILLIS]),
)


@given(SAID)
def test_written_metadata_can_be_read(metadata: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(metadata.text()) == metadata
    assert OffsetMetadata.parse(f"{metadata.text()}\0") == metadata, "as confluent_kafka commits it"


@given(SAID, st.text())
def test_text_after_the_end_of_the_metadata_is_not_read(metadata: OffsetMetadata, behind: str) -> None:
    assert OffsetMetadata.parse(metadata.text() + NUL + behind) == metadata


@given(st.one_of(st.none(), st.text()))
def test_any_foreign_metadata_can_be_read(text: str | None) -> None:
    OffsetMetadata.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, OffsetMetadata()),
        ("", OffsetMetadata()),
        ("of another program", OffsetMetadata()),
        ("epoch=-3&ids=x&more=1", OffsetMetadata()),
        ("topic=a%2Bb%2F&ids=2", OffsetMetadata(topic_id="a+b/")),
        ("epoch=1790000000000&topic=a%2Bb%2F&ids=2", OffsetMetadata(Generation(1_790_000_000_000), "a+b/")),
        (
            "epoch=1790000000000&topic=i&ids=1780000000000&record=hdfs%3A%2Flogs%2F.flafka&lost=7%3F",
            OffsetMetadata(Generation(1_790_000_000_000, 1_780_000_000_000, "hdfs:/logs/.flafka"), "i", "7?"),
        ),
    ],
)
def test_forms(text: str | None, said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(text) == said
    assert unsupported_reason(said) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("epoch=3", "has event-ID scheme 1"),
        ("epoch=01790000000000", "has event-ID scheme 1"),
        ("topic=i", "has event-ID scheme 1"),
        ("topic=i&ids=0", "has event-ID scheme 0"),
        ("topic=i&ids=2&version=2", "has metadata of version 2, and this agent reads version 1"),
    ],
)
def test_metadata_of_another_version_is_detected(text: str, reason: str) -> None:
    assert unsupported_reason(OffsetMetadata.parse(text)).startswith(reason)


def test_metadata_of_an_assignment() -> None:
    owned = assignment("cluster", "t", "id", "group", MILLIS, 3, 2, "kafka:t.positions")
    assert OffsetMetadata.of(owned) == OffsetMetadata(Generation(MILLIS, 2, "kafka:t.positions"), "id")
    assert OffsetMetadata.of(owned.with_offset(4, LastRecord(7, 8))) == OffsetMetadata(owned.generation, "id", time=7)


def test_an_epoch_is_later_than_all_earlier_ones() -> None:
    now = int(time.time() * 1000)
    assert next_epoch(0) >= now
    assert next_epoch(7) >= now
    assert next_epoch(10 * MILLIS) == 10 * MILLIS + 1, "a clock that was set back makes no epoch twice"


def test_id_prefixes_differ_by_cluster_and_topic_id() -> None:
    first, second = (assignment(cluster, "t", "id", "group", 0, 0) for cluster in ("cluster", "other"))
    prefixes = {of.id_prefix for of in (first, first.replace(topic_id="new"), second)}
    assert len(prefixes) == 3
    assert all(prefix.startswith("t~") for prefix in prefixes)
    assert first.replace(epoch=9, group="other", partition=1).id_prefix == first.id_prefix


def test_records_at_the_offsets_of_lost_ones_have_other_ids() -> None:
    owned = assignment("cluster", "t", "id", "group", MILLIS, 0, next_offset=40)
    later = owned.replace(id_scheme=MILLIS)
    assert later.id_prefix != owned.id_prefix
    assert later.replace(epoch=MILLIS + 1).id_prefix == later.id_prefix
    metadata = OffsetMetadata.of(later)
    assert OffsetMetadata.parse(metadata.text()) == metadata
    with pytest.raises(
        FlafkaError, match=r"records 20 to 39, 20 in all, .* offsets from 20 on\. .* --to 20 --new-ids$"
    ):
        raise truncation_error(owned, 20)


@pytest.mark.parametrize("lost", ["20", "20?", "20+"])
def test_a_loss_that_retention_has_passed_advises_a_reset_that_brokers_take(lost: str) -> None:
    owned = assignment("cluster", "t", "id", "group", MILLIS, 0, next_offset=40)
    assert str(RecordsLost(owned, lost, 20)).endswith("agent group reset group --topic t:0 --to 20 --new-ids")
    removed = str(RecordsLost(owned, lost, 21))
    assert removed.endswith("agent group reset group --topic t:0 --to earliest --new-ids")
    assert ". Retention has removed records before offset 21 since. To " in removed
    assert "would be skipped" not in removed


@pytest.mark.parametrize(
    ("text", "is_late"),
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
def test_only_a_commit_of_an_earlier_epoch_or_topic_is_restored(text: str | None, is_late: bool) -> None:
    assert is_late_commit(assignment("c", "t", "i", "g", 3, 0), OffsetMetadata.parse(text)) is is_late
