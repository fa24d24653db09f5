"""Selectors: a batch is divided as if each event chose for itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.runner.local.routing import Selector
from flafka.agent.topology import Route, SelectorSpec
from flafka.plugins import Batch, Event, Origin

NAMES = ("c1", "c2", "c3", "c4")
VALUES = st.sampled_from(["a", "b", "é", " ", "A"])
CHANNELS = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(tuple)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    required = draw(CHANNELS)
    return Route(required, tuple(name for name in draw(CHANNELS) if name not in required))


@given(
    st.lists(st.one_of(st.none(), VALUES), max_size=12),
    st.dictionaries(st.sampled_from(["a", "b", "é"]), routes()),
    routes(),
)
def test_a_batch_is_divided_by_the_choice_of_each_event(
    values: list[str | None], mapping: dict[str, Route], default: Route
) -> None:
    selector = Selector(SelectorSpec("multiplexing", default, "kind", mapping))
    events = [Event(b"\xff", {} if value is None else {"kind": value}) for value in values]
    batch = Batch.of(events, Origin.of_record("t", 0, 0, 0, len(events)))
    routed = {
        (channel, required, id.index)
        for channel, part, required in selector.route(batch)
        for id in part.ids()
    }  # fmt: skip
    expected, nowhere = set(), 0
    for row, value in enumerate(values):
        route = mapping.get(value or "", default)
        expected |= {(name, True, row) for name in route.required} | {(name, False, row) for name in route.optional}
        nowhere += not (route.required or route.optional)
    assert routed == expected
    assert selector.unrouted(batch) == nowhere
    for _, part, _ in selector.route(batch):
        rows = [id.index for id in part.ids()]
        assert rows == sorted(rows)
        assert list(part) == [events[row] for row in rows]


def test_a_batch_of_one_value_is_not_divided() -> None:
    selector = Selector(SelectorSpec("multiplexing", Route(), "kind", {"a": Route(("c1",), ("c2",))}))
    batch = Batch.of([Event(b"x", {"kind": "a"})] * 3)
    assert [(name, required) for name, part, required in selector.route(batch) if part is batch] == [
        ("c1", True),
        ("c2", False),
    ]


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_batches_take_turns(policy: str) -> None:
    selector = Selector(SelectorSpec("load_balancing", Route(NAMES), policy=policy))
    batch = Batch.of([Event(b"x")])
    taken = Counter(routed.channel for _ in range(400) for routed in selector.route(batch))
    assert set(taken) == set(NAMES)
    assert policy == "random" or set(taken.values()) == {100}
