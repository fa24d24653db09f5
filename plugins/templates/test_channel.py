"""Conformance checks of the channel `my_channel`."""

from __future__ import annotations

from pathlib import Path

from flafka import Batch, Event
from flafka.plugins import conformance
from flafka.plugins.templates.channel import MyChannel


def test_it_keeps_the_promises_of_a_channel(tmp_path: Path) -> None:
    """Run the kit: events are redelivered until they are committed, also after a restart."""
    conformance.check_channel(MyChannel, {"path": str(tmp_path / "kit.db")})


def test_another_reader_takes_over(tmp_path: Path) -> None:
    """Close the reader that has the partition: the next one gets the uncommitted events."""
    channel = conformance.make(MyChannel, {"path": str(tmp_path / "readers.db")})
    channel.open()
    first, second = (
        channel.reader(conformance.AssignmentListener(), group=None, member=member) for member in ("a", "b")
    )
    channel.put(Batch.of([Event(b"hello")]))
    assert first.take(0) is not None
    assert second.take(0) is None
    first.close()
    redelivered = second.take(0)
    assert redelivered is not None
    assert [event.body for event in redelivered.batch] == [b"hello"]
    second.close()
    channel.close()
