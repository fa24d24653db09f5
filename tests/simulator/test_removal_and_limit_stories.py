"""Stories of files that are removed, limits of topics that change, and file descriptors that run out, amid work."""

from __future__ import annotations

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import Step
from tests.simulator.stories import told

BEGIN = (Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (2, 0)))
MANIFEST = 3
"""Number of the rename that commits: the commit log begins with the first, and the second is a trial."""


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
@pytest.mark.parametrize("what", ["uploads", "directory", "staged", "staging"])
def test_files_that_are_removed_before_their_commit_are_delivered_all_the_same(sink: str, what: str) -> None:
    run = told(sink, *BEGIN, Step(3, "vanish", (what,)), Step(0, "put", (1, 0)), Step(20, "put", (1, 0)))
    assert sorted(run.delivered) == sorted(run.feed.stored)


@pytest.mark.parametrize("what", ["uploads", "directory"])
def test_files_that_are_removed_between_their_commit_and_their_renames_are_delivered_again(what: str) -> None:
    run = told(
        "hdfs", *BEGIN, Step(7, "vanish", (what,)), Step(30, "put", (1, 0)),
        faults=(Fault("h1", "hdfs.rename", MANIFEST, Kind.PAUSED_AFTER, 8.0),),
    )  # fmt: skip
    assert "t-0: records 0 to 0 are delivered again" in "\n".join(run.world.story)


def test_a_limit_of_the_channels_topic_that_is_lowered_costs_large_events_alone_until_it_is_raised() -> None:
    run = told(
        "solr",
        *BEGIN,
        Step(3, "limit", ("channel", 5.0, 10.0)),
        Step(20, "limit", ("channel", 5.0, 10.0)),
        Step(20, "put", (1, 0)),
    )
    assert run.refused.total() == 2
    assert sorted((run.delivered + run.refused).elements()) == sorted(run.bodies)


def test_a_limit_of_the_sinks_topic_that_is_lowered_costs_large_events_alone_until_it_is_raised() -> None:
    run = told(
        "kafka",
        *BEGIN,
        Step(3, "limit", ("sink", 5.0, 10.0)),
        Step(100, "limit", ("sink", 5.0, 10.0)),
        Step(20, "put", (1, 0)),
    )
    assert run.letters.total() == 2
    assert sorted((run.delivered + run.letters).elements()) == sorted(run.bodies)


def test_a_process_without_file_descriptors_takes_its_events_again_once_it_has_some() -> None:
    run = told("hdfs", *BEGIN, Step(2, "exhaust", ("h1", 30.0)), Step(1, "put", (1, 0)), Step(60, "put", (1, 0)))
    assert "Too many open files" in "\n".join(run.world.story)
    assert sorted(run.delivered) == sorted(run.feed.stored)
