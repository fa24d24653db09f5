"""Conformance checks of a sink."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from flafka.plugins.batch import Batch
from flafka.plugins.conformance.components import Properties, check_component, make
from flafka.plugins.conformance.samples import describe_bodies, make_batch, sample_events
from flafka.plugins.errors import Conflict
from flafka.plugins.partitions import Assignment, Generation, OffsetRange, TopicPartition
from flafka.plugins.sink import CommittingSink, Receipt, Sink


def check_sink(
    cls: type[Sink[Any]],
    properties: Properties,
    delivered: Callable[[], Iterable[bytes]] | None = None,
    *,
    failing: Properties | None = None,
    assignment: Assignment | None = None,
) -> None:
    """Check that a sink delivers all flushed events, whatever fails meanwhile; a `CommittingSink` exactly once.

    A sink whose `duplicate_risk` is empty must not duplicate redelivered events.

    `delivered` returns the bodies at the destination, in any order; None if they cannot be read. `failing` are
    properties with which `open` fails. `assignment` is a partition for the commit log of a `CommittingSink`; the
    default suits most sinks.
    """
    check_component(cls, properties, failing=failing)
    bodies: list[bytes] = []
    events = sample_events()
    batches = [make_batch(part, offset) for offset, part in enumerate((events[:1], events, events[:50], events[50:]))]
    for batch in batches:
        bodies += batch.bodies.to_pylist()
    assignment = assignment or Assignment(_PARTITION, f"group-{time.time_ns()}", Generation())
    once = True
    if issubclass(cls, CommittingSink):
        _check_commits(cls, properties, batches, assignment)
    else:
        once = not make(cls, properties).duplicate_risk(assignment)
        _check_flushes(cls, properties, batches)
        if once:  # as after a kill between the flush and the channel's commit
            _deliver(cls, properties, batches[1:])
    if delivered is not None:
        arrived = Counter(delivered())
        assert not (missing := Counter(bodies) - arrived), f"{cls.__name__} lost {describe_bodies(missing)}"
        assert not (unexpected := arrived.keys() - set(bodies)), (
            f"{cls.__name__} delivered what nobody wrote: {describe_bodies(unexpected)}"
        )
        if once:
            twice = describe_bodies((arrived - Counter(bodies)).elements())
            why = "" if issubclass(cls, CommittingSink) else ", though duplicate_risk() is empty"
            assert arrived == Counter(bodies), f"{cls.__name__} delivered twice{why}: {twice}"


def _check_flushes(cls: type[Sink[Any]], properties: Properties, batches: list[Batch]) -> None:
    """Write, flush and reset a sink as after failures, so that each event is delivered at least once."""
    with contextlib.closing(make(cls, properties)) as sink:  # ends like a crash before the flush
        sink.open()
        sink.flush()  # without a write
        sink.reset()
        sink.write(batches[0])
        sink.write(batches[1])
        sink.flush()
        sink.write(batches[2])
        sink.reset()  # after a failure the runner drops unflushed events and redelivers them
        sink.write(batches[2])
        sink.flush()
        sink.write(batches[3])
    _deliver(cls, properties, batches[3:])


def _deliver(cls: type[Sink[Any]], properties: Properties, batches: list[Batch]) -> None:
    """Write these batches to a new sink and flush it."""
    with contextlib.closing(make(cls, properties)) as sink:
        sink.open()
        for batch in batches:
            sink.write(batch)
        sink.flush()


_PARTITION = TopicPartition("conformance", "conformance", "conformance-id", 0)


def _check_commits(
    cls: type[CommittingSink[Any]], properties: Properties, batches: list[Batch], assignment: Assignment
) -> None:
    """Check that a committing sink commits once, resumes at the right offset, and lets one of two owners commit."""
    name = cls.__name__

    def begin(expected: int | None, committed: int | None) -> tuple[CommittingSink[Any], Assignment]:
        sink = make(cls, properties)
        sink.open()
        resumed = sink.resume(assignment.with_offset(committed))
        start = resumed.next_offset
        assert start == expected, f"{name}.resume returns offset {start} instead of {expected}"
        return sink, resumed

    def stage(sink: CommittingSink[Any], start: int, end: int) -> Receipt:
        offsets = OffsetRange(start, end)
        for batch in batches[start:end]:
            sink.write(batch)
        receipt = sink.stage(assignment, offsets)
        written = sum(len(batch) for batch in batches[start:end])
        # Without the offset: a sink may store the end of the records in the assignment.
        assert (receipt.assignment.with_offset(None), receipt.offsets, receipt.events) == (
            assignment.with_offset(None),
            offsets,
            written,
        ), f"{name}.stage gives a receipt of something else: {receipt}"
        unpickled: Receipt = pickle.loads(pickle.dumps(receipt))  # noqa: S301  # as from a Spark executor
        return unpickled

    sink, assignment = begin(None, None)
    sink.write(batches[0])
    sink.reset(0)
    sink.commit(stage(sink, 0, 2))
    stage(sink, 2, 3)
    sink.close()  # a crash between stage and commit
    # Of two owners of the partition, only one may commit.
    (sink, _), (zombie, _) = begin(2, 0), begin(2, None)
    late = stage(zombie, 2, 4)
    winners = 0
    with contextlib.suppress(Conflict):
        sink.commit(stage(sink, 2, 3))
        winners += 1
    with contextlib.suppress(Conflict):
        zombie.commit(late)
        winners += 1
    assert winners, f"{name} lets neither of two owners commit"
    assert winners == 1, f"{name} lets two owners commit the same records: their events are duplicated"
    zombie.close()
    sink.reset()
    end = sink.resume(assignment.with_offset(2)).next_offset
    assert end in (3, 4), f"{name}.resume returns offset {end} after a commit up to 3 or 4"
    if end == 3:
        sink.commit(stage(sink, 3, 4))
    sink.close()  # a crash before the channel was committed
    begin(4, 2)[0].close()
