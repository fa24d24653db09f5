"""Conformance checks of the interceptor `my_interceptor`."""

from __future__ import annotations

from flafka import Batch, Event
from flafka.plugins import conformance
from flafka.plugins.templates.interceptor import MyInterceptor


def test_it_keeps_the_promises_of_an_interceptor() -> None:
    """Run the kit with additional events that the interceptor changes, or that could make it fail."""
    events = [Event(b'{"type": "login"}'), Event(b'{"type": null}', {"type": "kept"}), Event(b"[" * 100_000)]
    conformance.check_interceptor(MyInterceptor, {}, events=events)


def test_what_it_makes_of_an_event() -> None:
    """Check the header that the field of a body becomes."""
    interceptor = conformance.make(MyInterceptor, {})
    (event, other) = interceptor.intercept(Batch.of([Event(b'{"type": "login"}'), Event(b"{}")]))
    assert (event.headers, other.headers) == ({"type": "login"}, {})
    assert interceptor.metrics.get("FieldMissingCount") == 1
