"""Stories of files that are removed, limits of topics that change, and file descriptors that run out, amid work."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.steps import exhaust, limit, put, start, topic, vanish
from tests.simulator.stories import run_story

BEGIN = (topic(1), start("h1"), put(good=2, after=5))
FIRST_COMMIT = "/0/0/00000000000000000000"
"""Part of the path to which an agent renames its first commit in partition 0."""


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
@pytest.mark.parametrize("what", ["uploads", "directory", "staged", "staging"])
def test_events_of_files_removed_before_their_commit_are_delivered(sink: str, what: str) -> None:
    """Events of files that were removed before their commit are delivered."""
    run = run_story(sink, *BEGIN, vanish(what, after=3), put(good=1), put(good=1, after=20))
    assert sorted(run.delivered) == sorted(run.feed.stored)


@pytest.mark.parametrize("what", ["uploads", "directory"])
def test_files_removed_between_commit_and_rename_are_redelivered(what: str) -> None:
    """Files that were removed between their commit and their renames are redelivered."""
    run = run_story(
        "hdfs", *BEGIN, vanish(what, after=7), put(good=1, after=30),
        faults=(Fault("h1", "hdfs.rename", 1, Kind.PAUSED_AFTER, 8.0, on=FIRST_COMMIT),),
    )  # fmt: skip
    assert "t-0: records 0 to 0 are delivered again" in "\n".join(run.world.story)


def test_a_lower_limit_of_the_channels_topic_refuses_only_large_events() -> None:
    """A lower `max.message.bytes` of the channel's topic makes only large events dead letters."""
    run = run_story(
        "solr",
        *BEGIN,
        limit("channel", delay=5.0, seconds=10.0, after=3),
        limit("channel", delay=5.0, seconds=10.0, after=20),
        put(good=1, after=20),
    )
    assert run.refused.total() == 2
    assert sorted((run.delivered + run.refused).elements()) == sorted(run.bodies)


def test_a_lower_limit_of_the_sinks_topic_rejects_only_large_events() -> None:
    """A lower `max.message.bytes` of the sink's topic makes only large events dead letters."""
    run = run_story(
        "kafka",
        *BEGIN,
        limit("sink", delay=5.0, seconds=10.0, after=3),
        limit("sink", delay=5.0, seconds=10.0, after=100),
        put(good=1, after=20),
    )
    assert run.dead_letters.total() == 2
    assert sorted((run.delivered + run.dead_letters).elements()) == sorted(run.bodies)


def test_a_process_that_ran_out_of_file_descriptors_delivers_afterwards() -> None:
    """An agent that ran out of file descriptors delivers all events once it has some."""
    run = run_story("hdfs", *BEGIN, exhaust("h1", seconds=30.0, after=2), put(good=1, after=1), put(good=1, after=60))
    assert "Too many open files" in "\n".join(run.world.story)
    assert sorted(run.delivered) == sorted(run.feed.stored)
