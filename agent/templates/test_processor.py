"""Output of the processor `my_processor`, on a real Spark and without Kafka."""

from __future__ import annotations

from flafka import Event
from flafka.agent.templates.processor import my_processor
from flafka.agent.testing import run_processor


def test_what_it_makes_of_events() -> None:
    """Each list of events is a micro-batch."""
    rows = run_processor(my_processor, [Event(b"an error"), Event(b"fine")], options={"word": "error"})
    assert [(bytes(row.body), row.headers) for row in rows] == [(b"an error", {"bytes": "8"})]
