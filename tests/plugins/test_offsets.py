"""What a committed offset says besides the offset."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins import Claim
from plugins.offsets import MILLIS, OffsetMetadata, next_epoch

SAID = st.builds(
    OffsetMetadata,
    st.one_of(st.just(0), st.integers(MILLIS, 10 * MILLIS)),
    st.text(),
    st.sampled_from([1, 2]),
    st.text(),
)


@given(SAID)
def test_it_is_read_as_it_was_written(said: OffsetMetadata) -> None:
    assert OffsetMetadata.parse(said.text()) == said


@given(SAID, st.integers(1, MILLIS - 1))
def test_an_epoch_of_an_older_version_is_written_as_that_version_does(said: OffsetMetadata, epoch: int) -> None:
    assert said._replace(epoch=epoch).text() == f"epoch={epoch}"


@given(st.one_of(st.none(), st.text()))
def test_whatever_others_write_is_read(text: str | None) -> None:
    OffsetMetadata.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, OffsetMetadata()),
        ("", OffsetMetadata()),
        ("epoch=3", OffsetMetadata(3)),
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
    claim = Claim("cluster", "t", "id", "group", MILLIS, 3, 2, "kafka:t.positions")
    assert OffsetMetadata.of(claim) == OffsetMetadata(MILLIS, "id", 2, "kafka:t.positions")


def test_an_epoch_is_later_than_the_one_before_and_than_any_from_before_now() -> None:
    now = int(time.time() * 1000)
    assert next_epoch(0) >= now
    assert next_epoch(7) >= now
    assert next_epoch(10 * MILLIS) == 10 * MILLIS + 1, "a clock that was set back makes no epoch twice"


def test_ids_begin_with_what_is_said_of_topics_of_one_name() -> None:
    claim = Claim("cluster", "t", "id", "group", 0, 0, ids=2)
    assert claim._replace(ids=1).stem == "t"
    stems = {one.stem for one in (claim, claim._replace(topic_id="new"), claim._replace(cluster_id="other"))}
    assert len(stems) == 3
    assert all(stem.startswith("t~") for stem in stems)
    assert claim._replace(epoch=9, group="other", partition=1).stem == claim.stem
