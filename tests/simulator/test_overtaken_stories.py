"""Stories told on purpose of commits that are overtaken: by a reset, another path, another owner or another topic."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import Step
from tests.simulator.stories import UNDONE, told


def test_a_late_commit_for_a_deleted_topic_holds_up_nobody_on_spark() -> None:
    told(
        "spark-hdfs", Step(0, "start", ("h1",)), Step(2, "put", (4, 0)), Step(2, "reset", ("earliest",)),
        Step(2, "put", (2, 0)), Step(6, "kill", ("h2",)), Step(0, "put", (3, 0)), Step(6, "recreate", (1, 3)),
        faults=(Fault("driver-1", "hdfs.rename", 16, Kind.LATE, 1.0),), seed=3100994,
    )  # fmt: skip


def test_a_driver_that_sleeps_while_it_commits_says_that_a_reset_may_be_undone() -> None:
    run = told(
        "spark-solr", Step(0, "start", ("h1",)), Step(6, "put", (3, 0)), Step(1, "put", (2, 0)),
        Step(4, "reset", ("earliest",)), faults=(Fault("driver-1", "kafka.commit", 3, Kind.PAUSED, 70.0),), seed=5,
    )  # fmt: skip
    assert UNDONE in "\n".join(run.world.story)


def test_a_commit_of_a_driver_before_a_reset_that_comes_late_does_not_undo_the_reset() -> None:
    run = told(
        "spark-solr", Step(0, "start", ("h1",)), Step(2, "put", (2, 0)), Step(0, "start", ("h2",)),
        Step(20, "put", (6, 0)), Step(0.5, "recreate", (1, 7)), Step(6, "kill-driver", ("h1",)),
        Step(2, "reset", ("earliest",)), faults=(Fault("driver-1", "kafka.commit", 4, Kind.LATE, 15.0),),
        seed=3300048,
    )  # fmt: skip
    assert sum("reached the brokers late, and had undone it for t-0" in line for line in run.world.story) == 1


def test_a_commit_for_a_deleted_topic_that_comes_late_does_not_undo_what_a_driver_has_committed_since() -> None:
    run = told(
        "spark-solr", Step(0, "start", ("h1",)), Step(2, "put", (4, 0)), Step(0, "start", ("h2",)),
        Step(6, "put", (4, 0)), Step(1, "recreate", (1, 7)),
        faults=(Fault("driver-1", "kafka.commit", 2, Kind.LATE, 15.0),), seed=3,
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "a commit from before the topic was made again reached the brokers late, and had undone it for t-" in story


@pytest.mark.parametrize("seed", [1, 2])
def test_a_driver_does_not_end_the_record_of_a_live_agent_on_threads_that_writes_elsewhere(seed: int) -> None:
    run = told(
        "spark-hdfs", Step(0, "switch", ("h1",)), Step(1, "root", ("h1",)), Step(20, "put", (4, 0)),
        Step(5, "start", ("h2",)), Step(20, "put", (4, 0)), Step(60, "kill", ("h1",)), seed=seed,
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "has its commit log in hdfs:/data-h1/.flafka, not in hdfs:/data/.flafka: stop all agents" in story
    assert not any("another owner has committed" in line for line in run.world.story)


@pytest.mark.parametrize("number", [1, 2])
def test_a_member_that_joins_in_the_middle_of_a_move_is_refused_and_the_others_deliver(number: int) -> None:
    run = told(
        "hdfs", Step(0, "start", ("h1",)), Step(5, "put", (3, 0)), Step(20, "kill", ("h1",)),
        Step(60, "root", ("h2",)), Step(0, "start", ("h2",)), Step(8, "start", ("h1",)),
        Step(20, "put", (4, 0)), Step(60, "put", (2, 0)),
        faults=(Fault("h2", "hdfs.rename", number, Kind.PAUSED_AFTER, 20.0),),
    )  # fmt: skip
    assert run.world.faults
    assert sorted(run.delivered.values()) == [1] * 9


@pytest.mark.parametrize(("kind", "meanwhile"), [(Kind.PAUSED, "stop"), (Kind.LATE, "kill")])
def test_a_commit_that_is_under_way_while_the_group_is_reset_does_not_undo_the_reset(
    kind: Kind, meanwhile: str
) -> None:
    """Who asked for it sleeps too shortly to notice, or is gone."""
    run = told(
        "spark-hbase", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(6, "put", (4, 0)),
        Step(10, "put", (4, 0)), Step(0.1, meanwhile, ("h1",)), Step(0.1, "reset", ("earliest",)),
        faults=(Fault("driver-1", "kafka.commit", 3, kind, 1.0),),
    )  # fmt: skip
    assert run.world.faults
    assert all(epoch > 0 for epoch in run._epochs().values())


def test_a_driver_whose_commit_was_not_answered_says_that_a_reset_may_be_undone() -> None:
    run = told(
        "spark-solr", Step(0, "start", ("h1",)), Step(6, "put", (3, 0)), Step(0.2, "put", (2, 0)),
        Step(4, "reset", ("earliest",)), faults=(Fault("driver-1", "kafka.commit", 3, Kind.LATE, 15.0),), seed=5,
    )  # fmt: skip
    assert UNDONE in "\n".join(run.world.story)


@pytest.mark.parametrize("last", ["kafka.flush", "kafka.send_offsets_to_transaction", "kafka.commit_transaction"])
def test_a_transaction_of_an_agent_that_slept_does_not_undo_a_reset(last: str) -> None:
    run = told(
        "kafka", Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "reset", ("same",)),
        faults=(Fault("h1", last, 1, Kind.PAUSED, 30.0),),
    )  # fmt: skip
    assert run.world.faults


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
def test_an_event_that_is_rejected_again_after_a_reset_is_a_letter_of_its_own(sink: str) -> None:
    run = told(
        sink, Step(0, "start", ("h1",)), Step(5, "put", (1, 1)), Step(20, "stop", ("h1",)),
        Step(30, "reset", ("earliest",)),
    )  # fmt: skip
    assert list(run.letters.values()) == [2]


@pytest.mark.parametrize("rename", [1, 2])
def test_a_later_epoch_is_gone_on_with_though_who_opened_it_was_killed_and_its_group_deleted(rename: int) -> None:
    told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (3, 0)), Step(20, "stop", ("h1",)),
        Step(30, "reset", ("same",)), Step(0, "start", ("h2",)), Step(30, "delete-group", ("h1",)),
        Step(0, "start", ("h1",)), Step(5, "put", (2, 0)),
        faults=(Fault("h2", "hdfs.rename", rename, Kind.KILLED, 0),),  # what begins it, or its first seal
    )  # fmt: skip


def test_a_commit_that_waits_for_the_brokers_does_not_set_back_what_another_member_has_delivered_since() -> None:
    put = [Step(0, "put", (1, 0))] * 4
    run = told(
        "solr", Step(0, "start", ("h1",)), Step(5, "put", (1, 0)), *put[1:], Step(2, "start", ("h2",)),
        Step(25, "put", (1, 0)), *put[1:], Step(8, "kill", ("h2",)), Step(60, "stop", ("h1",)),
        faults=tuple(Fault("h1", "kafka.commit", number, Kind.LOST, 0) for number in range(2, 9)), seed=0,
    )  # fmt: skip
    assert len(run.world.faults) == 7


def test_a_reset_that_a_late_commit_has_undone_before_anything_was_delivered_is_carried_out() -> None:
    run = told(
        "spark-hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(6, "put", (3, 0)),
        Step(6, "put", (2, 0)), Step(6, "reset", ("earliest",)), Step(6, "kill-driver", ("h1",)),
        Step(15, "put", (1, 0)),
        faults=(
            Fault("driver-1", "kafka.commit", 3, Kind.LATE, 15.0),
            Fault("driver-2", "kafka.committed", 4, Kind.KILLED, 0),  # it has begun the epoch, and committed nothing
        ),
    )  # fmt: skip
    assert sorted(run.delivered.values()) == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(("sink", "first"), [("hdfs", "start"), ("spark-hdfs", "switch")])
def test_an_owner_that_sleeps_while_its_group_is_reset_and_its_path_changed_commits_no_more(
    sink: str, first: str
) -> None:
    run = told(
        sink, Step(0, first, ("h1",)), Step(5, "put", (3, 0)), Step(0, "root", ("h2",)),
        Step(35, "reset", ("earliest",)), Step(0, "start", ("h2",)), Step(60, "put", (1, 0)),
        faults=(Fault("h1", "hdfs.upload", 4, Kind.PAUSED, 70.0),),
    )  # fmt: skip
    assert sorted(run.delivered.values()) == [1, 1, 1, 1]


def test_of_two_drivers_that_take_a_record_over_to_other_paths_one_is_told_to_ask_again() -> None:
    run = told(
        "spark-hdfs", Step(0, "topic", (1,)), Step(0, "root", ("h2",)), Step(0, "start", ("h1",)),
        Step(6, "put", (3, 0)), Step(15, "root", ("h1",)), Step(1, "start", ("h2",)), Step(15, "put", (2, 0)),
        Step(40, "put", (1, 0)),
        faults=(Fault("driver-2", "hdfs.read", 1, Kind.PAUSED_AFTER, 40.0),),  # it knows the record as it was before
    )  # fmt: skip
    assert "another sink of group g takes it over: asking again" in "\n".join(run.world.story)


COMMIT = 5
"""Number of the rename that makes an agent's second commit, after the beginning, a try, the first one, its file."""


def test_an_owner_that_sleeps_in_a_commit_while_its_group_is_reset_does_not_end_it() -> None:
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (3, 0)), Step(10, "put", (2, 0)),
        Step(40, "reset", ("earliest",)), Step(0, "start", ("h2",)), Step(120, "put", (1, 0)),
        faults=(Fault("h1", "hdfs.rename", COMMIT, Kind.PAUSED, 120.0),),
    )  # fmt: skip
    assert run.world.faults


def test_an_owner_that_sleeps_in_a_commit_while_its_path_is_changed_does_not_end_it() -> None:
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "root", ("h2",)), Step(0, "start", ("h1",)), Step(5, "put", (3, 0)),
        Step(10, "put", (2, 0)), Step(40, "start", ("h2",)), Step(120, "put", (1, 0)),
        faults=(Fault("h1", "hdfs.rename", COMMIT, Kind.PAUSED, 120.0),),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "h1 says: t-0: another owner has committed past offset 1" in story  # and not past the fence
    assert "h2 says: attempt 1 failed" not in story
    assert sorted(run.delivered.values()) == [1] * 6
