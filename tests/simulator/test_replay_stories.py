"""Stories of `agent replay`: what may become of a topic, a group or a process while a span is sent once more."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import NEW_IDS
from tests.simulator.steps import (
    Step,
    away,
    drain,
    inherit,
    partitions,
    put,
    recreate,
    replay_span,
    retention,
    root,
    start,
    topic,
    truncate,
)
from tests.simulator.stories import Run, run_story

BEGUN = (topic(1), start("h1"), put(good=4, after=5), put(good=2, after=30))
"""An agent, and six events of two records that it has delivered by the time of the next step."""


def log_of(run: Run) -> str:
    return "\n".join(run.world.story)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr", "hbase", "spark-hdfs"])
def test_a_killed_replay_delivers_its_span_once(sink: str) -> None:
    """A replay beside agents that is killed and run again delivers its span once."""
    run = run_story(
        sink, *BEGUN, replay_span(0, after=20), put(good=2, after=20),
        faults=(Fault("again", "kafka.committed", 5, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.lives["again"] == 3  # it continues and completes
    (span,) = run.spans
    assert span.complete
    assert sum(end - first for first, end in span.ranges[span.complete].values()) == 2


def test_a_replay_with_again_delivers_everything_once_more() -> None:
    """A replay with `--again` delivers its whole span once more."""
    run = run_story("hdfs", *BEGUN, replay_span(0, anew=True, after=20))
    assert set(run.replay_deliveries.values()) == {2}


@pytest.mark.parametrize(
    ("sink", "what", "number"),
    [("hdfs", "kafka.commit", 2), ("kafka", "kafka.committed", 4), ("solr", "kafka.committed", 5)],
)
def test_retention_overtakes_a_killed_replay(sink: str, what: str, number: int) -> None:
    """A killed replay continues behind the records that retention removed, and reports them."""
    run = run_story(
        sink, *BEGUN, replay_span(0, after=20), retention(0, left=1, after=0.4),
        retention(0, left=0, after=20), put(good=2, after=20),
        faults=(Fault("again", what, number, Kind.KILLED, 0),),
    )  # fmt: skip
    assert run.world.faults
    assert "removed by retention" in log_of(run)
    assert "does not deliver" not in log_of(run)


def test_records_removed_during_a_replay_are_reported() -> None:
    """Records that retention removes while a replay reads are reported with their offsets."""
    run = run_story(
        "solr", *BEGUN, replay_span(0, after=20), retention(0, left=1, after=2),
        put(good=2, after=30),
        faults=(Fault("again", "kafka.describe_topic", 3, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert "records 0 to 0 of t-0 were removed by retention before this replay read them" in log_of(run)


def test_a_recreated_topic_ends_a_replay() -> None:
    """A replay ends with an error if its topic is recreated."""
    run = run_story(
        "hdfs", *BEGUN, replay_span(0, after=20), recreate(events=0, after=0.5),
        put(good=2, after=60),
    )  # fmt: skip
    lost = "again: topic t was deleted and recreated: the records that this replay had still to deliver are lost"
    assert lost in log_of(run)


@pytest.mark.parametrize("sink", ["hdfs", "solr"])
def test_a_partition_added_during_a_replay_is_not_in_its_span(sink: str) -> None:
    """A partition that is added during a replay is not in its span."""
    run = run_story(
        sink, *BEGUN, replay_span(0, after=20), partitions(3, after=0.5),
        *(put(good=1, after=4) for _ in range(6)),
        faults=(Fault("again", "kafka.commit", 1, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    (span,) = run.spans
    assert list(span.ranges[span.complete]) == [0]


def test_replayed_documents_keep_their_ids() -> None:
    """Replayed documents have the IDs that the agents gave them."""
    run = run_story(
        "solr", inherit(NEW_IDS, offset=0), *BEGUN[1:],
        replay_span(30, after=20),
    )  # fmt: skip
    (span,) = run.spans
    assert sum(end - first for first, end in span.ranges[span.complete].values()) == 1  # the agents named the others
    assert len({name.partition("-")[0] for name in run.solr.collections["events"]}) == 1


def test_a_short_outage_does_not_end_a_replay() -> None:
    """A replay continues after brokers were unreachable for 12 s."""
    run = run_story(
        "hdfs", *BEGUN, replay_span(0, after=20), away("kafka", seconds=12.0, after=1),
        put(good=2, after=30),
    )  # fmt: skip
    assert run.world.lives["again"] == 2  # it is run once, and once more in the end, when it is complete


def test_two_replays_at_once_are_both_complete() -> None:
    """Two replays at once are complete, although the second deletes documents of the first and is killed."""
    run = run_story(
        "hbase", start("h1"), put(good=3, after=2), replay_span(0, after=2),
        replay_span(0, after=0.5), drain("h1", other="dies", events=1),
        faults=(Fault("again", "kafka.describe_topic", 5, Kind.KILLED, 0, life=2),), seed=62038386,
    )  # fmt: skip
    assert run.world.faults
    assert all(span.complete for span in run.spans)


@pytest.mark.parametrize("sink", ["hdfs", "kafka", "solr"])
@pytest.mark.parametrize("then", [(), (put(good=3, after=5), put(good=2, after=5))])
def test_a_replay_is_complete_after_brokers_lost_replayed_records(sink: str, then: tuple[Step, ...]) -> None:
    """A replay is complete if brokers lost records that it had replayed, reused offsets or not."""
    run = run_story(sink, *BEGUN, replay_span(0, after=20), truncate(0, lost=1, after=60), *then)
    assert "this replay has committed offset 2, and the span ends before record 1 now" in log_of(run)
    assert "agent group reset g.replay" not in log_of(run)
    (span,) = run.spans
    assert span.complete


def test_a_replay_continues_with_the_records_that_brokers_did_not_lose() -> None:
    """A replay continues with the rest of its span if brokers lose records meanwhile."""
    run = run_story(
        "solr", *BEGUN, replay_span(0, after=20), truncate(0, lost=1, after=2),
        faults=(Fault("again", "kafka.describe_topic", 3, Kind.PAUSED, 20.0),),
    )  # fmt: skip
    assert "again: partition 0: the brokers have lost records from 1 on" in log_of(run)
    (span,) = run.spans
    assert span.complete


def test_a_killed_replay_continues_in_partitions_that_were_not_truncated() -> None:
    """A killed replay ends a truncated partition, and continues in the others."""
    run = run_story(
        "spark-hdfs", start("h1"), put(good=2, after=2), put(good=6, after=2),
        root("h1", after=2), put(good=5), replay_span(5, kill_after=1.0, after=0.5),
        truncate(0, lost=1, after=6),
        faults=(Fault("again", "hdfs.mkdirs", 1, Kind.LOST, 20.0, on="/g.replay."),), seed=10,
    )  # fmt: skip
    assert "this replay has committed offset 1, and the span ends before record 0 now" in log_of(run)
    (span,) = run.spans
    assert span.complete
