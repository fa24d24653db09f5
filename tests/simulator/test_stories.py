"""Stories that random schedules rarely show: lost records, outages of brokers, drains and dead letters."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.steps import (
    abandon,
    away,
    backup,
    drain,
    expect_stopped,
    foreign,
    in_flight,
    kill,
    partitions,
    pause,
    put,
    put_elsewhere,
    recreate,
    replay,
    retention,
    root,
    set_back,
    start,
    stop,
    stream,
    topic,
    truncate,
)
from tests.simulator.stories import run_story


@pytest.mark.parametrize("most", [1, 4])
def test_a_broken_producer_is_replaced_and_its_batches_are_sent_again(most: int) -> None:
    """A producer with a fatal error is replaced, and its unacknowledged batches are sent again."""
    run = run_story(
        "solr",
        in_flight(most),
        start("h1"),
        put(good=3, after=5),
        put(good=3),
        put(good=2, after=3),
        faults=(Fault("h1", "kafka.produce", 1, Kind.REFUSED, 0),),
    )
    assert run.world.faults
    assert sorted(run.feed.stored) == sorted(run.bodies)


@pytest.mark.parametrize("sink", ["hbase", "kafka"])
def test_dead_letters_are_stored_after_their_producer_broke(sink: str) -> None:
    """Dead letters are stored by another producer after a fatal error of their own."""
    run = run_story(
        sink,
        start("h1"),
        put(good=1, after=5),
        put(bad=1, after=5),
        put(good=1, after=20),
        faults=(Fault("h1", "kafka.produce", 1, Kind.REFUSED, 0, on="t.deadletters"),),
    )
    assert run.world.faults
    assert any("dead letters cannot be written" in line for line in run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "hbase"])
def test_unread_records_removed_by_retention_are_reported_with_a_command(sink: str) -> None:
    """The log reports records that retention removed unread, with the command that accepts the loss."""
    run = run_story(
        sink, topic(1), start("h1"), put(good=2, after=20), stop("h1", after=20),
        retention(0, left=1, readers="stopped", after=30),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert ", 1 in all, were removed" in story
    assert (
        "were removed by retention unread. To accept the loss: agent group reset g --topic t:0 --to earliest" in story
    )
    assert "the operator: agent group reset g --topic t:0 --to earliest" in story


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
@pytest.mark.parametrize("kind", [Kind.KILLED, Kind.KILLED_AFTER])
def test_a_dead_letter_counts_once_after_a_kill_before_its_commit(sink: str, kind: Kind) -> None:
    """A dead letter counts once if the agent is killed between storing it and the commit."""
    run = run_story(
        sink, topic(1), start("h1"), put(good=2, after=5), put(bad=1, after=3),
        start("h1", after=30), put(good=1, after=30),
        faults=(Fault("h1", "kafka.flush", 1, kind, 0, on="t.deadletters"),),
    )  # fmt: skip
    assert run.world.faults
    assert run.dead_letters.total() == 1


def test_records_removed_before_a_new_group_read_any_are_reported() -> None:
    """Records that retention removes after a group's first commit and before its first read are reported."""
    run = run_story(
        "solr", topic(1), start("h1"), put(good=5, after=2),
        pause("h1", seconds=5.0), retention(0, left=0, readers="slow"),
        faults=(Fault("h1", "kafka.commit", 1, Kind.PAUSED, 2.0),),
    )  # fmt: skip
    assert any("group g has committed offset 0 of t-0" in line for line in run.world.story)


def test_a_loss_by_retention_is_reported_once_until_it_is_accepted() -> None:
    """A loss by retention is reported once, even if no operator accepts it for minutes."""
    run = run_story(
        "solr", topic(1), start("h1"), put(good=2, after=20), stop("h1", after=20),
        retention(0, left=1, readers="stopped", after=30), start("h1"), put(good=1, after=120),
    )  # fmt: skip
    assert sum("h1 says: group g has committed offset" in line for line in run.world.story) == 1


def test_a_drain_ends_after_an_operator_accepts_removed_records() -> None:
    """A drain whose group was set back to removed records ends once an operator accepts the loss."""
    run = run_story(
        "solr", topic(1), start("h1"), put(good=4, after=5),
        retention(0, left=0, after=20), foreign(0, ahead=-2, after=5), drain("h2", other="runs", events=0),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "the operator: agent group reset g --topic t:0 --to earliest" in story
    assert "the drain on h1 ended with 0" in story


def test_a_group_with_expired_offsets_reports_its_first_record() -> None:
    """A group reports the record at which it begins if its offsets expired and retention removed records."""
    run = run_story("solr", start("h1"), put(good=2, after=5), abandon("expire", left=0, overtaken=True, after=20))
    assert "the group's offsets are gone" in "\n".join(run.world.story)
    assert "has no committed offset in t-" in "\n".join(run.world.story)


@pytest.mark.parametrize("other", ["runs", "dies", "stops"])
def test_a_drain_beside_another_member_ends_with_0(other: str) -> None:
    """A drain ends with exit code 0, whatever becomes of the other member of its group."""
    run = run_story(
        "hdfs", start("h1"), start("h2", after=2), put(good=4, after=30),
        drain("h1", other=other, events=4),
    )  # fmt: skip
    assert sum("the drain on h1 ended with 0: no complaint" in line for line in run.world.story) == 2


def test_events_are_stored_after_an_outage_of_the_brokers() -> None:
    """Events put during two minutes without brokers are stored afterwards."""
    run = run_story(
        "kafka", start("h1"), start("h2", after=2), put(good=4, after=20),
        away("kafka", seconds=120.0, after=1), put(good=4, after=5),
    )  # fmt: skip
    assert len(run.feed.stored) == 8


def test_a_leader_that_lacks_records_causes_no_duplicate() -> None:
    """Records that a new leader lacks are reported as lost, and no event is delivered twice."""
    run = run_story(
        "solr", topic(1), start("h1"), put(good=1, after=10), put(good=1),
        truncate(0, lost=2, after=10),
    )  # fmt: skip
    assert "has read records 0 to 1, 2 in all, which the brokers have lost" in "\n".join(run.world.story)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.0])
def test_a_leader_that_lacks_records_costs_none_that_a_sink_holds(seconds: float) -> None:
    """Records before the end of a truncated partition are delivered, although the sink held them in an open file."""
    run = run_story(
        "hdfs", topic(1), start("h1"), put(good=1, after=2), put(good=1, after=20),
        put(good=1, after=0.3), put(good=1, after=0.3), truncate(0, lost=1, after=seconds),
        put(good=1, after=40),
    )  # fmt: skip
    assert "t-0: brokers have lost records: joining the group again" in "\n".join(run.world.story)


def test_a_loss_can_be_accepted_after_retention_removed_its_offset() -> None:
    """A loss can be accepted after retention has removed its first offset, to which brokers refuse a reset."""
    run = run_story(
        "hdfs", topic(1), start("h1"), put(good=1, after=2), put(good=1, after=20),
        truncate(0, lost=2, after=30), put_elsewhere(4, after=20), retention(0, left=1, after=10),
    )  # fmt: skip
    assert "Retention has removed records before offset 3 since" in (story := "\n".join(run.world.story))
    assert "the operator: agent group reset g --topic t:0 --to earliest --new-ids" in story


def test_two_losses_are_accepted_from_the_first_lost_record() -> None:
    """Two losses in a row are accepted by one reset to the first lost record."""
    run = run_story(
        "hdfs", topic(1), start("h1"), put(good=1, after=2), put(good=1, after=20),
        put(good=1, after=1), truncate(0, lost=1, after=30), truncate(0, lost=1, after=20),
        put_elsewhere(4, after=60), expect_stopped(0, after=60),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1 --new-ids" in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "solr"])
def test_a_loss_before_an_offset_of_another_program_is_reported(
    sink: str,
) -> None:
    """A loss before an offset that another program committed is reported after an agent has taken the offset over."""
    run = run_story(
        sink, topic(1), put_elsewhere(2), foreign(0, ahead=2),
        start("h1"), stop("h1", after=30), truncate(0, lost=1, after=30),
        put_elsewhere(1), start("h1"), expect_stopped(0, after=40),
    )  # fmt: skip
    assert "has read records 1 to 1, 1 in all, which the brokers have lost" in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_a_loss_before_the_end_of_a_moved_commit_log_is_reported(sink: str) -> None:
    """A loss is reported although only the moved commit log has the last record, as its assignee was killed."""
    process = "h1" if sink == "hdfs" else "driver-1"
    run = run_story(
        sink, topic(1), start("h1"), put(good=1, after=2), put(good=1, after=0.5),
        kill("h1", after=9), root("h1", after=60), truncate(0, lost=1), put_elsewhere(1),
        start("h1"), expect_stopped(0, after=60),
        faults=(Fault(process, "kafka.commit", 1, Kind.KILLED, 0, on="t-0@2."),),
    )  # fmt: skip
    assert run.world.faults
    assert "which the brokers have lost" in (story := "\n".join(run.world.story)) or "not the one that was" in story


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("sink", ["spark-solr", "spark-hbase", "spark-kafka", "spark-hdfs"])
def test_a_new_record_with_the_offset_of_a_delivered_one_is_reported_on_spark(sink: str, *, running: bool) -> None:
    """A new record at the offset of a delivered one is reported, which Spark itself would skip."""
    between = () if running else (stop("h1", after=20), kill("h1", after=30))
    run = run_story(
        sink, topic(1), start("h1"), put(good=1, after=2), put(good=1, after=20),
        *between, truncate(0, lost=1, after=20), put_elsewhere(1),
        start("h1"), expect_stopped(0, after=40),
    )  # fmt: skip
    assert "the record before that is not the one that was read" in "\n".join(run.world.story)
    assert run.delivered.keys() == set(run.bodies)


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_a_sink_ahead_of_restored_brokers_stops_until_a_reset(sink: str) -> None:
    """A sink ahead of restored brokers stops until a reset, through new records and restarts."""
    run = run_story(
        sink, topic(1), start("h1"), put(good=1, after=2), backup(after=20),
        put(good=1), put(good=1, after=1), put(good=1, after=1), set_back(cold=False, after=30),
        start("h1", after=1), stream(6, every=0.7, after=30), stop("h1", after=60),
        start("h1", after=20), put(good=1, after=60), expect_stopped(0, after=20),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1 --new-ids" in "\n".join(run.world.story)
    assert sorted(run.feed.stored) == sorted(run.bodies)


@pytest.mark.parametrize(("sink", "cold"), [("hdfs", False), ("hdfs", True), ("spark-hdfs", False)])
def test_new_records_on_restored_brokers_are_not_skipped(sink: str, *, cold: bool) -> None:
    """A sink delivers new records of restored brokers, although they passed its committed offset."""
    run = run_story(
        sink, topic(1), start("h1"), put(good=1, after=2), backup(after=20),
        put(good=1), put(good=1, after=1), put(good=1, after=1), set_back(cold=cold, after=30),
        put_elsewhere(6, after=1), start("h1", after=1), expect_stopped(0, after=60),
    )  # fmt: skip
    by_epoch = "has read records 1 to 3, 3 in all, which the brokers have lost"
    by_time = "has committed offset 4 of t-0, and the record before that is not the one that was read"
    assert (by_epoch if (sink, cold) == ("hdfs", False) else by_time) in "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["solr", "spark-solr", "spark-kafka"])
def test_a_group_ahead_of_its_topic_stops_until_a_reset(sink: str) -> None:
    """A group ahead of its topic stops until a reset, if its offset has no leader epoch."""
    run = run_story(
        sink, topic(1), start("h1"), put(good=1, after=2), put(good=1, after=1),
        put(good=1, after=1), stop("h1", after=30), foreign(0, ahead=0, after=30), truncate(0, lost=2, after=1),
        start("h1", after=1), stream(6, every=0.7, after=30), stop("h1", after=60),
        start("h1", after=20), put(good=1, after=60), expect_stopped(0, after=20),
    )  # fmt: skip
    assert "the operator: agent group reset g --topic t:0 --to 1" in "\n".join(run.world.story)


def test_no_loss_is_reported_for_a_topic_recreated_during_a_lookup() -> None:
    """No loss is reported if the topic is recreated while a driver looks up its first offsets."""
    run = run_story(
        "spark-hbase", start("h1"), put(good=3, after=2), stream(6, every=0.7, after=20),
        recreate(events=1, after=6), put(good=2, after=3), kill("h1", after=0.5),
        faults=(
            Fault("driver-1", "kafka.describe_topic", 12, Kind.KILLED_AFTER, 0),
            Fault("executor-4", "hbase.put", 1, Kind.KILLED, 0),  # the query fails
            Fault("driver-2", "kafka.committed", 5, Kind.PAUSED_AFTER, 2.0),
        ),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert len(run.world.faults) == 3
    assert "To accept the loss" not in story


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drain_delivers_a_partition_that_was_added_before_it(seed: int) -> None:
    """A drain reports a new partition without a reader, and ends after it is delivered."""
    run = run_story(
        "kafka", start("h1"), put(good=4, after=20), stop("h1", after=20),
        partitions(3, after=1), drain("h1", other="runs", events=6, after=1), seed=seed,
    )  # fmt: skip
    assert "no member reads partitions [2] of t" in "\n".join(run.world.story)
    assert sum("the drain on h1 ended with 0: no complaint" in line for line in run.world.story) == 2


def test_the_outcome_of_a_transaction_in_doubt_is_looked_up_at_once() -> None:
    """The outcome of a transaction is looked up at once if its commit was not answered."""
    run = run_story(
        "kafka", start("h1"), put(good=3, after=5), put(good=2, after=50),
        faults=(Fault("h1", "kafka.commit_transaction", 1, Kind.UNANSWERED, 0),),
    )  # fmt: skip
    story = "\n".join(run.world.story)
    assert "the outcome of a transaction is unknown" in story
    assert "was thrown away" not in story  # as where it had been taken for aborted first


@pytest.mark.parametrize(("call", "path"), [("hdfs.upload", "/0-0"), ("hdfs.rename", "/0/0/00000000000000000000")])
def test_records_polled_after_a_failure_are_not_delivered_before_those_that_failed(call: str, path: str) -> None:
    """Records polled between a failure and the seek are read again, behind those that failed."""
    run = run_story(
        "hdfs", topic(1), start("h1"), put(good=3, after=5),
        stream(60, every=0.1), put(good=1, after=30),
        faults=(Fault("h1", call, 1, Kind.REFUSED, 0, on=path),),
    )  # fmt: skip
    assert run.world.faults


def test_records_behind_an_open_transaction_of_a_deleted_topic_were_stored() -> None:
    """Records behind an open transaction count as stored when their topic is deleted."""
    run = run_story(
        "solr", start("h1"), put(bad=2, after=5), replay(after=20),
        put(good=4, after=1), put(good=4, after=2), recreate(events=0, after=3),
        faults=(Fault("replay", "kafka.commit_transaction", 1, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.faults


@pytest.mark.parametrize("sink", ["spark-hdfs", "spark-solr"])
def test_records_removed_before_a_query_starts_are_reported(sink: str) -> None:
    """Records removed between a driver's lookup of the first offsets and its query are reported."""
    run = run_story(
        sink, start("h1"), put(good=3, after=2), retention(0, left=0, readers="asleep"),
        faults=(Fault("driver-1", "kafka.watermarks", 2, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert any("of t-0, which the brokers do not have" in line for line in run.world.story)


@pytest.mark.parametrize("sink", ["solr", "hbase"])
def test_all_records_of_a_recreated_topic_are_delivered(sink: str) -> None:
    """A recreated topic is delivered from its first record, although the group's offset is behind that."""
    run_story(
        sink, topic(1), start("h1"), put(good=3, after=2),
        recreate(events=8, after=0.5),
    )  # fmt: skip
