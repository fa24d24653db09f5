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
from flafka.plugins.conformance.samples import batch_of, sample_events, some_of
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
    """Check that what a sink has flushed is delivered, whatever failed in between; once by a `CommittingSink`.

    A sink whose `repeats` is empty has to keep that promise when events are redelivered.

    `delivered` reads back all bodies that have arrived at its destination, in any order; None where there is no
    way to see them. The last argument is a partition whose commit log a `CommittingSink` can keep; any will do for
    most sinks.
    """
    check_component(cls, properties, failing=failing)
    bodies: list[bytes] = []
    events = sample_events()
    batches = [batch_of(some, offset) for offset, some in enumerate((events[:1], events, events[:50], events[50:]))]
    for batch in batches:
        bodies += batch.bodies.to_pylist()
    assignment = assignment or Assignment(_PARTITION, f"group-{time.time_ns()}", Generation())
    once = True
    if issubclass(cls, CommittingSink):
        _check_commits(cls, properties, batches, assignment)
    else:
        once = not make(cls, properties).duplicate_risk(assignment)
        _check_flushes(cls, properties, batches)
        if once:  # killed when it had flushed, and before the channel knew of it
            _deliver(cls, properties, batches[1:])
    if delivered is not None:
        found = Counter(delivered())
        assert not (missing := Counter(bodies) - found), f"{cls.__name__} lost {some_of(missing)}"
        assert not (wrong := found.keys() - set(bodies)), (
            f"{cls.__name__} delivered what nobody wrote: {some_of(wrong)}"
        )
        if once:
            twice = some_of((found - Counter(bodies)).elements())
            why = "" if issubclass(cls, CommittingSink) else ", though repeats() says that it does not"
            assert found == Counter(bodies), f"{cls.__name__} delivered twice{why}: {twice}"


def _check_flushes(cls: type[Sink[Any]], properties: Properties, batches: list[Batch]) -> None:
    with contextlib.closing(make(cls, properties)) as sink:  # at the end a crash before the flush
        sink.open()
        sink.flush()  # with nothing written
        sink.reset()
        sink.write(batches[0])
        sink.write(batches[1])
        sink.flush()
        sink.write(batches[2])
        sink.reset()  # a failure: the runner drops what is not flushed, and offers it again
        sink.write(batches[2])
        sink.flush()
        sink.write(batches[3])
    _deliver(cls, properties, batches[3:])


def _deliver(cls: type[Sink[Any]], properties: Properties, batches: list[Batch]) -> None:
    with contextlib.closing(make(cls, properties)) as sink:
        sink.open()
        for batch in batches:
            sink.write(batch)
        sink.flush()


_PARTITION = TopicPartition("conformance", "conformance", "conformance-id", 0)


def _check_commits(
    cls: type[CommittingSink[Any]], properties: Properties, batches: list[Batch], assignment: Assignment
) -> None:
    name = cls.__name__

    def begin(expected: int | None, committed: int | None) -> tuple[CommittingSink[Any], Assignment]:
        sink = make(cls, properties)
        sink.open()
        resumed = sink.resume(assignment.at(committed))
        start = resumed.next_offset
        assert start == expected, f"{name}.resume answers {start} where it should go on at {expected}"
        return sink, resumed

    def stage(sink: CommittingSink[Any], start: int, end: int) -> Receipt:
        offsets = OffsetRange(start, end)
        for batch in batches[start:end]:
            sink.write(batch)
        receipt = sink.stage(assignment, offsets)
        written = sum(len(batch) for batch in batches[start:end])
        # At whatever offset: a sink may note in it where the records end.
        assert (receipt.assignment.at(None), receipt.offsets, receipt.events) == (
            assignment.at(None),
            offsets,
            written,
        ), f"{name}.stage gives a receipt of something else: {receipt}"
        travelled: Receipt = pickle.loads(pickle.dumps(receipt))  # noqa: S301  # as from a Spark executor
        return travelled

    sink, assignment = begin(None, None)
    sink.write(batches[0])
    sink.reset(0)
    sink.commit(stage(sink, 0, 2))
    stage(sink, 2, 3)
    sink.close()  # a crash between stage and commit
    # Two owners: whichever the sink lets win, the other must not commit.
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
    assert winners == 1, f"{name} lets two owners commit the same records: what they hold is there twice"
    zombie.close()
    sink.reset()
    end = sink.resume(assignment.at(2)).next_offset
    assert end in (3, 4), f"{name}.resume answers {end} after a commit up to 3 or 4"
    if end == 3:
        sink.commit(stage(sink, 3, 4))
    sink.close()  # a crash before the channel was committed
    begin(4, 2)[0].close()
