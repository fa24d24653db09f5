"""Stories told on purpose, too rare to wait for: records that are lost, brokers that are away, drains and letters."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import Step
from tests.simulator.stories import told


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_producer_that_broke_is_replaced_and_what_it_held_is_put_again(in_flight: int) -> None:
    run = told(
        "solr",
        Step(0, "in-flight", (in_flight,)),
        Step(0, "start", ("h1",)),
        Step(5, "put", (3, 0)),
        Step(0, "put", (3, 0)),
        Step(3, "put", (2, 0)),
        faults=(Fault("h1", "kafka.produce", 1, Kind.REFUSED, 0),),
    )
    assert run.world.faults
    assert sorted(run.feed.stored) == sorted(run.bodies)


@pytest.mark.parametrize(("sink", "number"), [("hbase", 3), ("kafka", 5)])
def test_dead_letters_are_kept_though_their_producer_broke(sink: str, number: int) -> None:
    run = told(
        sink,
        Step(0, "start", ("h1",)),
        Step(5, "put", (1, 0)),
        Step(5, "put", (1, 1)),
        Step(20, "put", (1, 0)),
        faults=(Fault("h1", "kafka.produce", number, Kind.REFUSED, 0),),
    )
    assert run.world.faults
    assert any("dead letters cannot be written" in line for line in run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "hbase"])
def test_what_retention_took_is_said_with_what_to_do(sink: str) -> None:
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(20, "put", (2, 0)), Step(20, "stop", ("h1",)),
        Step(30, "retention", (0, 1, "stopped")),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert ", 1 in all, were removed" in story
    assert (
        "were removed by retention unread. To accept the loss: agent group reset g --topic t:0 --to earliest" in story
    )
    assert "the operator: agent group reset g --topic t:0 --to earliest" in story


@pytest.mark.parametrize(("sink", "number"), [("hdfs", 1), ("kafka", 2), ("solr", 1)])
@pytest.mark.parametrize("kind", [Kind.KILLED, Kind.KILLED_AFTER])
def test_a_dead_letter_is_stored_once_though_the_agent_is_killed_before_its_commit(
    sink: str, number: int, kind: Kind
) -> None:
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (2, 0)), Step(3, "put", (1, 1)),
        Step(30, "start", ("h1",)), Step(30, "put", (1, 0)),
        faults=(Fault("h1", "kafka.flush", number, kind, 0),),
    )  # fmt: skip
    assert run.world.faults
    assert run.letters.total() == 1


def test_what_retention_takes_between_the_begin_of_a_group_and_its_first_record_is_said() -> None:
    run = told(
        "solr", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (5, 0)),
        Step(0, "pause", ("h1", 5.0)), Step(0, "retention", (0, 0, "slow")),
        faults=(Fault("h1", "kafka.commit", 1, Kind.PAUSED, 2.0),),
    )  # fmt: skip
    assert any("group g stands at offset 0 of t-0" in line for line in run.world.story)


def test_what_retention_took_is_said_once_however_long_nobody_accepts_it() -> None:
    run = told(
        "solr", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(20, "put", (2, 0)), Step(20, "stop", ("h1",)),
        Step(30, "retention", (0, 1, "stopped")), Step(0, "start", ("h1",)), Step(120, "put", (1, 0)),
    )  # fmt: skip
    assert sum("h1 says: group g stands at offset" in line for line in run.world.story) == 1


def test_a_drain_of_a_group_that_another_program_has_set_back_past_retention_ends_once_that_is_accepted() -> None:
    run = told(
        "solr", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (4, 0)),
        Step(20, "retention", (0, 0, "")), Step(5, "foreign", (0, -2)), Step(0, "drain", ("h2", "runs", 0)),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "the operator: agent group reset g --topic t:0 --to earliest" in story
    assert "the drain on h1 ended with 0" in story


def test_a_group_whose_offsets_expired_and_whose_records_retention_took_says_where_it_begins() -> None:
    run = told("solr", Step(0, "start", ("h1",)), Step(5, "put", (2, 0)), Step(20, "abandon", ("expire", 0, True)))
    assert "the group's offsets are gone" in "\n".join(run.world.story)
    assert "has no position in t-" in "\n".join(run.world.story)


@pytest.mark.parametrize("other", ["runs", "dies", "stops"])
def test_a_drain_beside_another_member_ends_well(other: str) -> None:
    run = told(
        "hdfs", Step(0, "start", ("h1",)), Step(2, "start", ("h2",)), Step(30, "put", (4, 0)),
        Step(0, "drain", ("h1", other, 4)),
    )  # fmt: skip
    assert sum("the drain on h1 ended with 0: no complaint" in line for line in run.world.story) == 2


def test_brokers_that_were_away_are_waited_for() -> None:
    run = told(
        "kafka", Step(0, "start", ("h1",)), Step(2, "start", ("h2",)), Step(20, "put", (4, 0)),
        Step(1, "away", ("kafka", 120.0)), Step(5, "put", (4, 0)),
    )  # fmt: skip
    assert len(run.feed.stored) == 8


def test_a_leader_that_lacks_records_loses_those_and_delivers_none_twice() -> None:
    run = told(
        "solr", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(10, "put", (1, 0)), Step(0, "put", (1, 0)),
        Step(10, "truncate", (0, 2)),
    )  # fmt: skip
    assert "has read records 0 to 1, 2 in all, which the brokers have lost" in "\n".join(run.world.story)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.0])
def test_a_leader_that_lacks_records_takes_from_a_sink_none_that_it_has_and_has_not_delivered(seconds: float) -> None:
    """The group is reset to the end of its topic, before which the brokers have what the open file has."""
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "put", (1, 0)),
        Step(0.3, "put", (1, 0)), Step(0.3, "put", (1, 0)), Step(seconds, "truncate", (0, 1)),
        Step(40, "put", (1, 0)),
    )  # fmt: skip
    assert "t-0: brokers have lost records: joining the group again" in "\n".join(run.world.story)


def test_a_loss_that_retention_has_passed_can_still_be_accepted() -> None:
    """The brokers refuse a reset to the first lost offset, which they do not have any more."""
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "put", (1, 0)),
        Step(30, "truncate", (0, 2)), Step(20, "elsewhere", (4,)), Step(10, "retention", (0, 1, "")),
    )  # fmt: skip
    assert "Retention has removed records before offset 3 since" in (story := "\n".join(run.world.story))
    assert "the operator: agent group reset g --topic t:0 --to earliest --new-ids" in story


def test_a_loss_that_is_followed_by_another_one_is_accepted_from_the_first_record_lost_on() -> None:
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "put", (1, 0)),
        Step(1, "put", (1, 0)), Step(30, "truncate", (0, 1)), Step(20, "truncate", (0, 1)),
        Step(60, "elsewhere", (4,)), Step(60, "refused", (0,)),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1 --new-ids" in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "solr"])
def test_a_loss_before_an_offset_that_another_program_has_committed_is_noticed_once_an_agent_has_it(
    sink: str,
) -> None:
    """Nothing was read behind that offset when its agent ended."""
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "elsewhere", (2,)), Step(0, "foreign", (0, 2)),
        Step(0, "start", ("h1",)), Step(30, "stop", ("h1",)), Step(30, "truncate", (0, 1)),
        Step(0, "elsewhere", (1,)), Step(0, "start", ("h1",)), Step(40, "refused", (0,)),
    )  # fmt: skip
    assert "has read records 1 to 1, 1 in all, which the brokers have lost" in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_a_loss_before_the_end_of_a_commit_log_that_is_moved_is_noticed(sink: str) -> None:
    """The owner is killed before it commits its offset, so that the commit log alone knows the last record."""
    process = "h1" if sink == "hdfs" else "driver-1"
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(0.5, "put", (1, 0)),
        Step(9, "kill", ("h1",)), Step(60, "root", ("h1",)), Step(0, "truncate", (0, 1)), Step(0, "elsewhere", (1,)),
        Step(0, "start", ("h1",)), Step(60, "refused", (0,)),
        faults=(Fault(process, "kafka.commit", 2, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.faults
    assert "which the brokers have lost" in (story := "\n".join(run.world.story)) or "not the one that was" in story


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("sink", ["spark-solr", "spark-hbase", "spark-kafka", "spark-hdfs"])
def test_a_sink_on_spark_notices_that_a_new_record_has_the_offset_of_one_it_has_delivered(
    sink: str, *, running: bool
) -> None:
    """Spark itself takes the new record for the one that it has read."""
    between = () if running else (Step(20, "stop", ("h1",)), Step(30, "kill", ("h1",)))
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "put", (1, 0)),
        *between, Step(20, "truncate", (0, 1)), Step(0, "elsewhere", (1,)),
        Step(0, "start", ("h1",)), Step(40, "refused", (0,)),
    )  # fmt: skip
    assert "the record before that is not the one that was read" in "\n".join(run.world.story)
    assert run.delivered.keys() == set(run.bodies)


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_a_sink_that_is_ahead_of_brokers_set_back_stops_until_its_group_is_reset(sink: str) -> None:
    """Neither new records, which take the lost offsets, nor restarts have it go on by itself."""
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "backup"),
        Step(0, "put", (1, 0)), Step(1, "put", (1, 0)), Step(1, "put", (1, 0)), Step(30, "set-back", (False,)),
        Step(1, "start", ("h1",)), Step(30, "stream", (6, 0.7)), Step(60, "stop", ("h1",)),
        Step(20, "start", ("h1",)), Step(60, "put", (1, 0)), Step(20, "refused", (0,)),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1 --new-ids" in "\n".join(run.world.story)
    assert sorted(run.feed.stored) == sorted(run.bodies)


@pytest.mark.parametrize(("sink", "cold"), [("hdfs", False), ("hdfs", True), ("spark-hdfs", False)])
def test_a_sink_whose_position_new_records_have_passed_on_brokers_set_back_skips_none(
    sink: str, *, cold: bool
) -> None:
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(20, "backup"),
        Step(0, "put", (1, 0)), Step(1, "put", (1, 0)), Step(1, "put", (1, 0)), Step(30, "set-back", (cold,)),
        Step(1, "elsewhere", (6,)), Step(1, "start", ("h1",)), Step(60, "refused", (0,)),
    )  # fmt: skip
    by_epoch = "has read records 1 to 3, 3 in all, which the brokers have lost"
    by_time = "stands at offset 4 of t-0, and the record before that is not the one that was read"
    assert (by_epoch if (sink, cold) == ("hdfs", False) else by_time) in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["solr", "spark-solr", "spark-kafka"])
def test_a_group_that_is_ahead_of_its_topic_stops_until_it_is_reset(sink: str) -> None:
    """Another program has committed its offset, without the leader epoch that would show the loss again and again."""
    run = told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (1, 0)), Step(1, "put", (1, 0)),
        Step(1, "put", (1, 0)), Step(30, "stop", ("h1",)), Step(30, "foreign", (0, 0)), Step(1, "truncate", (0, 2)),
        Step(1, "start", ("h1",)), Step(30, "stream", (6, 0.7)), Step(60, "stop", ("h1",)),
        Step(20, "start", ("h1",)), Step(60, "put", (1, 0)), Step(20, "refused", (0,)),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1" in "\n".join(run.world.story)


def test_nobody_is_told_to_give_up_records_of_a_topic_that_is_made_again_while_a_driver_looks_what_is_left() -> None:
    run = told(
        "spark-hbase", Step(0, "start", ("h1",)), Step(2, "put", (3, 0)), Step(20, "stream", (6, 0.7)),
        Step(6, "recreate", (1, 1)), Step(3, "put", (2, 0)), Step(0.5, "kill", ("h1",)),
        faults=(
            Fault("driver-1", "kafka.describe_topic", 12, Kind.KILLED_AFTER, 0),
            Fault("executor-4", "hbase.put", 1, Kind.KILLED, 0),  # the query fails
            Fault("driver-2", "kafka.committed", 5, Kind.PAUSED_AFTER, 2.0),
        ), seed=63001581,
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert len(run.world.faults) == 3
    assert "To accept the loss" not in story


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drain_does_not_give_up_a_partition_that_was_added_while_its_agent_was_away(seed: int) -> None:
    run = told(
        "kafka", Step(0, "start", ("h1",)), Step(20, "put", (4, 0)), Step(20, "stop", ("h1",)),
        Step(1, "partitions", (3,)), Step(1, "drain", ("h1", "runs", 6)), seed=seed,
    )  # fmt: skip
    assert "no member reads partitions [2] of t" in "\n".join(run.world.story)
    assert sum("the drain on h1 ended with 0: no complaint" in line for line in run.world.story) == 2


def test_a_transaction_in_doubt_is_asked_about_at_once() -> None:
    run = told(
        "kafka", Step(0, "start", ("h1",)), Step(5, "put", (3, 0)), Step(50, "put", (2, 0)),
        faults=(Fault("h1", "kafka.commit_transaction", 1, Kind.UNANSWERED, 0),),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "it is not known whether a transaction was committed" in story
    assert "was thrown away" not in story  # as where it had been taken for aborted first


@pytest.mark.parametrize(("call", "number"), [("hdfs.upload", 2), ("hdfs.rename", 3)])
def test_what_arrives_between_a_failure_and_the_seek_is_not_delivered_before_what_failed(
    call: str, number: int
) -> None:
    """Nor is what waited when it failed: the seek has both read anew."""
    run = told(
        "hdfs", Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (3, 0)),
        Step(0, "stream", (60, 0.1)), Step(30, "put", (1, 0)),
        faults=(Fault("h1", call, number, Kind.REFUSED, 0),), seed=15,
    )  # fmt: skip
    assert run.world.faults


def test_what_an_open_transaction_hid_when_its_topic_was_deleted_had_been_in_the_channel() -> None:
    run = told(
        "solr", Step(0, "start", ("h1",)), Step(5, "put", (2, 1)), Step(20, "replay", ("h1",)),
        Step(1, "put", (4, 0)), Step(2, "put", (4, 0)), Step(3, "recreate", (0, 0)),
        faults=(Fault("replay", "kafka.commit_transaction", 1, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.faults


@pytest.mark.parametrize("sink", ["spark-hdfs", "spark-solr"])
def test_what_retention_takes_before_a_query_has_begun_is_said(sink: str) -> None:
    """The driver has seen where the partition begins, and sleeps; then all that is in it is removed."""
    run = told(
        sink, Step(0, "start", ("h1",)), Step(2, "put", (3, 0)), Step(0, "retention", (0, 0, "asleep")),
        faults=(Fault("driver-1", "kafka.watermarks", 2, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert any("of t-0, which the brokers do not have" in line for line in run.world.story)


@pytest.mark.parametrize("sink", ["solr", "hbase"])
def test_the_records_of_a_topic_made_again_are_delivered_from_the_first_on(sink: str) -> None:
    """The group's offset is of the topic that was deleted, and behind the first records of the new one."""
    told(
        sink, Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(2, "put", (3, 0)),
        Step(0.5, "recreate", (0, 8)),
    )  # fmt: skip
