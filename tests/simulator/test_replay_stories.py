"""Stories of `agent replay`: what may become of a topic, a group or a process while a span is sent once more."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import NEW_IDS, OLD_METADATA, Step
from tests.simulator.stories import Run, told

BEGUN = (Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (4, 0)), Step(30, "put", (2, 0)))
"""An agent, and six events of two records that it has delivered by the time of the next step."""


def said(run: Run) -> str:
    return "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr", "hbase", "spark-hdfs"])
def test_a_span_is_replayed_once_beside_agents_whatever_is_killed(sink: str) -> None:
    run = told(
        sink, *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(20, "put", (2, 0)),
        faults=(Fault("again", "kafka.committed", 5, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.lives["again"] == 3  # it goes on, and is complete then
    (span,) = run.spans
    assert span.complete
    assert sum(end - first for first, end in span.ranges[span.complete].values()) == 2


def test_a_replay_begun_anew_delivers_all_once_more() -> None:
    run = told("hdfs", *BEGUN, Step(20, "replay-span", (0, None, True, "now")))
    assert set(run.again_delivered.values()) == {2}


@pytest.mark.parametrize(
    ("sink", "what", "number"),
    [("hdfs", "kafka.commit", 2), ("kafka", "kafka.committed", 4), ("solr", "kafka.committed", 5)],
)
def test_retention_overtakes_a_replay_that_was_killed(sink: str, what: str, number: int) -> None:
    run = told(
        sink, *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(0.4, "retention", (0, 1, "")),
        Step(20, "retention", (0, 0, "")), Step(20, "put", (2, 0)),
        faults=(Fault("again", what, number, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.faults
    assert "removed by retention" in said(run)
    assert "does not deliver" not in said(run)


def test_what_retention_takes_while_a_replay_reads_is_said_by_record() -> None:
    run = told(
        "solr", *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(2, "retention", (0, 1, "")),
        Step(30, "put", (2, 0)),
        faults=(Fault("again", "kafka.describe_topic", 3, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert "records 0 to 0 of t-0 were removed by retention before this replay came to them" in said(run)


def test_a_topic_made_again_ends_a_replay() -> None:
    run = told(
        "hdfs", *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(0.5, "recreate", (0, 0)),
        Step(60, "put", (2, 0)),
    )  # fmt: skip
    assert "again: topic t was deleted and created again: what this replay had still to deliver is lost" in said(run)


@pytest.mark.parametrize("sink", ["hdfs", "solr"])
def test_a_partition_that_is_added_meanwhile_is_not_of_the_span(sink: str) -> None:
    run = told(
        sink, *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(0.5, "partitions", (3,)),
        *(Step(4, "put", (1, 0)) for _ in range(6)),
        faults=(Fault("again", "kafka.commit", 1, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    (span,) = run.spans
    assert list(span.ranges[span.complete]) == [0]


def test_documents_keep_the_names_that_they_have_for_the_agents() -> None:
    run = told(
        "solr", Step(0, "inherit", (OLD_METADATA.index(NEW_IDS), 0)), *BEGUN[1:],
        Step(20, "replay-span", (30, None, False, "now")),
    )  # fmt: skip
    (span,) = run.spans
    assert sum(end - first for first, end in span.ranges[span.complete].values()) == 1  # the agents named the others
    assert len({name.partition("-")[0] for name in run.solr.collections["events"]}) == 1


def test_brokers_that_are_away_for_a_moment_do_not_end_a_replay() -> None:
    run = told(
        "hdfs", *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(1, "away", ("kafka", 12.0)),
        Step(30, "put", (2, 0)),
    )  # fmt: skip
    assert run.world.lives["again"] == 2  # it is run once, and once more in the end, when it is complete


def test_two_replays_beside_each_other_miss_what_each_has_deleted() -> None:
    """The second one deletes what the first has just brought back, and is killed: a drain meanwhile lacks nothing."""
    run = told(
        "hbase", Step(0, "start", ("h1",)), Step(2, "put", (3, 0)), Step(2, "replay-span", (0, None, False, "now")),
        Step(0.5, "replay-span", (0, None, False, "now")), Step(0, "drain", ("h1", "dies", 1)),
        faults=(Fault("again", "kafka.describe_topic", 5, Kind.KILLED, 0, life=2),), seed=62038386,
    )  # fmt: skip
    assert run.world.faults
    assert all(span.complete for span in run.spans)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
@pytest.mark.parametrize("then", [(), (Step(5, "put", (3, 0)), Step(5, "put", (2, 0)))])
def test_a_replay_is_complete_though_brokers_have_lost_what_it_had_replayed(
    sink: str, then: tuple[Step, ...]
) -> None:
    """Whether others have taken the places of those records, or not; the agents' group wants its operator."""
    run = told(sink, *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(60, "truncate", (0, 1)), *then)
    assert "this replay has come to record 2, and what is left of the span ends before record 1 now" in said(run)
    assert "agent group reset g.replay" not in said(run)
    (span,) = run.spans
    assert span.complete


def test_a_replay_whose_records_brokers_lose_meanwhile_goes_on_with_what_is_left() -> None:
    run = told(
        "solr", *BEGUN, Step(20, "replay-span", (0, None, False, "now")), Step(2, "truncate", (0, 1)),
        faults=(Fault("again", "kafka.describe_topic", 3, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert "again: partition 0: the brokers have lost records from 1 on" in said(run)
    (span,) = run.spans
    assert span.complete


def test_a_killed_replay_goes_on_in_other_partitions_than_that_which_brokers_have_cut() -> None:
    """Behind the end of the cut partition it would wait for records that are not of the span."""
    run = told(
        "spark-hdfs", Step(0, "start", ("h1",)), Step(2, "put", (2, 0)), Step(2, "put", (6, 0)),
        Step(2, "root", ("h1",)), Step(0, "put", (5, 0)), Step(0.5, "replay-span", (5, 1.0, False, "now")),
        Step(6, "truncate", (0, 1)),
        faults=(Fault("again", "hdfs.mkdirs", 3, Kind.LOST, 20.0, life=1),), seed=30,
    )  # fmt: skip
    assert "this replay has come to record 1, and what is left of the span ends before record 0 now" in said(run)
    (span,) = run.spans
    assert span.complete
