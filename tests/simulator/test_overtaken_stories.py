"""Stories of commits that are overtaken: by a reset, another path, another assignee or another topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.steps import (
    Step,
    delete_group,
    fail_next,
    kill,
    kill_driver,
    put,
    recreate,
    reset,
    root,
    start,
    stop,
    switch,
    topic,
)
from tests.simulator.stories import UNDONE, run_story


def test_a_late_commit_for_a_deleted_topic_does_not_stop_spark() -> None:
    """A late commit for a deleted topic does not stop the delivery of the recreated one on Spark."""
    run_story(
        "spark-hdfs", start("h1"), put(good=4, after=2), reset("earliest", after=2),
        put(good=2, after=2), kill("h2", after=6), put(good=3), recreate(events=3, after=6),
        faults=(Fault("driver-1", "hdfs.rename", 2, Kind.LATE, 1.0, on="/1/00000000000000000000"),), seed=3100994,
    )  # fmt: skip


def test_a_driver_that_slept_in_a_commit_reports_that_it_may_have_overwritten_a_reset() -> None:
    """A driver that slept in a commit reports that it may have overwritten a reset."""
    run = run_story(
        "spark-solr", topic(1), start("h1"), put(good=3, after=6), put(good=2, after=1),
        reset("earliest", after=4),
        faults=(Fault("driver-1", "kafka.commit", 1, Kind.PAUSED, 70.0, on="t-0@2."),),
    )  # fmt: skip
    assert UNDONE in "\n".join(run.world.story)


def test_a_late_commit_from_before_a_reset_is_corrected() -> None:
    """A late commit from before a reset is found and replaced by the offsets of the reset."""
    run = run_story(
        "spark-solr", start("h1"), put(good=2, after=2), start("h2"),
        put(good=6, after=20), recreate(events=7, after=0.5),
        fail_next("driver-1", "kafka.commit", Kind.LATE, seconds=15.0), kill_driver("h1", after=6),
        reset("earliest", after=2),
    )  # fmt: skip
    corrected = "reached the brokers late and had overwritten the offset of t-0"
    assert sum(corrected in line for line in run.world.story) == 1


def test_a_late_commit_for_a_deleted_topic_is_corrected() -> None:
    """A late commit for a deleted topic is found and replaced by the offsets of the recreated one."""
    run = run_story(
        "spark-solr", start("h1"), put(good=4, after=2), start("h2"),
        put(good=4, after=6), recreate(events=7, after=1),
        faults=(Fault("driver-1", "kafka.commit", 1, Kind.LATE, 15.0, on="t-1@1."),), seed=3,
    )  # fmt: skip
    corrected = (
        "a commit from before the topic was recreated reached the brokers late and had overwritten the offset of t-"
    )
    assert corrected in "\n".join(run.world.story)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_driver_does_not_fence_the_commit_log_of_a_live_agent_elsewhere(seed: int) -> None:
    """A driver refuses to move the commit log while a live agent writes below another path."""
    run = run_story(
        "spark-hdfs", switch("h1"), root("h1", after=1), put(good=4, after=20),
        start("h2", after=5), put(good=4, after=20), kill("h1", after=60), seed=seed,
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "has its commit log in hdfs:/data-h1/.flafka, not in hdfs:/data/.flafka: stop all agents" in story
    assert not any("another owner has committed" in line for line in run.world.story)


@pytest.mark.parametrize("path", ["/data/x/FlumeData", "/data-h2/.flafka/chain/"])
def test_a_member_that_joins_during_a_move_is_refused(path: str) -> None:
    """A member with the old path is refused during a move of the commit log, and the other one delivers."""
    run = run_story(
        "hdfs", start("h1"), put(good=3, after=5), kill("h1", after=20),
        root("h2", after=60), start("h2"), start("h1", after=8),
        put(good=4, after=20), put(good=2, after=60),
        faults=(Fault("h2", "hdfs.rename", 1, Kind.PAUSED_AFTER, 20.0, on=path),),
    )  # fmt: skip
    assert run.world.faults
    assert sorted(run.delivered.values()) == [1] * 9


@pytest.mark.parametrize(("kind", "meanwhile"), [(Kind.PAUSED, stop), (Kind.LATE, kill)])
def test_a_commit_in_flight_does_not_overwrite_a_reset(kind: Kind, meanwhile: Callable[..., Step]) -> None:
    """A commit in flight during a reset does not overwrite it, though its driver paused briefly or was killed."""
    run = run_story(
        "spark-hbase", topic(1), start("h1"), put(good=4, after=6),
        put(good=4, after=10), meanwhile(after=0.1), reset("earliest", after=0.1),
        faults=(Fault("driver-1", "kafka.commit", 1, kind, 1.0, on="t-0@2."),),
    )  # fmt: skip
    assert run.world.faults
    assert all(epoch > 0 for epoch in run._epochs().values())


def test_a_driver_without_an_answer_to_its_commit_reports_that_it_may_have_overwritten_a_reset() -> None:
    """A driver whose commit was not answered reports that it may have overwritten a reset."""
    run = run_story(
        "spark-solr", start("h1"), put(good=3, after=6), put(good=2, after=0.2),
        reset("earliest", after=4),
        faults=(Fault("driver-1", "kafka.commit", 1, Kind.LATE, 15.0, on="t-1@1."),), seed=5,
    )  # fmt: skip
    assert UNDONE in "\n".join(run.world.story)


@pytest.mark.parametrize("last", ["kafka.flush", "kafka.send_offsets_to_transaction", "kafka.commit_transaction"])
def test_a_transaction_of_a_paused_agent_does_not_overwrite_a_reset(last: str) -> None:
    """A transaction of an agent that was paused does not overwrite a reset."""
    run = run_story(
        "kafka", start("h1"), put(good=1, after=2), reset("same", after=20),
        faults=(Fault("h1", last, 1, Kind.PAUSED, 30.0),),
    )  # fmt: skip
    assert run.world.faults


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
def test_an_event_rejected_again_after_a_reset_is_another_dead_letter(sink: str) -> None:
    """An event that is rejected again after a reset has a second dead letter."""
    run = run_story(
        sink, start("h1"), put(bad=1, after=5), stop("h1", after=20),
        reset("earliest", after=30),
    )  # fmt: skip
    assert list(run.dead_letters.values()) == [2]


@pytest.mark.parametrize("path", ["/begin", "/g/0/0/"])  # the new epoch, and the fence of the one before
def test_a_new_epoch_is_continued_after_its_opener_was_killed_and_the_group_deleted(path: str) -> None:
    """An epoch is continued although the agent that opened it was killed and the group deleted."""
    run_story(
        "hdfs", topic(1), start("h1"), put(good=3, after=5), stop("h1", after=20),
        reset("same", after=30), start("h2"), delete_group(after=30),
        start("h1"), put(good=2, after=5),
        faults=(Fault("h2", "hdfs.rename", 1, Kind.KILLED, 0, on=path),),
    )  # fmt: skip


def test_a_retried_commit_does_not_rewind_what_another_member_delivered() -> None:
    """Commits that wait for brokers do not rewind what another member has delivered since."""
    three = [put(good=1)] * 3
    run = run_story(
        "solr", start("h1"), put(good=1, after=5), *three, start("h2", after=2),
        put(good=1, after=25), *three, kill("h2", after=8), stop("h1", after=60),
        faults=tuple(Fault("h1", "kafka.commit", number, Kind.LOST, 0, on="t-0@2.") for number in range(1, 8)),
        seed=1,
    )  # fmt: skip
    assert len(run.world.faults) == 7


def test_a_reset_overwritten_by_a_late_commit_before_a_delivery_takes_effect() -> None:
    """A reset takes effect although a late commit overwrote it before anything was delivered."""
    run = run_story(
        "spark-hdfs", topic(1), start("h1"), put(good=3, after=6),
        put(good=2, after=6), reset("earliest", after=6), kill_driver("h1", after=6),
        put(good=1, after=15),
        faults=(
            Fault("driver-1", "kafka.commit", 1, Kind.LATE, 15.0, on="t-0@2."),
            Fault("driver-2", "kafka.committed", 4, Kind.KILLED, 0),  # it has begun the epoch, and committed nothing
        ),
        seed=2,
    )  # fmt: skip
    assert sorted(run.delivered.values()) == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(("sink", "first"), [("hdfs", start), ("spark-hdfs", switch)])
def test_a_paused_assignee_is_fenced_by_a_reset_and_another_path(sink: str, first: Callable[..., Step]) -> None:
    """An agent paused during a reset and a change of path commits nothing afterwards."""
    run = run_story(
        sink, first("h1"), put(good=3, after=5), root("h2"),
        reset("earliest", after=35), start("h2"), put(good=1, after=60),
        faults=(Fault("h1", "hdfs.upload", 1, Kind.PAUSED, 70.0, on="/.flafka-"),),
    )  # fmt: skip
    assert sorted(run.delivered.values()) == [1, 1, 1, 1]


def test_one_of_two_drivers_that_move_a_commit_log_resumes_again() -> None:
    """One of two drivers that move the commit log to different paths at once resumes again."""
    run = run_story(
        "spark-hdfs", topic(1), root("h2"), start("h1"),
        put(good=3, after=6), root("h1", after=15), start("h2", after=1), put(good=2, after=15),
        put(good=1, after=40),
        faults=(Fault("driver-2", "hdfs.read", 1, Kind.PAUSED_AFTER, 40.0),),  # it knows the record as it was before
    )  # fmt: skip
    assert "another sink of group g takes over its commit log: resuming again" in "\n".join(run.world.story)


SECOND_COMMIT = "/0/0/00000000000000000001"
"""Part of the path to which an agent renames its second commit in partition 0."""


def test_an_assignee_paused_in_a_commit_does_not_complete_it_after_a_reset() -> None:
    """An agent paused in a commit does not complete it after a reset."""
    run = run_story(
        "hdfs", topic(1), start("h1"), put(good=3, after=5), put(good=2, after=10),
        reset("earliest", after=40), start("h2"), put(good=1, after=120),
        faults=(Fault("h1", "hdfs.rename", 1, Kind.PAUSED, 120.0, on=SECOND_COMMIT),),
    )  # fmt: skip
    assert run.world.faults


def test_an_assignee_paused_in_a_commit_does_not_complete_it_after_a_move() -> None:
    """An agent paused in a commit does not complete it after the commit log was moved."""
    run = run_story(
        "hdfs", topic(1), root("h2"), start("h1"), put(good=3, after=5),
        put(good=2, after=10), start("h2", after=40), put(good=1, after=120),
        faults=(Fault("h1", "hdfs.rename", 1, Kind.PAUSED, 120.0, on=SECOND_COMMIT),),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "h1 says: t-0: another owner has committed past offset 1" in story  # and not past the fence
    assert "h2 says: attempt 1 failed" not in story
    assert sorted(run.delivered.values()) == [1] * 6
