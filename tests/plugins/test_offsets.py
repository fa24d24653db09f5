"""What a committed offset says besides the offset."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins import FlafkaError, PartitionClaim
from plugins.shared.offsets import NUL, OffsetMetadata, known_to_older, next_epoch, truncated, undone

MILLIS = 10**12
EPOCHS = st.one_of(st.integers(1, 9), st.integers(MILLIS, 10 * MILLIS))
SAID = st.builds(
    OffsetMetadata,
    st.one_of(st.just(0), EPOCHS),
    st.text(),
    st.sampled_from([1, 2]),
    st.text(),
    st.just(0),
    st.sampled_from(["", "30", "7?", "7+"]),
)


@given(SAID)
def test_it_is_read_as_it_was_written(said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(said.text()) == said
    assert OffsetMetadata.parse(f"{said.text()}\0") == said, "as confluent_kafka commits it"


def read_by_version_0_1(metadata: str | None) -> int:
    """Its `channels.kafka.reader.epoch_of`."""
    name, _, value = (metadata or "").partition("=")
    return int(value) if name == "epoch" and value.isdigit() else 0


@given(SAID, EPOCHS)
def test_members_of_version_0_1_are_told_the_epoch_that_they_know(said: OffsetMetadata, epoch: int) -> None:
    shared = said._replace(epoch=epoch, shared_epoch=epoch)
    assert shared.text() == f"epoch={epoch}"
    assert known_to_older(shared.text())


@given(EPOCHS)
def test_version_0_1_reads_the_epoch_of_a_reset_and_this_one_sees_whether_it_did(epoch: int) -> None:
    reset = OffsetMetadata(epoch, ids=0)
    assert OffsetMetadata.parse(reset.text()) == reset
    assert known_to_older(reset.text())
    assert known_to_older(f"{reset.text()}\0"), "as confluent_kafka commits it"
    assert read_by_version_0_1(reset.text()) == epoch
    assert OffsetMetadata.parse(f"epoch={read_by_version_0_1(reset.text())}") == reset._replace(ids=1)


@given(SAID)
def test_version_0_1_reads_whatever_it_does_not_know_as_epoch_0(said: OffsetMetadata) -> None:
    known = read_by_version_0_1(said.text())
    assert known == (said.epoch if known_to_older(said.text()) else 0)


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
        ("epoch=3", OffsetMetadata(3)),
        ("epoch=0", OffsetMetadata()),
        ("epoch=01790000000000", OffsetMetadata(1_790_000_000_000, ids=0)),
        ("epoch=3\x7f", OffsetMetadata(3)),  # of version 0.1's `agent group reset`, which wrote no NUL
        ("epoch=-3&ids=x&more=1", OffsetMetadata()),
        ("epoch=1790000000000&topic=a%2Bb%2F&ids=2", OffsetMetadata(1_790_000_000_000, "a+b/", 2)),
        ("record=hdfs%3A%2Flogs%2F.flafka", OffsetMetadata(record="hdfs:/logs/.flafka")),
    ],
)
def test_forms(text: str | None, said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(text) == said


def test_nothing_to_say_is_written_as_nothing() -> None:
    assert OffsetMetadata().text() == ""


def test_it_is_that_of_a_claim() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", MILLIS, 3, 2, "kafka:t.positions")
    assert OffsetMetadata.of(claim) == OffsetMetadata(MILLIS, "id", 2, "kafka:t.positions")


def test_an_epoch_is_later_than_the_one_before_and_than_any_from_before_now() -> None:
    now = int(time.time() * 1000)
    assert next_epoch(0) >= now
    assert next_epoch(7) >= now
    assert next_epoch(10 * MILLIS) == 10 * MILLIS + 1, "a clock that was set back makes no epoch twice"


def test_ids_begin_with_what_is_said_of_topics_of_one_name() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", 0, 0, ids=2)
    assert claim._replace(ids=1).stem == "t"
    stems = {one.stem for one in (claim, claim._replace(topic_id="new"), claim._replace(cluster_id="other"))}
    assert len(stems) == 3
    assert all(stem.startswith("t~") for stem in stems)
    assert claim._replace(epoch=9, group="other", partition=1).stem == claim.stem


def test_ids_are_others_where_records_took_the_place_of_lost_ones() -> None:
    claim = PartitionClaim("cluster", "t", "id", "group", MILLIS, 0, ids=2)
    later = claim._replace(ids=MILLIS)
    assert later.stem != claim.stem
    assert later._replace(epoch=MILLIS + 1).stem == later.stem
    said = OffsetMetadata.of(later)
    assert OffsetMetadata.parse(said.text()) == said
    with pytest.raises(
        FlafkaError, match=r"records 20 to 39, 20 in all, .* offsets from 20 on\. .* --to 20 --new-ids$"
    ):
        raise truncated(claim, 40, 20)


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
