"""Conformance checks of an interceptor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flafka.plugins.batch import Batch
from flafka.plugins.conformance.components import Properties, check_component, make
from flafka.plugins.conformance.samples import make_batch, sample_events
from flafka.plugins.event import Event
from flafka.plugins.interceptor import Interceptor


def check_interceptor(
    cls: type[Interceptor[Any]],
    properties: Properties,
    *,
    events: Iterable[Event] = (),
    prepare: Callable[[Any], None] = lambda interceptor: None,
) -> None:
    """Check that an interceptor treats each event independently, preserves ids, and modifies no input batch.

    `events` are events that the interceptor changes; the check adds `sample_events`. `prepare` makes an
    impure interceptor deterministic, such as by a fixed clock.
    """
    check_component(cls, properties)
    interceptor = make(cls, properties)
    _check_declared_purity(interceptor)
    prepare(interceptor)
    interceptor.open()
    try:
        given = [*events, *sample_events()]
        for batch in ([], given[:1], given):
            _check_intercept(interceptor, batch)
    finally:
        interceptor.close()


def _check_declared_purity(interceptor: Interceptor[Any]) -> None:
    """Check that the class declares the purity of the instance, as the documentation is made of the class."""
    cls = type(interceptor)
    if interceptor.pure != cls.pure:
        assert interceptor.pure, f"{cls.__name__} is not pure with these properties: say pure = False of the class"
        assert cls.pure_with, f"{cls.__name__} is pure with these properties alone: name the option in pure_with"
    options = [option.name for option in cls.config_class.options()]
    assert cls.pure_with in ("", *options), f"{cls.__name__}.pure_with is no option of it"


def _check_intercept(interceptor: Interceptor[Any], events: list[Event]) -> None:
    """Check the result for one batch of these events, against the results for each event alone."""
    name = type(interceptor).__name__
    batch = make_batch(events, 7)
    result = interceptor.intercept(batch)
    assert list(batch) == events, f"{name} changes the batch it was given"
    alone = [interceptor.intercept(batch.slice(row, 1)) for row in range(len(batch))]
    assert list(result) == [event for result_alone in alone for event in result_alone], (
        f"{name} treats an event otherwise when it is alone in a batch"
    )
    if (names := interceptor.sets_headers()) is not None:
        new = set(result.header_names) - {*batch.header_names, *names}
        assert not new, f"{name} sets headers that sets_headers() does not name: {', '.join(sorted(new))}"
    assert result.origin is not None, f"{name} drops the ids of events: use where(), map() and with_…()"
    assert result.ids() == [id for result_alone in alone for id in result_alone.ids()], (
        f"{name} mixes up the ids of events"
    )
    assert set(result.ids()) <= set(batch.ids()), f"{name} invents ids"
    without = interceptor.intercept(Batch(batch.records))
    assert list(without) == list(result), f"{name} needs an origin, which a batch before the channel does not have"
    if interceptor.pure:
        assert list(interceptor.intercept(batch)) == list(result), f"{name} says it is pure, but gives another result"
